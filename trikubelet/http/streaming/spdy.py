"""A SPDY/3.1 session over any Trio stream, as client or server; its streams are Trio streams with headers.

The story of a byte: the session's reader takes it off the transport, the decoder (`spdy_frames`) finds its frame, and
it waits in its stream's inbox for the task that reads the stream. The other way, a task's `send_all` becomes frames in
the session's outbox, which writes them one after the other. Nothing in between decides anything.

What the peers do (moby/spdystream on both ends of everything in Kubernetes):
 - They ignore flow control: no WINDOW_UPDATE is sent or understood, so none is sent here and windows are not kept.
   Memory is bounded by the inboxes (`inbox.py`): where one stream is not read, the whole session comes to wait.
 - Data for a stream that they have not answered with SYN_REPLY are dropped: `open_stream` waits for the reply, and
   a server replies before it sends.
 - `Close` of a stream is FIN and closes one direction. `Reset` is RST_STREAM, but not after FIN. A reset is also how
   they end a session in order: every stream is reset, then comes GOAWAY, then the end of the connection.
 - GOAWAY ends their reading: it is the last frame that they see, so it is the last that is sent.
 - API servers and kubectl ping every 5 or 10 seconds; such a session is never idle.

A stream that was reset, or whose session ended, first gives what had arrived, then raises `trio.BrokenResourceError`;
`reset_status` tells a reset from a lost connection.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.http.streaming.activity import Activity
from trikubelet.http.streaming.inbox import Inbox, Room
from trikubelet.http.streaming.outbox import Outbox
from trikubelet.http.streaming.spdy_frames import (
    MAX_STREAM_ID,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    GoAwayStatus,
    MoreHeaders,
    Ping,
    ResetStatus,
    RstStream,
    SpdyProtocolError,
    SynReply,
    SynStream,
)
from trikubelet.scopes import body_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from trikubelet.http.streaming.spdy_headers import Headers

NO_HEADERS: Final[Headers] = MappingProxyType({})

_RECEIVE: Final = 64 * 2**10
_SEND: Final = 64 * 2**10
_LINGER: Final = 5.0
"""Seconds to wait for the peer's end after ours. Closing with bytes unread would tear our last frames from the peer."""
_PONGS: Final = 16
_REPLY_TIMEOUT: Final = 30.0


@frozen
class SpdyLimits:
    """What a session may cost, in bytes where nothing else is said."""

    streams: int = 1000
    """Open at once by the peer; one more is refused."""
    stream_buffer: int = 256 * 2**10
    session_buffer: int = 2 * 2**20
    """All streams' buffers together."""
    control_frame: int = 64 * 2**10
    header_block: int = 64 * 2**10
    """Decompressed."""


