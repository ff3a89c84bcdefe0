"""One HTTP/1.1 connection: h11 knows the protocol, a Trio stream carries the bytes, and here they meet.

The story of a connection: a request is read to its end, under deadlines and size limits, so that a slow or greedy
client costs one task and little memory. Its handler runs beside a second task that goes on reading: what it reads is
the next request (pipelining), kept up to a limit, or the end of the stream, and then the client is gone and the
handler is cancelled. Like Go's server we take a client that closes its sending side for gone. The answer goes out
whole or chunk by chunk; then the next request's turn comes. A handler may also take the connection over after a
request that asks for it (`Connection: Upgrade`): from then on the bytes are its own.

Whatever a client sends or a handler raises ends at most this connection. One that ends while a request has begun, and
nobody has been answered, says so in the log, with the reason: to its client that looks like an agent that has crashed.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import h11
import trio

from trikubelet.http.messages import (
    NOBODY,
    Handler,
    HTTPError,
    Peer,
    Request,
    Response,
    error_response,
)
from trikubelet.http.raw_stream import RawStream
from trikubelet.http.sending import Gone, ResponseWriter, Sender
from trikubelet.scopes import leaves
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.http.limits import Limits
    from trikubelet.http.places import Place

log = get_logger("http")

_RECEIVE: Final = 16 * 2**10
_LINGER_BYTES: Final = 2**20
_MAX_QUERY_FIELDS: Final = 10_000
"""Each argument of a command is one."""


class HttpConnection:
    """Serves the requests of one connection. `run` it once."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        handler: Handler,
        limits: Limits,
        peer: Peer = NOBODY,
        place: Place | None = None,
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._place = place
        self._handler = handler
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_size)
        self._scope = trio.CancelScope()
        self._sender = Sender(stream, self._http, limits, self._gone)
        self._ended = False
        """The client has closed its side, and h11 knows."""
        self.busy = False
        """A request is being read or answered."""
        self.requests = 0
        self._asked = "the head of a request"
        """What is in hand, without what might be secret: a command or a token is in the rest of the path."""
        self._why = ""

    async def run(self) -> None:
        """Serve until either side ends the connection. Raises nothing of the client's or a handler's doing.

        When cancelled, the handler is cancelled and the connection is cut.
        """
        try:
            with self._scope, suppress(Gone):
                while await self._serve_one():
                    pass
                await self._end()
        finally:
            self._report_if_unanswered()
            await trio.aclose_forcefully(self._stream)

    def _gone(self, why: str) -> Gone:
        """To be raised: the connection ends, without a word to the client."""
        self._why = why
        return Gone()

    def _report_if_unanswered(self) -> None:
        if not self.busy or self._sender.answered:
            return
        why = self._why or "the server ended it"
        if not self._why and self._sender.closing:
            why = "the server is being shut down"
        elif not self._why and self._place is not None and self._place.scope.cancel_called:
            why = "another connection needed its place"
        log.info("connection closed without an answer", client=self._peer.address, asked=self._asked, why=why)

    def drain(self) -> None:
        """End the connection after the request in hand; at once when there is none."""
        self._sender.closing = True
        if not self.busy:
            self._scope.cancel()

    def close(self) -> None:
        """Cancel the handler and cut the connection."""
        self._scope.cancel()

    async def refuse(self, error: HTTPError) -> None:
        """Answer before anything was asked, and end the connection."""
        try:
            with self._scope, suppress(Gone):
                await self._refuse(error)
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _refuse(self, error: HTTPError) -> None:
        self._sender.closing = True
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._sender.whole(error_response(error), head=False)
            await self._linger()

    async def _serve_one(self) -> bool:
        """Answer one request. True: another may follow."""
        try:
            request = await self._read_request()
        except HTTPError as error:
            await self._refuse(error)
            return False
        if request is None:
            return False
        self.requests += 1
        if self._place is not None:
            self._place.work()
        await self._answer(request)
        self.busy = False
        if self._sender.closing or self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        if self._place is not None:
            self._place.wait()
        return True

    async def _end(self) -> None:
        """Close as agreed: over TLS a client knows by that from a connection that was cut."""
        if self._http.our_state is h11.SWITCHED_PROTOCOL or self._http.trailing_data[0]:
            await self._linger()
        with trio.move_on_after(self._limits.linger_timeout), suppress(trio.BrokenResourceError):
            await self._stream.aclose()

    # Reading a request.

    async def _read_request(self) -> Request | None:
        """The next request; None when the client sends no more. Raises HTTPError for one that cannot be served."""
        head = await self._read_head()
        if head is None:
            return None
        with trio.move_on_after(self._limits.body_timeout):
            return _request(head, await self._read_body(head), self._peer)
        raise HTTPError(408, f"the request's body did not arrive within {self._limits.body_timeout:g} seconds")

    async def _read_head(self) -> h11.Request | None:
        limits = self._limits
        self._sender.begun = self._sender.answered = False
        self._asked = "the head of a request"
        self.busy = bool(self._http.trailing_data[0])
        first = self.requests == 0
        with trio.move_on_after(limits.header_timeout if first or self.busy else limits.idle_timeout) as scope:
            while True:
                event = self._next_event()
                if isinstance(event, h11.Request):
                    self.busy = True
                    self._asked = _unsecret(event)
                    return event
                if event is not h11.NEED_DATA:
                    return None
                await self._receive()
                if not self.busy and self._http.trailing_data[0]:
                    self.busy = True
                    scope.deadline = trio.current_time() + limits.header_timeout
        if self.busy:
            raise HTTPError(408, f"the request's head did not arrive within {limits.header_timeout:g} seconds")
        return None

    async def _read_body(self, head: h11.Request) -> bytes:
        fields = dict(head.headers)
        if b"content-length" in fields and b"transfer-encoding" in fields:
            # A proxy between us and the client may have used the other one (RFC 9112, 6.1).
            raise HTTPError(400, "expected either Content-Length or Transfer-Encoding, not both")
        announced = fields.get(b"content-length", b"0")
        body = bytearray()
        if int(announced) > self._limits.body_size:
            raise self._too_large()
        while True:
            if self._http.they_are_waiting_for_100_continue:
                await self._sender.go_on()
            event = self._next_event()
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._limits.body_size:
                    raise self._too_large()
            elif isinstance(event, h11.EndOfMessage):
                return bytes(body)
            else:
                await self._receive()

    def _too_large(self) -> HTTPError:
        return HTTPError(413, f"expected a body of at most {self._limits.body_size} bytes")

    def _next_event(self) -> object:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise HTTPError(error.error_status_hint, f"this is no HTTP/1.1 request: {error}") from error

    async def _receive(self) -> None:
        if self._ended:
            # In the middle of a request: h11 would wait for its rest for ever.
            raise self._gone("the client ended it before its request was complete")
        data = await self._receive_some()
        self._ended = not data
        self._http.receive_data(data)

    async def _receive_some(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(_RECEIVE))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._gone(f"it broke: {error}") from None

    # Answering it.

    async def _answer(self, request: Request) -> None:
        gone = False
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                # Made here: a handler may take the connection over before the watching task has run at all.
                watching, watched = trio.CancelScope(), trio.Event()
                nursery.start_soon(self._watch_client, scope, watching, watched)
                writer = ResponseWriter(self._sender, request, scope, partial(self._take_over, watching, watched))
                await self._run_handler(request, writer)
                gone = writer.cut
                nursery.cancel_scope.cancel()
        if gone or scope.cancelled_caught:
            raise Gone

    async def _take_over(
        self, watching: trio.CancelScope, watched: trio.Event, headers: Sequence[tuple[str, str]]
    ) -> RawStream:
        await self._sender.switch(headers)
        watching.cancel()
        await watched.wait()
        return RawStream(self._stream, self._http.trailing_data[0])

    async def _watch_client(self, scope: trio.CancelScope, watching: trio.CancelScope, watched: trio.Event) -> None:
        """Keep what arrives for later, and cancel `scope` when nothing can arrive any more."""
        with watching:
            await self._watch(scope)
        watched.set()

    async def _watch(self, scope: trio.CancelScope) -> None:
        try:
            while len(self._http.trailing_data[0]) < self._limits.pipelined_size:
                data = await self._receive_some()
                if not data:
                    self._why = "the client ended it"
                    break
                self._http.receive_data(data)
            else:
                return
        except Gone:
            pass
        scope.cancel()

    async def _run_handler(self, request: Request, writer: ResponseWriter) -> None:
        failure: Exception | None = None
        try:
            await writer.send_response(await self._handler(request))
        except* Exception as group:  # noqa: BLE001 - a handler's mistake must not end the agent
            # Also what it raises while it is being cancelled, and out of its own nurseries.
            failure = _single(group)
        if failure is None:
            return
        if isinstance(failure, HTTPError):
            answer = error_response(failure)
        else:
            log.error("request failed", method=request.method, path=request.path, exc_info=failure)
            answer = Response(b"internal error: the agent's log has the details\n", 500)
        if self._sender.begun:
            writer.cut = True
            self._why = "its answer failed half-way"
        else:
            await writer.send_response(answer)

    async def _linger(self) -> None:
        """Read on for a moment: closing with bytes unread would tear the answer from a client that still sends."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            gone = suppress(trio.BrokenResourceError, trio.ClosedResourceError)
            with trio.move_on_after(self._limits.linger_timeout), gone:
                await self._stream.send_eof()
        left = _LINGER_BYTES
        with trio.move_on_after(self._limits.linger_timeout):
            while left > 0 and (data := await self._receive_some()):
                left -= len(data)


def _unsecret(head: h11.Request) -> str:
    path = head.target.decode("ascii", "replace").partition("?")[0].split("/")
    return f"{head.method.decode('ascii')} {'/'.join(path[:2])}"


def _request(head: h11.Request, body: bytes, peer: Peer) -> Request:
    target = head.target.decode("ascii", "replace")
    if not target.startswith("/"):
        # The absolute form, as sent to proxies.
        _, _, rest = target.partition("://")
        target = "/" + rest.partition("/")[2] if rest else target
    path, _, query = target.partition("?")
    try:
        fields = parse_qs(query, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError as error:
        raise HTTPError(400, f"expected at most {_MAX_QUERY_FIELDS} query parameters") from error
    headers = tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers)
    return Request(
        method=head.method.decode("ascii"),
        path=path,
        query=fields,
        headers=dict(headers),
        body=body,
        target=target,
        raw_headers=headers,
        peer=peer,
    )


def _single(group: ExceptionGroup[Exception]) -> Exception:
    """What a handler meant to raise: its only error, when its nurseries have wrapped that into groups."""
    errors = list(leaves(group))
    return errors[0] if len(errors) == 1 else group
