from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.http.streaming.fake_runtime import URL, FakeRuntime, client_of, read_head, read_rest
from trikubelet.http.messages import Request
from trikubelet.http.streaming.proxy import BLOCK
from trikubelet.http.streaming.tunnel import spdy_headers, spdy_protocols, tunnel_spdy
from trikubelet.http.streaming.websocket import WebSocket, WebSocketByteStream, WebSocketClosed, open_websocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from tests.http.streaming.fake_runtime import Connect
    from trikubelet.http.messages import Takeover

TUNNEL = "SPDY/3.1+portforward.k8s.io"
OPENING = (
    b"GET /portForward/ns/pod HTTP/1.1\r\nHost: node:10250\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: " + TUNNEL.encode() + b"\r\n\r\n"
)
ANSWER = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    b"X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n"
)


async def tunnel(request: Request, takeover: Takeover, connect: Connect) -> None:
    await tunnel_spdy(URL, request, takeover, connect)


@asynccontextmanager
async def tunnelled(*, slow: bool = False) -> AsyncIterator[tuple[WebSocket, trio.abc.HalfCloseableStream]]:
    """The client's WebSocket and the runtime's end of an open tunnel."""
    fake = FakeRuntime(slow=slow)
    async with client_of(tunnel, fake, slow=slow) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, OPENING)
        runtime = await fake.accept()
        await read_head(runtime)
        nursery.start_soon(runtime.send_all, ANSWER)
        await read_head(client)
        async with open_websocket(client, client=True) as websocket:
            yield websocket, runtime


