from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.captured_logs import capture_logs
from tests.http.streaming.fake_runtime import (
    SPDY_ANSWER,
    SPDY_REQUEST,
    URL,
    FakeRuntime,
    client_of,
    read_head,
    read_rest,
)
from trikubelet.http.messages import Peer, Request
from trikubelet.http.raw_stream import RawStream
from trikubelet.http.streaming.proxy import BLOCK, forwarded_headers, proxy_upgrade, splice
from trikubelet.http.streaming.runtime_upgrade import RuntimeStreamError, Upgraded, runtime_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from tests.http.streaming.fake_runtime import Connect
    from trikubelet.http.messages import Takeover

HOUR = 3600.0


async def proxy(request: Request, takeover: Takeover, connect: Connect) -> None:
    await proxy_upgrade(URL, request, takeover, connect)


@asynccontextmanager
async def spliced(
    *, slow: bool = False
) -> AsyncIterator[tuple[trio.abc.HalfCloseableStream, trio.abc.HalfCloseableStream]]:
    """The client's and the runtime's end of a connection that was upgraded."""
    fake = FakeRuntime(slow=slow)
    async with client_of(proxy, fake, slow=slow) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, SPDY_REQUEST)
        runtime = await fake.accept()
        await read_head(runtime)
        nursery.start_soon(runtime.send_all, SPDY_ANSWER)
        await read_head(client)
        yield client, runtime


async def answer_to(answer: bytes, *, request: bytes = SPDY_REQUEST) -> tuple[str, list[str], bytes]:
    """What a client gets when the runtime gives this answer and closes."""
    fake = FakeRuntime()
    async with client_of(proxy, fake) as client:
        await client.send_all(request)
        runtime = await fake.accept()
        await read_head(runtime)
        await runtime.send_all(answer)
        await runtime.send_eof()
        first, fields = await read_head(client)
        length = next(int(field.split(": ")[1]) for field in fields if field.lower().startswith("content-length"))
        body = b""
        while len(body) < length:
            body += await client.receive_some()
        return first, fields, body


async def test_the_runtime_gets_the_client_s_request_with_the_path_of_its_own_url(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(proxy, fake, peer=Peer(address="10.1.2.3:5000")) as client:
        await client.send_all(SPDY_REQUEST)
        first, fields = await read_head(await fake.accept())
    assert (fake.dialled[0].host, fake.dialled[0].port) == ("127.0.0.1", 4000)
    assert first == "POST /exec/SeCrEtTk HTTP/1.1"
    assert fields == [
        "host: node:10250",
        "connection: Upgrade",
        "upgrade: SPDY/3.1",
        "x-stream-protocol-version: v4.channel.k8s.io",
        "x-forwarded-for: 10.1.2.3",
        "content-length: 0",
    ]


def request_with(*headers: tuple[str, str], method: str = "GET", address: str = "") -> Request:
    return Request(method, "/exec", raw_headers=headers, headers=dict(headers), peer=Peer(address=address))


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer t0ken")],
        [("proxy-authorization", "Basic t0ken")],
        [("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.t0ken")],
        [("sec-websocket-protocol", "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.t0ken")],
    ],
)
def test_what_proves_who_the_client_is_does_not_reach_the_runtime(headers: list[tuple[str, str]]) -> None:
    assert "t0ken" not in repr(forwarded_headers(request_with(*headers)))


def test_other_websocket_protocols_are_kept_in_their_order() -> None:
    offer = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.t0ken, channel.k8s.io"
    assert forwarded_headers(request_with(("sec-websocket-protocol", offer))) == [
        ("sec-websocket-protocol", "v4.channel.k8s.io, channel.k8s.io")
    ]


def test_a_repeated_field_is_forwarded_as_often() -> None:
    fields = (("x-stream-protocol-version", "v4.channel.k8s.io"), ("x-stream-protocol-version", "v3.channel.k8s.io"))
    assert tuple(forwarded_headers(request_with(*fields))) == fields


def test_fields_about_a_body_are_not_forwarded() -> None:
    sent = request_with(("transfer-encoding", "chunked"), ("expect", "100-continue"), ("te", "trailers"), method="POST")
    assert forwarded_headers(sent) == [("content-length", "0")]


