"""HTTP/2 to the API server, on the engine that carries gRPC here (`trikubelet.rpc.grpc.connection`).

HTTP/2 is for the watches: there may be hundreds, and as HTTP/1.1 each would be a connection with TLS of its own.
httpcore brings an HTTP/2 of its own, which was weighed and is not used: what is cancelled there is not reset, so an
abandoned watch goes on at the server; its unread data is never granted back, until the connection's window is used up
and every call stands still; and a cancellation in the middle of a write loses bytes that h2 counts as sent. The engine
here has none of that. What would change this: an httpcore that resets streams.

A connection that has received nothing for a while asks whether the peer is still there (PING), as client-go's do, and
fails all its calls when there is no answer. Without that a vanished API server is noticed after many minutes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio
from grpclib import GRPCError, Status

from trikubelet.kube_client.exchange import Exchange, NotSentError, Reply, TransportError
from trikubelet.rpc.grpc.channel import ClientConnection
from trikubelet.rpc.grpc.hpack import NeverIndexed
from trikubelet.rpc.grpc.http2 import STREAM_WINDOW, ConnectionTerminated, ErrorCodes, Event
from trikubelet.rpc.grpc.status import Failure
from trikubelet.rpc.grpc.wire import HEADERS, MESSAGE, WireStream

if TYPE_CHECKING:
    from trikubelet.kube_client.exchange import Request
    from trikubelet.rpc.grpc.connection import Connection
    from trikubelet.rpc.grpc.hpack import Headers

IDLE_BEFORE_PING: Final = 30.0
PING_TIMEOUT: Final = 15.0

_GRANT_STEP: Final = STREAM_WINDOW // 4
_PING: Final = b"alive?  "
_UNUSED: Final = 2**20
"""The engine's limit for gRPC messages, which there are none of here."""


class RefusedError(NotSentError):
    """The server did not take the request: it may be sent again, on another connection, whatever it asks for."""


class ByteStream(WireStream):
    """A stream whose body is bytes, in `messages` as they came."""

    __slots__ = ("exchange", "refused")

    def __init__(self, connection: Connection, stream_id: int) -> None:
        super().__init__(connection, stream_id, _UNUSED)
        self.exchange = Exchange()
        self.refused = False
        """The peer says that it has not looked at the request."""

    def on_data(self, data: bytes, flow_controlled_length: int) -> None:
        self._ungranted += flow_controlled_length
        if self.ended:
            return
        if data:
            self.messages.append(data)
            self._queued += len(data)
            self._notify(MESSAGE)
        if self._ungranted >= _GRANT_STEP:
            self._grant()

    def on_reset(self, code: int | None) -> None:
        self.refused = code == ErrorCodes.REFUSED_STREAM
        super().on_reset(code)

    def take_all(self) -> bytes:
        """All bytes that have arrived and were not taken yet."""
        if len(self.messages) == 1:
            return self.take_message()
        return b"".join([self.take_message() for _ in range(len(self.messages))])


