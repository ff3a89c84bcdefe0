from __future__ import annotations

import http.client
import socket
import stat
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.examples import examples
from trikubelet.http.limits import Limits
from trikubelet.http.messages import (
    AnyResponse,
    HTTPError,
    Request,
    Response,
    StreamResponse,
    Takeover,
    UpgradeResponse,
    Writer,
)
from trikubelet.http.server import HttpServer
from trikubelet.rpc.grpc.unix import SocketInUseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


async def echo(request: Request) -> AnyResponse:
    return Response(f"{request.method} {request.path} {dict(request.query)} {request.body.decode()}".encode())


def streaming(produce: Callable[[Writer], Awaitable[None]]) -> HttpServer:
    async def handler(_: Request) -> AnyResponse:
        return StreamResponse(produce)

    return HttpServer(handler)


@asynccontextmanager
async def connected(server: HttpServer) -> AsyncIterator[trio.abc.HalfCloseableStream]:
    """A client's end of an in-memory connection."""
    client, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs)
        yield client
        await client.aclose()


async def read_all(client: trio.abc.ReceiveStream) -> bytes:
    return b"".join([bytes(block) async for block in client])


async def read_until(client: trio.abc.ReceiveStream, end: bytes) -> bytes:
    data = b""
    with trio.fail_after(100):
        while not data.endswith(end):
            block = await client.receive_some()
            assert block, f"the connection ended after {data!r}"
            data += block
    return data


async def ask(sent: bytes, server: HttpServer | None = None) -> bytes:
    """Send bytes, read until the server closes."""
    async with connected(server or HttpServer(echo)) as client:
        await client.send_all(sent)
        with trio.fail_after(1000):
            return await read_all(client)


