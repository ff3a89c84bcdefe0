"""What a pod's start costs beyond what the runtime takes: time, calls and CPU, on a containerd of its own.

    python -m benchmarks.pod_start [--json FILE] [--runs N] [--pods N]

The floor is a bare client that makes the same calls with the same configurations, one after the other, and nothing
else: RunPodSandbox, PodSandboxStatus, ImageStatus, CreateContainer, StartContainer. Its pods and the agent's take turns
in the same run, so that noise hits both alike. A pod runs from when the runtime says that its container was started.

The agent is a whole process that is told of its pods by its manifest folder, as a person would. Only the calls are
counted on an agent inside this process, which also tells what configurations to give the bare client. That has a
containerd of its own: an agent would end pods that it was not told of.

Needs root, containerd with runc and the CNI plugins, and busybox (`make packages`).
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import attrs
import click
import trio

from benchmarks.manifest_agents import NODE_NAME, PATIENCE, ManifestFolder, agent_inside, agent_process
from benchmarks.report import Result, print_table, report
from tests.containerd_node import ContainerdNode
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

POLL: Final = 0.002
POD_NAME: Final = "io.kubernetes.pod.name"
IDLE: Final = 5.0
"""Seconds that tell what an agent asks that has nothing to do."""
QUIET: Final = 1.0
"""Seconds after which the agent has done all that a start brings with it."""


@attrs.define
class Folders:
    """Where everything is."""

    top: Path

    def __attrs_post_init__(self) -> None:
        for folder in (self.sign, self.floor):
            folder.mkdir(parents=True)

    @property
    def sign(self) -> Path:
        """Every container leaves a file here when it runs, named as its host."""
        return self.top / "sign"

    @property
    def floor(self) -> Path:
        return self.top / "floor"


@attrs.frozen
class Nodes:
    """A runtime for the agent, and one for the bare client."""

    agent: ContainerdNode
    floor: ContainerdNode


@contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    """Both run and have their images; nothing is left of them."""
    with ExitStack() as stack:
        made = []
        for number, name in enumerate(("agent", "floor")):
            node = ContainerdNode(folder / name, f"br-{name}{os.getpid() % 10000}", network=number)
            stack.callback(node.stop)
            node.start()
            node.import_images()
            made.append(node)
        yield Nodes(*made)


@attrs.frozen
class Recorded:
    """How the agent started one pod."""

    sandbox: v1.PodSandboxConfig
    container: v1.ContainerConfig
    start: Counter[str]
    """Calls from the manifest until nothing more followed from it."""
    end: Counter[str]
    """Calls from the manifest's removal until nothing was left."""


@attrs.frozen
class Crowd:
    """Many pods at once."""

    seconds: float
    """Until the last of them ran."""
    cpu: float = 0.0
    """Seconds of the agent."""


# What is measured


async def record(folders: Folders, node: ContainerdNode) -> Recorded:
    """Let an agent start and end one pod, and keep what it asked of the runtime, the relists left out."""
    folder = folders.top / "recorded"
    manifests = ManifestFolder(folder, folders.sign)
    async with agent_inside(folder, node, manifests) as (channel, runtime), Runtime.on(node) as outside:
        await trio.sleep(QUIET)
        channel.take()
        await trio.sleep(IDLE)
        idle = channel.take()
        manifests.write(["recorded"])
        began = trio.current_time()
        await outside.running(folders, [f"recorded-{NODE_NAME}"])
        await trio.sleep(QUIET)
        start = _beyond(channel.take(), idle, trio.current_time() - began)
        files = folders.floor / "files"
        files.mkdir()
        for mount in runtime.container.mounts:
            if mount.host_path.startswith(str(folder / "root")):
                copy = files / mount.container_path.replace("/", "_")
                shutil.copy(mount.host_path, copy)
                mount.host_path = str(copy)
        manifests.remove(["recorded"])
        began = trio.current_time()
        await outside.gone()
        await trio.sleep(QUIET)
        end = _beyond(channel.take(), idle, trio.current_time() - began)
    return Recorded(runtime.sandbox, runtime.container, start, end)


