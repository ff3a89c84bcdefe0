"""Connections to an API server: through the proxy if there is one, encrypted, with the identity of the moment.

`open_access` makes an `Access` of a kubeconfig. A connection is a TCP connection to the server or its proxy, made
within 10 seconds together with everything that comes before the first request: what the proxy asks, and TLS, which also
says whether HTTP/2 is spoken.
"""

from __future__ import annotations

import os
import platform
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet import __version__
from trikubelet.clock import SystemClock
from trikubelet.formats.values import frozen
from trikubelet.kube_client.credentials import Credentials
from trikubelet.kube_client.errors import ApiUnreachable
from trikubelet.kube_client.kubeconfig import ClusterAccess, read_kubeconfig
from trikubelet.kube_client.kubeconfig_schema import split_server
from trikubelet.kube_client.proxy import Proxy, ProxyError, ask_proxy, choose_proxy
from trikubelet.kube_client.tls import handshake_problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from trikubelet.clock import WallClock

    Dial = Callable[[], Awaitable[trio.abc.Stream]]

CONNECT_TIMEOUT: Final = 10.0
KEEPALIVE_SECONDS: Final = 30
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def open_access(
    where: Path | ClusterAccess,
    *,
    clock: WallClock | None = None,
    user_agent: str = "",
    environment: Mapping[str, str] | None = None,
    dial: Dial | None = None,
) -> ClusterConnector:
    """The way to the API server of a kubeconfig. Nothing is connected, nothing but the kubeconfig itself is read.

    `environment` names proxies and is given to plugins (default: ours). `dial` makes the stream that TLS, if the URL
    is one of https, is spoken over, instead of TCP and proxies. Raises KubeconfigError.
    """
    access = read_kubeconfig(where) if isinstance(where, Path) else where
    variables = os.environ if environment is None else environment
    return ClusterConnector(access, clock or SystemClock(), user_agent or _user_agent(), variables, dial)


def _user_agent() -> str:
    machine = platform.machine()
    return f"trikubelet/{__version__} (linux/{_ARCHITECTURES.get(machine, machine)})"


class ClusterConnector:
    """The `Access` of a kubeconfig. Any number of tasks may use it."""

    def __init__(
        self,
        access: ClusterAccess,
        clock: WallClock,
        user_agent: str,
        environment: Mapping[str, str],
        dial: Dial | None,
    ) -> None:
        self._access = access
        self._environment = environment
        self._target = _Target.of(access)
        self._dial = dial or self._connect_tcp
        self.credentials = Credentials(access, clock=clock, environment=environment, proxy_url=self._proxy_text())
        self.server = access.server
        self.user_agent = user_agent

    @property
    def disable_compression(self) -> bool:
        """The kubeconfig asks for answers that are not compressed."""
        return self._access.disable_compression

    async def connect(self) -> tuple[trio.abc.Stream, str]:
        """See `Access.connect`."""
        context = await self.credentials.tls_context() if self._target.encrypted else None
        return await open_cluster_stream(self._access, dial=self._dial, context=context)

    async def headers(self) -> Mapping[str, str]:
        """See `Access.headers`."""
        return await self.credentials.headers()

    def rejected(self, headers: Mapping[str, str]) -> None:
        """See `Access.rejected`."""
        self.credentials.rejected(headers)

    def on_change(self, listener: Callable[[], None]) -> None:
        """See `Access.on_change`."""
        self.credentials.on_change(listener)

    def reload(self) -> None:
        """A certificate, key, authority or token file has changed: no need to wait for the next look at it."""
        self.credentials.reload()

    def _proxy(self) -> Proxy | None:
        target = self._target
        return choose_proxy(self._access.proxy_url, target.scheme, target.host, target.port, self._environment)

    def _proxy_text(self) -> str:
        try:
            proxy = self._proxy()
        except ProxyError:
            return ""  # connecting says it
        return self._access.proxy_url or (str(proxy) if proxy is not None else "")

    async def _connect_tcp(self) -> trio.abc.Stream:
        """A stream to the server, through the proxy if there is one. Raises OSError, ProxyError, Trio's errors."""
        proxy = self._proxy()
        if proxy is None:
            return await _open_tcp(self._target.host, self._target.port)
        stream: trio.abc.Stream = await _open_tcp(proxy.host, proxy.port)
        try:
            if proxy.scheme == "https":
                context = ssl.create_default_context()
                encrypted = trio.SSLStream(stream, context, server_hostname=proxy.host, https_compatible=True)
                await encrypted.do_handshake()
                stream = encrypted
            await ask_proxy(stream, proxy, self._target.host, self._target.port)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream


@frozen
class _Target:
    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, access: ClusterAccess) -> _Target:
        parts = split_server(access.server)
        if parts is None:
            raise ValueError(f"expected the URL of an API server, got {access.server!r}")
        return cls(parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))

    @property
    def encrypted(self) -> bool:
        return self.scheme == "https"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def open_cluster_stream(
    access: ClusterAccess, *, dial: Dial, context: ssl.SSLContext | None
) -> tuple[trio.abc.Stream, str]:
    """A stream that requests can be sent on, and the protocol that TLS agreed on ("" for none).

    `dial` connects, `context` encrypts (None: not at all). Raises ApiUnreachable, also after 10 seconds. When it fails
    or is cancelled nothing is left open.
    """
    target = _Target.of(access)
    request = f"connect to {access.server}"
    step = f"dial tcp {target}"
    stream: trio.abc.Stream | None = None
    try:
        with trio.fail_after(CONNECT_TIMEOUT):
            stream = await dial()
            if context is None:
                return stream, ""
            step = f"TLS with {target}"
            name = access.tls.server_name or target.host
            encrypted = trio.SSLStream(stream, context, server_hostname=name, https_compatible=True)
            await encrypted.do_handshake()
            return encrypted, encrypted.selected_alpn_protocol() or ""
    except BaseException as error:
        if stream is not None:
            await trio.aclose_forcefully(stream)
        if isinstance(error, _PROBLEMS):
            raise ApiUnreachable(request, f"{step}: {_problem(error)}", sent=False) from error
        raise


_PROBLEMS: Final = (trio.TooSlowError, trio.BrokenResourceError, OSError, ValueError, ProxyError)


def _problem(error: BaseException) -> str:
    match error:
        case trio.TooSlowError():
            return "i/o timeout"
        case trio.BrokenResourceError():
            return handshake_problem(error)
        case OSError():
            return _dial_problem(error)
        case _:
            return str(error)


def _dial_problem(error: OSError) -> str:
    """The first of the errors that an attempt on all addresses ended with."""
    for found in _chain(error):
        if isinstance(found, socket.gaierror):
            return f"lookup: {(found.strerror or str(found)).lower()}"
        if isinstance(found, OSError) and found.errno:
            return f"connect: {os.strerror(found.errno).lower()}"
    return str(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            for part in error.exceptions:
                yield from _chain(part)
        yield error
        error = error.__cause__


async def _open_tcp(host: str, port: int) -> trio.SocketStream:
    stream = await trio.open_tcp_stream(host, port)
    # A peer that vanished is noticed although a watch may be silent for minutes.
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
    return stream
