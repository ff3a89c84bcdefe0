"""One call: credentials, attempts, and what an attempt that failed means for the next.

A call gets credentials; that may take as long as a plugin is given, so it does not count. Within its deadline it goes
out over a shared connection (`transport.py`), and its answer is read whole. A refusal becomes an error that says what
the server said. Credentials that are not accepted are renewed once; a server that asks for time gets it; a read whose
connection broke is sent again (`retries.py`). Everything else is the caller's to decide. How each call ended is
reported to `health`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

import trio

from trikubelet.formats.values import frozen
from trikubelet.kube_client.decoding import Known
from trikubelet.kube_client.errors import (
    ApiAnswerError,
    ApiError,
    ApiStatusError,
    ApiUnreachable,
    CredentialsError,
    refusal,
)
from trikubelet.kube_client.exchange import Body, Exchange, NotSentError, Request, Sends, TransportError
from trikubelet.kube_client.health import ConnectionHealth
from trikubelet.kube_client.metrics import NO_ANSWER, RequestMetrics
from trikubelet.kube_client.retries import retry_delay
from trikubelet.kube_client.transport import ClusterTransport
from trikubelet.kube_client.types import Urgency
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    import random

    from trikubelet.kube_client.access import Access

log = get_logger("cluster")

WrapTransport: TypeAlias = Callable[[Sends], Sends]
JSON: Final = "application/json"
_GZIP: Final = 16 + zlib.MAX_WBITS
_PORTS: Final = {"http": 80, "https": 443}
_SAFE_IN_PATHS: Final = "/%:@!$&'()*+,;=~"


@frozen
class Call:
    """A request in the client's terms."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON
    urgency: Urgency = Urgency.ORDINARY

    @property
    def reads(self) -> bool:
        return self.method == "GET"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@frozen
class Answer:
    """What came back for a call."""

    content: bytes
    """The body, decoded; empty when it is a watch."""
    reply: Body
    """The body of a watch, which is still open: the caller closes it."""
    exchange: Exchange


class Core:
    """What all views of a client share."""

    def __init__(self, access: Access, rng: random.Random, wrap: WrapTransport | None = None) -> None:
        """`wrap`: what calls go through on their way to the transport."""
        self.access = access
        self.rng = rng
        self.health = ConnectionHealth(access.server)
        self.transport = ClusterTransport(access)
        access.on_change(self.health.worth_a_try)
        server = urlsplit(access.server)
        self.base_path = quote(server.path.rstrip("/"), safe=_SAFE_IN_PATHS)
        self.scheme = server.scheme
        self.metrics = RequestMetrics(server.netloc)
        self.known = Known()
        self.way: Sends = self.transport if wrap is None else wrap(self.transport)

    def build(self, call: Call, credentials: Mapping[str, str], exchange: Exchange) -> Request:
        """The request as it is sent. Raises ValueError when there cannot be one to this server."""
        headers = {
            "accept": call.accept,
            # The lines of a watch are read as they come.
            "accept-encoding": "identity" if exchange.lasting else "gzip",
            "user-agent": self.access.user_agent,
        }
        if call.body:
            headers["content-type"] = call.content_type
        headers |= credentials
        raw = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
        target = self.base_path + call.path
        if call.query:
            target += "?" + urlencode(call.query, quote_via=quote)
        return Request(call.method, self.scheme, authority_of(self.access.server), target, raw, call.body, exchange)

    async def answer(self, call: Call, timeout: float, *, lasting: bool) -> Answer:
        """The answer to a call that succeeds, read to its end, or only begun if it is `lasting`. Raises ApiError."""
        exchange = Exchange()
        attempts = _Attempts(call, self)
        try:
            await attempts.prepare()
            with trio.move_on_after(timeout) as scope:
                while True:
                    exchange = Exchange(lasting=lasting)
                    try:
                        answer = await attempts.make(exchange)
                        break
                    except ApiError as error:
                        await attempts.recover(error, scope.deadline)
            if scope.cancelled_caught:
                cause = f"no answer within {timeout:g} s"
                raise ApiUnreachable(str(call), cause, sent=exchange.sent)
        except ApiUnreachable as error:
            self.health.lost(error.cause)
            raise
        except CredentialsError as error:
            self.health.lost(f"not asked, for lack of credentials: {error.message}")
            raise
        except (ApiStatusError, ApiAnswerError):
            self.health.answered()
            raise
        self.health.answered()
        return answer