def _beyond(calls: Counter[str], idle: Counter[str], seconds: float) -> Counter[str]:
    """Without those that an agent makes that has nothing to do."""
    return calls - Counter({rpc: round(count * seconds / IDLE) for rpc, count in idle.items()})


@attrs.define
class Runtime:
    """The bare client."""

    runtime: RuntimeClient
    images: ImageClient

    @classmethod
    @asynccontextmanager
    async def on(cls, node: ContainerdNode) -> AsyncIterator[Runtime]:
        async with open_unix_channel(node.socket) as channel:
            yield cls(RuntimeClient(channel), ImageClient(channel))

    async def start(self, sandbox: v1.PodSandboxConfig, container: v1.ContainerConfig) -> None:
        """The floor: nothing but the calls."""
        sandbox_id = await self.runtime.run_pod_sandbox(sandbox)
        await self.runtime.pod_sandbox_status(sandbox_id)
        await self.images.image_status(container.image)
        container_id = await self.runtime.create_container(sandbox_id, container, sandbox)
        await self.runtime.start_container(container_id)

    async def running(self, folders: Folders, hosts: Sequence[str]) -> int:
        """Wait until a pod on each of these hosts runs; when the last was started, in ns of the wall clock."""
        with trio.fail_after(PATIENCE):
            for host in hosts:
                while not (folders.sign / host).exists():  # noqa: ASYNC110 - other processes write it
                    await trio.sleep(POLL)
            latest = 0
            for container in await self.runtime.list_containers():
                if container.labels[POD_NAME] in hosts:
                    latest = max(latest, await self._started_at(container.id))
        return latest

    async def gone(self) -> None:
        """Wait until the runtime holds nothing."""
        with trio.fail_after(PATIENCE):
            while await self.runtime.list_pod_sandboxes():  # noqa: ASYNC110 - an old runtime tells nobody
                await trio.sleep(0.05)

    async def remove_everything(self) -> None:
        for sandbox in await self.runtime.list_pod_sandboxes():
            await self.runtime.stop_pod_sandbox(sandbox.id)
            await self.runtime.remove_pod_sandbox(sandbox.id)

    async def _started_at(self, container_id: str) -> int:
        """The process may run a little before the runtime says so."""
        while True:
            status = (await self.runtime.container_status(container_id)).status
            if status.started_at:
                return status.started_at
            await trio.sleep(POLL)


async def time_agent(folders: Folders, bare: Runtime, manifests: ManifestFolder, names: Sequence[str]) -> float:
    """Seconds from the manifests to the last running container; the pods are gone afterwards."""
    began = time.time_ns()
    manifests.write(names)
    started = await bare.running(folders, [f"{name}-{NODE_NAME}" for name in names])
    return (started - began) / 1e9


async def time_floor(folders: Folders, bare: Runtime, recorded: Recorded, names: Sequence[str]) -> float:
    """The same from the first call on, all pods at once."""
    configurations = [_like(recorded, folders, name) for name in names]
    began = time.time_ns()
    async with trio.open_nursery() as nursery:
        for sandbox, container in configurations:
            nursery.start_soon(bare.start, sandbox, container)
    started = await bare.running(folders, names)
    return (started - began) / 1e9


def _like(recorded: Recorded, folders: Folders, name: str) -> tuple[v1.PodSandboxConfig, v1.ContainerConfig]:
    """The recorded configurations for a pod of another name, which is its host's too."""
    sandbox = v1.PodSandboxConfig.FromString(bytes(recorded.sandbox))
    container = v1.ContainerConfig.FromString(bytes(recorded.container))
    sandbox.metadata.name = sandbox.metadata.uid = sandbox.hostname = name
    sandbox.log_directory = str(folders.floor / "logs" / name)
    for labels in (sandbox.labels, container.labels):
        labels[POD_NAME] = name
        labels["io.kubernetes.pod.uid"] = name
    (Path(sandbox.log_directory) / container.log_path).parent.mkdir(parents=True)
    return sandbox, container


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process with its threads, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[index]) for index in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")


