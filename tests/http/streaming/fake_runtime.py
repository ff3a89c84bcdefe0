"""A container runtime's streaming server in memory, played by the test line by line."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio
import trio.testing

from trikubelet.http.messages import NOBODY, AnyResponse, Peer, Request, Takeover, UpgradeResponse
from trikubelet.http.server import HttpServer
from trikubelet.http.streaming.runtime_upgrade import RuntimeAddress, RuntimeStreamError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Connect = Callable[[RuntimeAddress], Awaitable[trio.abc.Stream]]
    Serve = Callable[[Request, Takeover, Connect], Awaitable[None]]

URL: Final = "http://127.0.0.1:4000/exec/SeCrEtTk"
SPDY_ANSWER: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
)
SPDY_REQUEST: Final = (
    b"POST /exec/ns/pod/c?command=sh HTTP/1.1\r\nHost: node:10250\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
)


@attrs.define
class FakeRuntime:
    """What is dialled arrives here."""

    slow: bool = False
    """Connections hold nothing: what is sent waits until it is read."""
    unreachable: str = ""
    dialled: list[RuntimeAddress] = attrs.field(factory=list)
    _arrived: trio.MemorySendChannel[trio.abc.HalfCloseableStream] = attrs.field(init=False)
    _accepted: trio.MemoryReceiveChannel[trio.abc.HalfCloseableStream] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._arrived, self._accepted = trio.open_memory_channel(10)

    async def connect(self, address: RuntimeAddress) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.dialled.append(address)
        if self.unreachable:
            raise RuntimeStreamError(self.unreachable)
        agents, ours = trio.testing.lockstep_stream_pair() if self.slow else trio.testing.memory_stream_pair()
        self._arrived.send_nowait(ours)
        return agents

    async def accept(self) -> trio.abc.HalfCloseableStream:
        return await self._accepted.receive()


@asynccontextmanager
async def client_of(
    serve: Serve, runtime: FakeRuntime, *, slow: bool = False, peer: Peer = NOBODY
) -> AsyncIterator[trio.abc.HalfCloseableStream]:
    """A client of a server whose only handler is `serve`, on a memory stream."""

    async def handler(request: Request) -> AnyResponse:
        async def handle(takeover: Takeover) -> None:
            await serve(request, takeover, runtime.connect)

        return UpgradeResponse(handle)

    client, theirs = trio.testing.lockstep_stream_pair() if slow else trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(handler).serve_stream, theirs, peer)
        yield client
        await trio.aclose_forcefully(client)


async def read_head(stream: trio.abc.ReceiveStream) -> tuple[str, list[str]]:
    """The first line of a request or an answer, and its header fields; nothing beyond is read."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        block = await stream.receive_some(1)
        assert block, f"the connection ended after {head!r}"
        head += block
    first, *fields = head.decode().split("\r\n")[:-2]
    return first, fields


async def read_rest(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([bytes(block) async for block in stream])
