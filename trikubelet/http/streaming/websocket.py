"""A WebSocket on a Trio stream: wsproto knows the protocol, a Trio stream carries the bytes.

The handshake is done before, on the server by the takeover of a request, on the client by an upgrade. Messages are
taken in parts as they arrive, never whole: a client may write megabytes in one message, and no code here needs a
message in one piece. Pings are answered while messages are received. Writing is the outbox's: whole frames, in order,
by one task.

Two uses are built on it: channels (`channels.py`), and `WebSocketByteStream`, a tunnel for SPDY.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio
from wsproto.connection import CLIENT, SERVER, Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from trikubelet.formats.values import frozen
from trikubelet.http.streaming.activity import Activity
from trikubelet.http.streaming.outbox import Outbox
from trikubelet.scopes import body_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MESSAGE_LIMIT: Final = 32 * 2**20
"""Bytes of one message, as in Go's server. More is answered with close code 1009."""
LINGER: Final = 5.0
"""Seconds to wait for the peer's end after ours."""

_RECEIVE: Final = 64 * 2**10
_SEND: Final = 64 * 2**10
_PONGS: Final = 16
_IN_ORDER: Final = frozenset({CloseReason.NORMAL_CLOSURE, CloseReason.GOING_AWAY, CloseReason.NO_STATUS_RCVD})


class WebSocketClosed(trio.BrokenResourceError):
    """The connection ended other than in order. `code` as in RFC 6455, 1006 when there was no close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the WebSocket was closed with code {code}: {reason or 'no reason given'}")
        self.code = code
        self.reason = reason


@frozen
class MessagePart:
    """Some bytes of a message, in order; text as UTF-8. Never another message's parts in between."""

    data: bytes
    text: bool
    first: bool
    last: bool