def closing(path: str, method: str = "GET", extra: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{extra}\r\n".encode()


async def test_a_request_is_answered(autojump_clock: MockClock) -> None:
    answer = await ask(closing("/a%20b?x=1&x=2&y"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"GET /a%20b {'x': ['1', '2'], 'y': ['']} ")


async def test_the_absolute_form_of_a_target_means_its_path(autojump_clock: MockClock) -> None:
    assert b"GET /a/b " in await ask(closing("http://h:1/a/b"))


async def test_pipelined_requests_are_answered_in_order(autojump_clock: MockClock) -> None:
    sent = b"".join(f"GET /{n} HTTP/1.1\r\nHost: h\r\n\r\n".encode() for n in range(50)) + closing("/last")
    answer = await ask(sent)
    assert answer.count(b"HTTP/1.1 200") == 51
    assert [answer.find(f"GET /{n} ".encode()) for n in range(50)] == sorted(
        answer.find(f"GET /{n} ".encode()) for n in range(50)
    )
    assert answer.endswith(b"GET /last {} ")


async def test_a_pipelined_request_waits_for_the_answer_before(autojump_clock: MockClock) -> None:
    running: list[str] = []

    async def slow(request: Request) -> AnyResponse:
        running.append(request.path)
        assert len(running) == 1
        await trio.sleep(5)
        running.clear()
        return Response(b"done")

    answer = await ask(GET + closing("/2"), HttpServer(slow))
    assert answer.count(b"done") == 2


async def test_bodies_are_read_with_length_and_in_chunks(autojump_clock: MockClock) -> None:
    assert (await ask(closing("/", "POST", "Content-Length: 5\r\n") + b"12345")).endswith(b"POST / {} 12345")
    chunked = closing("/", "POST", "Transfer-Encoding: chunked\r\n") + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    assert (await ask(chunked)).endswith(b"POST / {} abc")


async def test_a_client_that_expects_to_be_told_to_continue_is_told(autojump_clock: MockClock) -> None:
    async with connected(HttpServer(echo)) as client:
        await client.send_all(closing("/", "POST", "Content-Length: 2\r\nExpect: 100-continue\r\n"))
        assert (await read_until(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await client.send_all(b"ab")
        assert (await read_all(client)).endswith(b"POST / {} ab")


async def test_head_has_the_head_of_get_and_no_body(autojump_clock: MockClock) -> None:
    answer = await ask(closing("/", "HEAD"))
    assert b"Content-Length: 10" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection(autojump_clock: MockClock) -> None:
    async def produce(writer: Writer) -> None:
        await writer.write(b"a")
        await writer.write(b"b")

    answer = await ask(b"GET / HTTP/1.0\r\n\r\n", streaming(produce))
    assert answer.endswith(b"\r\n\r\nab")


async def test_a_stream_is_sent_piece_by_piece(autojump_clock: MockClock) -> None:
    more = trio.Event()

    async def produce(writer: Writer) -> None:
        await writer.write(b"")
        await more.wait()
        await writer.write(b"first")
        await trio.sleep_forever()

    async with connected(streaming(produce)) as client:
        await client.send_all(GET)
        assert (await read_until(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        more.set()
        assert await read_until(client, b"5\r\nfirst\r\n") == b"5\r\nfirst\r\n"


async def test_an_empty_stream_is_a_whole_answer(autojump_clock: MockClock) -> None:
    async def produce(writer: Writer) -> None:
        await trio.lowlevel.checkpoint()

    assert (await ask(closing("/"), streaming(produce))).endswith(b"\r\n\r\n0\r\n\r\n")


async def test_a_client_that_goes_away_cancels_the_handler(autojump_clock: MockClock) -> None:
    ended: list[str] = []

    async def sleep(request: Request) -> AnyResponse:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(request.path)
        raise AssertionError("unreachable")

    async with connected(HttpServer(sleep)) as client:
        await client.send_all(GET)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
    assert ended == ["/"]
    assert trio.current_time() < 1


async def test_a_client_that_goes_away_cancels_a_stream(autojump_clock: MockClock) -> None:
    ended = trio.Event()

    async def produce(writer: Writer) -> None:
        try:
            await writer.write(b"x")
            await trio.sleep_forever()
        finally:
            ended.set()

    server = streaming(produce)
    async with connected(server) as client:
        await client.send_all(GET)
        await read_until(client, b"1\r\nx\r\n")
    assert ended.is_set()
    assert server.statistics().connections == 0


async def test_what_a_handler_raises_while_cancelled_ends_its_connection_only(autojump_clock: MockClock) -> None:
    async def angry(_: Request) -> AnyResponse:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in a finally")

    server = HttpServer(angry)
    async with connected(server) as client:
        await client.send_all(GET)
        await trio.testing.wait_all_tasks_blocked()
    assert server.statistics().connections == 0


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (HTTPError(418, "no\ncoffee"), 418, b"no coffee\n"),
        (ExceptionGroup("", [ExceptionGroup("", [HTTPError(404, "nested")])]), 404, b"nested\n"),
        (KeyError("secret"), 500, b"internal error: the agent's log has the details\n"),
        (ExceptionGroup("", [HTTPError(404, "a"), KeyError("b")]), 500, b"internal error"),
    ],
)
async def test_what_a_handler_raises_is_answered_in_one_line(
    error: Exception, status: int, text: bytes, autojump_clock: MockClock
) -> None:
    async def failing(_: Request) -> AnyResponse:
        raise error

    async def failing_stream(_: Writer) -> None:
        raise error

    for server in (HttpServer(failing), streaming(failing_stream)):
        answer = await ask(GET + closing("/"), server)
        assert answer.count(b"HTTP/1.1 %d " % status) == 2, "the connection goes on"
        assert text in answer
        assert b"secret" not in answer


async def test_a_stream_that_fails_half_way_is_cut(autojump_clock: MockClock) -> None:
    async def produce(writer: Writer) -> None:
        await writer.write(b"half")
        raise ValueError("boom")

    answer = await ask(GET + GET, streaming(produce))
    assert answer.endswith(b"4\r\nhalf\r\n")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 100_000, 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000000\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n" + b"x" * 2_000_000, 413),
        (closing("/?" + "&".join("a" * 10_001)), 400),
    ],
)
async def test_what_cannot_be_served_gets_a_status_and_the_end(
    sent: bytes, status: int, autojump_clock: MockClock
) -> None:
    server = HttpServer(echo)
    answer = await ask(sent, server)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 %d " % status) == 1
    assert server.statistics().connections == 0


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: h\r\n", closing("/", "POST", "Content-Length: 9\r\n") + b"123"],
)
async def test_a_request_that_breaks_off_ends_the_connection_at_once(sent: bytes, autojump_clock: MockClock) -> None:
    async with connected(HttpServer(echo)) as client:
        if sent:
            await client.send_all(sent)
        await client.send_eof()
        assert b"HTTP/1.1 200" not in await read_all(client)
    assert trio.current_time() < 2


async def test_a_client_that_says_nothing_is_closed(autojump_clock: MockClock) -> None:
    async with connected(HttpServer(echo)) as client:
        assert await read_all(client) == b""
    assert trio.current_time() == pytest.approx(Limits().header_timeout)


async def test_a_slowloris_is_told_and_closed_however_busy_it_looks(autojump_clock: MockClock) -> None:
    async with connected(HttpServer(echo)) as client:

        async def drip() -> None:
            await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n")
            while True:
                await trio.sleep(1)
                await client.send_all(b"X: y\r\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            answer = await read_all(client)
            nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert trio.current_time() < 12


async def test_a_body_that_comes_too_slowly_is_refused(autojump_clock: MockClock) -> None:
    async with connected(HttpServer(echo)) as client:
        await client.send_all(closing("/", "POST", "Content-Length: 5\r\n") + b"12")
        assert (await read_all(client)).startswith(b"HTTP/1.1 408 ")
    assert trio.current_time() == pytest.approx(Limits().body_timeout, abs=1.1)


async def test_an_idle_connection_is_closed_without_a_word(autojump_clock: MockClock) -> None:
    async with connected(HttpServer(echo)) as client:
        await client.send_all(GET)
        assert (await read_all(client)).count(b"HTTP/1.1") == 1
    assert trio.current_time() == pytest.approx(Limits().idle_timeout)


async def test_a_client_that_does_not_read_is_cut_off(autojump_clock: MockClock) -> None:
    written = 0

    async def endless(writer: Writer) -> None:
        nonlocal written
        while True:
            await writer.write(b"x" * 1000)
            written += 1

    client, theirs = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streaming(endless).serve_stream, theirs)
        await client.send_all(GET)
        for _ in range(10):
            assert await client.receive_some(4096)
            await trio.sleep(20)
        assert written > 3
        await trio.sleep(Limits().write_timeout + 1)
        with trio.fail_after(1):
            assert len(await read_all(client)) <= 2000


async def test_what_is_pipelined_without_end_is_not_kept_in_memory(autojump_clock: MockClock) -> None:
    async def sleep(_: Request) -> AnyResponse:
        await trio.sleep(5)
        return Response(b"slept")

    client, theirs = trio.testing.lockstep_stream_pair()
    sent = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(sleep).serve_stream, theirs)
        await client.send_all(GET)
        with trio.move_on_after(4):
            while True:
                await client.send_all(b"x" * 1000)
                sent += 1000
        assert 64_000 <= sent <= 100_000
        nursery.cancel_scope.cancel()


