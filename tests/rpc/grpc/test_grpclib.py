"""Our client with grpclib's server, our server with grpclib's client: whose contract ours is, over h2 on asyncio.

grpclib runs in a thread with a loop of its own.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import grpclib.client
import grpclib.server
import pytest
import trio
from grpclib import GRPCError, Status

from tests.rpc.grpc.echo import EACH, JOIN, SPLIT, WHOLE, Echo, Text, call, open_call
from trikubelet.rpc.grpc import Server, open_unix_channel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.rpc.grpc.echo import HandlerFunction

_LARGE = bytes(range(256)) * 40 * 2**10
"""10 MiB."""
_PATIENCE = 20.0


class _GrpclibServer:
    """grpclib's server with the methods of `Echo`, some of them replaced."""

    def __init__(self, path: Path, replaced: dict[str, HandlerFunction] | None = None) -> None:
        self._path = path
        self._echo = Echo(replaced)
        self._started: Future[tuple[asyncio.AbstractEventLoop, grpclib.server.Server]] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))

    async def _serve(self) -> None:
        server = grpclib.server.Server([self._echo])
        await server.start(path=str(self._path))
        self._started.set_result((asyncio.get_running_loop(), server))
        await server.wait_closed()

    def __enter__(self) -> _GrpclibServer:
        self._thread.start()
        self._started.result(_PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        loop, server = self._started.result(0)
        loop.call_soon_threadsafe(server.close)
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.sock"


async def _wait(event: threading.Event) -> None:
    assert await trio.to_thread.run_sync(event.wait, _PATIENCE)


# Our client.


async def test_our_client_makes_all_kinds_of_calls(path: Path) -> None:
    with trio.fail_after(_PATIENCE), _GrpclibServer(path):
        async with open_unix_channel(path) as channel:
            assert await call(channel, WHOLE, b"one", timeout=10) == [b"one"]
            assert await call(channel, SPLIT, b"one two") == [b"one", b"two"]
            assert await call(channel, SPLIT, b"") == []
            assert await call(channel, JOIN, b"one", b"two") == [b"one two"]
            assert await call(channel, EACH, b"one", b"", b"two") == [b"one", b"", b"two"]


async def test_our_client_sends_and_receives_large_messages(path: Path) -> None:
    with trio.fail_after(2 * _PATIENCE), _GrpclibServer(path):
        async with open_unix_channel(path) as channel:
            assert await call(channel, WHOLE, _LARGE) == [_LARGE]
            assert await call(channel, EACH, _LARGE, b"small", _LARGE) == [_LARGE, b"small", _LARGE]


async def test_our_client_makes_two_hundred_calls_at_once(path: Path) -> None:
    replies: dict[int, list[bytes]] = {}

    async def one(number: int) -> None:
        replies[number] = await call(channel, WHOLE, b"%d" % number)

    with trio.fail_after(2 * _PATIENCE), _GrpclibServer(path):
        async with open_unix_channel(path) as channel:
            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(one, number)
            assert replies == {number: [b"%d" % number] for number in range(200)}
            assert channel.statistics().connects == 1


async def test_our_client_exchanges_metadata(path: Path) -> None:
    async def whole(stream: Any) -> None:
        message = await stream.recv_message()
        await stream.send_initial_metadata(metadata={"who": stream.metadata["who"]})
        await stream.send_message(message)
        await stream.send_trailing_metadata(metadata={"trace-bin": stream.metadata["trace-bin"]})

    with trio.fail_after(_PATIENCE), _GrpclibServer(path, {WHOLE: whole}):
        async with open_unix_channel(path) as channel:
            metadata: dict[str, str | bytes] = {"who": "me", "trace-bin": b"\0\xff\1"}
            async with open_call(channel, WHOLE, metadata=metadata) as stream:
                await stream.send_message(Text(b"x"))
                assert await stream.recv_message() == Text(b"x")
            assert dict(stream.initial_metadata or {})["who"] == "me"
            assert dict(stream.trailing_metadata or {}) == {"trace-bin": b"\0\xff\1"}


async def test_our_client_hears_errors(path: Path) -> None:
    async def not_found(_: Any) -> None:
        raise GRPCError(Status.NOT_FOUND, "sandbox ä not found")

    async def fails_midway(stream: Any) -> None:
        await stream.send_message(Text(b"one"))
        raise GRPCError(Status.ABORTED, "enough")

    async def has_a_fault(_: Any) -> None:
        raise ValueError("a fault")

    handlers: dict[str, HandlerFunction] = {WHOLE: not_found, SPLIT: fails_midway, EACH: has_a_fault}
    with trio.fail_after(_PATIENCE), _GrpclibServer(path, handlers):
        async with open_unix_channel(path) as channel:
            with pytest.raises(GRPCError, match="sandbox ä not found") as caught:
                await call(channel, WHOLE, b"x")
            assert caught.value.status is Status.NOT_FOUND

            async with open_call(channel, SPLIT) as stream:
                await stream.send_message(Text(b"x"), end=True)
                assert await stream.recv_message() == Text(b"one")
                with pytest.raises(GRPCError, match="enough") as caught:
                    await stream.recv_message()
            assert caught.value.status is Status.ABORTED

            with pytest.raises(GRPCError) as caught:
                await call(channel, EACH, b"x")
            assert caught.value.status is Status.UNKNOWN

            stream = open_call(channel, WHOLE)
            stream._path = "/test.Echo/Nothing"
            async with stream:
                await stream.send_message(Text())
                with pytest.raises(GRPCError) as caught:
                    await stream.recv_message()
            assert caught.value.status is Status.UNIMPLEMENTED


async def test_our_clients_deadline_and_cancellation_reach_the_server(path: Path) -> None:
    remaining: list[float | None] = []
    entered, left = threading.Event(), threading.Event()

    async def split(stream: Any) -> None:
        remaining.append(None if stream.deadline is None else stream.deadline.time_remaining())
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    with trio.fail_after(2 * _PATIENCE), _GrpclibServer(path, {SPLIT: split}):
        async with open_unix_channel(path) as channel:
            await call(channel, WHOLE, b"x")  # connects, so that the deadline covers no more than a call
            with pytest.raises(GRPCError) as caught:
                await call(channel, SPLIT, b"x", timeout=1)
            assert caught.value.status is Status.DEADLINE_EXCEEDED
            await _wait(left)

            entered.clear()
            left.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, channel, SPLIT, b"x")
                await _wait(entered)
                nursery.cancel_scope.cancel()
            await _wait(left)
            with_deadline, without = remaining
            assert with_deadline is not None
            assert 0 < with_deadline <= 1
            assert without is None


