"""Our server: handlers that fail, clients that misbehave, and how it ends."""

from __future__ import annotations

import socket
import stat
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing
from grpclib import GRPCError, Status
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from hyperframe.frame import PingFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captured_logs import capture_logs
from tests.examples import examples
from tests.rpc.grpc.echo import EACH, JOIN, SPLIT, WHOLE, Echo, Text, call, open_call
from tests.rpc.grpc.peer import Peer
from trikubelet.rpc.cri.v1 import (
    ContainerEventResponse,
    GetEventsRequest,
    RuntimeServiceBase,
    RuntimeServiceStub,
    StatusRequest,
    VersionRequest,
    VersionResponse,
)
from trikubelet.rpc.grpc import Channel, Server, SocketInUseError, connect_unix, open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from tests.rpc.grpc.conftest import Start

_REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", WHOLE),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


def _raising(error: BaseException) -> Any:
    async def handler(stream: Any) -> None:
        await stream.recv_message()
        raise error

    return handler


async def _status(channel: Channel, path: str = WHOLE, body: bytes = b"x") -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await call(channel, path, body)
    return caught.value


# Handlers.


async def test_a_handlers_mistake_is_unknown_to_the_client_logged_and_survived(clock: MockClock, start: Start) -> None:
    async with start({WHOLE: _raising(ZeroDivisionError("oops"))}) as (channel, _):
        with capture_logs() as logs:
            error = await _status(channel)
        assert (error.status, error.message) == (
            Status.UNKNOWN,
            "internal error in /test.Echo/Whole: ZeroDivisionError: oops",
        )
        assert [(line["event"], line["rpc"]) for line in logs] == [("gRPC handler failed", WHOLE)]
        assert isinstance(logs[0]["exc_info"], ZeroDivisionError)
        assert await call(channel, SPLIT, b"still here") == [b"still", b"here"]


async def test_a_handlers_grpc_error_is_its_answer_and_not_logged(clock: MockClock, start: Start) -> None:
    async with start({WHOLE: _raising(GRPCError(Status.NOT_FOUND, "no such sandbox", b"\1"))}) as (channel, _):
        with capture_logs() as logs:
            error = await _status(channel)
        assert (error.status, error.message, error.details) == (Status.NOT_FOUND, "no such sandbox", b"\1")
        assert logs == []


async def test_a_grpc_error_out_of_a_nursery_is_an_answer_too(clock: MockClock, start: Start) -> None:
    group = ExceptionGroup("", [ExceptionGroup("", [GRPCError(Status.ABORTED, "busy")])])
    async with start({WHOLE: _raising(group)}) as (channel, _):
        assert (await _status(channel)).status is Status.ABORTED


async def test_a_mistake_among_grpc_errors_is_a_mistake(clock: MockClock, start: Start) -> None:
    group = ExceptionGroup("", [GRPCError(Status.ABORTED, "busy"), ValueError("oops")])
    async with start({WHOLE: _raising(group)}) as (channel, _):
        with capture_logs() as logs:
            assert (await _status(channel)).status is Status.UNKNOWN
        assert len(logs) == 1


