"""What cgroups add to a pod's start: the pod's own group and those of the classes, beside bare mkdir and writes.

    python -m benchmarks.cgroups [--json FILE] [--starts N] [--others N,N,…] [--containerd N]

A simulated node runs the other pods, each with a group of the kernel's, since what a start costs may depend on how many
there are. Then one more pod after the other gets its groups as a sync makes them before the sandbox: the group of its
class is brought up to date, its own is made. The floor makes the same folders in the same hierarchies and writes the
same texts, in place and without threads. Both take turns, so that noise hits both alike. Beside that it is measured
what later syncs pay that look for the group, and the end; neither counts for a start.

With `--containerd`, pods are also started by two whole agents, each on a containerd of its own, one with cgroups and
one without, in turns: from the manifest to the running container.

Everything is below a cgroup root of the benchmark's own, which is gone afterwards. Needs root.
"""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from trikubelet.api import pod_from_dict, set_pod_defaults
from trikubelet.cgroups.driver_choice import file_driver
from trikubelet.cgroups.hierarchy import Hierarchies
from trikubelet.cgroups.kernel_files import KernelFiles
from trikubelet.cgroups.names import CgroupName, pod_name, tier_name, to_cgroupfs
from trikubelet.cgroups.pods import PodCgroupManager
from trikubelet.cgroups.settings import CgroupOptions, CgroupSettings, cpu_shares, pod_settings, v1_files, v2_files
from trikubelet.cgroups.version import read_hierarchies
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import ScriptedSource, simulated_node
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.manifest_agents import ManifestFolder
    from tests.containerd_node import ContainerdNode
    from trikubelet.agent.agent import Agent
    from trikubelet.api import Pod

AIM: Final = 5.0
"""Milliseconds that cgroups may add to a pod's start."""
OPTIONS: Final = CgroupOptions(pod_pids_limit=1000)
PATIENCE: Final = 120.0
WARM_UP: Final = 5
TURN: Final = 0.5
"""Seconds after a pod on a real runtime."""
PAUSE: Final = 0.05
"""Seconds between two pods: the classes follow."""
SETTLE: Final = 10.0
"""Seconds for what follows from the start of the other pods."""


def burstable(name: str) -> Pod:
    """A pod whose group has every limit, and whose class has to follow it."""
    resources = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-of-{name}",
        "annotations": {"kubernetes.io/config.source": "file"},
    }
    spec = {"containers": [{"name": "main", "image": "test:1", "resources": resources}], "dnsPolicy": "Default"}
    return set_pod_defaults(pod_from_dict({"metadata": metadata, "spec": spec}))


@attrs.define
class Measured:
    """Milliseconds of each start."""

    added: list[float] = attrs.field(factory=list)
    floor: list[float] = attrs.field(factory=list)
    found: list[float] = attrs.field(factory=list)
    removed: list[float] = attrs.field(factory=list)


@contextmanager
def private_root(hierarchies: Hierarchies) -> Iterator[CgroupName]:
    root = (f"trikubelet-benchmark-{os.getpid()}",)
    trio.run(file_driver(hierarchies).create, (*root, "kubepods"), CgroupSettings())
    try:
        yield root
    finally:
        kernel = KernelFiles()
        for point in hierarchies.mount_points:
            for path in kernel.below(f"{point}{to_cgroupfs(root)}"):
                kernel.delete(path)


@attrs.define
class Floor:
    """The same folders and texts, and nothing else."""

    hierarchies: Hierarchies
    root: CgroupName
    kernel: KernelFiles = attrs.field(factory=KernelFiles)

    def start(self, pod: Pod, class_shares: int) -> None:
        tier = CgroupSettings(cpu_shares=class_shares)
        self._write(tier_name(self.root, "Burstable"), tier)
        name = pod_name(self.root, pod)
        folders = self._folders(name)
        for point, folder in folders.items():
            self.kernel.make(folder)
            if self.hierarchies.controllers.get("cpuset") == point:
                for file in ("cpuset.cpus", "cpuset.mems"):
                    above = self.kernel.read(f"{Path(folder).parent}/{file}")
                    self.kernel.write(f"{folder}/{file}", above.strip())
        self._write(name, pod_settings(pod, OPTIONS))

    def end(self, pod: Pod) -> None:
        for folder in self._folders(pod_name(self.root, pod)).values():
            self.kernel.delete(folder)

    def _folders(self, name: CgroupName) -> dict[Path, str]:
        points = set(self.hierarchies.controllers.values())
        if self.hierarchies.unified is not None and self.hierarchies.version == 2:
            points.add(self.hierarchies.unified)
        return {point: f"{point}{to_cgroupfs(name)}" for point in points}

    def _write(self, name: CgroupName, settings: CgroupSettings) -> None:
        if self.hierarchies.version == 2:
            for file, text in v2_files(settings, ()):
                self.kernel.write(f"{self.hierarchies.unified}{to_cgroupfs(name)}/{file}", text)
            return
        for controller, file, text in v1_files(settings, ()):
            point = self.hierarchies.controllers.get(controller)
            if point is not None:
                self.kernel.write(f"{point}{to_cgroupfs(name)}/{file}", text)


