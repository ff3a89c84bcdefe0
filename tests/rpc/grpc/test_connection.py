"""Connections that end, that fail to begin, and peers that behave oddly: what our client makes of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from grpclib import GRPCError, Status
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    PingAckReceived,
    RequestReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

from tests.rpc.grpc.echo import EACH, SPLIT, WHOLE, Text, call, open_call
from tests.rpc.grpc.peer import HEADERS, TRAILERS, Peer
from trikubelet.backoff import Backoff
from trikubelet.rpc.grpc import Channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from tests.rpc.grpc.conftest import Start


class Dialled:
    """Connections that a channel has made to nobody but the test."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](10)
        self.count = 0

    async def connect(self) -> trio.abc.Stream:
        near, far = trio.testing.memory_stream_pair()
        await self._send.send(far)
        self.count += 1
        return near

    async def peer(self) -> Peer:
        peer = Peer(await self._receive.receive(), client_side=False)
        await peer.start()
        return peer


@asynccontextmanager
async def _scripted(**options: Any) -> AsyncIterator[tuple[Channel, Dialled, trio.Nursery]]:
    dialled = Dialled()
    async with Channel(dialled.connect, **options) as channel, trio.open_nursery() as nursery:
        yield channel, dialled, nursery


class Outcome:
    """Runs one call in a task, and keeps what came of it."""

    def __init__(self, channel: Channel, path: str = WHOLE, **options: Any) -> None:
        self._arguments = (channel, path, options)
        self.reply: list[bytes] | None = None
        self.error: GRPCError | None = None
        self.done = trio.Event()
        self.at = 0.0

    async def run(self) -> None:
        channel, path, options = self._arguments
        try:
            self.reply = await call(channel, path, b"x", **options)
        except GRPCError as error:
            self.error = error
        self.at = trio.current_time()
        self.done.set()

    async def status(self) -> Status:
        await self.done.wait()
        assert self.error is not None, f"the call has succeeded: {self.reply}"
        return self.error.status


# Losing a connection.


async def test_calls_in_flight_fail_at_once_when_the_connection_is_lost(clock: MockClock, start: Start) -> None:
    async def forever(stream: Any) -> None:
        await trio.sleep_forever()

    async with start({WHOLE: forever}) as (channel, node), trio.open_nursery() as nursery:
        outcomes = [Outcome(channel, timeout=60) for _ in range(5)]
        for outcome in outcomes:
            nursery.start_soon(outcome.run)
        await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        await node.cut()
        assert [await outcome.status() for outcome in outcomes] == [Status.UNAVAILABLE] * 5
        assert trio.current_time() == begin


async def test_the_next_call_after_a_loss_makes_a_new_connection_at_once(clock: MockClock, start: Start) -> None:
    async with start() as (channel, node):
        await call(channel, WHOLE, b"x")
        await node.cut()
        await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        assert await call(channel, WHOLE, b"y") == [b"y"]
        assert trio.current_time() == begin
        assert len(node.dials) == 2


async def test_a_server_that_stops_fails_its_calls_with_unavailable(clock: MockClock, start: Start) -> None:
    async def forever(stream: Any) -> None:
        await trio.sleep_forever()

    async with start({WHOLE: forever}) as (channel, node), trio.open_nursery() as nursery:
        outcome = Outcome(channel)
        nursery.start_soon(outcome.run)
        await trio.testing.wait_all_tasks_blocked()
        node.stop()
        assert await outcome.status() is Status.UNAVAILABLE


async def test_closing_the_channel_fails_its_calls_with_unavailable(clock: MockClock, start: Start) -> None:
    async def forever(stream: Any) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with start({WHOLE: forever}) as (channel, _):
            outcome = Outcome(channel)
            nursery.start_soon(outcome.run)
            await trio.testing.wait_all_tasks_blocked()
            channel.close()
            assert await outcome.status() is Status.UNAVAILABLE


# Making one.


async def test_calls_made_while_connecting_wait_and_share_the_attempts_failure(clock: MockClock, start: Start) -> None:
    async with start() as (channel, node), trio.open_nursery() as nursery:
        node.away = ConnectionRefusedError(111, "nobody there")
        outcomes = [Outcome(channel) for _ in range(3)]
        for outcome in outcomes:
            nursery.start_soon(outcome.run)
        assert [await outcome.status() for outcome in outcomes] == [Status.UNAVAILABLE] * 3
        assert "nobody there" in str(outcomes[0].error)
        assert len(node.dials) == 1