async def test_a_mistake_while_being_cancelled_ends_only_the_call(clock: MockClock, start: Start) -> None:
    left = trio.Event()

    async def handler(stream: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            left.set()
            raise ValueError("oops")

    async with start({WHOLE: handler}) as (channel, _):
        with capture_logs() as logs:
            with trio.move_on_after(1):
                await call(channel, WHOLE, b"x")
            await left.wait()
            assert await call(channel, SPLIT, b"still here") == [b"still", b"here"]
        assert [line["event"] for line in logs] == ["gRPC handler failed"]


async def test_a_unary_handler_that_sends_nothing_has_made_a_mistake(clock: MockClock, start: Start) -> None:
    async def handler(stream: Any) -> None:
        await stream.recv_message()

    async with start({WHOLE: handler}) as (channel, _):
        with capture_logs() as logs:
            error = await _status(channel)
        assert error.status is Status.UNKNOWN
        assert "without sending its message" in (error.message or "")
        assert len(logs) == 1


async def test_a_request_that_cannot_be_parsed_is_an_internal_error(clock: MockClock, start: Start) -> None:
    async with start() as (channel, _):
        error = await _status(channel, body=b"unparsable")
        assert error.status is Status.INTERNAL
        assert "cannot parse the request of /test.Echo/Whole as Text" in (error.message or "")


async def test_a_unary_request_without_a_message_is_an_internal_error(clock: MockClock, start: Start) -> None:
    async with start() as (channel, _), open_call(channel, JOIN) as stream:
        stream._path = WHOLE
        await stream.send_request(end=True)
        with pytest.raises(GRPCError, match="expected one message") as caught:
            await stream.recv_message()
        assert caught.value.status is Status.INTERNAL


async def test_an_unknown_method_is_unimplemented(clock: MockClock, start: Start) -> None:
    async with start() as (channel, _), open_call(channel, WHOLE) as stream:
        stream._path = "/test.Echo/Nothing"
        await stream.send_message(Text())
        with pytest.raises(GRPCError, match=r"unknown method Nothing for service test\.Echo") as caught:
            await stream.recv_message()
        assert caught.value.status is Status.UNIMPLEMENTED


def test_two_handlers_for_one_method_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two of the handlers serve /test\.Echo/Whole"):
        Server([Echo(), Echo()])


async def test_a_handler_may_cancel_its_call(clock: MockClock, start: Start) -> None:
    async def handler(stream: Any) -> None:
        await stream.cancel()

    async with start({WHOLE: handler}) as (channel, _):
        assert (await _status(channel)).status is Status.CANCELLED


async def test_a_handler_sees_its_deadline_on_trios_clock(clock: MockClock, start: Start) -> None:
    seen: list[float | None] = []

    async def handler(stream: Any) -> None:
        message = await stream.recv_message()
        seen.append(stream.deadline and stream.deadline.time_remaining())
        await stream.send_message(message)

    async with start({WHOLE: handler}) as (channel, _):
        await call(channel, WHOLE, b"x", timeout=30)
        await call(channel, WHOLE, b"x")
    assert seen == [pytest.approx(30, abs=1e-3), None]


class _Runtime(RuntimeServiceBase):
    async def version(self, version_request: VersionRequest) -> VersionResponse:
        return VersionResponse(version=version_request.version, runtime_name="test")

    async def get_container_events(self, get_events_request: GetEventsRequest) -> AsyncIterator[ContainerEventResponse]:
        for number in range(3):
            yield ContainerEventResponse(container_id=str(number))


async def test_betterprotos_stubs_and_bases_work_on_both_ends(clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(Server([_Runtime()]).serve_stream, far)

        async def connect() -> trio.abc.Stream:
            return near

        async with Channel(connect) as channel:
            stub = RuntimeServiceStub(channel)
            version = await stub.version(VersionRequest(version="v1"), timeout=5)
            assert (version.version, version.runtime_name) == ("v1", "test")
            events = [event.container_id async for event in stub.get_container_events(GetEventsRequest())]
            assert events == ["0", "1", "2"]
            with pytest.raises(GRPCError) as caught:
                await stub.status(StatusRequest())
            refused = (Status.UNIMPLEMENTED, "unknown method Status for service runtime.v1.RuntimeService")
            assert (caught.value.status, caught.value.message) == refused
        nursery.cancel_scope.cancel()


class _Watched(RuntimeServiceBase):
    """Its events never end."""

    def __init__(self) -> None:
        self.left = trio.Event()

    async def get_container_events(self, get_events_request: GetEventsRequest) -> AsyncIterator[ContainerEventResponse]:
        try:
            yield ContainerEventResponse(container_id="one")
            await trio.sleep_forever()
        finally:
            self.left.set()


async def test_closing_a_stubs_stream_ends_the_generator_of_the_service(clock: MockClock) -> None:
    service = _Watched()
    async with trio.open_nursery() as nursery:
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(Server([service]).serve_stream, far)

        async def connect() -> trio.abc.Stream:
            return near

        async with Channel(connect) as channel:
            stream = RuntimeServiceStub(channel).get_container_events(GetEventsRequest())
            async with aclosing(cast("AsyncGenerator[ContainerEventResponse, None]", stream)) as events:
                assert (await anext(events)).container_id == "one"
            await service.left.wait()
        nursery.cancel_scope.cancel()


# Clients.


async def test_losing_the_client_cancels_its_handlers(clock: MockClock, start: Start) -> None:
    entered, left = trio.Event(), trio.Event()

    async def handler(stream: Any) -> None:
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    async with start({WHOLE: handler}) as (channel, node), trio.open_nursery() as nursery:
        nursery.start_soon(_status, channel)
        await entered.wait()
        await node.cut()
        await left.wait()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 20,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + b"\0\0\5\1\5\0\0\0\1\xff\xff\xff\xff\xff",
    ],
    ids=["HTTP/1.1", "nonsense", "broken header compression"],
)
async def test_garbage_ends_its_own_connection_only(clock: MockClock, start: Start, garbage: bytes) -> None:
    async with start() as (channel, node):
        await call(channel, WHOLE, b"x")
        stranger = await node.connect()
        await stranger.send_all(garbage)
        with trio.fail_after(5):
            while await stranger.receive_some():
                pass
        assert await call(channel, WHOLE, b"x") == [b"x"]


