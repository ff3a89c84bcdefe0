"""Requests to the hosts of one registry, for one pull: hosts in turn, authentication, redirects and retries.

Credentials are shown when a host asks for them and with requests to that host alone: a redirect to another one (layers
often lie elsewhere) is followed without them and without the host's own headers.
"""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import trio

from trikubelet.embedded.registry.challenge import Challenge, parse_challenges, strongest
from trikubelet.embedded.registry.errors import HostError, PullFailure
from trikubelet.embedded.registry.hosts import is_loopback
from trikubelet.embedded.registry.retry import PASSING_STATUSES, Timeouts, read_retry_after, wait_before_retry, worst
from trikubelet.formats import go_json
from trikubelet.formats.values import frozen
from trikubelet.http.httpx_library import httpx
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from trikubelet.clock import WallClock
    from trikubelet.embedded.registry.credentials import Credentials
    from trikubelet.embedded.registry.hosts import RegistryHost

log = get_logger("images")

T = TypeVar("T")

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_ANSWERS: Final = frozenset({200, 206, 416})
_ANSWERS_TO_HEAD: Final = _ANSWERS | {405, 501}
_MOST_REDIRECTS: Final = 10
_MOST_ERROR_BYTES: Final = 16 * 1024
_MOST_TOKEN_BYTES: Final = 512 * 1024
_LONGEST_WORDS: Final = 300
_CLOSE_TIMEOUT: Final = 5.0
_CLIENT_ID: Final = "trikubelet"


@frozen
class RegistryClient:
    """The hosts of a registry, each with its connections. Made by `open_client`."""

    hosts: Sequence[HostConnections]
    timeouts: Timeouts

    async def on_hosts(
        self,
        action: Callable[[HostConnections], Awaitable[T]],
        *,
        resolves: bool = False,
        progress: Callable[[], int] = lambda: 0,
    ) -> T:
        """Do something at one host after the other, at each again as long as its failures may pass.

        `resolves`: only at hosts that may say what a tag means. `progress`: a number that grows as long as a try
        brings something; then failures before it count no more. Raises HostError.
        """
        hosts = [each for each in self.hosts if (each.host.resolves if resolves else each.host.pulls)]
        errors: list[HostError] = []
        for host in hosts:
            failures, reached = 0, progress()
            while True:
                try:
                    return await action(host)
                except HostError as error:
                    if progress() > reached:
                        failures, reached = 0, progress()
                    failures += 1
                    wait = wait_before_retry(
                        error, failures, self.timeouts, last_host=host is hosts[-1], chance=random.random()
                    )
                    if wait is None:
                        errors.append(error)
                        break
                    log.debug("asking the registry again", reason=error.reason, wait=round(wait, 1))
                    await trio.sleep(wait)
        if not errors:
            raise HostError(PullFailure.CONFIGURATION, "its hosts.toml names no host that may be asked")
        raise worst(errors)


@asynccontextmanager
async def open_client(
    hosts: Sequence[RegistryHost],
    repository: str,
    credentials: Credentials,
    *,
    timeouts: Timeouts,
    clock: WallClock,
) -> AsyncIterator[RegistryClient]:
    """`repository` is its path at the registry, without a host. Connections are closed with the context.

    Raises HostError for certificates that cannot be read.
    """
    async with AsyncExitStack() as stack:
        connections: list[HostConnections] = []
        for host in hosts:
            context = await trio.to_thread.run_sync(_tls_context, host)
            http = httpx.AsyncClient(
                verify=context,
                trust_env=not is_loopback(host.host),  # proxies
                timeout=httpx.Timeout(timeouts.answer, connect=host.dial_timeout or timeouts.connect, pool=None),
                limits=httpx.Limits(max_connections=8, max_keepalive_connections=4),
                headers={"User-Agent": "trikubelet", "Accept-Encoding": "identity"},
            )
            await stack.enter_async_context(http)
            connections.append(HostConnections(host, http, repository, credentials, timeouts, clock))
        yield RegistryClient(connections, timeouts)