async def measure(hierarchies: Hierarchies, root: CgroupName, others: int, starts: int) -> Measured:
    """Start pods one after the other on a node that runs `others`."""
    driver = file_driver(hierarchies)
    agents: list[Agent] = []
    coming: list[Pod] = []
    """The pods that are measured, which the node does not know."""

    def active() -> Iterator[Pod]:
        known = agents[0].desired.active() if agents else []
        return itertools.chain(map(agents[0].allocation.allocated, known) if agents else (), coming)

    pods_root = (*root, "kubepods")
    keeper = PodCgroupManager(driver, pods_root, OPTIONS, active_pods=active)
    await keeper.start()
    floor_root = (*root, "floor")
    await driver.create(tier_name(floor_root, "Burstable"), CgroupSettings())
    source, sim = ScriptedSource("file"), SimulatedRuntime(seed=1)
    neighbours = [burstable(f"other-{number}") for number in range(others)]
    for name in neighbours:
        await driver.create(pod_name(floor_root, name), CgroupSettings())
    async with (
        trio.open_nursery() as nursery,
        simulated_node(sim, sources={"file": source}, prepare=agents.append, cgroups=keeper) as node,
    ):
        await nursery.start(keeper.run)
        source.put(*neighbours)
        with trio.fail_after(PATIENCE):
            while len(sim.running_containers()) < others:  # noqa: ASYNC110 - a simulated runtime tells nobody
                await trio.sleep(0.05)
        await trio.sleep(SETTLE)
        measured = Measured()
        floor = Floor(hierarchies, floor_root)
        for number in range(starts + WARM_UP):
            pod = burstable(f"measured-{number}")
            begun = trio.current_time()
            floor.start(pod, cpu_shares(10 * (others + 1)))
            floor_done = trio.current_time()
            coming.append(pod)
            await trio.sleep(PAUSE)
            made_at = trio.current_time()
            await keeper.ensure(pod)
            made = trio.current_time()
            assert await keeper.exists(pod)
            found = trio.current_time()
            coming.remove(pod)
            await keeper.release(pod.metadata.uid)
            gone = trio.current_time()
            floor.end(pod)
            if number >= WARM_UP:
                measured.floor.append(1000 * (floor_done - begun))
                measured.added.append(1000 * (made - made_at))
                measured.found.append(1000 * (found - made))
                measured.removed.append(1000 * (gone - found))
            await trio.sleep(PAUSE)
        source.remove(*neighbours)
        with trio.fail_after(PATIENCE):
            while node.agent.workers.states.phases():  # noqa: ASYNC110 - workers tell one listener, the agent
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    return measured


def measure_on_containerd(root: CgroupName, runs: int) -> tuple[list[float], list[float]]:
    """Milliseconds of single starts with cgroups and without. The first of each only warms up."""
    from benchmarks.agent_process import running_agent
    from benchmarks.manifest_agents import ManifestFolder
    from benchmarks.pod_start import Folders, Runtime, time_agent, two_nodes

    with TemporaryDirectory(prefix="trikubelet-cgroups-") as name, ExitStack() as stack:
        folders = Folders(Path(name) / "files")
        nodes = stack.enter_context(two_nodes(Path(name)))
        with_cgroups: dict[str, Any] = {
            "cgroupRoot": to_cgroupfs(root),
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": ["pods"],
            "podPidsLimit": 1000,
        }
        sides: list[tuple[ContainerdNode, ManifestFolder, list[float]]] = []
        without: dict[str, Any] = {}
        for kind, node, settings in (("with", nodes[0], with_cgroups), ("without", nodes[1], without)):
            folder = folders.top / kind
            sides.append((node, ManifestFolder(folder, folders.sign), []))
            agent = stack.enter_context(running_agent(folder, node.endpoint, **settings))
            agent.wait_until_it_listens()

        async def take_turns() -> None:
            for run in range(runs + 1):
                for number, (node, manifests, times) in enumerate(sides):
                    async with Runtime.on(node) as outside:
                        pod = f"one-{number}-{run}"
                        times.append(1000 * await time_agent(folders, manifests, [pod]))
                        manifests.remove([pod])
                        await outside.gone()
                        await trio.sleep(TURN)

        trio.run(take_turns)
    return sides[0][2][1:], sides[1][2][1:]


def _row(name: str, values: Sequence[float]) -> list[str]:
    return [name, *(f"{value:.2f}" for value in (median(values), p99(values), max(values)))]


def p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100)[98]


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims there.")
@picture_option
@click.option("--starts", default=200, show_default=True, help="Pods that are started beside each crowd.")
@click.option("--others", default="0,100,500", show_default=True, help="Other pods on the node.")
@click.option("--containerd", "on_containerd", default=0, help="Starts on a real runtime, with and without.")
def main(json_file: Path | None, starts: int, others: str, on_containerd: int) -> None:
    silence()
    hierarchies = read_hierarchies()
    rows: list[list[str]] = []
    worst = 0.0
    with private_root(hierarchies) as root:
        for crowd in map(int, others.split(",")):
            measured = trio.run(measure, hierarchies, root, crowd, starts)
            rows += [
                _row(f"{crowd} other pods: added to a start", measured.added),
                _row(f"{crowd} other pods: bare mkdir and writes", measured.floor),
                _row(f"{crowd} other pods: found by a later sync", measured.found),
                _row(f"{crowd} other pods: removed after the end", measured.removed),
            ]
            worst = max(worst, median(measured.added))
        if on_containerd:
            for kind, times in zip(("with", "without"), measure_on_containerd(root, on_containerd), strict=True):
                rows.append(_row(f"containerd, manifest to running: {kind} cgroups", times))
    print_table(f"Milliseconds, cgroup v{hierarchies.version}, {starts} pods", ["", "p50", "p99", "most"], rows)
    met = report([Result("time added to a pod's start by cgroups, p50", "ms", worst, AIM)], json_file)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