@pytest.mark.fuzz
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_no_damage_to_what_a_client_says_hurts_the_server(data: st.DataObject) -> None:
    h2 = H2Connection()
    h2.initiate_connection()
    for stream_id in (1, 3):
        h2.send_headers(stream_id, _REQUEST)
        h2.send_data(stream_id, b"\0\0\0\0\3abc", end_stream=stream_id == 1)
    h2.ping(b"12345678")
    h2.reset_stream(3)
    said = bytearray(h2.data_to_send())
    for position in data.draw(st.lists(st.integers(0, len(said) - 1), max_size=6)):
        said[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(said)))

    async def main() -> None:
        near, far = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Server([Echo()]).serve_stream, far)
            for piece in (said[:cut], said[cut:]):
                with suppress(trio.BrokenResourceError):
                    await near.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()
            await near.aclose()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_stream_too_many_is_refused_and_the_others_go_on(clock: MockClock, start: Start) -> None:
    async def slow(stream: Any) -> None:
        await trio.sleep(1)
        await stream.send_message(Text(b"done"))

    async with start({WHOLE: slow}, max_concurrent_streams=2) as (_, node):
        peer = Peer(await node.connect(), client_side=True)
        await peer.start()
        for stream_id in (1, 3, 5):
            peer.h2.send_headers(stream_id, _REQUEST)
            peer.h2.send_data(stream_id, b"\0\0\0\0\0", end_stream=True)
        await peer.flush()
        reset = await peer.expect(StreamReset)
        assert (reset.stream_id, reset.error_code) == (5, ErrorCodes.REFUSED_STREAM)
        assert {(await peer.expect(StreamEnded)).stream_id for _ in range(2)} == {1, 3}


async def test_streams_that_are_opened_and_reset_at_once_do_not_pile_up(clock: MockClock, start: Start) -> None:
    running = 0

    async def stubborn(stream: Any) -> None:
        nonlocal running
        running += 1
        with trio.CancelScope(shield=True):
            await trio.sleep(1000)

    async with start({WHOLE: stubborn}, max_concurrent_streams=10) as (_, node):
        peer = Peer(await node.connect(), client_side=True)
        await peer.start()
        for number in range(500):
            peer.h2.send_headers(2 * number + 1, _REQUEST)
            peer.h2.reset_stream(2 * number + 1)
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert running <= 120


async def test_a_request_that_is_not_grpc_is_refused_in_http(clock: MockClock, start: Start) -> None:
    async with start() as (_, node):
        peer = Peer(await node.connect(), client_side=True)
        await peer.start()
        peer.h2.send_headers(1, [(":method", "GET"), *_REQUEST[1:]], end_stream=True)
        await peer.flush()
        assert dict((await peer.expect(ResponseReceived)).headers)[b":status"] == b"405"


async def test_a_client_that_still_sends_after_the_reply_is_told_to_stop(clock: MockClock, start: Start) -> None:
    async def hasty(stream: Any) -> None:
        raise GRPCError(Status.PERMISSION_DENIED, "not you")

    async with start({EACH: hasty}) as (_, node):
        peer = Peer(await node.connect(), client_side=True)
        await peer.start()
        peer.h2.send_headers(1, [*_REQUEST[:2], (":path", EACH), *_REQUEST[3:]])
        await peer.flush()
        assert dict((await peer.expect(ResponseReceived)).headers)[b"grpc-status"] == b"7"
        assert (await peer.expect(StreamReset)).error_code is ErrorCodes.NO_ERROR


async def test_a_client_that_pings_without_reading_is_cut_off(clock: MockClock) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Server([Echo()]).serve_stream, far)
        peer = Peer(near, client_side=True)
        await peer.start()

        async def flood() -> None:
            while True:
                await near.send_all(PingFrame(0, b"12345678").serialize() * 10_000)

        with trio.fail_after(5), pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            await flood()
        nursery.cancel_scope.cancel()


# The end.


