"""The client's credentials for an API server, and the CA that it trusts: kept current while the agent runs.

There are three kinds of it. What stands in the kubeconfig itself never changes. Files do: a certificate that is
rotated, a projected token, a new authority. A program is asked when what it said last has expired or was refused.

No task runs for this. Everything is looked at when it is needed: tokens and, once a minute, the other files with each
request (a node sends one every few seconds), all files before each new connection. That loses nothing, since nobody
could use what changed in between. When certificates have changed, listeners are called, since connections made before
are to be left.

What is worse than before is not taken: a file that is half written, or a certificate whose key has not come yet, leaves
the last good one in use.
"""

from __future__ import annotations

import math
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.kube_client.certificates.reading import read_certificates
from trikubelet.kube_client.errors import CredentialsError
from trikubelet.kube_client.exec_plugin import ExecCredential, ExecPluginError, exec_info, run_exec_plugin
from trikubelet.kube_client.tls import KeyPair, TlsError, client_context
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from trikubelet.clock import WallClock
    from trikubelet.kube_client.kubeconfig import ClusterAccess, ExecSettings

TOKEN_PERIOD: Final = 50.0
"""Seconds that a token file's content is used before it is read again: a minute less client-go's leeway."""
FILE_PERIOD: Final = 60.0
"""Seconds between two looks at certificates while no connection is made."""
_PLUGIN_REST: Final = 1.0
"""Seconds during which a program is not run again, whether it failed or its answer was refused."""
_MAX_FILE: Final = 10 * 2**20

log = get_logger("credentials")

Signature = tuple[int, int, int, int]
"""What tells one version of a file from another: device, inode, size, time of change."""


