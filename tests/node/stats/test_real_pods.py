"""A real pod that burns a fifth of a core and holds 50 MiB, on each runtime: the numbers against its cgroup's files."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio

from tests.containerd_node import TEST_IMAGE, ContainerdNode
from tests.node.stats.node_files import MIB
from tests.node.stats.stage import FakeView
from tests.patience import PATIENCE
from trikubelet.clock import SystemClock
from trikubelet.embedded.runtime import EmbeddedRuntime
from trikubelet.node.stats.cgroup_places import processes_of
from trikubelet.node.stats.measure import Meter, NodePaths
from trikubelet.node.stats.provider import StatsProvider
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.grpc import Channel, Server, open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.node.stats.model import ContainerStats, PodStats

WINDOW: Final = 2.0
SECOND: Final = 1_000_000_000
HELD: Final = 50 * MIB
A_FIFTH: Final = v1.LinuxContainerResources(cpu_period=100_000, cpu_quota=20_000, memory_limit_in_bytes=300 * MIB)
"""Of a core."""
# `tail` keeps what it may have to print; the loop is held back by the quota.
SCRIPT: Final = f"(head -c {HELD} /dev/zero; exec sleep 1000) | tail -c {HELD} >/dev/null & while :; do :; done"


@attrs.frozen
class Moment:
    used: int
    """Nanoseconds of processor time."""
    at: float
    """Seconds."""


@attrs.define
class RealPod:
    """A container `main` that runs `SCRIPT`, and statistics of its node."""

    runtime: RuntimeClient
    provider: StatsProvider
    meter: Meter
    sandbox_id: str
    container_id: str

    async def stats(self, *, only: bool = False) -> tuple[PodStats, ContainerStats]:
        summary = await self.provider.summary(only_cpu_and_memory=only)
        assert summary.problems == ()
        (pod,) = (pod for pod in summary.pods if pod.pod_ref.name == "burner")
        (container,) = pod.containers
        return pod, container

    def used(self) -> tuple[int, int, int]:
        """Nanoseconds of processor time, bytes of memory and of anonymous memory: from the container's files."""
        place = self.meter._places.find(self.container_id)
        assert place is not None
        if "memory" not in place.controllers:
            assert place.unified is not None
            folder = Path(place.unified)
            usage = _table(folder / "cpu.stat")["usage_usec"] * 1000
            return usage, int((folder / "memory.current").read_text()), _table(folder / "memory.stat")["anon"]
        accounts, memory = Path(place.controllers["cpuacct"]), Path(place.controllers["memory"])
        held = int((memory / "memory.usage_in_bytes").read_text())
        return int((accounts / "cpuacct.usage").read_text()), held, _table(memory / "memory.stat")["total_rss"]

    def moment(self) -> Moment:
        """Nothing is used as long as nobody has looked for the container's group."""
        known = self.meter._places.find(self.container_id) is not None
        return Moment(self.used()[0] if known else 0, time.perf_counter())

    async def open_files(self) -> int:
        """As told."""
        text = (await self.provider.cadvisor_text()).decode()
        lines = [line for line in text.splitlines() if line.startswith("container_file_descriptors{")]
        return sum(int(line.rpartition("} ")[2].partition(" ")[0]) for line in lines if 'container="main"' in line)

    def descriptors(self) -> int:
        """As the kernel has them."""
        found = 0
        for pid in self._processes():
            with suppress(FileNotFoundError):  # it has ended meanwhile
                found += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return found

    def soft_limit(self) -> int:
        lines = Path(f"/proc/{self._processes()[0]}/limits").read_text().splitlines()
        return next(int(line.split()[3]) for line in lines if line.startswith("Max open files"))

    def _processes(self) -> list[int]:
        place = self.meter._places.find(self.container_id)
        assert place is not None
        return processes_of(place)


@pytest.fixture(
    params=[
        pytest.param("embedded", marks=pytest.mark.root),
        pytest.param("containerd", marks=[pytest.mark.containerd, pytest.mark.again]),
    ]
)
async def pod(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RealPod]:
    """Ended and removed at the end."""
    if request.param == "embedded":
        async with _embedded_channel(tmp_path) as channel, _running_pod(channel, tmp_path, "localhost/host") as pod:
            yield pod
    else:
        node: ContainerdNode = request.getfixturevalue("containerd")
        async with open_unix_channel(node.socket) as channel, _running_pod(channel, tmp_path, TEST_IMAGE) as pod:
            yield pod