async def test_shutdown_lets_calls_finish_and_tells_clients_to_go(clock: MockClock, start: Start) -> None:
    async def slow(stream: Any) -> None:
        message = await stream.recv_message()
        await trio.sleep(3)
        await stream.send_message(message)

    async with start({WHOLE: slow}) as (channel, node), trio.open_nursery() as nursery:
        replies = []

        async def slow_call() -> None:
            replies.append(await call(channel, WHOLE, b"x"))

        nursery.start_soon(slow_call)
        await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        await node.server.shutdown(grace=10)
        assert trio.current_time() - begin == 3
        await trio.testing.wait_all_tasks_blocked()
        assert replies == [[b"x"]]


async def test_shutdown_cancels_what_does_not_finish_in_time(clock: MockClock, start: Start) -> None:
    async def forever(stream: Any) -> None:
        await trio.sleep_forever()

    async with start({WHOLE: forever}) as (channel, node), trio.open_nursery() as nursery:
        errors = []

        async def slow_call() -> None:
            errors.append(await _status(channel))

        nursery.start_soon(slow_call)
        await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        await node.server.shutdown(grace=10)
        assert trio.current_time() - begin == 10
        await trio.testing.wait_all_tasks_blocked()
        assert [(error.status, error.message) for error in errors] == [
            (Status.UNAVAILABLE, "the server is shutting down")
        ]


async def test_a_cancelled_server_says_goaway(clock: MockClock, start: Start) -> None:
    async with start() as (_, node):
        peer = Peer(await node.connect(), client_side=True)
        await peer.start()
        peer.h2.send_headers(1, _REQUEST)
        peer.h2.send_data(1, b"\0\0\0\0\0", end_stream=True)
        await peer.flush()
        await peer.expect(TrailersReceived)
        node.stop()
        goaway = await peer.expect(ConnectionTerminated)
        assert (goaway.error_code, goaway.last_stream_id) == (ErrorCodes.NO_ERROR, 1)


# Unix sockets.


async def test_a_server_on_a_unix_socket_serves_and_removes_it_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(Server([Echo()]).serve_unix, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with open_unix_channel(f"unix://{path}") as channel:
            with trio.fail_after(10):
                assert await call(channel, WHOLE, b"x" * 2**22) == [b"x" * 2**22]
                assert await call(channel, SPLIT, b"a b") == [b"a", b"b"]
        nursery.cancel_scope.cancel()
    assert not path.exists()


async def test_a_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with trio.open_nursery() as nursery:
        await nursery.start(Server([Echo()]).serve_unix, path)
        async with open_unix_channel(path) as channel:
            with trio.fail_after(10):
                assert await call(channel, WHOLE, b"x") == [b"x"]
        nursery.cancel_scope.cancel()


async def test_a_socket_that_somebody_listens_on_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(Server([Echo()]).serve_unix, path)
        with pytest.raises(SocketInUseError, match="another process is listening there"):
            await Server([Echo()]).serve_unix(path)
        async with open_unix_channel(path) as channel:
            with trio.fail_after(10):
                assert await call(channel, WHOLE, b"x") == [b"x"]
        nursery.cancel_scope.cancel()


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(SocketInUseError, match="not a socket"):
        await Server([Echo()]).serve_unix(path)
    assert path.read_text() == "data"


async def test_a_socket_that_has_replaced_ours_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(Server([Echo()]).serve_unix, path)
        path.rename(tmp_path / "moved.sock")
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            nursery.cancel_scope.cancel()
    assert path.exists()


async def test_shutdown_ends_serve_unix(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    server = Server([Echo()])
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve_unix, path)
            async with open_unix_channel(path) as channel:
                await call(channel, WHOLE, b"x")
                await server.shutdown(grace=1)
    assert not path.exists()


async def test_a_missing_socket_is_unavailable_and_named(tmp_path: Path) -> None:
    async with open_unix_channel(tmp_path / "nobody.sock") as channel:
        error = await _status(channel)
    assert error.status is Status.UNAVAILABLE
    assert "nobody.sock" in (error.message or "")
    assert error.message == (
        f'connection error: desc = "transport: Error while dialing: dial unix {tmp_path}/nobody.sock: '
        'connect: no such file or directory"'
    )


async def test_a_full_queue_is_waited_for(tmp_path: Path, clock: MockClock) -> None:
    path = tmp_path / "busy.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        first = await connect_unix(path)
        with trio.move_on_after(1) as waiting:
            await connect_unix(path)
        assert waiting.cancelled_caught
        listener.accept()[0].close()
        second = await connect_unix(path)
        await first.aclose()
        await second.aclose()