async def test_calls_during_the_backoff_fail_at_once_and_dial_nothing(clock: MockClock, start: Start) -> None:
    async with start() as (channel, node):
        node.away = OSError("away")
        for _ in range(10):
            with pytest.raises(GRPCError, match="away") as caught:
                await call(channel, WHOLE, b"x")
            assert caught.value.status is Status.UNAVAILABLE
        assert len(node.dials) == 1


async def test_attempts_back_off_exponentially(
    clock: MockClock,
) -> None:
    dials: list[float] = []

    async def connect() -> trio.abc.Stream:
        dials.append(trio.current_time())
        raise OSError("away")

    backoff = Backoff(first=1, longest=5)
    async with Channel(connect, backoff=backoff) as channel:
        while len(dials) < 6:
            with pytest.raises(GRPCError):
                await call(channel, WHOLE, b"x")
            await trio.sleep(0.25)
        assert [later - earlier for earlier, later in pairwise(dials)] == [1, 2, 4, 5, 5]
        assert channel.statistics().failures_in_a_row == 6


async def test_a_success_ends_the_backoff(clock: MockClock, start: Start) -> None:
    async with start() as (channel, node):
        for _ in range(5):
            node.away = OSError("away")
            with pytest.raises(GRPCError):
                await call(channel, WHOLE, b"x")
            await trio.sleep(10)
        node.away = None
        assert await call(channel, WHOLE, b"x") == [b"x"]
        assert channel.statistics().failures_in_a_row == 0


async def test_a_peer_that_says_nothing_fails_the_attempt_after_its_timeout(clock: MockClock) -> None:
    async with _scripted(connect_timeout=7) as (channel, _, _nursery):
        begin = trio.current_time()
        with pytest.raises(GRPCError, match="no answer within 7 s") as caught:
            await call(channel, WHOLE, b"x")
        assert caught.value.status is Status.UNAVAILABLE
        assert trio.current_time() - begin == 7


async def test_the_deadline_of_a_call_covers_connecting(clock: MockClock) -> None:
    async with _scripted() as (channel, _, _nursery):
        with pytest.raises(GRPCError) as caught:
            await call(channel, WHOLE, b"x", timeout=1)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert trio.current_time() == 1


async def test_a_peer_that_speaks_something_else_makes_the_attempt_fail(clock: MockClock) -> None:
    async def connect() -> trio.abc.Stream:
        near, far = trio.testing.memory_stream_pair()
        await far.send_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        return near

    async with Channel(connect) as channel:
        with pytest.raises(GRPCError, match="does not speak HTTP/2") as caught:
            await call(channel, WHOLE, b"x")
        assert caught.value.status is Status.UNAVAILABLE


# GOAWAY.


async def test_after_goaway_accepted_calls_finish_others_fail_and_new_ones_connect_anew(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, nursery):
        accepted, rejected, new = Outcome(channel), Outcome(channel), Outcome(channel)
        nursery.start_soon(accepted.run)
        peer = await dialled.peer()
        await peer.expect(StreamEnded)
        nursery.start_soon(rejected.run)
        await peer.expect(StreamEnded)

        await peer.send_frame(GoAwayFrame(0, last_stream_id=1, error_code=0, additional_data=b"maintenance"))
        assert await rejected.status() is Status.UNAVAILABLE
        assert "maintenance" in str(rejected.error)
        assert not accepted.done.is_set()

        nursery.start_soon(new.run)
        second = await dialled.peer()
        await second.expect(StreamEnded)
        await second.reply(1, b"from the second")
        await new.done.wait()

        await peer.reply(1, b"from the first")
        await accepted.done.wait()
        assert (accepted.reply, new.reply) == ([b"from the first"], [b"from the second"])
        with pytest.raises(AssertionError, match="has ended"):  # it is not kept when nobody uses it any more
            await peer.expect(StreamEnded)