async def test_a_connection_is_refused_when_all_others_are_at_work(autojump_clock: MockClock) -> None:
    answer = trio.Event()

    async def slow(_: Request) -> AnyResponse:
        await answer.wait()
        return Response(b"done")

    server = HttpServer(slow, limits=Limits(connections=1))
    async with connected(server) as first:
        await first.send_all(GET)
        await trio.testing.wait_all_tasks_blocked()
        assert (await ask(GET, server)).startswith(b"HTTP/1.1 503 ")
        answer.set()
        await first.send_all(closing("/"))
        assert (await read_all(first)).count(b"HTTP/1.1 200") == 2
    assert (server.statistics().refused, server.statistics().lost) == (1, 0)


async def test_whoever_comes_takes_the_place_of_who_has_waited_the_longest(autojump_clock: MockClock) -> None:
    server = HttpServer(echo, limits=Limits(connections=2))
    async with connected(server) as served, connected(server) as silent:
        await trio.testing.wait_all_tasks_blocked()
        await served.send_all(GET)
        await read_until(served, b" {} ")
        assert (await ask(closing("/"), server)).startswith(b"HTTP/1.1 200")
        assert await read_all(silent) == b""
        await served.send_all(closing("/still"))
        assert b"/still" in await read_all(served)
    assert (server.statistics().refused, server.statistics().lost) == (0, 1)


async def test_shutdown_ends_idle_connections_and_lets_answers_finish(autojump_clock: MockClock) -> None:
    async def sleep(_: Request) -> AnyResponse:
        await trio.sleep(3)
        return Response(b"finished")

    server = HttpServer(sleep)
    async with connected(server) as idle, connected(server) as busy:
        await busy.send_all(GET + GET)
        await trio.sleep(1)
        await server.shutdown(grace=10)
        assert await read_all(idle) == b""
        answer = await read_all(busy)
    assert answer.count(b"finished") == 1
    assert b"Connection: close" in answer
    assert trio.current_time() == pytest.approx(3 + Limits().linger_timeout)


async def test_shutdown_cancels_what_does_not_finish(autojump_clock: MockClock) -> None:
    async def produce(writer: Writer) -> None:
        await writer.write(b"x")
        await trio.sleep_forever()

    server = streaming(produce)
    async with connected(server) as client:
        await client.send_all(GET)
        await read_until(client, b"x\r\n")
        await server.shutdown(grace=7)
        with trio.fail_after(1):
            assert await read_all(client) == b""
    assert trio.current_time() == pytest.approx(7)


