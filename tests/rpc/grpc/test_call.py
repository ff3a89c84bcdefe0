"""Our client against our server: what the caller sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from grpclib import GRPCError, Status
from grpclib.exceptions import ProtocolError

from tests.rpc.grpc.echo import EACH, JOIN, SPLIT, WHOLE, Text, call, open_call, read

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.rpc.grpc.conftest import Start


class Gate:
    """A handler that waits to be cancelled, and tells when it starts and when it ends."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.cancelled_at: float | None = None
        self.left = trio.Event()
        self.stream: Any = None

    async def __call__(self, stream: Any) -> None:
        self.stream = stream
        self.entered.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled_at = trio.current_time()
            raise
        finally:
            self.left.set()


def _raising(error: BaseException) -> Any:
    async def handler(stream: Any) -> None:
        await stream.recv_message()
        raise error

    return handler


@pytest.mark.parametrize(
    ("path", "sent", "received"),
    [
        (WHOLE, [b"one"], [b"one"]),
        (WHOLE, [b""], [b""]),
        (SPLIT, [b"one two three"], [b"one", b"two", b"three"]),
        (SPLIT, [b""], []),
        (JOIN, [b"one", b"two"], [b"one two"]),
        (EACH, [b"one", b"two"], [b"one", b"two"]),
    ],
)
async def test_each_kind_of_call_brings_its_reply(
    clock: MockClock, start: Start, path: str, sent: list[bytes], received: list[bytes]
) -> None:
    async with start() as (channel, _):
        assert await call(channel, path, *sent) == received


async def test_a_conversation_goes_back_and_forth(clock: MockClock, start: Start) -> None:
    async with start() as (channel, _), open_call(channel, EACH) as stream:
        await stream.send_request()
        for body in (b"ping", b"pong"):
            await stream.send_message(Text(body))
            assert await stream.recv_message() == Text(body)
        await stream.end()
        assert await stream.recv_message() is None


async def test_one_task_may_send_while_another_receives(clock: MockClock, start: Start) -> None:
    async with start() as (channel, _), open_call(channel, EACH) as stream:
        await stream.send_request()

        async def send() -> None:
            for number in range(50):
                await stream.send_message(Text(b"%d" % number))
            await stream.end()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            received = [message.body async for message in stream]
    assert received == [b"%d" % number for number in range(50)]


async def test_two_hundred_calls_share_one_connection(clock: MockClock, start: Start) -> None:
    replies: dict[int, list[bytes]] = {}

    async def one(number: int) -> None:
        replies[number] = await call(channel, WHOLE, b"%d" % number)

    async with start() as (channel, node):
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, number)
        assert replies == {number: [b"%d" % number] for number in range(200)}
        assert len(node.dials) == 1
        assert channel.statistics().calls_in_flight == 0


async def test_calls_wait_in_line_when_the_server_allows_no_more_streams(clock: MockClock, start: Start) -> None:
    running = 0
    most = 0
    order: list[bytes] = []

    async def slow(stream: Any) -> None:
        nonlocal running, most
        message = await stream.recv_message()
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        order.append(message.body)
        await stream.send_message(message)

    async with start({WHOLE: slow}, max_concurrent_streams=1) as (channel, _):
        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(call, channel, WHOLE, b"%02d" % number)
                await trio.testing.wait_all_tasks_blocked()
    assert most == 1
    assert order == sorted(order)


async def test_a_call_cancelled_while_it_waits_in_line_leaves_its_place_to_the_next(
    clock: MockClock, start: Start
) -> None:
    gate = Gate()
    async with start({SPLIT: gate}, max_concurrent_streams=1) as (channel, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, channel, SPLIT, b"holds the only stream")
            await gate.entered.wait()
            with trio.move_on_after(1) as waiting:
                await call(channel, WHOLE, b"gives up")
            assert waiting.cancelled_caught
            nursery.cancel_scope.cancel()
        assert await call(channel, WHOLE, b"next") == [b"next"]


async def test_metadata_travels_both_ways(clock: MockClock, start: Start) -> None:
    async def handler(stream: Any) -> None:
        message = await stream.recv_message()
        await stream.send_initial_metadata(metadata={"who": stream.metadata["who"], "raw-bin": b"\0\xff"})
        await stream.send_message(message)
        await stream.send_trailing_metadata(metadata={"cost-bin": stream.metadata["trace-bin"]})

    metadata: dict[str, str | bytes] = {"who": "me", "trace-bin": b"\1\2\3\4"}
    async with start({WHOLE: handler}) as (channel, _), open_call(channel, WHOLE, metadata=metadata) as stream:
        await stream.send_message(Text(b"x"))
        await stream.recv_initial_metadata()
        assert stream.initial_metadata is not None
        assert dict(stream.initial_metadata) == {"who": "me", "raw-bin": b"\0\xff"}
        assert await stream.recv_message() == Text(b"x")
        await stream.recv_trailing_metadata()
        assert dict(stream.trailing_metadata or {}) == {"cost-bin": b"\1\2\3\4"}


