"""Kubernetes' channels: several streams in one WebSocket, each message beginning with its channel's number.

Binary protocols begin a message with a byte, base64 ones with a digit and go on in base64, as text. `v5.channel.k8s.io`
adds a message from client to server that closes a channel: 255, then the channel. Everywhere else a channel ends with
the connection. Channels have no flow control; memory is bounded by their inboxes, and one that is not read stops
the others. What arrives for a channel without a reader is dropped.

For commands the numbers are those of their file descriptors, 3 is the error stream, and 4 the terminal's sizes. For
forwarded ports, channel 2n carries the data of the nth port and 2n+1 its errors.
"""

from __future__ import annotations

import binascii
from base64 import b64encode
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio
from wsproto.frame_protocol import CloseReason

from trikubelet.formats.values import frozen
from trikubelet.http.streaming.inbox import Inbox, Room
from trikubelet.http.streaming.websocket import LINGER, MessagePart, WebSocket, WebSocketClosed, open_websocket
from trikubelet.scopes import body_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
CLOSE: Final = 255
MAX_CHANNELS: Final = 200

_SEND: Final = 32 * 2**10
_CHANNEL_BUFFER: Final = 256 * 2**10
_CONNECTION_BUFFER: Final = 2 * 2**20


@frozen
class ChannelProtocol:
    """A WebSocket subprotocol."""

    name: str
    """"" is a client that asks for none."""
    base64: bool = False
    structured_errors: bool = False
    """The error channel carries a `metav1.Status` instead of text."""
    closes: bool = False
    """A client can close a channel."""


V5: Final = ChannelProtocol("v5.channel.k8s.io", structured_errors=True, closes=True)
V4: Final = ChannelProtocol("v4.channel.k8s.io", structured_errors=True)
V4_BASE64: Final = ChannelProtocol("v4.base64.channel.k8s.io", base64=True, structured_errors=True)
V1: Final = ChannelProtocol("channel.k8s.io")
V1_BASE64: Final = ChannelProtocol("base64.channel.k8s.io", base64=True)
UNNAMED: Final = ChannelProtocol("")

COMMAND_PROTOCOLS: Final = (V5, V4, V4_BASE64, V1, V1_BASE64, UNNAMED)
"""For exec and attach: the kubelet's, and v5. (v2 and v3 exist over SPDY only.)"""
PORT_FORWARD_PROTOCOLS: Final = (V4, V4_BASE64, UNNAMED)


