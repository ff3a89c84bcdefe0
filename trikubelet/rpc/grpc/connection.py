"""One HTTP/2 connection over one Trio stream: what client and server have in common.

All protocol work is synchronous: a task changes the protocol's state (`http2.py`) and calls `flush`, which writes at
once where the transport can (`send_nowait`, see `unix.py`) and leaves the rest to the connection's writer task. So no
lock is held across an await, a cancelled call cannot leave half a frame on the wire, and the task of a unary call is
woken once. The reader task is the only one that reads; it hands everything to the `WireStream` that it belongs to, and
flushes once for all that one read brought about.

Alternatives weighed: a send lock with `send_all` in the calling task (a checkpoint and a scheduler pass for each call,
and a cancellation in the middle breaks the connection); a writer task alone (one more wake-up for each call; still the
way over transports that cannot send at once). What would change this: io_uring in Trio.

When the transport breaks, everything in flight fails with UNAVAILABLE at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import trio
from grpclib import Status

from trikubelet.rpc.grpc.http2 import (
    CONNECTION_WINDOW,
    ConnectionTerminated,
    DataReceived,
    ErrorCodes,
    Event,
    Http2,
    Http2Error,
    RequestReceived,
    ResponseReceived,
    SettingsChanged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from trikubelet.rpc.grpc.status import Failure
from trikubelet.rpc.status_text import connection_error, system_text
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trikubelet.rpc.grpc.hpack import Headers
    from trikubelet.rpc.grpc.wire import WireStream

log = get_logger("grpc")

READ_SIZE = 256 * 2**10
# Bytes waiting for the transport: above the first, senders of data wait; above the second, the peer sends requests or
# pings but does not read what it gets for them, and the connection is ended.
_CONGESTED = 256 * 2**10
_FLOODED = 2 * 2**20
_GRANT_STEP = CONNECTION_WINDOW // 4
_CLOSE_TIMEOUT = 1.0


@runtime_checkable
class NowaitTransport(Protocol):
    """A Trio stream that can also send without waiting."""

    def send_nowait(self, data: bytes) -> int:
        """Send what fits now, and return how many bytes that were. Raises `trio.BrokenResourceError`."""
        ...


class Connection:
    """The engine. Subclasses say what requests and responses mean, in `on_request` and `on_response`."""

    client_side: bool

    def __init__(self, transport: trio.abc.Stream, http2: Http2, max_message_size: int) -> None:
        self.http2 = http2
        self.max_message_size = max_message_size
        self.streams: dict[int, WireStream] = {}
        self.failure: Failure | None = None
        self.ended = trio.Event()
        """Set together with `failure`."""
        # The peer or we have announced the end: no new streams, and the end comes with that of the last one.
        self.retiring = False
        self.settings_known = False
        self._transport = transport
        self._send_nowait = transport.send_nowait if isinstance(transport, NowaitTransport) else None
        self._pending = bytearray()
        self._writing = False
        # The writer is within `send_all`; if it stays there, half a frame may be out, and nothing may follow.
        self._sending = False
        self._deaf = False  # the transport takes nothing any more
        self._writer = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._ungranted = 0
        self._scope = trio.CancelScope()
        self.calls: list[Callable[[], Awaitable[None]]] = []
        """To be started: those of the requests that were read last."""
        self._handlers = {
            RequestReceived: self._on_request,
            ResponseReceived: self._on_response,
            DataReceived: self._on_data,
            TrailersReceived: self._on_trailers,
            StreamEnded: self._on_end,
            StreamReset: self._on_reset,
            WindowUpdated: self._on_room,
            SettingsChanged: self._on_settings,
            ConnectionTerminated: self._on_goaway,
        }

    # For subclasses.

    def on_request(self, stream_id: int, headers: Headers) -> None:
        """A new stream of the peer. Clients never get one."""
        raise NotImplementedError

    def on_response(self, stream: WireStream, headers: Headers) -> None:
        """The first headers of a reply. Servers never get any."""
        raise NotImplementedError

    def on_change(self) -> None:
        """The peer's settings are known or have changed, a stream has gone, or the connection retires or is lost."""

    # For streams and their tasks.

    @property
    def congested(self) -> bool:
        """Whether so much waits for the transport that data should wait too."""
        return len(self._pending) > _CONGESTED

    async def wait_for_room(self) -> None:
        """Sleep until windows or transport may have room, or the stream may have ended: check, and call again."""
        await self._room.park()

    def wake_senders(self) -> None:
        """Let those in `wait_for_room` look again."""
        if self._room:
            self._room.unpark_all()

    def flush(self) -> None:
        """Send what the protocol has queued: now, as far as the transport takes it, the rest from the writer task."""
        data = self.http2.data_to_send()
        if not data or self._deaf:
            return
        if not self._writing and self._send_nowait is not None:
            try:
                sent = self._send_nowait(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._broken()
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._pending += data
        self._writing = True
        self._writer.unpark_all()

    def forget(self, stream: WireStream) -> None:
        """The stream's task is done with it."""
        self.streams.pop(stream.id, None)
        self.on_change()
        self._end_if_done()

    def retire(self) -> None:
        """Take no new streams, and end when the last one has ended."""
        self.retiring = True
        self.on_change()
        self._end_if_done()

    def close(self) -> None:
        """End now. Streams in flight fail."""
        self._scope.cancel()

    async def run(self) -> None:
        """Serve the connection until it ends, whatever the reason; closes the transport. Raises nothing of the peer's
        doing. Cancelling ends the connection."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self.start(nursery)
                    self.flush()
                    nursery.start_soon(self._write)
                    # Those in flight learn of it before their tasks are cancelled with the nursery.
                    self._lose(await self._read(nursery))
                    nursery.cancel_scope.cancel()
        finally:
            how = "lost" if self._deaf else "closed on this side"
            self._lose(Failure(Status.UNAVAILABLE, f"the connection was {how}"))
            await self._close_transport()

    def start(self, nursery: trio.Nursery) -> None:
        """Queue the preface."""
        self.http2.start()

    # The two tasks.

    async def _read(self, nursery: trio.Nursery) -> Failure:
        handlers = self._handlers
        while True:
            try:
                data = await self._transport.receive_some(READ_SIZE)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                return self._cut_off(system_text(error.__cause__ or error))
            if not data:
                return self._cut_off("EOF")
            if not self.settings_known and data.startswith(b"HTTP/"):
                # As HTTP/2 this is the beginning of a very long frame.
                return Failure(Status.UNAVAILABLE, f"the peer does not speak HTTP/2; it says {data[:40]!r}")
            try:
                events = self.http2.receive_data(data)
            except Http2Error as error:
                self.flush()
                log.info("gRPC peer does not speak HTTP/2 as it should", error=str(error))
                return Failure(Status.UNAVAILABLE, f"the peer does not speak HTTP/2 as it should: {error}")
            for event in events:
                handler = handlers.get(type(event))
                if handler is not None:
                    handler(event)
            for call in self.calls:
                nursery.start_soon(call)
            self.calls.clear()
            self.flush()
            if len(self._pending) > _FLOODED:
                self.http2.send_goaway(self.http2.highest_inbound_stream_id, ErrorCodes.ENHANCE_YOUR_CALM)
                return Failure(Status.UNAVAILABLE, "the peer does not read what it is sent")

    def _cut_off(self, reason: str) -> Failure:
        doing = "error reading from server" if self.settings_known else "error reading server preface"
        return Failure(Status.UNAVAILABLE, connection_error(f"{doing}: {reason}"))

    async def _write(self) -> None:
        while True:
            while self._pending:
                data, self._pending = self._pending, bytearray()
                self._sending = True
                try:
                    await self._transport.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._broken()
                    return
                self._sending = False
                self.wake_senders()
            self._writing = False
            self._end_if_done()
            await self._writer.park()

    def _end_if_done(self) -> None:
        if self.retiring and not self.streams:
            if self._writing and not self._deaf:
                self._end_soon()
            else:
                self._scope.cancel()

    def _end_soon(self) -> None:
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + _CLOSE_TIMEOUT)

    def _broken(self) -> None:
        # Replies may still be waiting to be read, so the reader goes on to the end, which is near.
        self._deaf = True
        self._pending.clear()
        self.retiring = True
        self.on_change()
        self._end_soon()

    def _lose(self, failure: Failure) -> None:
        if self.failure is not None:
            return
        self.failure = failure
        self.ended.set()
        self.retiring = True
        for stream in list(self.streams.values()):
            stream.lose(failure)
        self.wake_senders()
        self.on_change()

    async def _close_transport(self) -> None:
        self.http2.send_goaway(self.http2.highest_inbound_stream_id)
        rest = bytes(self._pending) + self.http2.data_to_send()
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            if not (self._sending or self._deaf):
                try:
                    await self._transport.send_all(rest)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._deaf = True
            await self._transport.aclose()
            return
        await trio.aclose_forcefully(self._transport)

    # What the peer tells.

    def _on_request(self, event: Event) -> None:
        assert isinstance(event, RequestReceived)
        self.on_request(event.stream_id, event.headers)

    def _on_response(self, event: Event) -> None:
        assert isinstance(event, ResponseReceived)
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            self.on_response(stream, event.headers)

    def _on_data(self, event: Event) -> None:
        assert isinstance(event, DataReceived)
        length = event.flow_controlled_length
        self._ungranted += length
        if self._ungranted >= _GRANT_STEP:
            self.http2.increment_flow_control_window(self._ungranted)
            self._ungranted = 0
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.on_data(event.data, length)

    def _on_trailers(self, event: Event) -> None:
        assert isinstance(event, TrailersReceived)
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.on_trailers(event.headers)

    def _on_end(self, event: Event) -> None:
        assert isinstance(event, StreamEnded)
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.on_end()

    def _on_reset(self, event: Event) -> None:
        assert isinstance(event, StreamReset)
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.on_reset(event.error_code)

    def _on_room(self, event: Event) -> None:
        self.wake_senders()

    def _on_settings(self, event: Event) -> None:
        self.settings_known = True
        self.wake_senders()
        self.on_change()

    def _on_goaway(self, event: Event) -> None:
        assert isinstance(event, ConnectionTerminated)
        last = event.last_stream_id
        reason = event.additional_data.decode("utf-8", "replace")
        text = f"the peer is going away and did not take the call: {reason}".rstrip(": ")
        for stream in list(self.streams.values()):
            if self.client_side and stream.id > last:
                stream.reset = True
                stream.fail(Failure(Status.UNAVAILABLE, text))
        self.retire()