async def test_an_error_brings_status_message_details_and_trailing_metadata(clock: MockClock, start: Start) -> None:
    async def handler(stream: Any) -> None:
        await stream.recv_message()
        await stream.send_trailing_metadata(
            status=Status.NOT_FOUND,
            status_message='sandbox "ä" not found\n',
            status_details=b"\x08\x05",
            metadata={"hint": "none"},
        )

    async with start({WHOLE: handler}) as (channel, _):
        async with open_call(channel, WHOLE) as stream:
            await stream.send_message(Text())
            with pytest.raises(GRPCError) as caught:
                await stream.recv_message()
        assert (caught.value.status, caught.value.message, caught.value.details) == (
            Status.NOT_FOUND,
            'sandbox "ä" not found\n',
            b"\x08\x05",
        )
        assert dict(stream.trailing_metadata or {}) == {"hint": "none"}


async def test_a_streamed_reply_that_fails_gives_its_messages_first(clock: MockClock, start: Start) -> None:
    async def handler(stream: Any) -> None:
        await stream.send_message(Text(b"one"))
        raise GRPCError(Status.DATA_LOSS, "the rest is gone")

    received: list[bytes] = []
    async with start({SPLIT: handler}) as (channel, _):
        with pytest.raises(GRPCError, match="the rest is gone"):
            await read(channel, SPLIT, received)
        assert received == [b"one"]


async def test_who_has_heard_the_error_does_not_hear_it_again(clock: MockClock, start: Start) -> None:
    async with start({WHOLE: _raising(GRPCError(Status.ABORTED, "no"))}) as (channel, _):
        async with open_call(channel, WHOLE) as stream:
            await stream.send_message(Text())
            with pytest.raises(GRPCError, match="no"):
                await stream.recv_message()


async def test_a_unary_call_whose_reply_nobody_reads_still_reports_its_error(clock: MockClock, start: Start) -> None:
    async with start({WHOLE: _raising(GRPCError(Status.ABORTED, "no"))}) as (channel, _):
        stream = open_call(channel, WHOLE)
        await stream.__aenter__()
        await stream.send_message(Text())
        with pytest.raises(GRPCError, match="no"):
            await stream.__aexit__(None, None, None)


async def test_a_reply_that_cannot_be_parsed_is_an_internal_error(clock: MockClock, start: Start) -> None:
    async def handler(stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(Text(b"unparsable"))

    async with start({WHOLE: handler}) as (channel, _):
        with pytest.raises(GRPCError, match=r"cannot parse the reply of /test\.Echo/Whole as Text") as caught:
            await call(channel, WHOLE, b"x")
        assert caught.value.status is Status.INTERNAL


async def test_a_deadline_ends_the_call_on_both_sides(clock: MockClock, start: Start) -> None:
    gate = Gate()
    async with start({WHOLE: gate}) as (channel, _):
        begin = trio.current_time()
        with pytest.raises(GRPCError, match=r"/test\.Echo/Whole did not finish within 5 s") as caught:
            await call(channel, WHOLE, b"x", timeout=5)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert trio.current_time() - begin == pytest.approx(5)
        await gate.left.wait()
        assert gate.cancelled_at == pytest.approx(begin + 5, abs=1e-3)


async def test_a_server_whose_client_does_not_watch_its_deadline_ends_the_call(clock: MockClock, start: Start) -> None:
    async def handler(stream: Any) -> None:
        await trio.sleep(100)

    async with start({WHOLE: handler}) as (channel, _):
        begin = trio.current_time()
        async with open_call(channel, WHOLE, timeout=5) as stream:
            await stream.send_message(Text())
            stream._deadline = float("inf")
            with pytest.raises(GRPCError, match="took too long") as caught:
                await stream.recv_message()
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert trio.current_time() - begin == pytest.approx(5, abs=1e-3)


async def test_a_call_whose_deadline_has_passed_is_not_sent(clock: MockClock, start: Start) -> None:
    gate = Gate()
    async with start({WHOLE: gate}) as (channel, _):
        await call(channel, SPLIT, b"connect")
        with pytest.raises(GRPCError) as caught:
            await call(channel, WHOLE, b"x", timeout=0)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        await trio.testing.wait_all_tasks_blocked()
        assert not gate.entered.is_set()


async def test_the_deadline_covers_a_stream_that_stalls(clock: MockClock, start: Start) -> None:
    async def handler(stream: Any) -> None:
        await stream.send_message(Text(b"one"))
        await trio.sleep_forever()

    async with start({SPLIT: handler}) as (channel, _):
        received: list[bytes] = []
        with pytest.raises(GRPCError) as caught:
            await read(channel, SPLIT, received, timeout=2)
        assert received == [b"one"]
        assert caught.value.status is Status.DEADLINE_EXCEEDED


async def test_cancelling_the_callers_scope_cancels_the_handler(clock: MockClock, start: Start) -> None:
    gate = Gate()
    async with start({WHOLE: gate}) as (channel, _):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, channel, WHOLE, b"x")
                await gate.entered.wait()
                scope.cancel()
        await gate.left.wait()
        assert gate.cancelled_at is not None
        assert await call(channel, SPLIT, b"still here") == [b"still", b"here"]


