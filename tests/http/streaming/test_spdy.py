"""SPDY sessions: against each other over memory, and against a peer that is nothing but frames."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from trikubelet.http.streaming.spdy import SpdyLimits, SpdySession, SpdyStream, StreamRefused, open_spdy
from trikubelet.http.streaming.spdy_frames import (
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    GoAwayStatus,
    Ping,
    ResetStatus,
    RstStream,
    Setting,
    Settings,
    SynReply,
    SynStream,
    WindowUpdate,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def two_sessions(limits: SpdyLimits | None = None) -> AsyncIterator[tuple[SpdySession, SpdySession]]:
    """A client and a server; nothing is held on the way."""
    ours, theirs = lockstep_stream_pair()
    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            ready = trio.Event()
            over = trio.Event()
            servers: list[SpdySession] = []

            async def serve() -> None:
                async with open_spdy(theirs, client=False, limits=limits or SpdyLimits()) as server:
                    servers.append(server)
                    ready.set()
                    await over.wait()

            nursery.start_soon(serve)
            await ready.wait()
            async with open_spdy(ours, client=True, limits=limits or SpdyLimits()) as client:
                yield client, servers[0]
                over.set()


async def open_pair(client: SpdySession, server: SpdySession) -> tuple[SpdyStream, SpdyStream]:
    """A stream's two ends."""
    ends: list[SpdyStream] = []

    async def accept() -> None:
        stream = await server.accept_stream()
        await stream.reply()
        ends.append(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        opened = await client.open_stream({"streamType": "data"})
    return opened, ends[0]


class RawPeer:
    """The other side of a session, frame by frame."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.stream = stream
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder(control_size=65536, headers_size=65536)

    async def send(self, *frames: Frame) -> None:
        await self.stream.send_all(b"".join(self._encoder.encode(frame) for frame in frames))

    async def receive(self) -> Frame | None:
        """The next frame; None at the end."""
        while (frame := self._decoder.next_frame()) is None:
            data = await self.stream.receive_some()
            if not data:
                return None
            self._decoder.feed(data)
        return frame


@asynccontextmanager
async def raw_client(
    limits: SpdyLimits | None = None, idle_timeout: float = float("inf")
) -> AsyncIterator[tuple[RawPeer, SpdySession]]:
    ours, theirs = memory_stream_pair()
    with trio.fail_after(1000):
        async with open_spdy(theirs, client=False, limits=limits or SpdyLimits(), idle_timeout=idle_timeout) as session:
            yield RawPeer(ours), session
            await ours.send_eof()


async def test_bytes_go_both_ways_and_each_direction_ends_by_itself(autojump_clock: trio.abc.Clock) -> None:
    async with two_sessions() as (client, server):
        opened, accepted = await open_pair(client, server)
        assert accepted.headers == {"streamtype": "data"}
        await opened.send_all(b"question" * 20_000)
        await opened.send_eof()
        received = b""
        while data := await accepted.receive_some(1000):
            assert len(data) <= 1000
            received += data
        assert received == b"question" * 20_000
        await accepted.send_all(b"answer")
        await accepted.send_eof()
        assert await opened.receive_some() == b"answer"
        assert await opened.receive_some() == b""
        assert client.statistics().streams == server.statistics().streams == 0
        with pytest.raises(trio.ClosedResourceError):
            await opened.send_all(b"more")


async def test_a_reset_ends_both_directions_after_what_had_arrived(autojump_clock: trio.abc.Clock) -> None:
    async with two_sessions() as (client, server):
        opened, accepted = await open_pair(client, server)
        await opened.send_all(b"last words")
        await opened.reset()
        await wait_all_tasks_blocked()
        assert await accepted.receive_some() == b"last words"
        with pytest.raises(trio.BrokenResourceError):
            await accepted.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await accepted.send_all(b"x")
        assert accepted.reset_status == ResetStatus.CANCEL
        with pytest.raises(trio.ClosedResourceError):
            await opened.receive_some()
        await accepted.aclose()
        await opened.aclose()


async def test_a_refused_stream_says_so(autojump_clock: trio.abc.Clock) -> None:
    async with two_sessions() as (client, server):

        async def refuse() -> None:
            await (await server.accept_stream()).reset(ResetStatus.REFUSED_STREAM)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse)
            with pytest.raises(StreamRefused) as caught:
                await client.open_stream({})
    assert caught.value.status == ResetStatus.REFUSED_STREAM


async def test_a_stream_that_was_accepted_and_reset_in_one_breath_was_not_refused(
    autojump_clock: trio.abc.Clock,
) -> None:
    """What was wrong the peer says on another stream: whoever opened this one must come to read it."""
    async with two_sessions() as (client, server):

        async def accept_and_reset() -> None:
            stream = await server.accept_stream()
            server._outbox.post(SynReply(stream.id, {}))
            await stream.reset()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_and_reset)
            stream = await client.open_stream({})
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()


async def test_a_stream_that_is_never_answered_is_given_up_and_reset(autojump_clock: trio.abc.Clock) -> None:
    async with two_sessions() as (client, server):
        with pytest.raises(trio.TooSlowError):
            await client.open_stream({}, timeout=30)
        stream = await server.accept_stream()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()


async def test_nothing_is_sent_before_the_reply(autojump_clock: trio.abc.Clock) -> None:
    async with raw_client() as (peer, session):
        await peer.send(SynStream(1, {}))
        stream = await session.accept_stream()
        with pytest.raises(RuntimeError, match="reply"):
            await stream.send_all(b"x")


async def test_a_stream_that_is_not_read_stops_its_session_within_its_bounds(autojump_clock: trio.abc.Clock) -> None:
    limits = SpdyLimits(stream_buffer=100_000, session_buffer=150_000)
    async with two_sessions(limits) as (client, server):
        unread, behind = await open_pair(client, server)
        quiet, other = await open_pair(client, server)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await unread.send_all(b"x" * 10_000)
                sent += 10_000

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            await trio.sleep(10)
            assert sent <= 300_000
            assert server.statistics().buffered <= 180_000
            # The neighbour waits too ...
            nursery.start_soon(quiet.send_all, b"hello")
            with trio.move_on_after(10) as waiting:
                await other.receive_some()
            assert waiting.cancelled_caught
            # ... until the stream is read, or nobody wants it any more.
            behind.discard_received()
            assert await other.receive_some() == b"hello"
            nursery.cancel_scope.cancel()


async def test_many_tiny_frames_cost_no_more_than_the_limit(autojump_clock: trio.abc.Clock) -> None:
    async with raw_client(SpdyLimits(stream_buffer=65_000, session_buffer=130_000)) as (peer, session):
        await peer.send(SynStream(1, {}), *[Data(1, b"x")] * 50_000)
        await wait_all_tasks_blocked()
        assert session.statistics().buffered <= 65_100
        stream = await session.accept_stream()
        stream.discard_received()


async def test_streams_beyond_the_limit_are_refused(autojump_clock: trio.abc.Clock) -> None:
    async with raw_client(SpdyLimits(streams=2)) as (peer, session):
        await peer.send(*[SynStream(stream_id, {}) for stream_id in (1, 3, 5)])
        assert await peer.receive() == RstStream(5, ResetStatus.REFUSED_STREAM)
        await (await session.accept_stream()).aclose()
        assert await peer.receive() == RstStream(1, ResetStatus.CANCEL)
        await peer.send(SynStream(7, {}))
        assert [(await session.accept_stream()).id for _ in range(2)] == [3, 7]


@pytest.mark.parametrize("stream_id", [1, 2, 3])
async def test_numbers_that_are_not_a_clients_next_ones_are_reset(
    autojump_clock: trio.abc.Clock, stream_id: int
) -> None:
    async with raw_client() as (peer, _):
        await peer.send(SynStream(3, {}), SynStream(stream_id, {}))
        assert await peer.receive() == RstStream(stream_id, ResetStatus.PROTOCOL_ERROR)


async def test_pings_are_answered_and_strange_frames_ignored(autojump_clock: trio.abc.Clock) -> None:
    async with raw_client() as (peer, session):
        await peer.send(
            Ping(2),
            Settings((Setting(7, 1),)),
            WindowUpdate(0, 5),
            Data(99, b"for nobody"),
            RstStream(99, 1),
            SynReply(99, {}),
            Ping(7),
        )
        assert await peer.receive() == Ping(7)
        assert not session.ended.is_set()


async def test_a_peer_that_pings_and_reads_nothing_costs_bounded_memory(autojump_clock: trio.abc.Clock) -> None:
    ours, theirs = lockstep_stream_pair()
    async with open_spdy(theirs, client=False) as session:
        encoder = FrameEncoder()
        with trio.move_on_after(10) as scope:
            for number in range(100_000):
                await ours.send_all(encoder.encode(Ping(2 * number + 1)))
        assert scope.cancelled_caught
        assert len(session._outbox) <= 17
        await trio.aclose_forcefully(ours)


async def test_a_broken_protocol_ends_the_session_with_goaway_and_says_why(autojump_clock: trio.abc.Clock) -> None:
    async with raw_client() as (peer, session):
        await peer.send(SynStream(1, {}))
        stream = await session.accept_stream()
        await peer.stream.send_all(b"\x80\x03\x00\x06\x00\x00\x00\x01x")
        assert await peer.receive() == GoAway(1, GoAwayStatus.PROTOCOL_ERROR)
        assert "PING" in session.failure
        with pytest.raises(trio.BrokenResourceError, match="PING"):
            await stream.receive_some()
        with pytest.raises(trio.EndOfChannel):
            await session.accept_stream()
        with pytest.raises(trio.BrokenResourceError):
            await session.open_stream({})


async def test_the_end_of_a_session_resets_streams_says_goodbye_and_waits_for_the_peers_end(
    autojump_clock: trio.abc.Clock,
) -> None:
    ours, theirs = memory_stream_pair()
    peer = RawPeer(ours)
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            async with open_spdy(theirs, client=False) as session:
                stream = await session.accept_stream()
                await stream.reply()
                await stream.send_all(b"result")

        nursery.start_soon(serve)
        await peer.send(SynStream(1, {}), Data(1, b"x" * 1000))
        frames = [frame async for frame in _until_end(peer)]
        assert frames == [SynReply(1, {}), Data(1, b"result"), RstStream(1, ResetStatus.CANCEL), GoAway(1)]
        started = trio.current_time()
        # The peer never closes: not waited for longer than the linger.
    assert trio.current_time() - started == pytest.approx(5, abs=0.1)


async def test_a_goodbye_ends_a_session_when_no_stream_is_open(autojump_clock: trio.abc.Clock) -> None:
    async with raw_client() as (peer, session):
        await peer.send(SynStream(1, {}))
        stream = await session.accept_stream()
        await peer.send(GoAway(0))
        await trio.sleep(1)
        assert not session.ended.is_set()
        await peer.send(Data(1, b"more", fin=True))
        assert await stream.receive_some() == b"more"
        await stream.reply()
        await stream.send_eof()
    async with raw_client() as (peer, session):
        await peer.send(GoAway(0))
        await session.ended.wait()
        assert session.failure == ""


async def _until_end(peer: RawPeer) -> AsyncIterator[Frame]:
    while (frame := await peer.receive()) is not None:
        yield frame


async def test_a_body_that_fails_cuts_the_connection_and_its_error_is_no_group(autojump_clock: trio.abc.Clock) -> None:
    ours, theirs = memory_stream_pair()
    started = trio.current_time()
    with pytest.raises(ValueError, match="mine"):
        async with open_spdy(theirs, client=False):
            raise ValueError("mine")
    assert trio.current_time() == started
    assert await ours.receive_some() == b""


async def test_a_cancelled_sender_leaves_whole_frames(autojump_clock: trio.abc.Clock) -> None:
    async with two_sessions() as (client, server):
        opened, accepted = await open_pair(client, server)
        second, second_accepted = await open_pair(client, server)
        for _ in range(50):
            with trio.move_on_after(0.001):
                await opened.send_all(b"x" * 1_000_000)
        accepted.discard_received()
        await second.send_all(b"still in step")
        assert await second_accepted.receive_some() == b"still in step"


async def test_an_idle_session_is_cut_and_pings_keep_it(autojump_clock: trio.abc.Clock) -> None:
    async with raw_client(idle_timeout=60) as (peer, session):
        for number in range(1, 11, 2):
            await trio.sleep(50)
            await peer.send(Ping(number))
            assert await peer.receive() == Ping(number)
        started = trio.current_time()
        await session.ended.wait()
        assert trio.current_time() - started == pytest.approx(60, abs=0.1)
        assert "60 seconds" in session.failure


async def test_two_readers_or_writers_of_one_stream_are_a_mistake(autojump_clock: trio.abc.Clock) -> None:
    async with two_sessions() as (client, server):
        opened, _ = await open_pair(client, server)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.receive_some)
            await wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await opened.receive_some()
            nursery.cancel_scope.cancel()
        with pytest.raises(ValueError, match="max_bytes"):
            await opened.receive_some(0)
