"""Connections that end before a request was answered: which, and what the log says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.captured_logs import capture_logs
from tests.http.test_server import ACCEPTED, GET, UPGRADE, connected, read_all, read_until
from tests.node_api.tls_peers import OpenSslClient, handshake, serving_pair
from trikubelet.http.limits import Limits
from trikubelet.http.messages import AnyResponse, Peer, Request, Response, StreamResponse, Takeover, UpgradeResponse
from trikubelet.http.server import HttpServer
from trikubelet.http.tls_stream import TlsStream
from trikubelet.node_api.serving_tls import serving_context
from trikubelet.node_api.tls_settings import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from trio.testing import MockClock

    from trikubelet.http.messages import Writer

SECRET = b"GET /exec/default/web/main?command=secret HTTP/1.1\r\nHost: h\r\n\r\n"

Lines = list[dict[str, "Any"]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    with capture_logs() as captured:
        yield captured


def unanswered(lines: Lines) -> list[tuple[object, object]]:
    return [(line["asked"], line["why"]) for line in lines if line["event"] == "connection closed without an answer"]


async def never(_: Request) -> AnyResponse:
    await trio.sleep_forever()


@pytest.mark.parametrize("more", [b"", GET], ids=["", "with another request"])
async def test_of_a_client_that_goes_it_is_told_what_it_had_asked(
    more: bytes, lines: Lines, autojump_clock: MockClock
) -> None:
    async with connected(HttpServer(never)) as client:
        await client.send_all(SECRET + more)
        await client.send_eof()
        assert await read_all(client) == b""
    assert unanswered(lines) == [("GET /exec", "the client ended it")]
    assert "secret" not in str(lines)


async def test_of_a_connection_that_breaks_it_is_told_how(lines: Lines, autojump_clock: MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    tls = TlsStream(near, serving_context(TlsSettings(), serving_pair()))
    client = OpenSslClient(far)
    await handshake(tls, client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(never).serve_stream, tls, Peer("[::1]:7"))
        await client.send_all(GET)
        await trio.testing.wait_all_tasks_blocked()
        await far.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
    [line] = [line for line in lines if line["event"] == "connection closed without an answer"]
    assert line["client"] == "[::1]:7"
    assert "bad record mac" in str(line["why"])


async def test_a_shutdown_tells_whom_it_leaves_without_an_answer(lines: Lines, autojump_clock: MockClock) -> None:
    server = HttpServer(never)
    async with connected(server) as busy, connected(server) as idle:
        await busy.send_all(GET)
        await trio.sleep(1)
        await server.shutdown(grace=1)
        assert await read_all(busy) == await read_all(idle) == b""
    assert unanswered(lines) == [("GET /", "the server is being shut down")]


async def test_who_loses_its_place_in_the_middle_of_a_head_is_told_of(lines: Lines, autojump_clock: MockClock) -> None:
    server = HttpServer(never, limits=Limits(connections=1))
    async with connected(server) as slow:
        await slow.send_all(b"GET / HT")
        await trio.sleep(1)
        async with connected(server):
            assert await read_all(slow) == b""
    assert unanswered(lines) == [("the head of a request", "another connection needed its place")]


async def test_a_client_that_takes_no_answer_is_told_of(lines: Lines, autojump_clock: MockClock) -> None:
    async def answer(_: Request) -> AnyResponse:
        return Response(b"x" * 9)

    client, theirs = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(answer).serve_stream, theirs)
        await client.send_all(GET)
        await trio.sleep(31)
        await client.aclose()
    [(asked, why)] = unanswered(lines)
    assert asked == "GET /"
    assert "within 30 seconds" in str(why)


async def test_a_handshake_that_takes_too_long_is_told_of(lines: Lines, autojump_clock: MockClock) -> None:
    async def begin() -> tuple[trio.abc.Stream, Peer] | None:
        await trio.sleep_forever()

    _, theirs = trio.testing.memory_stream_pair()
    await HttpServer(never).serve_transport(theirs, begin, "[::1]:7")
    assert [(line["event"], line["client"]) for line in lines] == [("connection closed before it began", "[::1]:7")]


async def test_who_was_answered_or_asked_nothing_is_not_told_of(lines: Lines, autojump_clock: MockClock) -> None:
    async def handler(request: Request) -> AnyResponse:
        async def produce(writer: Writer) -> None:
            await writer.write(b"x")
            await trio.sleep_forever()

        async def take(takeover: Takeover) -> None:
            await takeover.accept([("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")])

        if "upgrade" in request.headers:
            return UpgradeResponse(take)
        return StreamResponse(produce) if request.path == "/stream" else Response(b"done")

    server = HttpServer(handler)
    async with connected(server), connected(server) as idle:  # the first says nothing
        await idle.send_all(GET)
        await read_until(idle, b"done")
    async with connected(server) as follower:
        await follower.send_all(GET.replace(b"/", b"/stream", 1))
        await read_until(follower, b"x\r\n")
    async with connected(server) as upgraded:
        await upgraded.send_all(UPGRADE)
        assert await read_until(upgraded, ACCEPTED) == ACCEPTED
    async with connected(server) as wrong:
        await wrong.send_all(b"nonsense\r\n\r\n")
        assert b"HTTP/1.1 400" in await read_all(wrong)
    assert lines == []


# Answers that used to be lost.


@pytest.mark.parametrize("value", ["two\r\nlines", "h\u00e9"])
async def test_an_answer_that_cannot_be_sent_is_a_500(value: str, lines: Lines) -> None:
    async def handler(_: Request) -> AnyResponse:
        return Response(b"no", 403, headers=(("X-Reason", value),))

    async def take(takeover: Takeover) -> None:
        await takeover.accept([("Upgrade", value)])

    async def upgrading(_: Request) -> AnyResponse:
        return UpgradeResponse(take)

    for server, sent in ((HttpServer(handler), GET), (HttpServer(upgrading), UPGRADE)):
        async with connected(server) as client:
            await client.send_all(sent)
            assert (await read_until(client, b"details\n")).startswith(b"HTTP/1.1 500")
    assert [line["event"] for line in lines] == ["request failed", "request failed"]


async def test_an_upgrade_to_nothing_is_refused() -> None:
    async def take(takeover: Takeover) -> None:
        await takeover.accept([("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")])

    async def handler(_: Request) -> AnyResponse:
        return UpgradeResponse(take)

    async with connected(HttpServer(handler)) as client:
        await client.send_all(GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: \r\n\r\n"))
        assert b"HTTP/1.1 400" in await read_until(client, b"PROTOCOL\n")


class Kernel(trio.abc.ReceiveStream):
    """Knows how much is unread: a socket that is closed then throws away the answer that the client has not taken."""

    def __init__(self, arrived: bytes) -> None:
        self.unread = arrived

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self.unread:
            await trio.sleep_forever()
        data, self.unread = self.unread[:max_bytes], self.unread[len(self.unread[:max_bytes]) :]
        return data

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_an_answer_survives_what_its_client_sent_too_much(autojump_clock: MockClock) -> None:
    async def handler(_: Request) -> AnyResponse:
        return Response(b"done")

    sent, taken = trio.testing.memory_stream_one_way_pair()
    kernel = Kernel(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"y" * 300_000)
    await HttpServer(handler).serve_stream(trio.StapledStream(sent, kernel))
    assert (await read_all(taken)).endswith(b"done")
    assert not kernel.unread
