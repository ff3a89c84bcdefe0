"""A running agent under attack by clients that mean no good. Meanwhile others are answered, and pods come and go; when
the clients are gone, nothing of them is left.
"""

from __future__ import annotations

import gc
import os
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from tests.agent.serving import POD, PORTS, Served, authentication, client_context, served
from tests.agent.sim_node import static_pod
from tests.captured_logs import capture_logs
from tests.examples import IS_NIGHT
from tests.node_api.auth.people import client
from tests.watchdog import watched
from trikubelet.config.kubelet_configuration import Authorization, WebhookAuthentication
from trikubelet.rpc.grpc.unix import connect_unix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE: Final = 3600.0 if IS_NIGHT else 300.0
MIB: Final = 2**20
EVERYWHERE: Final = (*PORTS, "socket")
CONTEXT: Final = client_context()
GET: Final = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
HELLO: Final = bytes.fromhex("16030102000100 01fc0303")
CHUNKED: Final = b"POST /healthz HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
EXEC: Final = (
    f"POST /exec/default/{POD}/main?command=sh&output=1 HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n"
    "Upgrade: SPDY/3.1\r\n\r\n"
).encode()


class Siege:
    """An agent under attack, and those who want something of it all the same."""

    def __init__(self, node: Served) -> None:
        self.node = node
        self.master = node.caller(certificate=client("ann", "system:masters"))
        self._pods = 0
        self._before = (0, 0)

    async def still_works(self) -> None:
        """Everybody else is answered, and a pod comes and goes."""
        node = self.node
        self._pods += 1
        pod = static_pod(f"other-{self._pods}", terminationGracePeriodSeconds=1)
        node.source.put(pod)
        for port in EVERYWHERE:
            other = node.caller(port)
            assert await other.status("GET", "/healthz") == (401 if port == "node" else 200)
            await other.hang_up()
        assert await self.master.status("GET", "/pods") == 200
        await node.until_running(pod)
        node.source.remove(pod)
        await node.until_gone(pod)

    async def begin(self) -> None:
        """Once with everything that is made with its first use; then remember what there is."""
        await self.still_works()
        await self._alone()
        self._before = _found()

    async def end(self) -> None:
        """The clients are gone, and nothing of them is left."""
        await self.still_works()
        await self._alone()
        with trio.move_on_after(60):
            while not _no_more(_found(), self._before):
                await trio.sleep(0.01)
        assert _no_more(_found(), self._before), f"{self._before} tasks and descriptors became {_found()}"

    def connections(self, port: str) -> int:
        return self.node.server.statistics()[port].connections

    def accepted(self, port: str) -> int:
        return self.node.server.statistics()[port].accepted

    async def _alone(self) -> None:
        await self.master.hang_up()
        with trio.fail_after(60):
            while any(self.connections(port) for port in EVERYWHERE):
                await trio.sleep(0.01)


def _found() -> tuple[int, int]:
    """Tasks and open descriptors, of agent and clients together."""
    return trio.lowlevel.current_statistics().tasks_living, sum(1 for _ in Path("/proc/self/fd").iterdir())


def _no_more(found: tuple[int, int], before: tuple[int, int]) -> bool:
    return all(now <= then for now, then in zip(found, before, strict=True))


@asynccontextmanager
async def besieged(folder: Path) -> AsyncIterator[Siege]:
    async with served(
        folder,
        cluster=False,
        authentication=authentication(folder, webhook=WebhookAuthentication(enabled=False)),
        authorization=Authorization(mode="AlwaysAllow"),
    ) as node:
        siege = Siege(node)
        await siege.begin()
        with capture_logs() as lines, trio.fail_after(PATIENCE), watched(is_agents):
            yield siege
        await siege.end()
    errors = [line for line in lines if line["log_level"] == "error" and line["logger"] in ("http", "server", "auth")]
    assert errors == [], errors


def is_agents(task: trio.lowlevel.Task) -> bool:
    """Whether a task is the agent's, and not a client's or the simulated runtime's."""
    return task.name.startswith(("trikubelet.", "pod ", "container ")) and not task.name.startswith("trikubelet.sim.")


def resident() -> int:
    """Bytes, of agent and clients together."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Until the end, whichever way it comes."""
    data = bytearray()
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for block in stream:
            data += block
    return bytes(data)


async def raw(node: Served, port: str) -> trio.abc.Stream:
    """A connection without the TLS that it may want."""
    if port == "socket":
        return await connect_unix(node.agent.options.socket)
    return await trio.open_tcp_stream(*node.server.addresses[port])


async def exchange(node: Served, port: str, sent: bytes) -> bytes:
    """Everything that is answered to some bytes, until the agent ends the connection."""
    stream = await node.dial(port, CONTEXT)
    with suppress(trio.BrokenResourceError):
        await stream.send_all(sent)
    answer = await read_all(stream)
    await trio.aclose_forcefully(stream)
    return answer