async def test_a_cancelled_task_starts_no_call(clock: MockClock, start: Start) -> None:
    gate = Gate()
    async with start({WHOLE: gate}) as (channel, _):
        await call(channel, SPLIT, b"connect")
        with trio.CancelScope() as scope:
            scope.cancel()
            await call(channel, WHOLE, b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert not gate.entered.is_set()


async def test_leaving_a_streamed_reply_early_cancels_the_handler(clock: MockClock, start: Start) -> None:
    gate = Gate()

    async def handler(stream: Any) -> None:
        await stream.send_message(Text(b"one"))
        await gate(stream)

    async with start({SPLIT: handler}) as (channel, _):
        async with open_call(channel, SPLIT) as stream:
            await stream.send_message(Text())
            assert await stream.recv_message() == Text(b"one")
        await gate.left.wait()
        assert channel.statistics().calls_in_flight == 0


async def test_an_exception_within_the_call_cancels_the_handler_and_leaves_as_it_is(
    clock: MockClock, start: Start
) -> None:
    gate = Gate()
    async with start({WHOLE: gate}) as (channel, _):

        async def fail() -> None:
            async with open_call(channel, WHOLE) as stream:
                await stream.send_message(Text())
                await gate.entered.wait()
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fail()
        await gate.left.wait()


async def test_cancel_resets_the_stream(clock: MockClock, start: Start) -> None:
    gate = Gate()
    async with start({WHOLE: gate}) as (channel, _), open_call(channel, WHOLE) as stream:
        await stream.send_message(Text())
        await gate.entered.wait()
        await stream.cancel()
        await gate.left.wait()
        with pytest.raises(GRPCError) as caught:
            await stream.recv_message()
        assert caught.value.status is Status.CANCELLED


async def test_a_call_that_is_entered_but_never_sent_costs_nothing(clock: MockClock, start: Start) -> None:
    async with start() as (channel, node):
        async with open_call(channel, WHOLE):
            pass
        assert node.dials == []


async def test_calls_in_the_wrong_order_are_protocol_errors(clock: MockClock, start: Start) -> None:
    async with start() as (channel, _):
        async with open_call(channel, WHOLE) as stream:
            with pytest.raises(ProtocolError, match="not been sent"):
                await stream.recv_message()
            with pytest.raises(ProtocolError, match="needs its message"):
                await stream.send_request(end=True)
            await stream.send_message(Text(b"x"))
            with pytest.raises(ProtocolError, match="has ended"):
                await stream.send_message(Text(b"y"))
            await stream.end()
            assert await stream.recv_message() == Text(b"x")
            assert await stream.recv_message() is None
        async with open_call(channel, JOIN) as stream:
            await stream.send_request(end=True)
            with pytest.raises(ProtocolError, match="already been sent"):
                await stream.send_request()
            with pytest.raises(ProtocolError, match="already ended"):
                await stream.end()
            assert await stream.recv_message() == Text(b"")


async def test_a_second_receiver_is_told_that_the_stream_is_taken(clock: MockClock, start: Start) -> None:
    async with start({WHOLE: Gate()}) as (channel, _), open_call(channel, WHOLE) as stream:
        await stream.send_message(Text())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.recv_message)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.recv_message()
            nursery.cancel_scope.cancel()
        await stream.cancel()


async def test_an_error_in_the_channels_block_leaves_it_as_it_is(clock: MockClock, start: Start) -> None:
    # The group is of the nursery in which the test's server runs.
    with pytest.RaisesGroup(KeyError):
        async with start() as (channel, _):
            assert await call(channel, WHOLE, b"x") == [b"x"]
            raise KeyError("mine")


async def test_a_channel_that_does_not_run_says_so(clock: MockClock, start: Start) -> None:
    async with start() as (channel, _):
        pass
    with pytest.raises(GRPCError, match="not running") as caught:
        await call(channel, WHOLE, b"x")
    assert caught.value.status is Status.UNAVAILABLE
