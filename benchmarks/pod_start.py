"""What a pod's start costs beyond what the runtime takes: time, calls and CPU, on containerd or the embedded runtime.

    python -m benchmarks.pod_start [--runtime containerd|embedded] [--json FILE] [--runs N] [--pods N]

The floor is a bare client that makes the same calls with the same configurations, one after the other, and nothing
else: RunPodSandbox, PodSandboxStatus, ImageStatus, CreateContainer, StartContainer. Its pods and the agent's take turns
in the same run, so that noise hits both alike. A pod runs from the first instruction of its container, a shell that
opens a pipe.

The agent is a whole process that is told of its pods by its manifest folder, as a person would. Only the calls are
counted on an agent inside this process, which also tells what configurations to give the bare client. That has a
runtime of its own: an agent would end pods that it was not told of. The embedded runtime is part of the agent's
process; for the bare client it is served by another one (`trikubelet runtime serve`).

Needs root; for containerd also containerd with runc, the CNI plugins and busybox (`make packages`).
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import attrs
import click
import trio

from benchmarks.agent_process import running_agent
from benchmarks.first_instruction import Signed, first_instruction
from benchmarks.manifest_agents import NODE_NAME, PATIENCE, ManifestFolder, agent_inside
from benchmarks.manifest_agents import Runtime as Served
from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from benchmarks.termination.kubelets import IMAGES, served_runtime
from tests.containerd_node import ContainerdNode
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

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
        """Every container opens a pipe here when it runs, named as its host."""
        return self.top / "sign"

    @property
    def floor(self) -> Path:
        return self.top / "floor"


@attrs.frozen
class Nodes:
    """A runtime for the agent, and one for the bare client."""

    image: str
    endpoint: str
    """The agent's."""
    is_empty: Callable[[], Awaitable[bool]]
    """Whether nothing is left of the agent's pods."""
    recorded: Served
    """A runtime for the agent inside this process, before the others are used."""
    floor: Served


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[ContainerdNode, ContainerdNode]]:
    """Two of containerd. Both run and have their images; nothing is left of them."""
    with ExitStack() as stack:
        made = []
        for number, name in enumerate(("agent", "floor")):
            node = ContainerdNode(folder / name, f"br-{name}{os.getpid() % 10000}", network=number)
            stack.callback(node.stop)
            node.start()
            node.import_images()
            made.append(node)
        yield made[0], made[1]


@contextmanager
def nodes_of(kind: str, folder: Path, agent: Path) -> Iterator[Nodes]:
    """Nothing is left of them. `agent`: the folder of the agent, which is started later."""
    if kind == "embedded":
        sandboxes = agent / "root" / "runtime" / "sandboxes"

        async def no_folders() -> bool:
            return not any(sandboxes.iterdir())

        with served_runtime(folder / "floor") as floor:
            yield Nodes(IMAGES[kind], kind, no_folders, floor, floor)
        return
    with two_nodes(folder) as (ours, floor_node):

        async def no_sandboxes() -> bool:
            async with Runtime.on(ours) as outside:
                return not await outside.runtime.list_pod_sandboxes()

        yield Nodes(IMAGES[kind], ours.endpoint, no_sandboxes, ours, floor_node)


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


async def record(folders: Folders, nodes: Nodes) -> Recorded:
    """Let an agent start and end one pod, and keep what it asked of the runtime, the relists left out."""
    folder = folders.top / "recorded"
    manifests = ManifestFolder(folder, folders.sign, nodes.image)
    async with agent_inside(folder, nodes.recorded, manifests) as (channel, runtime):
        await trio.sleep(QUIET)
        channel.take()
        await trio.sleep(IDLE)
        idle = channel.take()
        began = trio.current_time()
        async with first_instructions(folders, [f"recorded-{NODE_NAME}"]):
            manifests.write(["recorded"])
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
        async with Runtime.on(nodes.recorded) as outside:
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
    async def on(cls, node: Served) -> AsyncIterator[Runtime]:
        async with open_unix_channel(node.socket) as channel:
            yield cls(RuntimeClient(channel), ImageClient(channel))

    async def start(self, sandbox: v1.PodSandboxConfig, container: v1.ContainerConfig) -> None:
        """The floor: nothing but the calls."""
        sandbox_id = await self.runtime.run_pod_sandbox(sandbox)
        await self.runtime.pod_sandbox_status(sandbox_id)
        await self.images.image_status(container.image)
        container_id = await self.runtime.create_container(sandbox_id, container, sandbox)
        await self.runtime.start_container(container_id)

    async def gone(self) -> None:
        """Wait until the runtime holds nothing."""
        with trio.fail_after(PATIENCE):
            while await self.runtime.list_pod_sandboxes():  # noqa: ASYNC110 - an old runtime tells nobody
                await trio.sleep(0.05)

    async def remove_everything(self) -> None:
        for sandbox in await self.runtime.list_pod_sandboxes():
            await self.runtime.stop_pod_sandbox(sandbox.id)
            await self.runtime.remove_pod_sandbox(sandbox.id)