class _MonitoredTransport(trio.abc.Stream):
    """A transport that knows when it last received from the peer."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self._inner = inner
        self.received_at = trio.current_time()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._inner.receive_some(max_bytes)
        self.received_at = trio.current_time()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()


class ApiConnection(ClientConnection):
    """One connection to the API server."""

    def __init__(self, transport: trio.abc.Stream) -> None:
        self._monitored = _MonitoredTransport(transport)
        super().__init__(self._monitored, _UNUSED)

    @property
    def usable(self) -> bool:
        """Whether a request can start on it right now."""
        return not self.retiring and not self.full

    def start(self, nursery: trio.Nursery) -> None:
        super().start(nursery)
        nursery.start_soon(self._watch_peer)

    def open_bytes(self, headers: Headers, *, end: bool) -> ByteStream:
        """Start a stream with these headers; does not flush. Call when `usable`. Raises GRPCError."""
        plain = self.open(headers, end=end)
        stream = ByteStream(self, plain.id)
        stream.local_ended = end
        self.streams[plain.id] = stream
        return stream

    def replace(self) -> None:
        """Take no new requests, finish those in flight, and end the watches, which would never finish."""
        for stream in list(self.streams.values()):
            if isinstance(stream, ByteStream) and stream.exchange.lasting:
                stream.exchange.retired = True
                stream.abandon(Failure(Status.UNAVAILABLE, "the connection is being replaced"))
        self.retire()

    def on_response(self, stream: WireStream, headers: Headers) -> None:
        stream.on_headers(headers)

    def _on_goaway(self, event: Event) -> None:
        assert isinstance(event, ConnectionTerminated)
        last = event.last_stream_id
        for stream in self.streams.values():
            if isinstance(stream, ByteStream) and stream.id > last:
                stream.refused = True
        super()._on_goaway(event)

    async def _watch_peer(self) -> None:
        while True:
            silence = trio.current_time() - self._monitored.received_at
            if silence < IDLE_BEFORE_PING:
                await trio.sleep(IDLE_BEFORE_PING - silence)
                continue
            asked = trio.current_time()
            self.http2.ping(_PING)
            self.flush()
            await trio.sleep(PING_TIMEOUT)
            if self._monitored.received_at < asked:
                self._lose(Failure(Status.UNAVAILABLE, f"no answer to a ping within {PING_TIMEOUT:g} s"))
                self.close()
                return


class Http2Body:
    """The body of a response. Implements `Body`."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._released = False

    async def receive(self) -> bytes:
        stream = self._stream
        if not stream.messages and not stream.ended:
            await stream.wait(MESSAGE)
        if stream.messages:
            return stream.take_all()
        if stream.failure is not None:
            raise TransportError(stream.failure.message)
        return b""

    async def aclose(self) -> None:
        """Reset the stream unless it has ended. Does not wait."""
        if not self._released:
            self._released = True
            self._stream.release()


async def send_request(connection: ApiConnection, request: Request) -> Reply:
    """Send a request on a `usable` connection and wait for the head of its response.

    The response must be closed. Raises RefusedError, and TransportError when the connection or the stream is lost.
    When cancelled, the stream is reset.
    """
    body, exchange = request.body, request.exchange
    try:
        stream = connection.open_bytes(request_headers(request), end=not body)
    except GRPCError as error:
        raise RefusedError(error.message or "") from error
    stream.exchange = exchange
    exchange.sent = True
    try:
        if body and not stream.queue_data(body, end=True):
            await stream.send_data(body, True)
        stream.flush()
        if stream.headers is None and not stream.ended:
            await stream.wait(HEADERS)
        head = _head_of(stream)
    except BaseException:
        stream.release()
        raise
    return Reply(*head, Http2Body(stream))


def _head_of(stream: ByteStream) -> tuple[int, Headers]:
    if stream.headers is None:
        text = (
            stream.failure.message if stream.failure is not None else "the server ended the stream without a response"
        )
        if stream.refused:
            raise RefusedError(text)
        raise TransportError(text)
    status = math.nan
    headers: Headers = []
    for name, value in stream.headers:
        if name == b":status":
            status = int(value) if value.isdigit() else math.nan
        elif not name.startswith(b":"):
            headers.append((name, value))
    if not isinstance(status, int):
        raise TransportError("the response has no HTTP status")
    return status, headers


def request_headers(request: Request) -> Headers:
    """The headers of an HTTP/2 request. What differs in every request is kept out of the compression tables: it would
    push out what repeats."""
    headers: Headers = [
        (b":method", request.method.encode("ascii")),
        (b":scheme", request.scheme.encode("ascii")),
        NeverIndexed(b":path", request.target.encode("ascii")),
        (b":authority", request.authority.encode("ascii")),
        *request.headers,
    ]
    if request.body:
        headers.append(NeverIndexed(b"content-length", b"%d" % len(request.body)))
    return headers
