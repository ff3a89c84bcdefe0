"""Clients that mean no good, over real sockets, with the limits of the node's ports: others are served meanwhile,
the agent's memory stays bounded, and no task is left."""

from __future__ import annotations

import gc
import random
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import IS_NIGHT, examples, first_seed
from tests.node_api.tls_peers import Shown, authority, client_context, client_stream, serving_pair
from trikubelet.http.messages import AnyResponse, Request, Response, Takeover, UpgradeResponse
from trikubelet.node_api.listeners import NODE_LIMITS, NodeListeners, Port
from trikubelet.node_api.serving_tls import ServingTls
from trikubelet.node_api.tls_settings import TlsSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from typing import Any

GET: Final = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
UPGRADE: Final = b"GET /exec HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: shell\r\n\r\n"
IMPATIENT: Final = attrs.evolve(NODE_LIMITS, header_timeout=0.4, body_timeout=0.4, idle_timeout=0.4, linger_timeout=0.2)
TRIES: Final = 3
REQUESTS: Final = 10_000 if IS_NIGHT else 1500
MIB: Final = 2**20
CONTEXT: Final = client_context()


async def handler(request: Request) -> AnyResponse:
    if request.path != "/exec":
        return Response(b"served")

    async def echo(takeover: Takeover) -> None:
        stream = await takeover.accept([("Connection", "Upgrade"), ("Upgrade", "shell")])
        async for data in stream:
            await stream.send_all(data)

    return UpgradeResponse(echo)


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[NodeListeners]:
    """Both kinds of port; checks at the end that no task is left of what clients did."""
    tls = ServingTls(TlsSettings(), Shown(serving_pair()), lambda: authority("clients").cert_pem.bytes())
    port = Port(name="plain", address="127.0.0.1", number=0, handler=handler, limits=attrs.evolve(IMPATIENT, **limits))
    listeners = NodeListeners([port, attrs.evolve(port, name="tls", secure=tls.begin)])
    async with trio.open_nursery() as nursery:
        await nursery.start(listeners.run)
        with trio.fail_after(120):
            yield listeners
        with trio.fail_after(20):
            while any(found.connections for found in listeners.statistics().values()):
                await trio.sleep(0.01)
            await listeners.shutdown(1)


async def dial(listeners: NodeListeners, name: str) -> trio.abc.Stream:
    """Connected as the port expects it."""
    stream: trio.abc.Stream = await trio.open_tcp_stream(*listeners.addresses[name])
    if name == "tls":
        stream = client_stream(stream, CONTEXT)
    return stream


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Until the end, whichever way it comes."""
    data = bytearray()
    with trio.fail_after(20), suppress(trio.BrokenResourceError):
        async for block in stream:
            data += block
    return bytes(data)


async def is_served(listeners: NodeListeners) -> bool:
    """Whether both ports answer. On a busy machine a client may itself be too slow for such limits: it tries again."""
    for name in listeners.addresses:
        for _ in range(TRIES):
            if await is_answered(listeners, name):
                break
        else:
            return False
    return True


async def is_answered(listeners: NodeListeners, name: str) -> bool:
    stream = await dial(listeners, name)
    answer = b""
    with trio.fail_after(5), suppress(trio.BrokenResourceError):
        await stream.send_all(GET)
        answer = await read_all(stream)
    await trio.aclose_forcefully(stream)
    return answer.endswith(b"served")


def resident() -> int:
    """Bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# Slow ones.


@pytest.mark.parametrize("name", ["plain", "tls"])
async def test_many_slow_clients_keep_nobody_out(name: str) -> None:
    """Five times as many as a port has places, each of which sends a byte now and then."""
    clients = examples(500)
    places = clients // 5

    async def slow(listeners: NodeListeners) -> None:
        raw = await trio.open_tcp_stream(*listeners.addresses[name])
        async with raw:
            with suppress(trio.BrokenResourceError):
                for byte in b"\x16\x03\x01\x02\x00\x01" if name == "tls" else GET[:-2]:
                    await raw.send_all(bytes([byte]))
                    await trio.sleep(0.2)
                await trio.sleep_forever()

    # Nobody is sent away for being slow: that is another test's.
    async with serving(connections=places, header_timeout=60) as listeners, trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(slow, listeners)
        while listeners.statistics()[name].accepted < clients:
            await trio.sleep(0.01)
        for _ in range(5):
            assert await is_served(listeners)
            await trio.sleep(0.1)
        assert listeners.statistics()[name].connections <= places
        assert listeners.statistics()[name].lost >= clients - places
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
async def test_half_a_handshake_is_cut_off_in_time(sent: bytes) -> None:
    async with serving() as listeners:
        raw = await trio.open_tcp_stream(*listeners.addresses["tls"])
        await raw.send_all(sent)
        assert await is_served(listeners)
        with trio.fail_after(5):
            assert await raw.receive_some() == b""


@pytest.mark.parametrize("name", ["plain", "tls"])
async def test_a_chunk_that_never_ends_is_refused_in_time(name: str) -> None:
    async with serving(header_timeout=20) as listeners:
        stream = await dial(listeners, name)
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc")
        assert await is_served(listeners)
        assert (await read_all(stream)).startswith(b"HTTP/1.1 408 ")
        await trio.aclose_forcefully(stream)


@pytest.mark.parametrize("name", ["plain", "tls"])
async def test_a_connection_cut_within_a_chunk_leaves_nothing(name: str) -> None:
    async with serving(header_timeout=20) as listeners:
        stream = await dial(listeners, name)
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc")
        await trio.aclose_forcefully(stream)
        assert await is_served(listeners)