class HostConnections:
    """One host, with its connections and what it asked for so far."""

    def __init__(
        self,
        host: RegistryHost,
        http: httpx.AsyncClient,
        repository: str,
        credentials: Credentials,
        timeouts: Timeouts,
        clock: WallClock,
    ) -> None:
        self.host = host
        self._http = http
        self._repository = repository
        self._credentials = credentials
        self._timeouts = timeouts
        self._clock = clock
        self._plain = False
        self._authorization = ""
        self._authorizing = trio.Lock()

    @property
    def name(self) -> str:
        return self.host.host

    @asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Mapping[str, str], *, by_digest: bool
    ) -> AsyncIterator[httpx.Response]:
        """An answer below the repository (`manifests/latest`), its body still to be read: 200, 206 or 416.

        To a HEAD also 405 and 501, of servers that do not have it.

        `by_digest`: the body is checked by its digest, so that it may come over plain HTTP from elsewhere.
        Raises HostError for every other answer, also while the body is read.
        """
        with _as_host_errors(self.name):
            with trio.fail_after(self._timeouts.document):
                response = await self._authorized(method, path, headers, by_digest=by_digest)
            try:
                if response.status_code not in (_ANSWERS_TO_HEAD if method == "HEAD" else _ANSWERS):
                    raise await self._refusal(response)
                yield response
            finally:
                await _close(response)

    def _url(self, path: str) -> str:
        host = self.host
        base = f"http://{host.host}{host.path}" if self._plain else host.base
        namespace = f"?ns={host.namespace}" if host.namespace else ""
        return f"{base}/{self._repository}/{path}{namespace}"

    async def _authorized(
        self, method: str, path: str, headers: Mapping[str, str], *, by_digest: bool
    ) -> httpx.Response:
        """Ask, and once more with what a 401 asks for."""
        shown = self._authorization
        response = await self._follow(method, self._url(path), headers, shown, by_digest=by_digest)
        url = self._url(path)  # as it is known now, with or without TLS
        if response.status_code != 401 or not _same_origin(str(response.url), url):
            return response
        challenge = strongest(parse_challenges(response.headers.get_list("www-authenticate")))
        if challenge is None:
            return response
        async with self._authorizing:
            if self._authorization == shown:  # else another request has asked meanwhile
                if self._authorization and challenge.scheme == "basic":
                    return response  # the password was wrong
                authorization = await self._authorize(challenge, url)
                if not authorization:
                    return response
                self._authorization = authorization
        await _close(response)
        return await self._follow(method, url, headers, self._authorization, by_digest=by_digest)

    async def _follow(
        self, method: str, url: str, headers: Mapping[str, str], authorization: str, *, by_digest: bool
    ) -> httpx.Response:
        """Send, and go where redirects lead."""
        origin = url
        for _ in range(_MOST_REDIRECTS + 1):
            own = _same_origin(url, origin)
            extra = [*self.host.headers, *([("Authorization", authorization)] if authorization else [])] if own else []
            response = await self._send(method, url, [*headers.items(), *extra])
            if own and self._plain:
                url = origin = str(response.url)
            location = response.headers.get("location")
            if response.status_code not in _REDIRECTS or location is None:
                return response
            await _close(response)
            following = str(httpx.URL(url).join(location))
            if urlsplit(following).scheme not in ("http", "https"):
                raise HostError(PullFailure.UNREACHABLE, f"{self.name} redirects to {_without_secrets(following)!r}")
            if url.startswith("https://") and following.startswith("http://") and not by_digest:
                raise HostError(
                    PullFailure.UNREACHABLE,
                    f"{self.name} redirects to plain HTTP ({_without_secrets(following)}), "
                    "where a tag is not protected",
                )
            url = following
        raise HostError(PullFailure.UNREACHABLE, f"{self.name} redirects more than {_MOST_REDIRECTS} times")

    async def _send(self, method: str, url: str, headers: Sequence[tuple[str, str]]) -> httpx.Response:
        try:
            return await self._http.send(self._http.build_request(method, url, headers=list(headers)), stream=True)
        except httpx.ConnectError as error:
            if not self.host.plain_http_fallback or self._plain or not _speaks_no_tls(error):
                raise
        self._plain = True
        plain = "http://" + url.removeprefix("https://")
        return await self._http.send(self._http.build_request(method, plain, headers=list(headers)), stream=True)

    # Authentication

    async def _authorize(self, challenge: Challenge, url: str) -> str:
        """The Authorization header that answers a challenge; empty where we have nothing that it asks for."""
        credentials = self._credentials
        if credentials.registry_token:
            return f"Bearer {credentials.registry_token}"
        if challenge.scheme == "basic":
            return credentials.basic
        try:
            realm = urlsplit(challenge.parameters["realm"])
            _ = realm.port
        except ValueError:
            realm = urlsplit("")
        if realm.scheme not in ("http", "https") or not realm.hostname:
            raise HostError(PullFailure.DENIED, f"{self.name} sends us for a token to what is no http or https URL")
        secret = bool(credentials.basic or credentials.identity_token)
        if secret and realm.scheme == "http" and url.startswith("https://"):
            raise HostError(
                PullFailure.DENIED,
                f"{self.name} sends us for a token to {realm.hostname} over plain HTTP: a password is not shown there",
            )
        return f"Bearer {await self._token(challenge)}"

    async def _token(self, challenge: Challenge) -> str:
        """Fetch a token (distribution's token authentication; OAuth2 for an identity token)."""
        realm = challenge.parameters["realm"]
        server = urlsplit(realm).netloc.rpartition("@")[2]
        parameters = {
            "service": challenge.parameters.get("service", ""),
            "scope": challenge.parameters.get("scope") or f"repository:{self._repository}:pull",
        }
        if not parameters["service"]:
            del parameters["service"]
        if self._credentials.identity_token:
            form = {
                **parameters,
                "grant_type": "refresh_token",
                "refresh_token": self._credentials.identity_token,
                "client_id": _CLIENT_ID,
            }
            request = self._http.build_request("POST", realm, data=form)
        else:
            request = self._http.build_request("GET", httpx.URL(realm).copy_merge_params(parameters))
            if basic := self._credentials.basic:
                request.headers["Authorization"] = basic
        try:
            with trio.fail_after(self._timeouts.document):
                response = await self._http.send(request, stream=True)
                try:
                    if response.status_code != 200:
                        raise await self._token_refusal(response, server)
                    body = await read_limited(response, _MOST_TOKEN_BYTES, server)
                finally:
                    await _close(response)
        except (httpx.TransportError, trio.TooSlowError) as error:
            reason = f"{server}, where {self.name} sends us for a token, cannot be reached: {_words(error)}"
            raise HostError(PullFailure.UNREACHABLE, reason, may_pass=True) from error
        token = _token_in(body)
        if not token:
            raise HostError(PullFailure.DENIED, f"{server}, where {self.name} sends us for a token, gave none")
        return token

    async def _token_refusal(self, response: httpx.Response, server: str) -> HostError:
        refusal = await self._refusal(response, server)
        if 400 <= response.status_code < 500 and not refusal.may_pass:
            # Servers say 401, 403 and also 400 or 404 for a wrong name or password.
            known = (
                "with the given credentials"
                if self._credentials.basic or self._credentials.identity_token
                else ("without credentials")
            )
            reason = f"{self.name}: authentication {known} failed: {refusal.reason}"
            return HostError(PullFailure.DENIED, reason)
        return refusal

    # What went wrong

    async def _refusal(self, response: httpx.Response, server: str = "") -> HostError:
        """What an answer that is no success means, in the server's words where it gave any."""
        status = response.status_code
        host = server or self.name
        elsewhere = response.url.netloc.decode("ascii", "replace")
        if not server and elsewhere != self.name:
            host = f"{self.name} (redirected to {elsewhere})"
        words = ""
        if response.request.method != "HEAD":
            with suppress(httpx.TransportError, HostError, trio.TooSlowError), trio.fail_after(self._timeouts.answer):
                words = _error_words(await read_limited(response, _MOST_ERROR_BYTES, host))
        answer = f"{status} {response.reason_phrase}".strip() + (f", {words}" if words else "")
        if status == 404:
            return HostError(PullFailure.NOT_FOUND, f"{host}: not found ({answer})")
        if status in (401, 403):
            asked = self._credentials.basic or self._credentials.identity_token or self._credentials.registry_token
            hint = "the credentials were refused, or do not suffice" if asked else "it asks for credentials"
            return HostError(
                PullFailure.DENIED, f"{host}: pull access denied: {hint}, or there is no such repository ({answer})"
            )
        retry_after = read_retry_after(response.headers.get("retry-after"), self._clock.now())
        wait = f", try again in {retry_after:.0f} s" if retry_after is not None else ""
        return HostError(
            PullFailure.UNREACHABLE,
            f"{host} answered {answer}{wait}",
            may_pass=status in PASSING_STATUSES,
            retry_after=retry_after,
        )


