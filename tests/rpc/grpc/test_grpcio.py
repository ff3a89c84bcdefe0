"""Our client with grpcio's server, our server with grpcio's client: the wire as others speak it."""

from __future__ import annotations

import contextlib
import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import trio
from grpclib import GRPCError, Status

from tests.rpc.grpc.echo import EACH, JOIN, SPLIT, WHOLE, Echo, Text, call, open_call
from trikubelet.rpc.grpc import Server, open_unix_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_OPTIONS = [("grpc.max_receive_message_length", 2**24), ("grpc.max_send_message_length", 2**24)]
_LARGE = bytes(range(256)) * 40 * 2**10


def _joined(requests: Iterator[bytes], _: Any) -> bytes:
    return b" ".join(requests)


class _GrpcioServer:
    """grpcio's synchronous server with the methods of `Echo`, some of them replaced."""

    def __init__(self, path: Path, **replaced: Callable[..., Any]) -> None:
        handlers = {
            "Whole": grpc.unary_unary_rpc_method_handler(replaced.get("whole", lambda request, _: request)),
            "Split": grpc.unary_stream_rpc_method_handler(
                replaced.get("split", lambda request, _: iter(request.split()))
            ),
            "Join": grpc.stream_unary_rpc_method_handler(replaced.get("join", _joined)),
            "Each": grpc.stream_stream_rpc_method_handler(replaced.get("each", lambda requests, _: requests)),
        }
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=_OPTIONS)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", handlers)])
        self._server.add_insecure_port(f"unix://{path}")

    def __enter__(self) -> _GrpcioServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait(10)

    def stop(self, grace: float) -> None:
        """Begin to stop, gracefully."""
        self._server.stop(grace)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.sock"


async def _wait(event: threading.Event) -> None:
    assert await trio.to_thread.run_sync(event.wait, 10)


# Our client.


async def test_our_client_makes_all_kinds_of_calls(path: Path) -> None:
    with trio.fail_after(20), _GrpcioServer(path):
        async with open_unix_channel(path) as channel:
            assert await call(channel, WHOLE, b"one", timeout=10) == [b"one"]
            assert await call(channel, SPLIT, b"one two") == [b"one", b"two"]
            assert await call(channel, JOIN, b"one", b"two") == [b"one two"]
            assert await call(channel, EACH, b"one", b"two") == [b"one", b"two"]


async def test_our_client_sends_and_receives_large_messages(path: Path) -> None:
    with trio.fail_after(30), _GrpcioServer(path):
        async with open_unix_channel(path) as channel:
            assert await call(channel, WHOLE, _LARGE) == [_LARGE]
            assert await call(channel, EACH, _LARGE, b"small", _LARGE) == [_LARGE, b"small", _LARGE]


async def test_our_client_makes_two_hundred_calls_at_once(path: Path) -> None:
    replies: dict[int, list[bytes]] = {}

    async def one(number: int) -> None:
        replies[number] = await call(channel, WHOLE, b"%d" % number)

    with trio.fail_after(30), _GrpcioServer(path):
        async with open_unix_channel(path) as channel:
            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(one, number)
            assert replies == {number: [b"%d" % number] for number in range(200)}
            assert channel.statistics().connects == 1


async def test_our_client_exchanges_metadata(path: Path) -> None:
    def whole(request: bytes, context: grpc.ServicerContext) -> bytes:
        received = dict(context.invocation_metadata())
        context.send_initial_metadata([("who", received["who"])])
        context.set_trailing_metadata([("trace-bin", received["trace-bin"])])
        return request

    with trio.fail_after(20), _GrpcioServer(path, whole=whole):
        async with open_unix_channel(path) as channel:
            metadata: dict[str, str | bytes] = {"who": "me", "trace-bin": b"\0\xff\1"}
            async with open_call(channel, WHOLE, metadata=metadata) as stream:
                await stream.send_message(Text(b"x"))
                assert await stream.recv_message() == Text(b"x")
            assert dict(stream.initial_metadata or {})["who"] == "me"
            assert dict(stream.trailing_metadata or {}) == {"trace-bin": b"\0\xff\1"}


async def test_our_client_hears_errors(path: Path) -> None:
    def whole(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "sandbox ä not found")
        return b""

    with trio.fail_after(20), _GrpcioServer(path, whole=whole):
        async with open_unix_channel(path) as channel:
            with pytest.raises(GRPCError, match="sandbox ä not found") as caught:
                await call(channel, WHOLE, b"x")
            assert caught.value.status is Status.NOT_FOUND
            stream = open_call(channel, WHOLE)
            stream._path = "/test.Echo/Nothing"
            async with stream:
                await stream.send_message(Text())
                with pytest.raises(GRPCError) as caught:
                    await stream.recv_message()
            assert caught.value.status is Status.UNIMPLEMENTED


async def test_our_clients_deadline_and_cancellation_reach_the_server(path: Path) -> None:
    remaining: list[float | None] = []
    ended = threading.Event()
    entered = threading.Event()

    def split(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        remaining.append(context.time_remaining())
        context.add_callback(ended.set)
        entered.set()
        ended.wait(10)
        yield from ()

    with trio.fail_after(20), _GrpcioServer(path, split=split):
        async with open_unix_channel(path) as channel:
            await call(channel, WHOLE, b"x")  # connects, so that the deadline covers no more than a call
            with pytest.raises(GRPCError) as caught:
                await call(channel, SPLIT, b"x", timeout=1)
            assert caught.value.status is Status.DEADLINE_EXCEEDED
            await _wait(ended)
            assert remaining[0] is not None
            assert 0 < remaining[0] <= 1

            ended.clear()
            entered.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, channel, SPLIT, b"x")
                await _wait(entered)
                nursery.cancel_scope.cancel()
            await _wait(ended)


