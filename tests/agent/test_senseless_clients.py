"""Clients without sense on every port of a running agent: bytes that are no HTTP, HTTP that is nearly right, and odd
requests of somebody who may do everything. By night they are more: `python -m tests.nightly`.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import h11
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.agent.serving import POD, UID, Served
from tests.agent.siege import (
    CHUNKED,
    CONTEXT,
    EVERYWHERE,
    EXEC,
    GET,
    HELLO,
    MIB,
    besieged,
    raw,
    read_all,
    resident,
)
from tests.examples import IS_NIGHT, first_seed
from tests.node_api.auth.people import client
from tests.node_api.handlers.stage import FakeNode, clock, fake_parts
from trikubelet.node_api import node_api
from trikubelet.node_api.node_api import Switches
from trikubelet.telemetry.logs import set_verbosity

if TYPE_CHECKING:
    from collections.abc import Sequence
REQUESTS: Final = 100_000 if IS_NIGHT else 2_000


@pytest.fixture
def running_clock() -> MockClock:
    return MockClock(rate=1.0)


PIECES: Final = (
    GET,
    EXEC,
    CHUNKED,
    b"GET /pods HTTP/1.1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: 5\r\n",
    b"Expect: 100-continue\r\n",
    b"ffffffffffffffff\r\n",
    b"\r\n\r\n",
    b"\0",
    HELLO,
    bytes.fromhex("15 0303 0002 02 28"),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT node:10250 HTTP/1.1\r\n",
)
IMPERTINENT: Final = st.lists(st.binary(max_size=300) | st.sampled_from(PIECES), max_size=6).map(b"".join)


def senseless(rng: random.Random) -> bytes:
    return b"".join(rng.choice((*PIECES, rng.randbytes(rng.randrange(200)))) for _ in range(rng.randrange(6)))


async def throw(node: Served, port: str, tls: bool, data: bytes) -> None:
    """Send something, end the sending, and see that the agent ends the connection."""
    stream = await (node.dial(port, CONTEXT) if tls else raw(node, port))
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data)
        if isinstance(stream, trio.abc.HalfCloseableStream):
            await stream.send_eof()
            await read_all(stream)
    await trio.aclose_forcefully(stream)


async def throw_all(node: Served, thrown: Sequence[tuple[str, bool, bytes]], *, at_once: int = 20) -> None:
    async def some(share: Sequence[tuple[str, bool, bytes]]) -> None:
        for port, tls, data in share:
            await throw(node, port, tls, data)

    async with trio.open_nursery() as nursery:
        for start in range(at_once):
            nursery.start_soon(some, thrown[start::at_once])


KINDS: Final = (*((port, False) for port in EVERYWHERE), ("node", True))


async def test_random_bytes_on_every_port_leave_no_trace(tmp_path: Path, running_clock: MockClock) -> None:
    rng = random.Random(first_seed() + 20)
    async with besieged(tmp_path) as siege:
        await throw_all(siege.node, [(*rng.choice(KINDS), senseless(rng)) for _ in range(REQUESTS // 10)])
        before = resident()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                throw_all, siege.node, [(*rng.choice(KINDS), senseless(rng)) for _ in range(REQUESTS * 6 // 10)]
            )
            for _ in range(3):
                await siege.still_works()
        assert resident() - before < 16 * MIB


@given(st.lists(st.tuples(st.sampled_from(KINDS), IMPERTINENT), min_size=20, max_size=60))
@settings(max_examples=30 if IS_NIGHT else 3, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_shape_of_nonsense_ends_more_than_its_connection(thrown: list[tuple[tuple[str, bool], bytes]]) -> None:
    async def main() -> None:
        with TemporaryDirectory() as folder:
            async with besieged(Path(folder)) as siege:
                await throw_all(siege.node, [(*kind, data) for kind, data in thrown])

    trio.run(main, clock=MockClock(rate=1.0))


SEGMENTS: Final = (
    "default",
    POD,
    "main",
    UID,
    "other",
    "..",
    "%2e%2e",
    "%00",
    "%ff",
    "%zz",
    "",
    "%c3%a9",
    "x" * 300,
    "{uid}",
)
RIGHT: Final = {
    "{namespace}": "default",
    "{pod}": POD,
    "{container}": "main",
    "{uid}": UID,
    "{check}": "ping",
    "{path:*}": "syslog",
    "{name:*}": "goroutine",
}
METHODS: Final = ("GET", "GET", "GET", "POST", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "get", "X")
QUERIES: Final = (
    *(
        "command",
        "output=1",
        "input=1",
        "tty=1",
        "port=80",
        "port=x",
        "follow=true",
        "watch=1",
        "tailLines=-1",
        "tailLines=3",
    ),
    *(
        "tailLines=99999999999999999999",
        "sinceSeconds=0",
        "sinceTime=x",
        "limitBytes=1",
        "stream=Stdout",
        "previous=true",
    ),
    *("timestamps=x", "previousFiles=true", "timeout=x", "cmd=", "only_cpu_and_memory=true", "verbose", "exclude=ping"),
    *("query=kubelet", "query=../x", "pattern=(", "boot=-1", "format=json", "%", "&&&", "=", "a=%ff", "uid=%00"),
)
FIELDS: Final = (
    *(
        ("Accept", "application/json;q=x, */*"),
        ("Accept-Encoding", "gzip"),
        ("Range", "bytes=9-1"),
        ("Range", "bytes=-"),
    ),
    *(("Upgrade", "websocket"), ("Upgrade", "SPDY/3.1"), ("Connection", "Upgrade"), ("If-Modified-Since", "never")),
    *(("Sec-WebSocket-Protocol", "v5.channel.k8s.io"), ("Sec-WebSocket-Protocol", "SPDY/3.1+portforward.k8s.io")),
    *(("Sec-WebSocket-Key", "x"), ("Sec-WebSocket-Version", "13"), ("X-Stream-Protocol-Version", "~")),
)


def plausible(rng: random.Random, patterns: Sequence[str]) -> tuple[str, str, list[tuple[str, str]], bytes]:
    """A request that a handler may get to see: something like one of the routes, with odd values."""

    def fill(segment: str) -> str:
        if rng.random() < (0.2 if segment in RIGHT else 0.03):
            return rng.choice(SEGMENTS)
        return RIGHT.get(segment, segment)

    path = "/".join(fill(segment) for segment in rng.choice(patterns).split("/"))
    query = "&".join(rng.choice(QUERIES) for _ in range(rng.randrange(4)))
    fields = rng.sample(FIELDS, rng.randrange(4))
    target = f"{path or '/'}?{query}"
    return rng.choice(METHODS), target, fields, rng.choice((b"", b"{}", b"\xff" * 100))


async def test_no_request_of_those_who_may_do_everything_fails_unexpectedly(
    tmp_path: Path, running_clock: MockClock
) -> None:
    rng = random.Random(first_seed() + 7)
    patterns = sorted(
        {route.pattern for route in node_api.node_api(FakeNode(), fake_parts(), Switches(), clock()).routes}
    )
    async with besieged(tmp_path) as siege:

        async def ask(port: str, count: int) -> None:
            caller = siege.node.caller(port, client("ann", "system:masters"))
            for _ in range(count):
                method, target, fields, body = plausible(rng, patterns)
                with trio.move_on_after(0.1) as enough:  # some answers have no end
                    with suppress(h11.RemoteProtocolError):
                        answer = await caller.ask(method, target, *fields, body=body)
                        assert b"the agent's log has the details" not in answer.body, (method, target, fields)
                if enough.cancelled_caught:
                    await caller.hang_up()
            await caller.hang_up()

        before = resident()
        async with trio.open_nursery() as nursery:
            for port in ("node", "node", "socket", "socket", "read-only"):
                nursery.start_soon(ask, port, REQUESTS * 3 // 50)
        assert resident() - before < 32 * MIB
        set_verbosity(0)