class _Attempts:
    """The attempts to make one call."""

    def __init__(self, call: Call, core: Core) -> None:
        self._call = call
        self._core = core
        self._credentials: Mapping[str, str] = {}
        self._renewed = False
        self._failed = 0

    async def prepare(self) -> None:
        """Get credentials. Raises CredentialsError."""
        self._credentials = await self._current_credentials()

    async def make(self, exchange: Exchange) -> Answer:
        """One attempt. Raises ApiError for everything but a success."""
        call = self._call
        try:
            request = self._core.build(call, self._credentials, exchange)
        except ValueError as error:
            # A host name or a credential that HTTP cannot carry is bad input, and must not end the agent.
            raise ApiUnreachable(str(call), f"the request cannot be made: {error}", sent=False) from error
        began, code = trio.current_time(), NO_ANSWER
        try:
            reply = await self._core.way.send(request)
            code = str(reply.status)
            if reply.success and exchange.lasting:
                return Answer(b"", reply.body, exchange)
            try:
                content = await _read(reply.body)
            finally:
                await reply.body.aclose()
            self._core.metrics.received.observe((call.method,), len(content))
        except TransportError as error:
            sent = exchange.sent and not isinstance(error, NotSentError)
            raise ApiUnreachable(str(call), str(error) or type(error).__name__, sent=sent) from error
        except CredentialsError as error:
            raise CredentialsError(str(call), error.message) from error
        finally:
            self._measure(began, code, lasting=exchange.lasting)
        if reply.header(b"content-encoding") == "gzip":
            try:
                content = zlib.decompress(content, _GZIP)
            except zlib.error as error:
                raise ApiAnswerError(str(call), f"the body is not encoded as its headers say: {error}") from error
        if reply.success:
            return Answer(content, reply.body, exchange)
        raise refusal(str(call), reply.status, content, reply.header(b"retry-after"))

    def _measure(self, began: float, code: str, *, lasting: bool) -> None:
        metrics, method = self._core.metrics, self._call.method
        metrics.answers[code, method] += 1
        metrics.sent.observe((method,), len(self._call.body))
        if not lasting:
            metrics.durations.observe((method,), trio.current_time() - began)

    async def recover(self, error: ApiError, deadline: float) -> None:
        """Return when the next attempt is due. Raises the error when there is to be none."""
        self._failed += 1
        if isinstance(error, ApiStatusError) and error.unauthorized:
            await self._renew_credentials(error)
            return
        delay = retry_delay(error, self._failed, reads=self._call.reads, chance=self._core.rng.random())
        if delay is None or trio.current_time() + delay >= deadline:
            raise error
        log.debug("API call is repeated", request=str(self._call), error=str(error), delay=round(delay, 2))
        await trio.sleep(delay)

    async def _renew_credentials(self, error: ApiStatusError) -> None:
        generation = self._core.transport.generation
        self._core.access.rejected(self._credentials)
        if self._renewed:
            raise error
        self._renewed = True
        fresh = await self._current_credentials()
        # Those that are a certificate show only in that connections are made anew.
        if fresh == self._credentials and generation == self._core.transport.generation:
            raise error
        self._credentials = fresh

    async def _current_credentials(self) -> Mapping[str, str]:
        try:
            return await self._core.access.headers()
        except CredentialsError as error:
            raise CredentialsError(str(self._call), error.message) from error


@lru_cache(16)
def authority_of(server: str) -> str:
    """Host and port of a URL: no user, and no port that goes without saying. Raises ValueError."""
    parts = urlsplit(server)
    host = (parts.hostname or "").encode("idna").decode("ascii")
    if not host or parts.scheme not in _PORTS:
        raise ValueError(f"expected a URL such as https://host:6443, got {server!r}")
    name = f"[{host}]" if ":" in host else host
    return name if parts.port in (None, _PORTS[parts.scheme]) else f"{name}:{parts.port}"


async def _read(body: Body) -> bytes:
    pieces = []
    while piece := await body.receive():
        pieces.append(piece)
    return b"".join(pieces)