class Credentials:
    """Headers and TLS contexts for one API server. Used by any number of tasks."""

    def __init__(
        self, access: ClusterAccess, *, clock: WallClock, environment: Mapping[str, str], proxy_url: str = ""
    ) -> None:
        """`environment` is what a plugin is started with; `proxy_url` the proxy in its ExecCredential."""
        settings = access.credentials
        self._request = f"connect to {access.server}"
        self._pem = _PemFiles(access)
        self._kubeconfig = access.file
        self._clock = clock
        self._logged_expired: KeyPair | None = None
        self._fixed = _fixed_header(access)
        self._token_file = _TokenFile(settings.token_file) if settings.token_file is not None else None
        self._plugin: _Plugin | None = None
        if settings.plugin is not None:
            self._plugin = _Plugin(_asking(settings.plugin, access, self._pem, environment, proxy_url), clock)
        self._checked = -math.inf
        self._listeners: list[Callable[[], None]] = []

    async def headers(self) -> Mapping[str, str]:
        """The header fields that authenticate a request. Raises CredentialsError. May run a plugin, else never
        waits."""
        plugged = await self._ask_plugin()
        if self._pem.context is not None and self._is_check_due(plugged):
            self._check_files(plugged)
        if plugged is not None:
            return _bearer(plugged.token)
        if self._token_file is not None:
            try:
                return _bearer(self._token_file.token())
            except _TokenFileError as error:
                raise CredentialsError(self._request, str(error)) from error
        return self._fixed

    async def tls_context(self) -> ssl.SSLContext:
        """The context for a connection that is made now. Raises CredentialsError. May run a plugin."""
        plugged = await self._ask_plugin()
        context = self._check_files(plugged)
        if context is None:
            raise CredentialsError(self._request, self._pem.problem)
        return context

    def rejected(self, headers: Mapping[str, str]) -> None:
        """The server does not accept these headers (or, without any, the connection's certificate) any more."""
        self._checked = -math.inf
        if self._token_file is not None:
            self._token_file.refuse(headers)
        if self._plugin is not None:
            self._plugin.refuse(headers)

    def reload(self) -> None:
        """A file is known to have changed: look at all of them now. Listeners are called if one has, or now is
        there."""
        if self._token_file is not None:
            self._token_file.expire()
        context = self._pem.context
        if context is None and not self._pem.problem:
            return  # no request was made yet
        if self._check_files(self._plugin.current if self._plugin is not None else None) and context is None:
            self._notify()

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called synchronously when connections must be made anew, and when the first can be made.

        A task would learn of it too late: the request that found the change must not go out on an old connection.
        """
        self._listeners.append(listener)

    async def _ask_plugin(self) -> ExecCredential | None:
        if self._plugin is None:
            return None
        try:
            return await self._plugin.credential()
        except ExecPluginError as error:
            raise CredentialsError(self._request, f"getting credentials: {error}") from error

    def _is_check_due(self, plugged: ExecCredential | None) -> bool:
        if plugged is not None and plugged.pair != self._pem.plugged:
            return True
        return trio.current_time() >= self._checked + FILE_PERIOD

    def _check_files(self, plugged: ExecCredential | None) -> ssl.SSLContext | None:
        self._checked = trio.current_time()
        if self._pem.reload(plugged.pair if plugged is not None else None):
            log.info("certificates have changed, connections are made anew")
            self._notify()
        self._warn_if_expired()
        return self._pem.context

    def _warn_if_expired(self) -> None:
        """Once of each certificate. It stays in use: what has ended, the server decides, and another may come."""
        pair, expires = self._pem.pair, self._pem.expires
        if pair is None or pair == self._logged_expired or expires is None or self._clock.now() <= expires:
            return
        self._logged_expired = pair
        log.warning(
            "the client certificate has expired, so the API server will not know us (401 Unauthorized): "
            "put a new certificate with its key in its place, or give --bootstrap-kubeconfig to have one asked for",
            file=self._pem.place_of_certificate(self._kubeconfig),
            expired=expires.isoformat(),
        )

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def _fixed_header(access: ClusterAccess) -> Mapping[str, str]:
    settings = access.credentials
    if settings.token:
        return _bearer(settings.token)
    if settings.username or settings.password:
        login = b64encode(f"{settings.username}:{settings.password}".encode()).decode()
        return {"Authorization": f"Basic {login}"}
    return {}


def _bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _asking(
    plugin: ExecSettings, access: ClusterAccess, pem: _PemFiles, environment: Mapping[str, str], proxy_url: str
) -> Callable[[], Awaitable[ExecCredential]]:
    async def ask() -> ExecCredential:
        try:
            authority = _content(access.tls.authority) if plugin.provide_cluster_info else None
        except OSError as error:
            problem = f"failed to load CA bundle for execProvider: {_os_error_text(error)}"
            raise ExecPluginError(problem) from error
        answer = await run_exec_plugin(plugin, exec_info(plugin, access, authority, proxy_url), environment)
        if answer.pair is not None:
            try:
                client_context(None, answer.pair, insecure=True)
            except TlsError as error:
                raise ExecPluginError(f"failed parsing client key/certificate: {error}") from error
        return answer

    return ask


class _PemFiles:
    """The TLS context made of authority, certificate and key, wherever they are."""

    def __init__(self, access: ClusterAccess) -> None:
        self._authority = access.tls.authority
        self._certificate = access.credentials.certificate
        self._key = access.credentials.key
        self._insecure = access.tls.insecure
        self._signatures: list[Signature | None] | None = None
        self._made_of: tuple[bytes | None, KeyPair | None] | None = None
        self.plugged: KeyPair | None = None
        self.expires: datetime | None = None
        """When the certificate of `context` does; None without one."""
        self.context: ssl.SSLContext | None = None
        self.problem = ""
        """Why the files as they are now cannot be used; empty when they can."""

    def reload(self, plugged: KeyPair | None) -> bool:
        """Bring `context` up to date; True when it replaced another one. Blocks on small files."""
        try:
            signatures = [_signature(part) for part in (self._authority, self._certificate, self._key)]
            if signatures == self._signatures and plugged == self.plugged:
                self.problem = ""
                return False
            made_of = (_content(self._authority), self._pair() or plugged)
            same = made_of == self._made_of
            context = self.context if same else client_context(*made_of, insecure=self._insecure)
        except (OSError, TlsError) as error:
            self._complain(_os_error_text(error) if isinstance(error, OSError) else str(error))
            return False
        replaced = self.context is not None and not same
        self.context, self._made_of, self._signatures, self.plugged = context, made_of, signatures, plugged
        if not same:
            self.expires = None if self.pair is None else _expiry(self.pair)
        self.problem = ""
        return replaced

    @property
    def pair(self) -> KeyPair | None:
        """What `context` identifies us with."""
        return None if self._made_of is None else self._made_of[1]

    def place_of_certificate(self, kubeconfig: Path | None) -> str:
        """The file that the certificate stands in, or the program that it came from."""
        if self._certificate is None or self._key is None:
            return "the answer of the credential plugin"
        return str(self._certificate if isinstance(self._certificate, Path) else kubeconfig or "the kubeconfig")

    def _pair(self) -> KeyPair | None:
        if self._certificate is None or self._key is None:
            return None
        certificate = _content(self._certificate) or b""
        # Of one file for both, two reads could see two versions.
        key = certificate if self._key == self._certificate else _content(self._key) or b""
        return KeyPair(certificate, key)

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            if self.context is not None:
                log.warning("certificates cannot be reloaded, the last good ones stay in use", reason=problem)


@frozen
class _TokenFileError(Exception):
    message: str

    def __str__(self) -> str:
        return self.message


class _TokenFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._read_at = -math.inf

    def token(self) -> str:
        """The token of the file. Raises _TokenFileError when there never was one."""
        if trio.current_time() < self._read_at + TOKEN_PERIOD:
            return self._token
        try:
            self._token = self._read()
        except _TokenFileError as error:
            if not self._token:
                raise
            log.warning("the token file cannot be read again, its last token stays in use", reason=str(error))
        self._read_at = trio.current_time()
        return self._token

    def expire(self) -> None:
        self._read_at = -math.inf

    def refuse(self, headers: Mapping[str, str]) -> None:
        if headers.get("Authorization") == f"Bearer {self._token}":
            self.expire()

    def _read(self) -> str:
        try:
            text = (_content(self._path) or b"").decode().strip()
        except OSError as error:
            raise _TokenFileError(f'failed to read token file "{self._path}": {_os_error_text(error)}') from error
        except UnicodeDecodeError:
            raise _TokenFileError(f'failed to read token file "{self._path}": expected text') from None
        if not text:
            raise _TokenFileError(f'read empty token from file "{self._path}"')
        if not text.isascii() or not text.isprintable() or " " in text:
            problem = "expected one token of ASCII characters, without spaces"
            raise _TokenFileError(f'failed to read token file "{self._path}": {problem}')
        return text


class _Plugin:
    """What a program said last. Callers while the program runs wait for that run."""

    def __init__(self, ask: Callable[[], Awaitable[ExecCredential]], clock: WallClock) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = trio.Lock()
        self._refused = False
        self._answered_at = -math.inf
        self._failure: ExecPluginError | None = None
        self._failed_at = -math.inf
        self.current: ExecCredential | None = None

    async def credential(self) -> ExecCredential:
        """Raises ExecPluginError. When the caller is cancelled the program is killed, and the next one runs it."""
        if self.current is not None and self._holds(self.current) and not self._refused:
            return self.current
        async with self._lock:
            if self.current is not None and self._holds(self.current) and not self._refused:
                return self.current
            if self._failure is not None and trio.current_time() < self._failed_at + _PLUGIN_REST:
                raise ExecPluginError(self._failure.message)
            try:
                answer = await self._ask()
            except ExecPluginError as error:
                return self._after(error)
            self.current, self._answered_at, self._refused, self._failure = answer, trio.current_time(), False, None
            return answer

    def _after(self, error: ExecPluginError) -> ExecCredential:
        if self._refused and self.current is not None and self._holds(self.current):
            # The refusal may have been a slip of the server.
            log.warning("refreshing credentials failed, the last ones stay in use", reason=str(error))
            self._refused, self._answered_at = False, trio.current_time()
            return self.current
        self._failure, self._failed_at = error, trio.current_time()
        raise error

    def refuse(self, headers: Mapping[str, str]) -> None:
        if self.current is None or trio.current_time() < self._answered_at + _PLUGIN_REST:
            return
        if headers.get("Authorization", "") == _bearer(self.current.token).get("Authorization", ""):
            self._refused = True

    def _holds(self, credential: ExecCredential) -> bool:
        return credential.expires is None or self._clock.now() <= credential.expires


def _expiry(pair: KeyPair) -> datetime | None:
    """The first end in a chain of certificates; None when it is unknown."""
    try:
        return min(part.not_after for part in read_certificates(pair.certificate))
    except ValueError:
        return None


def _content(part: bytes | Path | None) -> bytes | None:
    """Raises OSError."""
    if not isinstance(part, Path):
        return part
    with part.open("rb") as file:
        return file.read(_MAX_FILE)


def _signature(part: bytes | Path | None) -> Signature | None:
    if not isinstance(part, Path):
        return None
    status = part.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _os_error_text(error: OSError) -> str:
    return f"open {error.filename}: {(error.strerror or str(error)).lower()}"