async def measure_one(
    folders: Folders, nodes: Nodes, manifests: ManifestFolder, recorded: Recorded, runs: int
) -> tuple[list[float], list[float]]:
    """Seconds of single starts, the agent's and the floor's in turns. The first of each only warms up."""
    agent, floor = [], []
    async with Runtime.on(nodes.agent) as outside, Runtime.on(nodes.floor) as bare:
        for run in range(runs + 1):
            agent.append(await time_agent(folders, outside, manifests, [f"one-{run}"]))
            manifests.remove([f"one-{run}"])
            await outside.gone()
            await trio.sleep(QUIET / 2)
            floor.append(await time_floor(folders, bare, recorded, [f"floor-{run}"]))
            await bare.remove_everything()
            await trio.sleep(QUIET / 2)
    return agent[1:], floor[1:]


async def measure_crowd(
    folders: Folders, nodes: Nodes, manifests: ManifestFolder, recorded: Recorded, pods: int, pid: int
) -> tuple[Crowd, Crowd]:
    """Many pods at once, first the agent's, then the floor's."""
    names = [f"crowd-{number}" for number in range(pods)]
    async with Runtime.on(nodes.agent) as outside, Runtime.on(nodes.floor) as bare:
        before = _cpu_seconds(pid)
        seconds = await time_agent(folders, outside, manifests, names)
        await trio.sleep(QUIET)
        agent = Crowd(seconds, _cpu_seconds(pid) - before)
        manifests.remove(names)
        await outside.gone()
        floor = Crowd(await time_floor(folders, bare, recorded, [f"floor-{name}" for name in names]))
        await bare.remove_everything()
    return agent, floor


def _print(recorded: Recorded, agent: list[float], floor: list[float], crowds: tuple[Crowd, Crowd], pods: int) -> None:
    def line(name: str, times: list[float]) -> list[str]:
        return [name, *(f"{1000 * value:.0f}" for value in (median(times), min(times), max(times)))]

    load = os.getloadavg()[0]
    rows = [line("floor: the calls in a row", floor), line("agent: from its manifest", agent)]
    title = f"Milliseconds until one pod runs, {len(agent)} runs each in turns, load {load:.1f}"
    print_table(title, ["", "median", "fastest", "slowest"], rows)
    ours, bare = crowds
    print_table(
        f"{pods} pods at once",
        ["", "seconds until all run", "agent's CPU ms per pod"],
        [
            ["floor: all calls at once", f"{bare.seconds:.1f}", ""],
            ["agent: from its manifests", f"{ours.seconds:.1f}", f"{1000 * ours.cpu / pods:.1f}"],
        ],
    )
    names = sorted({*recorded.start, *recorded.end}, key=lambda rpc: -recorded.start[rpc])
    calls = [[rpc, str(recorded.start[rpc] or ""), str(recorded.end[rpc] or "")] for rpc in names]
    calls.append(["all (floor of a start: 5)", str(recorded.start.total()), str(recorded.end.total())])
    print_table("Calls for one pod, beyond those of an idle agent", ["", "start", "end"], calls)


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@click.option("--runs", type=click.IntRange(min=1), default=15, show_default=True, help="Single starts of each kind.")
@click.option("--pods", type=click.IntRange(min=1), default=100, show_default=True, help="Pods of the crowd.")
def main(json_file: Path | None, runs: int, pods: int) -> None:
    """Measure what a pod's start costs beyond what the runtime takes."""
    silence()
    with TemporaryDirectory(prefix="trikubelet-pods-") as name:
        folders = Folders(Path(name) / "files")
        with two_nodes(Path(name)) as nodes:
            recorded = trio.run(record, folders, nodes.agent)
            folder = folders.top / "agent"
            manifests = ManifestFolder(folder, folders.sign)
            with agent_process(folder, nodes.agent, manifests) as pid:
                agent, floor = trio.run(measure_one, folders, nodes, manifests, recorded, runs)
                crowds = trio.run(measure_crowd, folders, nodes, manifests, recorded, pods, pid)
    _print(recorded, agent, floor, crowds, pods)
    met = report(
        [
            Result(
                "one pod, manifest to running, beside the floor (medians)", "times", median(agent) / median(floor), 1.25
            ),
            Result(f"our CPU per pod, {pods} pods at once", "ms", 1000 * crowds[0].cpu / pods, 20),
        ],
        json_file,
    )
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