@asynccontextmanager
async def first_instructions(folders: Folders, hosts: Sequence[str]) -> AsyncIterator[Signed]:
    """Ends when a container on each of these hosts has begun; when the last of them did."""
    async with AsyncExitStack() as stack:
        signs = [await stack.enter_async_context(first_instruction(folders.sign / host)) for host in hosts]
        last = Signed()
        yield last
        await stack.aclose()
        last.at = max(signed.at for signed in signs)


async def time_agent(folders: Folders, manifests: ManifestFolder, names: Sequence[str]) -> float:
    """Seconds from the manifests to the first instruction of the last container. The pods run on."""
    async with first_instructions(folders, [f"{name}-{NODE_NAME}" for name in names]) as last:
        began = time.perf_counter()
        manifests.write(names)
    return last.at - began


async def time_floor(folders: Folders, bare: Runtime, recorded: Recorded, names: Sequence[str]) -> float:
    """The same from the first call on, all pods at once."""
    configurations = [_like(recorded, folders, name) for name in names]
    async with first_instructions(folders, names) as last:
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for sandbox, container in configurations:
                nursery.start_soon(bare.start, sandbox, container)
    return last.at - began


async def until_empty(nodes: Nodes) -> None:
    """Wait until nothing is left of the agent's pods."""
    with trio.fail_after(PATIENCE):
        while not await nodes.is_empty():  # noqa: ASYNC110 - an old runtime tells nobody
            await trio.sleep(0.05)


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
    async with Runtime.on(nodes.floor) as bare:
        for run in range(runs + 1):
            agent.append(await time_agent(folders, manifests, [f"one-{run}"]))
            manifests.remove([f"one-{run}"])
            await until_empty(nodes)
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
    before = _cpu_seconds(pid)
    seconds = await time_agent(folders, manifests, names)
    await trio.sleep(QUIET)
    agent = Crowd(seconds, _cpu_seconds(pid) - before)
    manifests.remove(names)
    await until_empty(nodes)
    async with Runtime.on(nodes.floor) as bare:
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


def aims(kind: str, agent: list[float], floor: list[float], cpu: float, pods: int) -> list[Result]:
    """What the agent adds to containerd. The embedded runtime is part of the agent: `benchmarks.runtimes` has its."""
    if kind == "embedded":
        return []
    beside = median(agent) / median(floor)
    return [
        Result("one pod, manifest to running, beside the floor (medians)", "times", beside, 1.25),
        Result(f"our CPU per pod, {pods} pods at once", "ms", 1000 * cpu, 20),
    ]


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
@click.option(
    "--runtime", "kind", type=click.Choice(["containerd", "embedded"]), default="containerd", show_default=True
)
@click.option("--runs", type=click.IntRange(min=1), default=15, show_default=True, help="Single starts of each kind.")
@click.option("--pods", type=click.IntRange(min=1), default=100, show_default=True, help="Pods of the crowd.")
def main(json_file: Path | None, kind: str, runs: int, pods: int) -> None:
    """Measure what a pod's start costs beyond what the runtime takes."""
    silence()
    with TemporaryDirectory(prefix="trikubelet-pods-") as name:
        folders = Folders(Path(name) / "files")
        folder = folders.top / "agent"
        with nodes_of(kind, Path(name), folder) as nodes:
            recorded = trio.run(record, folders, nodes)
            manifests = ManifestFolder(folder, folders.sign, nodes.image)
            with running_agent(folder, nodes.endpoint) as process:
                process.wait_until_it_listens()
                agent, floor = trio.run(measure_one, folders, nodes, manifests, recorded, runs)
                pid = process.process.pid
                crowds = trio.run(measure_crowd, folders, nodes, manifests, recorded, pods, pid)
    _print(recorded, agent, floor, crowds, pods)
    met = report(aims(kind, agent, floor, crowds[0].cpu / pods, pods), json_file)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