async def test_use_and_memory_are_those_of_its_group(pod: RealPod) -> None:
    looks: list[tuple[Moment, Moment]] = []

    async def look() -> tuple[PodStats, ContainerStats]:
        before = pod.moment()
        seen = await pod.stats()
        looks.append((before, pod.moment()))
        return seen

    with trio.fail_after(PATIENCE):
        while pod_memory(await look()) < HELD:
            await trio.sleep(0.2)
    await trio.sleep(1.1)
    await look()
    await trio.sleep(WINDOW)
    entry, container = await look()
    # The rate is one since an earlier look, and each look was at some moment between the two.
    (third, fourth), earlier = looks[-1], looks[:-1]
    least = min((third.used - second.used) / (fourth.at - first.at) for first, second in earlier)
    most = max((fourth.used - first.used) / (third.at - second.at) for first, second in earlier)
    assert container.cpu is not None
    assert container.cpu.usage_nano_cores is not None
    assert 0.9 * least <= container.cpu.usage_nano_cores <= 1.1 * most
    assert container.cpu.usage_nano_cores < 0.3 * SECOND, "the quota is a fifth of a core"
    assert container.cpu.usage_nano_cores > 0, "a machine that is busy gives less than asked for"
    _, memory, anonymous = pod.used()
    assert container.memory is not None
    assert container.memory.rss_bytes == pytest.approx(anonymous, rel=0.1)
    assert container.memory.usage_bytes == pytest.approx(memory, rel=0.1)
    assert container.memory.working_set_bytes is not None
    assert HELD <= container.memory.working_set_bytes <= HELD + 50 * MIB
    assert container.memory.available_bytes == 300 * MIB - container.memory.working_set_bytes
    assert entry.cpu is not None
    assert entry.memory is not None
    assert entry.cpu.usage_core_nano_seconds == container.cpu.usage_core_nano_seconds, "no group of its own: the sum"
    assert entry.process_stats is not None
    assert entry.process_stats.process_count is not None
    assert entry.process_stats.process_count >= 3


async def test_the_full_picture_of_a_real_pod_has_its_disks(pod: RealPod) -> None:
    entry, container = await pod.stats()
    assert container.rootfs is not None
    assert container.rootfs.used_bytes is not None
    assert container.rootfs.capacity_bytes
    assert container.logs is not None
    assert container.logs.inodes_used == 1
    assert entry.ephemeral_storage is not None
    assert entry.ephemeral_storage.used_bytes is not None
    assert entry.network is not None
    assert entry.network.name == "eth0"
    assert entry.network.rx_bytes is not None
    node = (await pod.provider.summary()).node
    assert node.runtime is not None
    assert node.runtime.image_fs is not None
    assert node.runtime.image_fs.used_bytes is not None
    assert node.runtime.image_fs.capacity_bytes
    assert node.memory is not None
    assert node.memory.working_set_bytes is not None
    assert node.cpu is not None


async def test_scrapers_find_the_pod(pod: RealPod) -> None:
    text = (await pod.provider.resource_text()).decode()
    assert 'container_memory_working_set_bytes{container="main",namespace="test",pod="burner"} ' in text
    assert 'pod_cpu_usage_seconds_total{namespace="test",pod="burner"} ' in text
    assert "\nresource_scrape_error 0\n" in text
    text = (await pod.provider.cadvisor_text()).decode()
    series = [line for line in text.splitlines() if line.startswith("container_spec_cpu_quota{")]
    assert [line for line in series if 'container="main"' in line and line.endswith(" 20000")]


async def test_the_open_files_of_a_pod_are_those_of_its_processes(pod: RealPod) -> None:
    with trio.fail_after(PATIENCE):
        while (told := await pod.open_files()) != (counted := pod.descriptors()) or counted < 4:
            await trio.sleep(1.1)  # its shell is still starting programs
    assert told == counted
    text = (await pod.provider.cadvisor_text()).decode()
    (limit,) = (line for line in text.splitlines() if line.startswith("container_ulimits_soft{") and '"main"' in line)
    assert float(limit.rpartition(" ")[0].rpartition(" ")[2]) == pod.soft_limit()


def pod_memory(stats: tuple[PodStats, ContainerStats]) -> int:
    memory = stats[0].memory
    return 0 if memory is None or memory.rss_bytes is None else memory.rss_bytes


def _table(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value in lines}


@asynccontextmanager
async def _embedded_channel(folder: Path) -> AsyncIterator[Channel]:
    runtime = EmbeddedRuntime(folder / "runtime", clock=SystemClock())
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run)
        await nursery.start(Server(runtime.handlers).serve_unix, folder / "cri.sock")
        try:
            async with open_unix_channel(folder / "cri.sock") as channel:
                yield channel
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                assert await runtime.shutdown()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _running_pod(channel: Channel, folder: Path, image: str) -> AsyncIterator[RealPod]:
    runtime = RuntimeClient(channel)
    logs = folder / "logs"
    config = v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name="burner", namespace="test", uid="burner-uid"),
        log_directory=str(logs / "test_burner_burner-uid"),
        linux=v1.LinuxPodSandboxConfig(),
    )
    (logs / "test_burner_burner-uid/main").mkdir(parents=True)
    sandbox_id = await runtime.run_pod_sandbox(config)
    try:
        container = v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name="main"),
            image=v1.ImageSpec(image=image),
            command=["sh", "-c", SCRIPT],
            log_path="main/0.log",
            labels={"io.kubernetes.container.name": "main"},
            linux=v1.LinuxContainerConfig(resources=A_FIFTH),
        )
        container_id = await runtime.create_container(sandbox_id, container, config)
        await runtime.start_container(container_id)
        paths = NodePaths(root_dir=folder, pod_logs_dir=logs)
        meter = Meter(paths)
        provider = StatsProvider(FakeView().given(), runtime, ImageClient(channel), meter, clock=SystemClock())
        yield RealPod(runtime, provider, meter, sandbox_id, container_id)
    finally:
        with trio.move_on_after(PATIENCE, shield=True):
            await runtime.stop_pod_sandbox(sandbox_id)
            await runtime.remove_pod_sandbox(sandbox_id)