# Our server.


async def _with_grpclib_client(
    path: Path, client: Callable[[grpclib.client.Channel], Awaitable[None]], *servables: Any
) -> None:
    """Run `client` on asyncio in a thread, with a channel to our server."""

    async def run() -> None:
        async with grpclib.client.Channel(path=str(path)) as channel, asyncio.timeout(2 * _PATIENCE):
            await client(channel)

    with trio.fail_after(3 * _PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(Server(servables or [Echo()]).serve_unix, path)
            await trio.to_thread.run_sync(asyncio.run, run())
            nursery.cancel_scope.cancel()


def _unary(channel: grpclib.client.Channel, method: str = WHOLE) -> grpclib.client.UnaryUnaryMethod[Text, Text]:
    return grpclib.client.UnaryUnaryMethod(channel, method, Text, Text)


def _each(channel: grpclib.client.Channel) -> grpclib.client.StreamStreamMethod[Text, Text]:
    return grpclib.client.StreamStreamMethod(channel, EACH, Text, Text)


def _texts(*bodies: bytes) -> list[Text]:
    return list(map(Text, bodies))


async def test_our_server_serves_all_kinds_of_calls(path: Path) -> None:
    async def client(channel: grpclib.client.Channel) -> None:
        split = grpclib.client.UnaryStreamMethod(channel, SPLIT, Text, Text)
        join = grpclib.client.StreamUnaryMethod(channel, JOIN, Text, Text)
        assert await _unary(channel)(Text(b"one"), timeout=10) == Text(b"one")
        assert await split(Text(b"one two"), timeout=10) == _texts(b"one", b"two")
        assert await join(_texts(b"one", b"two"), timeout=10) == Text(b"one two")
        assert await _each(channel)(_texts(b"one", b"", b"two"), timeout=10) == _texts(b"one", b"", b"two")

    await _with_grpclib_client(path, client)


async def test_our_server_receives_and_sends_large_messages(path: Path) -> None:
    async def client(channel: grpclib.client.Channel) -> None:
        assert await _unary(channel)(Text(_LARGE)) == Text(_LARGE)
        assert await _each(channel)(_texts(_LARGE, b"", _LARGE)) == _texts(_LARGE, b"", _LARGE)

    await _with_grpclib_client(path, client)


async def test_our_server_serves_two_hundred_calls_at_once(path: Path) -> None:
    async def client(channel: grpclib.client.Channel) -> None:
        method = _unary(channel)
        numbers = _texts(*(b"%d" % number for number in range(200)))
        assert await asyncio.gather(*map(method, numbers)) == numbers

    await _with_grpclib_client(path, client)


async def test_our_server_exchanges_metadata(path: Path) -> None:
    async def handler(stream: Any) -> None:
        message = await stream.recv_message()
        await stream.send_initial_metadata(metadata={"who": stream.metadata["who"]})
        await stream.send_message(message)
        await stream.send_trailing_metadata(metadata={"trace-bin": stream.metadata["trace-bin"]})

    async def client(channel: grpclib.client.Channel) -> None:
        metadata: dict[str, str | bytes] = {"who": "me", "trace-bin": b"\0\xff\1"}
        async with _unary(channel).open(timeout=10, metadata=metadata) as stream:
            await stream.send_message(Text(b"x"), end=True)
            assert await stream.recv_message() == Text(b"x")
        assert stream.initial_metadata is not None
        assert stream.initial_metadata["who"] == "me"
        assert stream.trailing_metadata is not None
        assert stream.trailing_metadata["trace-bin"] == b"\0\xff\1"

    await _with_grpclib_client(path, client, Echo({WHOLE: handler}))


async def test_our_servers_errors_are_understood(path: Path) -> None:
    async def not_found(_: Any) -> None:
        raise GRPCError(Status.NOT_FOUND, "sandbox ä not found")

    async def too_large(stream: Any) -> None:
        await stream.send_message(Text(b"one"))
        await stream.send_message(Text(b"x" * (2**24 + 1)))

    async def outcome(call: Awaitable[Any]) -> tuple[Status, str | None]:
        with pytest.raises(GRPCError) as caught:
            await call
        return caught.value.status, caught.value.message

    async def client(channel: grpclib.client.Channel) -> None:
        assert await outcome(_unary(channel)(Text(b"x"))) == (Status.NOT_FOUND, "sandbox ä not found")
        split = grpclib.client.UnaryStreamMethod(channel, SPLIT, Text, Text)
        assert (await outcome(split(Text(b"x"))))[0] is Status.RESOURCE_EXHAUSTED
        assert (await outcome(_unary(channel, "/test.Echo/Nothing")(Text(b"x"))))[0] is Status.UNIMPLEMENTED
        # The connection has outlived it all.
        assert await _each(channel)(_texts(b"one")) == _texts(b"one")

    await _with_grpclib_client(path, client, Echo({WHOLE: not_found, SPLIT: too_large}))


async def test_a_clients_deadline_and_cancellation_reach_our_handlers(path: Path) -> None:
    remaining: list[float | None] = []
    entered, left = threading.Event(), threading.Event()

    async def handler(stream: Any) -> None:
        remaining.append(None if stream.deadline is None else stream.deadline.time_remaining())
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    async def until(event: threading.Event) -> None:
        assert await asyncio.to_thread(event.wait, _PATIENCE)

    async def client(channel: grpclib.client.Channel) -> None:
        await _each(channel)(_texts(b"x"))  # connects, so that the deadline covers no more than a call
        with pytest.raises((asyncio.TimeoutError, GRPCError)) as caught:
            await _unary(channel)(Text(b"x"), timeout=1)
        if isinstance(caught.value, GRPCError):  # ours was the first to notice
            assert caught.value.status is Status.DEADLINE_EXCEEDED
        await until(left)
        entered.clear()
        left.clear()
        async with _unary(channel).open() as stream:
            await stream.send_message(Text(b"x"), end=True)
            await until(entered)
            await stream.cancel()
        await until(left)

    await _with_grpclib_client(path, client, Echo({WHOLE: handler}))
    with_deadline, without = remaining
    assert with_deadline is not None
    assert 0 < with_deadline <= 1
    assert without is None