async def test_our_client_survives_a_server_that_stops_gracefully_and_comes_back(path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def whole(request: bytes, _: grpc.ServicerContext) -> bytes:
        entered.set()
        go_on.wait(10)
        return request

    replies = []

    async def slow_call() -> None:
        replies.append(await call(channel, WHOLE, b"slow"))

    with trio.fail_after(30):
        async with open_unix_channel(path) as channel:
            with _GrpcioServer(path, whole=whole) as server:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(slow_call)
                    await _wait(entered)
                    server.stop(10)  # which says GOAWAY
                    go_on.set()
                assert replies == [[b"slow"]]
            with _GrpcioServer(path):
                while True:
                    with contextlib.suppress(GRPCError):
                        assert await call(channel, WHOLE, b"x") == [b"x"]
                        break
                    await trio.sleep(0.02)
            assert channel.statistics().connects == 2


# Our server.


async def _with_grpcio_client(path: Path, client: Callable[[grpc.Channel], None], *servables: Any) -> None:
    """Run `client` in a thread, with a channel to our server."""

    def run() -> None:
        with grpc.insecure_channel(f"unix://{path}", options=_OPTIONS) as channel:
            client(channel)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(Server(servables or [Echo()]).serve_unix, path)
            await trio.to_thread.run_sync(run)
            nursery.cancel_scope.cancel()


async def test_our_server_serves_all_kinds_of_calls(path: Path) -> None:
    def client(channel: grpc.Channel) -> None:
        assert channel.unary_unary(WHOLE)(b"one", timeout=10) == b"one"
        assert list(channel.unary_stream(SPLIT)(b"one two", timeout=10)) == [b"one", b"two"]
        assert channel.stream_unary(JOIN)(iter([b"one", b"two"]), timeout=10) == b"one two"
        assert list(channel.stream_stream(EACH)(iter([b"one", b"two"]), timeout=10)) == [b"one", b"two"]

    await _with_grpcio_client(path, client)


async def test_our_server_receives_and_sends_large_messages(path: Path) -> None:
    def client(channel: grpc.Channel) -> None:
        assert channel.unary_unary(WHOLE)(_LARGE, timeout=20) == _LARGE
        assert list(channel.stream_stream(EACH)(iter([_LARGE, b"", _LARGE]), timeout=20)) == [_LARGE, b"", _LARGE]

    await _with_grpcio_client(path, client)


async def test_our_server_serves_two_hundred_calls_at_once(path: Path) -> None:
    def client(channel: grpc.Channel) -> None:
        method = channel.unary_unary(WHOLE)
        calls = [method.future(b"%d" % number, timeout=20) for number in range(200)]
        assert [running.result() for running in calls] == [b"%d" % number for number in range(200)]

    await _with_grpcio_client(path, client)


async def test_our_server_exchanges_metadata(path: Path) -> None:
    async def handler(stream: Any) -> None:
        message = await stream.recv_message()
        await stream.send_initial_metadata(metadata={"who": stream.metadata["who"]})
        await stream.send_message(message)
        await stream.send_trailing_metadata(metadata={"trace-bin": stream.metadata["trace-bin"]})

    def client(channel: grpc.Channel) -> None:
        metadata = [("who", "me"), ("trace-bin", b"\0\xff\1")]
        reply, outcome = channel.unary_unary(WHOLE).with_call(b"x", timeout=10, metadata=metadata)
        assert reply == b"x"
        assert ("who", "me") in [tuple(entry) for entry in outcome.initial_metadata()]
        assert ("trace-bin", b"\0\xff\1") in [tuple(entry) for entry in outcome.trailing_metadata()]

    await _with_grpcio_client(path, client, Echo({WHOLE: handler}))


async def test_our_servers_errors_are_understood(path: Path) -> None:
    async def not_found(stream: Any) -> None:
        raise GRPCError(Status.NOT_FOUND, "sandbox ä not found")

    async def too_large(stream: Any) -> None:
        await stream.send_message(Text(b"one"))
        await stream.send_message(Text(b"x" * (2**24 + 1)))

    def outcome(multicallable: Any, request: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            list(multicallable(request, timeout=10, **options))
        return caught.value.code(), caught.value.details()

    def client(channel: grpc.Channel) -> None:
        assert outcome(channel.unary_unary(WHOLE), b"x") == (grpc.StatusCode.NOT_FOUND, "sandbox ä not found")
        assert outcome(channel.unary_stream(SPLIT), b"x")[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert outcome(channel.unary_unary("/test.Echo/Nothing"), b"x")[0] is grpc.StatusCode.UNIMPLEMENTED
        zipped = outcome(channel.unary_unary(WHOLE), b"x" * 1000, compression=grpc.Compression.Gzip)
        assert zipped[0] is grpc.StatusCode.UNIMPLEMENTED

    await _with_grpcio_client(path, client, Echo({WHOLE: not_found, SPLIT: too_large}))


async def test_a_clients_deadline_and_cancellation_reach_our_handlers(path: Path) -> None:
    ended: list[str] = []
    entered, left = threading.Event(), threading.Event()

    async def handler(stream: Any) -> None:
        entered.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            ended.append("cancelled")
            left.set()
            raise

    def client(channel: grpc.Channel) -> None:
        list(channel.unary_stream(SPLIT)(b"x"))  # connects, so that the deadline covers no more than a call
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(WHOLE)(b"x", timeout=1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert left.wait(10)
        entered.clear()
        left.clear()
        running = channel.unary_unary(WHOLE).future(b"x")
        assert entered.wait(10)
        running.cancel()
        assert left.wait(10)

    await _with_grpcio_client(path, client, Echo({WHOLE: handler}))
    assert ended == ["cancelled", "cancelled"]