@pytest.mark.fuzz
@given(st.lists(st.binary(max_size=200) | st.sampled_from([GET, b"GET / ", b"\r\n", b"Host: h\r\n\r\n"]), max_size=8))
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_bytes_end_at_most_their_connection(pieces: list[bytes]) -> None:
    async def main() -> None:
        server = HttpServer(echo)
        async with connected(server) as client:
            for piece in pieces:
                if piece:
                    await client.send_all(piece)
            await client.send_eof()
            with trio.fail_after(60):
                await read_all(client)
        assert server.statistics().connections == 0
        assert b"200" in await ask(closing("/"), server)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def fetch(path: Path, target: str) -> tuple[int, bytes]:
    """Ask with another implementation."""
    connection = http.client.HTTPConnection("localhost", timeout=5)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(str(path))
        connection.request("GET", target)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


async def test_a_unix_socket_is_private_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(HttpServer(echo).serve_unix, path)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert await trio.to_thread.run_sync(fetch, path, "/x") == (200, b"GET /x {} ")
        nursery.cancel_scope.cancel()
    assert not path.exists()


async def test_a_large_answer_arrives_whole_over_a_unix_socket(tmp_path: Path) -> None:
    body = bytes(range(256)) * 20_000

    async def large(_: Request) -> AnyResponse:
        return Response(body)

    async with trio.open_nursery() as nursery:
        await nursery.start(HttpServer(large).serve_unix, tmp_path / "s")
        assert await trio.to_thread.run_sync(fetch, tmp_path / "s", "/") == (200, body)
        nursery.cancel_scope.cancel()


async def test_a_socket_of_a_dead_agent_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(HttpServer(echo).serve_unix, path, mode=0o660))
        assert stat.S_IMODE(path.lstat().st_mode) == 0o660
        with pytest.raises(SocketInUseError, match="another process is listening"):
            await HttpServer(echo).serve_unix(path)
        assert (await trio.to_thread.run_sync(fetch, path, "/"))[0] == 200
        nursery.cancel_scope.cancel()


UPGRADE = b"POST /exec HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


def upgrading(handle: Callable[[Takeover], Awaitable[None]]) -> HttpServer:
    async def handler(_: Request) -> AnyResponse:
        return UpgradeResponse(handle)

    return HttpServer(handler)


async def shout(takeover: Takeover) -> None:
    stream = await takeover.accept([("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")])
    async for data in stream:
        await stream.send_all(bytes(data).upper())
    await stream.send_all(b"EOF")
    await stream.send_eof()


async def test_a_handler_takes_the_connection_over_with_what_has_arrived_already() -> None:
    async with connected(upgrading(shout)) as client:
        await client.send_all(UPGRADE + b"early ")
        assert await read_until(client, b"EARLY ") == ACCEPTED + b"EARLY "
        await client.send_all(b"GET / HTTP/1.1\r\n\r\n")
        assert await read_until(client, b"\r\n\r\n") == b"GET / HTTP/1.1\r\n\r\n"
        await client.send_eof()
        assert await read_all(client) == b"EOF"


async def test_a_handler_that_does_not_accept_answers_as_ever() -> None:
    async def refuse(takeover: Takeover) -> None:
        await takeover.answer(Response(b"no", 403))

    async def fail(_: Takeover) -> None:
        raise HTTPError(502, "the runtime is away")

    async with connected(upgrading(refuse)) as client:
        await client.send_all(UPGRADE)
        assert b"HTTP/1.1 403" in await read_until(client, b"no")
        await client.send_all(UPGRADE)
        assert b"HTTP/1.1 403" in await read_until(client, b"no")
    async with connected(upgrading(fail)) as client:
        await client.send_all(UPGRADE)
        assert b"HTTP/1.1 502" in await read_until(client, b"the runtime is away\n")


async def test_a_client_that_goes_before_the_takeover_cancels_it(autojump_clock: MockClock) -> None:
    cancelled = trio.Event()

    async def dial(_: Takeover) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with connected(upgrading(dial)) as client:
        await client.send_all(UPGRADE)
        await client.aclose()
        with trio.fail_after(10):
            await cancelled.wait()


async def test_an_upgrade_that_nobody_asked_for_is_refused() -> None:
    async with connected(upgrading(shout)) as client:
        await client.send_all(GET)
        assert b"HTTP/1.1 400" in await read_until(client, b"PROTOCOL\n")