async def test_a_large_message_goes_on_after_goaway(clock: MockClock) -> None:
    body = b"x" * 200_000
    async with _scripted() as (channel, dialled, nursery):

        async def send() -> None:
            assert await call(channel, WHOLE, body) == [b"thanks"]

        nursery.start_soon(send)
        peer = await dialled.peer()
        await peer.expect(DataReceived)
        await peer.send_frame(GoAwayFrame(0, last_stream_id=2**31 - 1))
        peer.h2.increment_flow_control_window(200_000)
        peer.h2.increment_flow_control_window(200_000, 1)
        await peer.flush()
        await peer.expect(StreamEnded)
        await peer.reply(1, b"thanks")


# What else a peer may do.


async def test_pings_and_settings_are_answered(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, nursery):
        nursery.start_soon(call, channel, WHOLE, b"x")
        peer = await dialled.peer()
        await peer.expect(SettingsAcknowledged)
        peer.h2.ping(b"12345678")
        await peer.flush()
        assert (await peer.expect(PingAckReceived)).ping_data == b"12345678"
        nursery.cancel_scope.cancel()


async def test_a_request_says_what_grpc_wants_to_know(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, nursery):
        nursery.start_soon(Outcome(channel, timeout=2).run)
        peer = await dialled.peer()
        headers = dict((await peer.expect(RequestReceived)).headers)
        assert headers.pop(b"user-agent").startswith(b"grpc-python-trikubelet/")
        assert headers == {
            b":method": b"POST",
            b":scheme": b"http",
            b":path": WHOLE.encode(),
            b":authority": b"localhost",
            b"te": b"trailers",
            b"content-type": b"application/grpc",
            b"grpc-timeout": b"2000000u",
        }
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([*HEADERS, ("grpc-status", "5"), ("grpc-message", "not%20there")], Status.NOT_FOUND),
        ([(":status", "503")], Status.UNAVAILABLE),
        ([(":status", "404"), ("content-type", "text/plain")], Status.UNIMPLEMENTED),
        ([(":status", "200"), ("content-type", "text/html")], Status.UNKNOWN),
        (HEADERS, Status.UNKNOWN),
    ],
)
async def test_a_reply_of_headers_alone_is_a_status(
    clock: MockClock, headers: list[tuple[str, str]], status: Status
) -> None:
    async with _scripted() as (channel, dialled, nursery):
        outcome = Outcome(channel)
        nursery.start_soon(outcome.run)
        peer = await dialled.peer()
        await peer.expect(StreamEnded)
        peer.h2.send_headers(1, headers, end_stream=True)
        await peer.flush()
        assert await outcome.status() is status


async def test_a_web_page_is_not_taken_for_messages(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, nursery):
        outcome = Outcome(channel)
        nursery.start_soon(outcome.run)
        peer = await dialled.peer()
        await peer.expect(StreamEnded)
        peer.h2.send_headers(1, [(":status", "502"), ("content-type", "text/html")])
        peer.h2.send_data(1, b"<html>Bad Gateway</html>", end_stream=True)
        await peer.flush()
        assert await outcome.status() is Status.UNAVAILABLE


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\1\0\0\0\1x", Status.UNIMPLEMENTED),
        (b"\0\0\0\0\5abc", Status.INTERNAL),
        (b"\0\xff\xff\xff\xff", Status.RESOURCE_EXHAUSTED),
        (b"\0\0\0\0\0" * 2, Status.INTERNAL),
        (b"", Status.INTERNAL),
    ],
    ids=["compressed", "cut short", "too large", "two messages", "no message"],
)
async def test_a_unary_reply_that_is_not_one_message_fails(clock: MockClock, data: bytes, status: Status) -> None:
    async with _scripted() as (channel, dialled, nursery):
        outcome = Outcome(channel)
        nursery.start_soon(outcome.run)
        peer = await dialled.peer()
        await peer.expect(StreamEnded)
        peer.h2.send_headers(1, HEADERS)
        peer.h2.send_data(1, data)
        peer.h2.send_headers(1, TRAILERS, end_stream=True)
        await peer.flush()
        assert await outcome.status() is status