@contextmanager
def _as_host_errors(host: str) -> Iterator[None]:
    """Raises what the HTTP client raises as HostError."""
    try:
        yield
    except httpx.ConnectTimeout as error:  # long enough for one attempt
        raise HostError(PullFailure.UNREACHABLE, f"{host} cannot be reached: no connection in time") from error
    except (httpx.TimeoutException, trio.TooSlowError) as error:
        reason = f"{host} did not answer in time ({type(error).__name__})"
        raise HostError(PullFailure.UNREACHABLE, reason, may_pass=True) from error
    except (httpx.ConnectError, httpx.ProxyError) as error:
        # A certificate that is refused now is refused in a second, too.
        may_pass = _tls_cause(error) is None
        reason = f"{host} cannot be reached: {_words(error)}"
        raise HostError(PullFailure.UNREACHABLE, reason, may_pass=may_pass) from error
    except httpx.TransportError as error:
        raise HostError(PullFailure.UNREACHABLE, f"the connection to {host} broke: {_words(error)}", True) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HostError(PullFailure.UNREACHABLE, f"{host}: {_words(error)}") from error


async def read_limited(response: httpx.Response, limit: int, host: str) -> bytes:
    """The whole body, where it is no longer than `limit`. Raises HostError, httpx.TransportError."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > limit:
            raise HostError(PullFailure.WRONG_CONTENT, f"{host} answered with more than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def _close(response: httpx.Response) -> None:
    with trio.move_on_after(_CLOSE_TIMEOUT, shield=True), suppress(httpx.HTTPError, OSError):
        await response.aclose()


def _tls_context(host: RegistryHost) -> ssl.SSLContext:
    """Blocking: reads files. Raises HostError."""
    context = ssl.create_default_context()
    if not context.get_ca_certs() and not _has_authorities(ssl.get_default_verify_paths().capath):
        import certifi  # a machine without authorities of its own

        context.load_verify_locations(certifi.where())
    if host.skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    for path in host.authorities:
        _load(path, "an authority's certificate", partial(context.load_verify_locations, path))
    for certificate, key in host.client_certificates:
        _load(
            certificate,
            "a client certificate and its key",
            partial(context.load_cert_chain, certificate, key),
        )
    return context


def _has_authorities(folder: str | None) -> bool:
    """Whether OpenSSL will find certificates in its folder, which it looks into as it needs them."""
    return folder is not None and any(Path(folder).glob("*.[0-9]"))


def _load(path: Path, what: str, load: Callable[[], object]) -> None:
    try:
        load()
    except (OSError, ssl.SSLError) as error:
        raise HostError(PullFailure.CONFIGURATION, f"{path}: expected {what} (PEM): {error}") from error


def _same_origin(one: str, other: str) -> bool:
    a, b = httpx.URL(one), httpx.URL(other)
    return (a.scheme, a.host, a.port) == (b.scheme, b.host, b.port)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it, the outermost first; of a group of attempts the last."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.exceptions[-1] if isinstance(seen, BaseExceptionGroup) else seen.__cause__ or seen.__context__


def _tls_cause(error: BaseException) -> ssl.SSLError | None:
    """The TLS error behind a failed connection, if any."""
    return next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)


def _speaks_no_tls(error: httpx.ConnectError) -> bool:
    cause = _tls_cause(error)
    return cause is not None and not isinstance(cause, ssl.SSLCertVerificationError)


def _words(error: BaseException) -> str:
    """The innermost error that says something."""
    causes = [
        cause for cause in _causes(error) if isinstance(cause, OSError) and not isinstance(cause, httpx.HTTPError)
    ]
    words = [said for cause in causes if (said := _said(cause))]
    return _shortened(words[-1] if words else str(error) or type(error).__name__)


def _said(cause: OSError) -> str:
    if cause.errno and (isinstance(cause, ConnectionError) or type(cause) is OSError):
        return os.strerror(cause.errno)  # its own text may have the address as Python writes it
    return cause.strerror or str(cause)


def _token_in(body: bytes) -> str:
    try:
        document = go_json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(document, dict):
        return ""
    token = document.get("token") or document.get("access_token")
    # Anything else could break out of the header.
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else ""


def _error_words(body: bytes) -> str:
    """The message of a registry's error document, else its text where that is short."""
    try:
        document: Any = go_json.loads(body)
        first = document["errors"][0]
        words = ": ".join(str(first[key]) for key in ("code", "message") if first.get(key))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        words = body.decode("utf-8", "replace") if len(body) <= _LONGEST_WORDS else ""
    return _shortened(" ".join(words.split()))


def _without_secrets(url: str) -> str:
    """A URL for people: signatures are in the query, passwords before the host."""
    parts = urlsplit(url)
    return _shortened(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")


def _shortened(text: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= _LONGEST_WORDS else text[:_LONGEST_WORDS] + "…"