@pytest.mark.parametrize(
    ("before", "address", "after"),
    [
        ([], "10.1.2.3:5000", ["10.1.2.3"]),
        ([], "[fd00::1]:5000", ["fd00::1"]),
        (["1.1.1.1", "2.2.2.2"], "10.1.2.3:5000", ["1.1.1.1, 2.2.2.2, 10.1.2.3"]),
        (["1.1.1.1"], "", ["1.1.1.1"]),
        ([], "", []),
    ],
)
def test_the_client_s_address_is_added_to_those_before_it(before: list[str], address: str, after: list[str]) -> None:
    sent = request_with(*(("x-forwarded-for", value) for value in before), address=address)
    assert [value for name, value in forwarded_headers(sent) if name == "x-forwarded-for"] == after


async def test_the_client_gets_the_runtime_s_answer_and_what_came_right_behind_it(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(proxy, fake) as client:
        await client.send_all(SPDY_REQUEST)
        runtime = await fake.accept()
        await read_head(runtime)
        await runtime.send_all(SPDY_ANSWER + b"early")
        first, fields = await read_head(client)
        assert first == "HTTP/1.1 101 Switching Protocols"
        assert {field.lower() for field in fields} == {
            "connection: upgrade",
            "upgrade: spdy/3.1",
            "x-stream-protocol-version: v4.channel.k8s.io",
        }
        assert await client.receive_some() == b"early"


async def test_what_the_client_sent_before_the_answer_reaches_the_runtime(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(proxy, fake) as client:
        await client.send_all(SPDY_REQUEST + b"impatient")
        runtime = await fake.accept()
        await read_head(runtime)
        await runtime.send_all(SPDY_ANSWER)
        assert await runtime.receive_some() == b"impatient"


async def test_bytes_go_both_ways(autojump_clock: MockClock) -> None:
    async with spliced() as (client, runtime):
        await client.send_all(bytes(range(256)))
        assert await runtime.receive_some() == bytes(range(256))
        await runtime.send_all(b"\x80\x03answer")
        assert await client.receive_some() == b"\x80\x03answer"


# Ends.


async def test_what_the_runtime_still_says_reaches_a_client_that_has_sent_all(autojump_clock: MockClock) -> None:
    async with spliced() as (client, runtime):
        await client.send_all(b"all")
        await client.send_eof()
        assert await read_rest(runtime) == b"all"
        for _ in range(5):  # slower than the time limit, but never silent for so long
            await trio.sleep(8)
            await runtime.send_all(b".")
        await runtime.send_eof()
        assert await read_rest(client) == b"....."


async def test_what_the_client_still_says_reaches_a_runtime_that_has_sent_all(autojump_clock: MockClock) -> None:
    async with spliced() as (client, runtime):
        await runtime.send_all(b"all")
        await runtime.send_eof()
        assert await read_rest(client) == b"all"
        await client.send_all(b"more")
        assert await runtime.receive_some() == b"more"


async def test_a_side_that_never_ends_is_cut_a_while_after_the_other(autojump_clock: MockClock) -> None:
    async with spliced() as (client, runtime):
        started = trio.current_time()
        await runtime.send_eof()
        assert await read_rest(client) == b""
        assert await read_rest(runtime) == b""
        assert trio.current_time() - started == 10


async def broken() -> None:
    await trio.lowlevel.checkpoint()
    raise trio.BrokenResourceError


async def test_the_last_words_of_a_runtime_that_reads_no_more_reach_a_client_that_goes_on_sending(
    autojump_clock: MockClock,
) -> None:
    client, clients = trio.testing.memory_stream_pair()
    runtime, runtimes = trio.testing.memory_stream_pair()
    assert isinstance(runtimes.send_stream, trio.testing.MemorySendStream)
    runtimes.send_stream.send_all_hook = broken
    async with trio.open_nursery() as nursery:
        nursery.start_soon(splice, clients, Upgraded((), RawStream(runtimes, b""), half_closeable=True))
        for _ in range(3):
            await client.send_all(b"stdin")
            await trio.sleep(1)
        await runtime.send_all(b"exit status")
        await runtime.send_eof()
        assert await read_rest(client) == b"exit status"


async def test_a_runtime_that_cannot_be_told_of_an_end_is_left_at_once(autojump_clock: MockClock) -> None:
    client, clients = trio.testing.memory_stream_pair()
    _, runtimes = trio.testing.memory_stream_pair()
    await client.send_eof()
    await splice(clients, Upgraded((), RawStream(runtimes, b""), half_closeable=False))
    assert trio.current_time() == 0


async def test_a_client_that_goes_on_sending_to_a_runtime_that_is_gone_is_cut(autojump_clock: MockClock) -> None:
    async with spliced() as (client, runtime):
        await trio.aclose_forcefully(runtime)
        for _ in range(9):
            await client.send_all(b"stdin")
            await trio.sleep(1)
        await trio.sleep(3)
        with pytest.raises(trio.BrokenResourceError):
            await client.send_all(b"stdin")


async def test_a_client_that_is_gone_takes_the_runtime_s_connection_with_it_at_once(autojump_clock: MockClock) -> None:
    async with spliced() as (client, runtime):
        started = trio.current_time()
        await trio.aclose_forcefully(client)
        assert await read_rest(runtime) == b""
        assert trio.current_time() == started
        await runtime.send_all(b"to nobody")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BrokenResourceError):
            await runtime.send_all(b"to nobody")
        assert trio.current_time() == started


async def test_a_connection_that_breaks_at_the_runtime_is_cut_and_not_ended(autojump_clock: MockClock) -> None:
    client, clients = trio.testing.memory_stream_pair()
    _, runtimes = trio.testing.memory_stream_pair()
    assert isinstance(runtimes.receive_stream, trio.testing.MemoryReceiveStream)
    runtimes.receive_stream.receive_some_hook = broken
    with pytest.raises(RuntimeStreamError):  # by which the server cuts
        await splice(clients, Upgraded((), RawStream(runtimes, b""), half_closeable=True))
    with trio.move_on_after(1) as waiting:
        await client.receive_some()
    assert waiting.cancelled_caught


async def test_a_silent_connection_lasts_for_four_hours(autojump_clock: MockClock) -> None:
    async with spliced() as (client, runtime):
        await trio.sleep(3.9 * HOUR)
        await client.send_all(b"x")
        await runtime.receive_some()
        started = trio.current_time()
        assert await read_rest(client) == b""
        assert trio.current_time() - started == 4 * HOUR


# A side that does not read.


async def test_no_more_than_a_block_waits_for_a_client_that_does_not_read(autojump_clock: MockClock) -> None:
    async with spliced(slow=True) as (client, runtime):
        sent = 0
        with trio.move_on_after(HOUR):
            while True:
                await runtime.send_all(bytes(BLOCK // 4))
                sent += BLOCK // 4
        assert sent <= 2 * BLOCK
        assert len(await client.receive_some()) <= BLOCK


async def test_no_more_than_a_block_waits_for_a_runtime_that_does_not_read(autojump_clock: MockClock) -> None:
    async with spliced(slow=True) as (client, runtime):
        sent = 0
        with trio.move_on_after(HOUR):
            while True:
                await client.send_all(bytes(BLOCK // 4))
                sent += BLOCK // 4
        assert sent <= 2 * BLOCK
        assert len(await runtime.receive_some()) <= BLOCK


async def test_one_direction_that_stands_still_does_not_hold_the_other(autojump_clock: MockClock) -> None:
    async with spliced(slow=True) as (client, runtime):
        with trio.move_on_after(60):
            while True:
                await client.send_all(bytes(BLOCK))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.send_all, b"output")
            assert await client.receive_some() == b"output"


# What is no upgrade.


async def test_a_refusal_is_passed_on_as_it_is(autojump_clock: MockClock) -> None:
    first, fields, body = await answer_to(
        b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nX-Accepted-Stream-Protocol-Versions: v4\r\n"
        b"X-Accepted-Stream-Protocol-Versions: v3\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nno, no\n\r\n0\r\n\r\n"
    )
    assert first.startswith("HTTP/1.1 403")
    assert [field for field in fields if "Accepted" in field] == [
        "X-Accepted-Stream-Protocol-Versions: v4",
        "X-Accepted-Stream-Protocol-Versions: v3",
    ]
    assert "Content-Type: text/plain" in fields
    assert body == b"no, no\n"


async def test_a_long_refusal_is_cut_off(autojump_clock: MockClock) -> None:
    _, _, body = await answer_to(b"HTTP/1.1 500 Oh\r\n\r\n" + b"x" * 100_000)
    assert body == b"x" * 64 * 2**10


async def test_a_refusal_that_never_ends_is_passed_on_as_far_as_it_came(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(proxy, fake) as client:
        await client.send_all(SPDY_REQUEST)
        runtime = await fake.accept()
        started = trio.current_time()
        await runtime.send_all(b"HTTP/1.1 500 Oh\r\nContent-Length: 100\r\n\r\nhalf")
        first, _ = await read_head(client)
        assert first.startswith("HTTP/1.1 500")
        assert await client.receive_some() == b"half"
        assert trio.current_time() - started == 10


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"invalid upgrade response: status code 200\n"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n", b"invalid upgrade response: status code 302\n"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", b"invalid upgrade response: "),
        (b"HTTP/1.1 101 Swit", b"the runtime closed the connection before it answered\n"),
        (b"", b"the runtime closed the connection before it answered\n"),
        (b"HTTP/1.1 101 X\r\nA: " + b"x" * 100_000, b"invalid upgrade response: "),
    ],
)
async def test_an_answer_that_is_neither_yes_nor_no_is_an_error(
    answer: bytes, text: bytes, autojump_clock: MockClock
) -> None:
    first, _, body = await answer_to(answer)
    assert first.startswith("HTTP/1.1 500")
    assert body.startswith(text)


async def test_a_runtime_that_does_not_answer_is_given_up(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(proxy, fake) as client:
        await client.send_all(SPDY_REQUEST)
        runtime = await fake.accept()
        await read_head(client)
        assert await client.receive_some() == b"no answer from the runtime within 30 seconds\n"
        await read_head(runtime)
        assert await read_rest(runtime) == b""


async def test_a_runtime_that_cannot_be_reached_is_an_error_and_its_token_stays_secret(
    autojump_clock: MockClock,
) -> None:
    fake = FakeRuntime(unreachable="error dialing backend: 127.0.0.1:4000: refused")
    with capture_logs() as logs:
        async with client_of(proxy, fake) as client:
            await client.send_all(SPDY_REQUEST)
            first, _ = await read_head(client)
            assert first.startswith("HTTP/1.1 500")
            assert await client.receive_some() == b"error dialing backend: 127.0.0.1:4000: refused\n"
    assert [entry["event"] for entry in logs] == ["the runtime's streaming server failed"]
    assert "SeCrEtTk" not in repr(logs) + repr(fake.dialled)


async def test_a_client_that_goes_while_the_runtime_is_asked_takes_the_connection_with_it(
    autojump_clock: MockClock,
) -> None:
    fake = FakeRuntime()
    async with client_of(proxy, fake) as client:
        await client.send_all(SPDY_REQUEST)
        runtime = await fake.accept()
        await read_head(runtime)
        started = trio.current_time()
        await client.aclose()
        assert await read_rest(runtime) == b""
        assert trio.current_time() == started


# URLs.


@pytest.mark.parametrize(
    ("url", "host", "port", "target", "encrypted"),
    [
        ("http://127.0.0.1:4000/exec/abc", "127.0.0.1", 4000, "/exec/abc", False),
        ("https://[::1]:4000/exec/abc?x=%2F", "::1", 4000, "/exec/abc?x=%2F", True),
        ("http://[::]:4000/exec/abc", "::", 4000, "/exec/abc", False),
        ("http://localhost", "localhost", 80, "/", False),
        ("https://runtime.test/a", "runtime.test", 443, "/a", True),
    ],
)
def test_a_url_of_the_runtime_says_where_to_go(url: str, host: str, port: int, target: str, encrypted: bool) -> None:
    address = runtime_address(url)
    assert (address.host, address.port, address.target, address.encrypted) == (host, port, target, encrypted)


@pytest.mark.parametrize(
    "url",
    ["", "/exec/SeCrEtTk", "unix:///run/SeCrEtTk", "http:///SeCrEtTk", "http://h:x/SeCrEtTk", "http://[/SeCrEtTk"],
)
def test_what_is_no_url_of_a_streaming_server_is_refused_without_being_told(url: str) -> None:
    with pytest.raises(RuntimeStreamError) as caught:
        runtime_address(url)
    assert "SeCrEtTk" not in str(caught.value)