async def test_the_runtime_gets_a_request_for_spdy(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(tunnel, fake) as client:
        await client.send_all(OPENING)
        first, fields = await read_head(await fake.accept())
    assert first == "POST /exec/SeCrEtTk HTTP/1.1"
    assert fields == [
        "host: node:10250",
        "connection: Upgrade",
        "upgrade: SPDY/3.1",
        "x-stream-protocol-version: portforward.k8s.io",
        "content-length: 0",
    ]


async def test_the_websocket_is_accepted_in_the_protocol_that_the_runtime_chose(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(tunnel, fake) as client:
        await client.send_all(OPENING)
        runtime = await fake.accept()
        await read_head(runtime)
        await runtime.send_all(ANSWER)
        first, fields = await read_head(client)
    assert first == "HTTP/1.1 101 Switching Protocols"
    assert sorted(field.lower() for field in fields) == [
        "connection: upgrade",
        "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=",
        "sec-websocket-protocol: spdy/3.1+portforward.k8s.io",
        "upgrade: websocket",
    ]


@pytest.mark.parametrize(
    ("offered", "spoken"),
    [
        ([TUNNEL], ("portforward.k8s.io",)),
        (["SPDY/3.1+a.k8s.io", TUNNEL], ("a.k8s.io", "portforward.k8s.io")),
        (["v4.channel.k8s.io", TUNNEL], ("portforward.k8s.io",)),
        (["SPDY/3.1+portforward.example.org", "portforward.k8s.io"], ()),
    ],
)
def test_a_client_may_offer_several_protocols(offered: list[str], spoken: tuple[str, ...]) -> None:
    assert spdy_protocols(offered) == spoken


def test_the_runtime_learns_nothing_of_the_websocket() -> None:
    names = ("key", "version", "extensions", "protocol")
    sent = spdy_headers(Request("GET", "/", raw_headers=tuple((f"sec-websocket-{name}", "x") for name in names)))
    assert {name for name, _ in sent} == {"connection", "upgrade", "content-length"}


def test_every_protocol_that_a_client_offers_is_offered_to_the_runtime() -> None:
    offers = (("sec-websocket-protocol", "SPDY/3.1+a.k8s.io, x"), ("sec-websocket-protocol", "SPDY/3.1+b.k8s.io"))
    sent = spdy_headers(Request("GET", "/", raw_headers=offers))
    assert [value for name, value in sent if name == "x-stream-protocol-version"] == ["a.k8s.io", "b.k8s.io"]


async def test_messages_are_bytes_to_the_runtime_whatever_their_borders(autojump_clock: MockClock) -> None:
    async with tunnelled() as (websocket, runtime):
        for message in (b"\x80\x03", b"", b"\x00\x01\x00\x00", b"x" * 100_000):
            await websocket.send(message)
        received = b""
        while len(received) < 100_006:
            received += await runtime.receive_some()
    assert received == b"\x80\x03\x00\x01\x00\x00" + b"x" * 100_000


async def test_what_the_runtime_says_arrives_in_binary_messages(autojump_clock: MockClock) -> None:
    async with tunnelled() as (websocket, runtime):
        await runtime.send_all(b"\x80\x03" * 50_000)
        received = b""
        while len(received) < 100_000:
            part = await websocket.receive()
            assert part is not None
            assert not part.text
            received += part.data
    assert received == b"\x80\x03" * 50_000


async def test_what_came_right_behind_the_runtime_s_answer_is_not_lost(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(tunnel, fake) as client:
        await client.send_all(OPENING)
        runtime = await fake.accept()
        await read_head(runtime)
        await runtime.send_all(ANSWER + b"early")
        await read_head(client)
        async with open_websocket(client, client=True) as websocket:
            assert await WebSocketByteStream(websocket).receive_some() == b"early"


async def test_the_runtime_s_end_closes_the_websocket_in_order(autojump_clock: MockClock) -> None:
    async with tunnelled() as (websocket, runtime):
        await runtime.send_all(b"last words")
        await runtime.send_eof()
        assert await WebSocketByteStream(websocket).receive_some() == b"last words"
        assert await websocket.receive() is None


async def test_a_client_that_closes_its_websocket_ends_the_runtime_s_connection(autojump_clock: MockClock) -> None:
    async with tunnelled() as (websocket, runtime):
        await websocket.send(b"last words")
        await websocket.close()
        started = trio.current_time()
        assert await read_rest(runtime) == b"last words"
        assert trio.current_time() == started


async def test_a_client_that_is_gone_without_a_word_ends_the_runtime_s_connection(autojump_clock: MockClock) -> None:
    async with tunnelled() as (websocket, runtime):
        await websocket.cut("the test is over")
        started = trio.current_time()
        assert await read_rest(runtime) == b""
        assert trio.current_time() == started


async def test_text_is_refused(autojump_clock: MockClock) -> None:
    async with tunnelled() as (websocket, runtime):
        await websocket.send("text")
        with pytest.raises(WebSocketClosed, match="1003"):
            await websocket.receive()
        assert await read_rest(runtime) == b""


async def test_pings_are_answered_and_are_no_data(autojump_clock: MockClock) -> None:
    from wsproto.connection import CLIENT, Connection
    from wsproto.events import BytesMessage, Ping, Pong

    fake = FakeRuntime()
    async with client_of(tunnel, fake) as client:
        await client.send_all(OPENING)
        runtime = await fake.accept()
        await read_head(runtime)
        await runtime.send_all(ANSWER)
        await read_head(client)
        wire = Connection(CLIENT)
        await client.send_all(wire.send(Ping(b"alive?")) + wire.send(BytesMessage(b"data")))
        assert await runtime.receive_some() == b"data"
        wire.receive_data(bytes(await client.receive_some()))
        assert list(wire.events()) == [Pong(b"alive?")]


async def test_little_waits_for_a_client_that_does_not_read(autojump_clock: MockClock) -> None:
    async with tunnelled(slow=True) as (_, runtime):
        sent = 0
        with trio.move_on_after(3600):
            while True:
                await runtime.send_all(bytes(BLOCK // 4))
                sent += BLOCK // 4
        assert sent <= 3 * BLOCK


async def test_little_waits_for_a_runtime_that_does_not_read(autojump_clock: MockClock) -> None:
    async with tunnelled(slow=True) as (websocket, _):
        sent = 0
        with trio.move_on_after(3600):
            while True:
                await websocket.send(bytes(BLOCK // 4))
                sent += BLOCK // 4
        assert sent <= 3 * BLOCK


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", 403, b"no"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 404, b""),
        (b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", 500, b"unable to upgrade: missing upgrade"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 500, b"invalid upgrade response: status code 200"),
    ],
)
async def test_the_client_of_a_tunnel_that_the_runtime_refuses_gets_its_answer(
    answer: bytes, status: int, text: bytes, autojump_clock: MockClock
) -> None:
    fake = FakeRuntime()
    async with client_of(tunnel, fake) as client:
        await client.send_all(OPENING)
        runtime = await fake.accept()
        await read_head(runtime)
        await runtime.send_all(answer)
        first, _ = await read_head(client)
        assert first.startswith(f"HTTP/1.1 {status}")
        assert not text or (await client.receive_some()).startswith(text)


@pytest.mark.parametrize(
    "field", [b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b"Sec-WebSocket-Version: 13\r\n"]
)
async def test_what_is_no_websocket_is_refused(field: bytes, autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(tunnel, fake) as client:
        await client.send_all(OPENING.replace(field, b""))
        runtime = await fake.accept()
        await runtime.send_all(ANSWER)
        first, _ = await read_head(client)
    assert first.split()[1] in ("400", "426")
