"""Messages larger than a window, peers that do not read, and the size limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from grpclib import GRPCError, Status

from tests.rpc.grpc.echo import EACH, SPLIT, WHOLE, Text, call, open_call, pour
from trikubelet.rpc.grpc.http2 import STREAM_WINDOW

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.rpc.grpc.conftest import Start

_MEGABYTE = b"x" * 2**20


async def test_messages_of_ten_megabytes_pass_both_ways(clock: MockClock, start: Start) -> None:
    body = bytes(range(256)) * 40 * 2**10
    assert len(body) > 2 * STREAM_WINDOW
    async with start() as (channel, _):
        assert await call(channel, WHOLE, body) == [body]
        assert await call(channel, EACH, body, body) == [body, body]


async def test_more_than_a_connections_window_passes_over_time(clock: MockClock, start: Start) -> None:
    async with start() as (channel, _):
        for _ in range(10):
            assert await call(channel, WHOLE, _MEGABYTE * 10) == [_MEGABYTE * 10]


async def test_a_reader_who_stops_holds_up_its_own_stream_only(clock: MockClock, start: Start) -> None:
    sent = 0

    async def endless(stream: Any) -> None:
        nonlocal sent
        while True:
            await stream.send_message(Text(_MEGABYTE))
            sent += 1

    async with start({SPLIT: endless}) as (channel, _), open_call(channel, SPLIT) as stalled:
        await stalled.send_message(Text())
        await stalled.recv_message()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert sent <= 2 * STREAM_WINDOW // len(_MEGABYTE) + 1
        assert await call(channel, WHOLE, _MEGABYTE * 8) == [_MEGABYTE * 8]
        before = sent
        for _ in range(20):
            await stalled.recv_message()
        assert sent > before


async def test_a_sender_that_waits_for_room_can_be_cancelled(clock: MockClock, start: Start) -> None:
    async def deaf(stream: Any) -> None:
        await trio.sleep_forever()

    async with start({EACH: deaf}) as (channel, _):
        with trio.move_on_after(1) as scope:
            await pour(channel, EACH)
        assert scope.cancelled_caught
        assert await call(channel, WHOLE, b"x") == [b"x"]


async def test_the_deadline_covers_a_sender_that_waits_for_room(clock: MockClock, start: Start) -> None:
    async def deaf(stream: Any) -> None:
        await trio.sleep_forever()

    async with start({EACH: deaf}) as (channel, _):
        with pytest.raises(GRPCError) as caught:
            await pour(channel, EACH, timeout=1)
        assert caught.value.status is Status.DEADLINE_EXCEEDED


async def test_a_sender_that_waits_for_room_learns_that_the_server_has_refused(clock: MockClock, start: Start) -> None:
    async def refuse(stream: Any) -> None:
        await trio.sleep(1)
        raise GRPCError(Status.PERMISSION_DENIED, "not you")

    async with start({EACH: refuse}) as (channel, _):
        with pytest.raises(GRPCError, match="not you"):
            await pour(channel, EACH)
        assert await call(channel, WHOLE, b"x") == [b"x"]


async def test_a_request_over_the_servers_limit_is_refused(clock: MockClock, start: Start) -> None:
    async with start(max_message_size=1000) as (channel, _):
        with pytest.raises(GRPCError, match=r"received message larger than max \(1001 vs\. 1000\)") as caught:
            await call(channel, WHOLE, b"x" * 1001)
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
        assert await call(channel, WHOLE, b"x" * 1000) == [b"x" * 1000]


async def test_a_reply_over_the_clients_limit_is_refused(clock: MockClock, start: Start) -> None:
    async def large(stream: Any) -> None:
        await stream.send_message(Text(b"x" * 1001))

    async with start({WHOLE: large}, channel_size=1000) as (channel, _):
        with pytest.raises(GRPCError, match="received message larger than max") as caught:
            await call(channel, WHOLE, b"x")
        assert caught.value.status is Status.RESOURCE_EXHAUSTED


async def test_a_request_over_the_clients_limit_is_not_sent(clock: MockClock, start: Start) -> None:
    async with start(channel_size=10) as (channel, node):
        with pytest.raises(GRPCError, match="trying to send message larger than max"):
            await call(channel, WHOLE, b"x" * 11)
        assert node.dials == []