@pytest.mark.parametrize(
    ("code", "status"),
    [(ErrorCodes.REFUSED_STREAM, Status.UNAVAILABLE), (ErrorCodes.INTERNAL_ERROR, Status.INTERNAL)],
)
async def test_a_reset_by_the_server_ends_the_call(clock: MockClock, code: ErrorCodes, status: Status) -> None:
    async with _scripted() as (channel, dialled, nursery):
        outcome = Outcome(channel)
        nursery.start_soon(outcome.run)
        peer = await dialled.peer()
        await peer.expect(StreamEnded)
        peer.h2.reset_stream(1, code)
        await peer.flush()
        assert await outcome.status() is status


async def test_a_server_that_cancels_at_the_deadline_means_the_deadline(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, nursery):
        peer_ready = trio.Event()

        async def serve() -> None:
            peer = await dialled.peer()
            await peer.expect(StreamEnded)
            peer_ready.set()
            await trio.sleep_until(5)
            peer.h2.reset_stream(1, ErrorCodes.CANCEL)
            await peer.flush()

        outcome = Outcome(channel, timeout=5)
        nursery.start_soon(serve)
        nursery.start_soon(outcome.run)
        assert await outcome.status() is Status.DEADLINE_EXCEEDED


async def test_a_cancelled_call_is_reset_with_cancel(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, _nursery):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(call, channel, WHOLE, b"x")
                peer = await dialled.peer()
                await peer.expect(StreamEnded)
                scope.cancel()
        assert (await peer.expect(StreamReset)).error_code is ErrorCodes.CANCEL


async def test_a_server_may_answer_before_it_has_heard_everything(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, nursery):

        async def answer() -> None:
            peer = await dialled.peer()
            await peer.expect(DataReceived)
            await peer.reply(1, b"enough")
            peer.h2.reset_stream(1, ErrorCodes.NO_ERROR)
            await peer.flush()

        nursery.start_soon(answer)
        async with open_call(channel, EACH) as stream:
            await stream.send_message(Text(b"more"))
            assert await stream.recv_message() == Text(b"enough")
            await stream.send_message(Text(b"and more"))
            assert await stream.recv_message() is None


async def test_a_server_that_lowers_its_limit_is_obeyed(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, nursery):
        first, second = Outcome(channel), Outcome(channel)
        nursery.start_soon(first.run)
        peer = await dialled.peer()
        await peer.expect(StreamEnded)
        peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        await peer.flush()
        await peer.expect(SettingsAcknowledged)
        nursery.start_soon(second.run)
        with trio.move_on_after(1) as nothing_comes:
            await peer.expect(RequestReceived)
        assert nothing_comes.cancelled_caught
        await peer.reply(1, b"")
        assert (await peer.expect(RequestReceived)).stream_id == 3
        await peer.reply(3, b"")
        await second.done.wait()


async def test_calls_in_line_all_go_when_the_server_raises_its_limit(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, nursery):
        outcomes = [Outcome(channel) for _ in range(5)]
        nursery.start_soon(outcomes[0].run)
        peer = await dialled.peer()
        await peer.expect(StreamEnded)
        peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        await peer.flush()
        await peer.expect(SettingsAcknowledged)
        for outcome in outcomes[1:]:
            nursery.start_soon(outcome.run)
        await trio.testing.wait_all_tasks_blocked()
        peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 5})
        await peer.flush()
        with trio.fail_after(5):
            opened = {(await peer.expect(RequestReceived)).stream_id for _ in outcomes[1:]}
        assert opened == {3, 5, 7, 9}
        nursery.cancel_scope.cancel()


async def test_a_late_reply_to_a_cancelled_call_disturbs_nobody(clock: MockClock) -> None:
    async with _scripted() as (channel, dialled, nursery):
        with trio.move_on_after(1):
            async with trio.open_nursery() as inner:
                inner.start_soon(call, channel, SPLIT, b"x")
                peer = await dialled.peer()
                await peer.expect(StreamEnded)
                await trio.sleep_forever()
        # Not flushed before, so that peer's h2 does not know of the reset yet.
        await peer.reply(1, b"late")
        outcome = Outcome(channel)
        nursery.start_soon(outcome.run)
        await peer.expect(StreamEnded)
        await peer.reply(3, b"fine")
        await outcome.done.wait()
        assert outcome.reply == [b"fine"]
        assert dialled.count == 1