class StreamRefused(trio.BrokenResourceError):
    """The peer did not accept a stream. `status` as in RST_STREAM."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the peer refused the stream (status {status})")
        self.status = status


class SpdyStream(trio.abc.HalfCloseableStream):
    """One stream of a session. Made by `SpdySession`."""

    def __init__(self, session: SpdySession, stream_id: int, headers: Headers, *, replied: bool) -> None:
        self._session = session
        self.id = stream_id
        self.headers = headers
        """The opener's, names in lower case."""
        self._inbox = session._new_inbox()
        self._accepted = replied
        self._replied = trio.Event()
        if replied:
            self._replied.set()
        self._sent_fin = False
        self._sending = False
        self._gone = ""
        """Why nothing can be sent any more, other than by our own doing."""
        self.reset_status: int | None = None
        """Set when the peer reset the stream."""

    async def reply(self, headers: Headers = NO_HEADERS) -> None:
        """Accept a stream that the peer opened. Before anything is sent on it."""
        await self._session._outbox.deliver(SynReply(self.id, headers))
        self._replied.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """At least one byte; b"" after the peer's FIN. Raises and cancels like `Inbox.take`."""
        return await self._inbox.take(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send in frames of 64 KiB at most. When cancelled, the frames up to some point have been sent, whole."""
        if self._sending:
            raise trio.BusyResourceError("another task is already sending on this stream")
        await trio.lowlevel.checkpoint()
        self._check_sendable()
        self._sending = True
        try:
            with memoryview(data) as view:
                for start in range(0, len(view), _SEND):
                    await self._session._outbox.send(Data(self.id, bytes(view[start : start + _SEND])))
                    self._check_sendable()
        finally:
            self._sending = False

    def _check_sendable(self) -> None:
        if self._gone:
            raise trio.BrokenResourceError(self._gone)
        if self._sent_fin:
            raise trio.ClosedResourceError("the sending side of this stream was closed")
        if not self._replied.is_set():
            raise RuntimeError("expected reply() before anything is sent: the peer would drop it")

    async def wait_send_all_might_not_block(self) -> None:
        """Returns at once: when the peer takes data again cannot be known."""
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Say that nothing more comes (FIN), also when cancelled. The other direction stays open.

        Raises `trio.BrokenResourceError` when the peer is gone or has reset the stream.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is already sending on this stream")
        if self._sent_fin:
            await trio.lowlevel.checkpoint()
            return
        self._check_sendable()
        self._sent_fin = True
        self._session._forget_when_done(self)
        await self._session._outbox.deliver(Data(self.id, b"", fin=True))

    async def aclose(self) -> None:
        """End both directions: by nothing when both ended in order, by a reset otherwise. Never raises for the peer."""
        await self.reset(ResetStatus.CANCEL)

    async def reset(self, status: int = ResetStatus.CANCEL) -> None:
        """Drop what was received, and tell the peer that neither direction is of use any more."""
        over = self._gone or (self._sent_fin and self._inbox.ended)
        self._inbox.close()
        self._gone = self._gone or "this stream was reset"
        self._session._streams.pop(self.id, None)
        if over:
            await trio.lowlevel.checkpoint()
            return
        with suppress(trio.BrokenResourceError):
            await self._session._outbox.deliver(RstStream(self.id, status))

    @property
    def refusal(self) -> Exception | None:
        """Why this stream never came to be: refused by the peer, or too late for the session.

        None once it was accepted: a peer may accept it, say on another stream what is wrong, and reset it at once.
        """
        if self._accepted:
            return None
        if self.reset_status is not None:
            return StreamRefused(self.reset_status)
        return trio.BrokenResourceError(self._gone) if self._gone else None

    def discard_received(self) -> None:
        """Drop what has arrived and what arrives: this stream is not read any more, and blocks no other one."""
        self._inbox.close()

    # Called by the session's reader.

    def _on_reset(self, status: int) -> None:
        self.reset_status = status
        self._end(f"the peer reset the stream (status {status})")

    def _end(self, reason: str) -> None:
        self._gone = self._gone or reason
        self._inbox.end(broken=reason)
        self._replied.set()


@frozen
class SpdyStatistics:
    """`buffered`: bytes that have arrived and were not read. `failure`: why the session ended, "" for in order."""

    streams: int
    buffered: int
    ended: bool
    failure: str


class SpdySession:
    """Made by `open_spdy`. Several tasks may use it."""

    def __init__(self, transport: trio.abc.Stream, limits: SpdyLimits, idle_timeout: float, *, client: bool) -> None:
        self._transport = transport
        self._limits = limits
        self._idle_timeout = idle_timeout
        self._room = Room(limits.session_buffer)
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder(control_size=limits.control_frame, headers_size=limits.header_block)
        self._outbox: Outbox[Frame] = Outbox(transport, self._encode)
        self._streams: dict[int, SpdyStream] = {}
        self._next_id, self._peer_parity = (1, 0) if client else (2, 1)
        self._last_peer_id = 0
        self._opened, self._accepted = trio.open_memory_channel[SpdyStream](limits.streams)
        self._activity = Activity()
        self._closing = False
        self.ended = trio.Event()
        """Nothing more arrives: the peer closed the connection, or it is broken."""
        self.failure = ""
        """Why it ended; "" when the peer closed it in order. Of a meaning once `ended` is set."""

    def statistics(self) -> SpdyStatistics:
        return SpdyStatistics(len(self._streams), self._room.used, self.ended.is_set(), self.failure)

    async def open_stream(self, headers: Headers, *, timeout: float = _REPLY_TIMEOUT) -> SpdyStream:
        """Open one stream, as `open_streams` does."""
        [stream] = await self.open_streams([headers], timeout=timeout)
        return stream

    async def open_streams(self, several: Sequence[Headers], *, timeout: float = _REPLY_TIMEOUT) -> list[SpdyStream]:
        """Open streams and wait until the peer accepts them. All are asked for at once: one journey, not one for each.

        Raises StreamRefused, `trio.BrokenResourceError` when the session is over, `trio.TooSlowError` after `timeout`
        seconds. In each case, and when cancelled, all of them are reset.
        """
        streams: list[SpdyStream] = []
        try:
            for headers in several:
                streams.append(self._begun(headers))
            with trio.fail_after(timeout):
                for stream in streams[:-1]:
                    self._outbox.post(SynStream(stream.id, stream.headers))
                await self._outbox.deliver(SynStream(streams[-1].id, streams[-1].headers))
                for stream in streams:
                    await stream._replied.wait()
        except BaseException:
            await self._reset_all(streams)
            raise
        failure = next((stream.refusal for stream in streams if stream.refusal is not None), None)
        if failure is not None:
            await self._reset_all(streams)
            raise failure
        return streams

    def _begun(self, headers: Headers) -> SpdyStream:
        if self.ended.is_set() or self._next_id > MAX_STREAM_ID:
            raise trio.BrokenResourceError(self.failure or "the session is over")
        names = {name.lower(): value for name, value in headers.items()}
        stream = SpdyStream(self, self._next_id, names, replied=False)
        self._next_id += 2
        self._streams[stream.id] = stream
        return stream

    async def _reset_all(self, streams: Sequence[SpdyStream]) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _LINGER):
            for stream in streams:
                await stream.reset()

    async def accept_stream(self) -> SpdyStream:
        """The next stream that the peer opens: to be answered with `reply` or `reset`.

        Raises `trio.EndOfChannel` when the session is over.
        """
        return await self._accepted.receive()

    def _new_inbox(self) -> Inbox:
        return Inbox(self._limits.stream_buffer, self._room)

    def _encode(self, frame: Frame) -> bytes:
        self._activity.record()
        return self._encoder.encode(frame)

    def _forget_when_done(self, stream: SpdyStream) -> None:
        if stream._sent_fin and stream._inbox.ended:
            self._streams.pop(stream.id, None)

    # The reader.

    async def run_reader(self) -> None:
        """Take frames off the transport until it ends. Raises nothing of the peer's doing."""
        failure = "the session was closed"
        try:
            failure = await self._read()
        except SpdyProtocolError as error:
            failure = str(error)
            self._outbox.post(GoAway(self._last_peer_id, GoAwayStatus.PROTOCOL_ERROR))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            failure = f"the connection is broken: {error}"
        finally:
            self._end(failure)

    async def _read(self) -> str:
        while data := await self._transport.receive_some(_RECEIVE):
            self._activity.record()
            self._decoder.feed(data)
            while (frame := self._decoder.next_frame()) is not None:
                await self._handle(frame)
                if isinstance(frame, GoAway) and not self._streams:
                    return ""  # nothing can follow; over TLS, a peer that waits for our end can say it in no other way
        return "the connection ended in the middle of a frame" if self._decoder.in_frame else ""

    def _end(self, failure: str) -> None:
        if self.ended.is_set():
            return
        self.failure = failure
        self.ended.set()
        for stream in self._streams.values():
            stream._end(failure or "the peer closed the connection")
        self._streams.clear()
        self._opened.close()

    async def _handle(self, frame: Frame) -> None:
        match frame:
            case Data():
                if (stream := self._streams.get(frame.stream_id)) is not None:
                    await stream._inbox.put(frame.data)
                    self._handle_fin(stream, fin=frame.fin)
            case SynStream():
                await self._handle_syn_stream(frame)
            case SynReply() | MoreHeaders():
                # Headers that come later mean nothing to Kubernetes.
                if (stream := self._streams.get(frame.stream_id)) is not None:
                    stream._accepted = True
                    stream._replied.set()
                    self._handle_fin(stream, fin=frame.fin)
            case RstStream():
                if (stream := self._streams.pop(frame.stream_id, None)) is not None:
                    stream._on_reset(frame.status)
            case Ping() if frame.id % 2 == self._peer_parity:
                if len(self._outbox) < _PONGS:
                    self._outbox.post(frame)
                else:
                    await self._outbox.send(frame)
            case _:
                # GOAWAY with streams open: the end of the connection follows. SETTINGS, WINDOW_UPDATE: see above.
                pass

    async def _handle_syn_stream(self, frame: SynStream) -> None:
        if self._closing:
            return
        if frame.stream_id % 2 != self._peer_parity or frame.stream_id <= self._last_peer_id:
            await self._outbox.send(RstStream(frame.stream_id, ResetStatus.PROTOCOL_ERROR))
            return
        self._last_peer_id = frame.stream_id
        stream = SpdyStream(self, frame.stream_id, frame.headers, replied=False)
        stream._sent_fin = frame.unidirectional
        if frame.fin:
            stream._inbox.end()
        try:
            if len(self._streams) >= self._limits.streams:
                raise trio.WouldBlock
            self._opened.send_nowait(stream)
        except (trio.WouldBlock, trio.BrokenResourceError):
            await self._outbox.send(RstStream(frame.stream_id, ResetStatus.REFUSED_STREAM))
        else:
            self._streams[stream.id] = stream

    def _handle_fin(self, stream: SpdyStream, *, fin: bool) -> None:
        if fin:
            stream._inbox.end()
            self._forget_when_done(stream)

    # The session's other tasks, and its end.

    async def run_writer(self) -> None:
        await self._outbox.run()

    async def run_idle_watch(self) -> None:
        """Cut the connection when nothing has moved for too long."""
        await self._activity.wait_idle(self._idle_timeout)
        self._end(f"nothing was sent or received for {self._idle_timeout:g} seconds")
        self._outbox.fail(self.failure)
        await trio.aclose_forcefully(self._transport)

    async def close_in_order(self) -> None:
        """Reset what is open, send GOAWAY, and wait for the peer's end, but not long."""
        self._closing = True
        with trio.move_on_after(_LINGER), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for stream in tuple(self._streams.values()):
                await stream.reset()
            await self._outbox.deliver(GoAway(self._last_peer_id))
            if isinstance(self._transport, trio.abc.HalfCloseableStream):
                await self._transport.send_eof()
            await self.ended.wait()


@asynccontextmanager
async def open_spdy(
    transport: trio.abc.Stream,
    *,
    client: bool,
    limits: SpdyLimits = SpdyLimits(),  # noqa: B008 - frozen
    idle_timeout: float = float("inf"),
) -> AsyncIterator[SpdySession]:
    """A session over `transport`, which it owns. `idle_timeout`: seconds without a frame until it is cut.

    Its tasks end with the body: in order (streams reset, GOAWAY, up to 5 seconds of waiting for the peer) when
    the body ends in order, at once when it raises or is cancelled. A peer that ends the session, or breaks the
    protocol, does not cancel the body: its streams break, and `session.ended` is set.
    """
    session = SpdySession(transport, limits, idle_timeout, client=client)
    try:
        with body_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.run_reader)
                nursery.start_soon(session.run_writer)
                nursery.start_soon(session.run_idle_watch)
                yield session
                await session.close_in_order()
                nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(transport)
