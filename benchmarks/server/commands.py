"""How long a command takes through the node's port, beside the same client at the runtime's own streaming server.

Both begin with a new connection and end with the command's exit code. Through the node that is TLS, authorization, the
CRI's Exec and the proxy; beside it the client calls Exec itself and goes to the URL that it gets. The aim is ten
milliseconds more.
"""

from __future__ import annotations

import ssl
import time
from statistics import median
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs
import trio

from benchmarks.detect.processes import runtime_process, until_running
from benchmarks.server.agents import ServingAgent, serving_agent
from benchmarks.server.logs import pods_of, start_pods
from benchmarks.server.sockets import trusting
from trikubelet.http.streaming.client import open_command
from trikubelet.http.streaming.command import CommandStreams, Exited
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from trikubelet.http.streaming.client import Transport

WAYS: Final[tuple[Transport, ...]] = ("spdy", "websocket")
STREAMS: Final = CommandStreams(stdout=True, stderr=True)
PATIENCE: Final = 60.0
WARM_UP: Final = 3


@attrs.frozen
class RoundTrip:
    """Of `true`, in milliseconds: medians."""

    runtime: str
    way: str
    node: float
    direct: float
    beyond: float
    """Of each pair the difference, and of these the median."""
    cpu: float
    """The agent's, of a command by the node's port."""


def measure_commands(runtime: str, folder: Path, count: int, told: Callable[[str], None]) -> list[RoundTrip]:
    """`count` pairs by each way, one command at a time."""
    with (
        runtime_process(runtime, folder / "cri") as process,
        serving_agent(folder / "agent", process.endpoint) as agent,
    ):
        start_pods(agent, ["runs"], process.image)
        pod = pods_of(agent)[0]["metadata"]["name"]

        async def measure() -> list[RoundTrip]:
            async with process.client() as client:
                [container] = await until_running(client, 1)
                commands = _Commands(client, container.id, agent, pod)
                return [await _measure(runtime, way, commands, count, told) for way in WAYS]

        return trio.run(measure)


async def _measure(
    runtime: str, way: Transport, commands: _Commands, count: int, told: Callable[[str], None]
) -> RoundTrip:
    told(f"commands on {runtime} by {way}")
    pairs, cpu = [], []
    for number in range(WARM_UP + count):
        # Who goes first has the runtime's caches colder.
        if number % 2:
            direct = await _seconds(commands.directly, way)
        before = commands.agent.cpu()
        node = await _seconds(commands.by_node, way)
        cpu.append(1000 * (commands.agent.cpu() - before))
        if number % 2 == 0:
            direct = await _seconds(commands.directly, way)
        pairs.append((1000 * node, 1000 * direct))
    pairs = pairs[WARM_UP:]
    return RoundTrip(
        runtime,
        way,
        median(node for node, _ in pairs),
        median(direct for _, direct in pairs),
        median(node - direct for node, direct in pairs),
        median(cpu[WARM_UP:]),
    )


async def _seconds(run: Callable[[Transport], Awaitable[None]], way: Transport) -> float:
    began = time.monotonic()
    with trio.fail_after(PATIENCE):
        await run(way)
    return time.monotonic() - began


@attrs.frozen
class _Commands:
    runtime: RuntimeClient
    container: str
    agent: ServingAgent
    pod: str
    tls: ssl.SSLContext = attrs.field(factory=trusting)

    async def by_node(self, way: Transport) -> None:
        tcp = await trio.open_tcp_stream(*self.agent.addresses["node"])
        stream = trio.SSLStream(tcp, self.tls, https_compatible=True)
        await _run(stream, f"/exec/default/{self.pod}/main?output=1&error=1&command=true", way)

    async def directly(self, way: Transport) -> None:
        request = v1.ExecRequest(container_id=self.container, cmd=["true"], stdout=True, stderr=True)
        url = urlsplit(await self.runtime.exec(request))
        assert url.hostname is not None
        assert url.port is not None
        stream = await trio.open_tcp_stream(url.hostname, url.port)
        await _run(stream, url.path + (f"?{url.query}" if url.query else ""), way)


async def _run(stream: trio.abc.Stream, target: str, way: Transport) -> None:
    async with open_command(stream, target, STREAMS, transport=way) as command:
        result = await command.run(None, None, None)
    if result != Exited(0):
        raise RuntimeError(f"expected exit code 0, got {result}")