@pytest.mark.parametrize("name", ["plain", "tls"])
async def test_silence_after_an_upgrade_is_the_handlers_business_and_ends_with_the_client(name: str) -> None:
    async with serving(header_timeout=20) as listeners:
        streams = []
        for _ in range(50):
            stream = await dial(listeners, name)
            await stream.send_all(UPGRADE)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")
            streams.append(stream)
        await trio.sleep(0.5)  # longer than anybody else may be silent
        assert listeners.statistics()[name].busy == 50
        assert await is_served(listeners)
        for stream in streams:
            await trio.aclose_forcefully(stream)


# Greedy ones.


@pytest.mark.parametrize("name", ["plain", "tls"])
@pytest.mark.parametrize("line", [b"a: b\r\n", b"x" * 1000])
async def test_a_head_of_a_gigabyte_is_refused_early(name: str, line: bytes) -> None:
    block, sent = line * (64 * 2**10 // len(line)), 0
    async with serving(header_timeout=20) as listeners:
        before = resident()
        stream = await dial(listeners, name)
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: h\r\nX: ")

        async def send() -> None:
            nonlocal sent
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while sent < 2**30:
                    await stream.send_all(block)
                    sent += len(block)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            answer = await read_all(stream)
            assert await is_served(listeners)
        await trio.aclose_forcefully(stream)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert sent < 32 * MIB
        assert resident() - before < 32 * MIB


async def test_all_places_full_of_heads_cost_what_the_limits_say() -> None:
    async with serving(header_timeout=20) as listeners:
        before = resident()
        streams = [await trio.open_tcp_stream(*listeners.addresses["plain"]) for _ in range(500)]
        for stream in streams:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 60_000)
        assert await is_served(listeners)
        assert resident() - before < 500 * (IMPATIENT.header_size + 64 * 2**10)
        for stream in streams:
            await trio.aclose_forcefully(stream)


async def test_clients_that_do_not_read_cost_the_sockets_buffers_only() -> None:
    async with serving(header_timeout=20) as listeners:
        before = resident()
        streams = [await dial(listeners, "tls") for _ in range(30)]
        for stream in streams:
            await stream.send_all(UPGRADE)
            with trio.move_on_after(0.1):
                while True:  # comes back, and nobody takes it
                    await stream.send_all(b"x" * 64 * 2**10)
        assert await is_served(listeners)
        assert resident() - before < 30 * MIB
        for stream in streams:
            await trio.aclose_forcefully(stream)


# Senseless ones.

PIECES: Final = (
    GET,
    UPGRADE,
    b"GET / HTTP/1.1\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: -1\r\n",
    b"ffffffffffffffff\r\n",
    b"\r\n\r\n",
    b"\0",
    b"\x16\x03\x01\x00\xff\x01\x00\x00\xfb",
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
IMPERTINENT: Final = st.lists(st.binary(max_size=300) | st.sampled_from(PIECES), max_size=6).map(b"".join)


def senseless(rng: random.Random) -> bytes:
    pieces: Sequence[bytes] = [
        rng.choice((*PIECES, rng.randbytes(rng.randrange(200)))) for _ in range(rng.randrange(5))
    ]
    return b"".join(pieces)


async def throw(listeners: NodeListeners, name: str, dialled: bool, data: bytes) -> None:
    """Send something, end the sending, and see that the server ends the connection."""
    stream: trio.abc.Stream = await trio.open_tcp_stream(*listeners.addresses[name])
    if dialled and name == "tls":
        stream = client_stream(stream, CONTEXT)
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data)
        if isinstance(stream, trio.SSLStream):
            with trio.move_on_after(0.001):
                await stream.receive_some(1)
        else:
            assert isinstance(stream, trio.SocketStream)
            await stream.send_eof()
            await read_all(stream)
    await trio.aclose_forcefully(stream)


@pytest.mark.fuzz
@given(st.lists(IMPERTINENT, min_size=1, max_size=10))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_bytes_end_their_connection_and_nothing_else(thrown: list[bytes]) -> None:
    async def main() -> None:
        async with serving() as listeners:
            async with trio.open_nursery() as nursery:
                for data in thrown:
                    for name, dialled in (("plain", True), ("tls", False), ("tls", True)):
                        nursery.start_soon(throw, listeners, name, dialled, data)
            assert await is_served(listeners)

    trio.run(main)


@pytest.mark.fuzz
async def test_requests_of_random_bytes_leave_no_trace() -> None:
    rng = random.Random(first_seed() + 20)
    kinds = (("plain", True, REQUESTS // 2), ("tls", False, REQUESTS * 9 // 20), ("tls", True, REQUESTS // 20))
    jobs = [partial(throw, name=name, dialled=dialled) for name, dialled, count in kinds for _ in range(count)]
    rng.shuffle(jobs)
    async with serving() as listeners:

        async def worker(jobs: Sequence[Callable[..., Awaitable[None]]]) -> None:
            for job in jobs:
                await job(listeners, data=senseless(rng))

        async def everybody(jobs: Sequence[Callable[..., Awaitable[None]]]) -> None:
            async with trio.open_nursery() as nursery:
                for start in range(20):
                    nursery.start_soon(worker, jobs[start::20])

        await everybody(jobs[: REQUESTS // 5])  # so that what is allocated once is there
        before = resident()
        await everybody(jobs[REQUESTS // 5 :])
        grown = resident() - before
        assert await is_served(listeners)
        statistics = listeners.statistics()
    assert statistics["plain"].accepted + statistics["tls"].accepted >= REQUESTS
    assert grown < 8 * MIB