class Channel(trio.abc.HalfCloseableStream):
    """One channel of a connection. Made by `Channels`."""

    def __init__(self, channels: Channels, number: int, room: Room) -> None:
        self._channels = channels
        self._number = number
        self._inbox = Inbox(_CHANNEL_BUFFER, room)
        self._send_closed = False
        self._sending = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """At least one byte; b"" after the peer has closed the channel, or the connection in order."""
        return await self._inbox.take(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send in messages of 32 KiB at most. When cancelled, the messages up to some point have been sent."""
        if self._sending:
            raise trio.BusyResourceError("another task is already sending on this channel")
        await trio.lowlevel.checkpoint()
        self._sending = True
        try:
            with memoryview(data) as view:
                for start in range(0, len(view), _SEND):
                    if self._send_closed:
                        raise trio.ClosedResourceError("the sending side of this channel was closed")
                    await self._channels.send(self._number, bytes(view[start : start + _SEND]))
        finally:
            self._sending = False

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Say that nothing more comes, where the protocol can say it; and send nothing more."""
        if self._send_closed:
            await trio.lowlevel.checkpoint()
            return
        self._send_closed = True
        await self._channels.send_close(self._number)

    async def aclose(self) -> None:
        """Drop what arrives, and end what is sent. Never raises for the peer."""
        self.discard_received()
        with suppress(trio.BrokenResourceError):
            await self.send_eof()

    def discard_received(self) -> None:
        """Drop what has arrived and what arrives."""
        self._inbox.close()


class Channels:
    """The channels of one connection. Made by `open_channels`."""

    def __init__(self, websocket: WebSocket, protocol: ChannelProtocol, *, client: bool) -> None:
        self._websocket = websocket
        self.protocol = protocol
        self._client = client
        self._room = Room(_CONNECTION_BUFFER)
        self._channels: dict[int, Channel] = {}
        self._current: Channel | None = None
        """Whose message is being received."""
        self._held = b""
        """Of that message: what is not yet enough for a decision."""
        self._closing = False
        self.ended = trio.Event()
        """Nothing more arrives."""
        self.failure = ""
        """Why; "" when the peer closed in order."""

    def __getitem__(self, number: int) -> Channel:
        return self._channels[number]

    @property
    def buffered(self) -> int:
        """Bytes that have arrived and were not read."""
        return self._room.used

    def add(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._channels[number] = Channel(self, number, self._room)

    async def send(self, number: int, data: bytes) -> None:
        """Send one message on a channel; an empty one only opens the channel."""
        if self.protocol.base64:
            await self._websocket.send(chr(ord("0") + number) + b64encode(data).decode())
        else:
            await self._websocket.send(bytes([number]) + data)

    async def send_close(self, number: int) -> None:
        if self.protocol.closes and self._client:
            await self._websocket.send(bytes([CLOSE, number]))
        else:
            await trio.lowlevel.checkpoint()

    async def run_reader(self) -> None:
        """Give messages to their channels until the connection ends. Raises nothing of the peer's doing."""
        failure = "the connection was closed"
        try:
            while (part := await self._websocket.receive()) is not None:
                await self._take(part)
            failure = ""
        except trio.BrokenResourceError as error:
            failure = str(error)
        finally:
            self._end(failure)

    def _end(self, failure: str) -> None:
        if not self.ended.is_set():
            self.failure = failure
            self.ended.set()
            for channel in self._channels.values():
                channel._inbox.end(broken=failure)

    async def _take(self, part: MessagePart) -> None:
        data = part.data
        if part.first:
            self._current, self._held = None, b""
            if not data:
                return
            number, data = data[0], data[1:]
            if self.protocol.base64:
                number -= ord("0")
            if number == CLOSE and self.protocol.closes and not self._client:
                await self._take_close(part, data)
                return
            self._current = self._channels.get(number)
        if self._current is None:
            return
        if self.protocol.base64:
            data = await self._decode(data, last=part.last)
        await self._current._inbox.put(data)

    async def _take_close(self, part: MessagePart, data: bytes) -> None:
        if not part.last or len(data) != 1:
            await self._refuse(CloseReason.PROTOCOL_ERROR, "expected one channel's number after the signal to close")
        if (channel := self._channels.get(data[0])) is None:
            await self._refuse(CloseReason.PROTOCOL_ERROR, f"expected a channel to close, got {data[0]}")
        else:
            channel._inbox.end()

    async def _decode(self, data: bytes, *, last: bool) -> bytes:
        data = self._held + data
        whole = len(data) if last else len(data) - len(data) % 4
        data, self._held = data[:whole], data[whole:]
        try:
            return binascii.a2b_base64(data)
        except binascii.Error:
            await self._refuse(CloseReason.INVALID_FRAME_PAYLOAD_DATA, "expected base64")
            raise

    async def _refuse(self, code: CloseReason, reason: str) -> None:
        await self._websocket.close(code, reason)
        raise WebSocketClosed(code, reason)

    async def run_idle_watch(self, timeout: float) -> None:
        await self._websocket.activity.wait_idle(timeout)
        reason = f"nothing was sent or received for {timeout:g} seconds"
        self._end(reason)
        await self._websocket.cut(reason)

    async def close_in_order(self) -> None:
        """Close in order, and wait for the peer's end, but not long."""
        for channel in self._channels.values():
            channel.discard_received()
        with trio.move_on_after(LINGER):
            await self._websocket.close()
            await self.ended.wait()


@asynccontextmanager
async def open_channels(
    transport: trio.abc.Stream,
    protocol: ChannelProtocol,
    numbers: Collection[int],
    *,
    client: bool,
    idle_timeout: float = float("inf"),
) -> AsyncIterator[Channels]:
    """Channels with these numbers over `transport`, which it owns, after the handshake.

    Its tasks end with the body: in order (close code 1000, up to 5 seconds of waiting for the peer's) when the body
    ends in order, at once when it raises or is cancelled. The peer's end does not cancel the body.
    """
    async with open_websocket(transport, client=client) as websocket:
        channels = Channels(websocket, protocol, client=client)
        channels.add(numbers)
        with body_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channels.run_reader)
                nursery.start_soon(channels.run_idle_watch, idle_timeout)
                yield channels
                await channels.close_in_order()
                nursery.cancel_scope.cancel()