class WebSocket:
    """Made by `open_websocket`. One task receives, any number send."""

    def __init__(self, transport: trio.abc.Stream, *, client: bool, message_limit: int = MESSAGE_LIMIT) -> None:
        self._transport = transport
        self._wire = Connection(CLIENT if client else SERVER)
        self._events: Iterator[Event] = iter(())
        self._outbox: Outbox[Event] = Outbox(transport, self._encode)
        self._limit = message_limit
        self._size = 0
        """Of the message that is being received."""
        self._first = True
        self._over: WebSocketClosed | None = None
        self._ended = False
        self._close_sent = False
        self.activity = Activity()

    async def receive(self) -> MessagePart | None:
        """The next part of a message; None when the peer has closed in order (1000, 1001, or without a code).

        Raises WebSocketClosed for every other end, and answers what breaks the protocol with the code that says so.
        Nothing is lost when it is cancelled.
        """
        await trio.lowlevel.checkpoint()
        while not self._ended:
            event = next(self._events, None)
            if event is None:
                await self._receive_more()
            elif isinstance(event, BytesMessage | TextMessage):
                return self._part(event)
            elif isinstance(event, CloseConnection):
                self._receive_close(event)
            elif isinstance(event, Ping):
                await self._answer_ping(event)
        if self._over is not None:
            raise self._over
        return None

    async def _receive_more(self) -> None:
        try:
            data = await self._transport.receive_some(_RECEIVE)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(CloseReason.ABNORMAL_CLOSURE, f"the connection is broken: {error}")
            return
        if not data:
            self._end(CloseReason.ABNORMAL_CLOSURE, "the connection ended without a close frame")
            return
        self.activity.record()
        self._wire.receive_data(bytes(data))
        self._events = self._wire.events()

    def _part(self, message: BytesMessage | TextMessage) -> MessagePart | None:
        text = isinstance(message, TextMessage)
        data = message.data.encode() if isinstance(message, TextMessage) else bytes(message.data)
        self._size += len(data)
        if self._size > self._limit:
            self._fail(CloseReason.MESSAGE_TOO_BIG, f"expected at most {self._limit} bytes in a message")
            raise self._over or AssertionError
        first, self._first = self._first, message.message_finished
        if message.message_finished:
            self._size = 0
        return MessagePart(data, text, first, message.message_finished)

    def _receive_close(self, event: CloseConnection) -> None:
        if self._wire.state is ConnectionState.OPEN:
            # No close frame: wsproto's way to say that what came is none of the protocol's frames.
            self._fail(event.code, event.reason or "invalid frame")
            return
        if self._wire.state is ConnectionState.REMOTE_CLOSING:
            self._close_sent = True
            self._outbox.post(event.response())
        self._end(event.code, event.reason or "")

    def _fail(self, code: int, reason: str) -> None:
        self._close_sent = True
        self._outbox.post(CloseConnection(code=code, reason=reason[:100]))
        self._ended, self._over = True, WebSocketClosed(code, reason)

    def _end(self, code: int, reason: str) -> None:
        self._ended = True
        if code not in _IN_ORDER:
            self._over = WebSocketClosed(code, reason)

    async def _answer_ping(self, ping: Ping) -> None:
        if len(self._outbox) < _PONGS:
            self._outbox.post(ping.response())
            return
        with suppress(trio.BrokenResourceError):
            await self._outbox.send(ping.response())

    async def send(self, data: bytes | str) -> None:
        """Send one message: binary for bytes, text for str. Cancelled: it was sent whole or not at all.

        Raises `trio.BrokenResourceError` when the peer is gone or either side has closed.
        """
        await trio.lowlevel.checkpoint()
        await self._outbox.send(TextMessage(data=data) if isinstance(data, str) else BytesMessage(data=data))

    async def close(self, code: int = CloseReason.NORMAL_CLOSURE, reason: str = "") -> None:
        """Send a close frame, if none was sent, after everything else. Receiving goes on until the peer's comes."""
        if self._close_sent:
            await self._outbox.flush()
            return
        self._close_sent = True
        with suppress(trio.BrokenResourceError):
            await self._outbox.deliver(CloseConnection(code=code, reason=reason[:100]))

    async def run_writer(self) -> None:
        await self._outbox.run()

    async def cut(self, reason: str) -> None:
        """End the connection without a word."""
        self._end(CloseReason.ABNORMAL_CLOSURE, reason)
        self._outbox.fail(reason)
        await trio.aclose_forcefully(self._transport)

    def _encode(self, event: Event) -> bytes:
        self.activity.record()
        try:
            return self._wire.send(event)
        except LocalProtocolError as error:
            raise trio.BrokenResourceError("the WebSocket is closing") from error


@asynccontextmanager
async def open_websocket(
    transport: trio.abc.Stream, *, client: bool, message_limit: int = MESSAGE_LIMIT
) -> AsyncIterator[WebSocket]:
    """A WebSocket over `transport`, which it owns, after the handshake. Its task ends with the body.

    Closing in order is the body's: `close`, then `receive` until it ends. What has not been written then is lost.
    """
    websocket = WebSocket(transport, client=client, message_limit=message_limit)
    try:
        with body_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(websocket.run_writer)
                yield websocket
                nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(transport)


class WebSocketByteStream(trio.abc.HalfCloseableStream):
    """A byte stream in binary messages, their borders without meaning: how SPDY is tunnelled (`SPDY/3.1+...`)."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._rest = b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while not self._rest:
            part = await self._websocket.receive()
            if part is None:
                return b""
            if part.text:
                await self._websocket.close(CloseReason.UNSUPPORTED_DATA, "expected binary messages")
                raise WebSocketClosed(CloseReason.UNSUPPORTED_DATA, "expected binary messages, got text")
            self._rest = part.data
        most = len(self._rest) if max_bytes is None else max_bytes
        data, self._rest = self._rest[:most], self._rest[most:]
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with memoryview(data) as view:
            for start in range(0, len(view), _SEND):
                await self._websocket.send(bytes(view[start : start + _SEND]))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Close in order. The peer's answer is the end of what is received."""
        await self._websocket.close()

    async def aclose(self) -> None:
        """Cut the connection; `send_eof` before is the polite way."""
        await self._websocket.cut("this stream was closed")
