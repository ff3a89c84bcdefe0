"""Collections: what they consist of, who shares them, and what a failure takes away."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.node.stats.fake_runtime import SECOND, container_of, number, sandbox_of, stats_of
from tests.node.stats.node_files import GIB, NodeFiles
from tests.node.stats.stage import Stage
from trikubelet.api import pod_from_dict
from trikubelet.node.stats.measure import Meter
from trikubelet.node.stats.model import NetworkStats
from trikubelet.node.stats.provider import FILES_TIMEOUT, FRESH_FOR, LISTS_KEPT, RUNTIME_TIMEOUT, StatsTimeoutError
from trikubelet.rpc.cri import v1
from trikubelet.volumes.model import VolumeUsage

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.node.stats.measure import Measured

EPOCH = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * SECOND


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(NodeFiles(tmp_path))


async def test_a_pod_is_measured_by_its_containers_groups(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main", "sidecar")
    summary = await stage.provider().summary()
    (pod,) = summary.pods
    assert (pod.pod_ref.name, pod.pod_ref.namespace, pod.pod_ref.uid) == ("web", "ns", "web-uid")
    assert (pod.start_time, pod.containers[0].start_time) == (SECOND, 2 * SECOND)
    assert sorted(container.name for container in pod.containers) == ["main", "sidecar"]
    for container in pod.containers:
        assert container.cpu is not None
        assert (container.cpu.time, container.cpu.usage_core_nano_seconds) == (EPOCH, SECOND)
        assert container.memory is not None
        assert (container.memory.working_set_bytes, container.memory.rss_bytes) == (900_000, 500_000)
    assert summary.problems == ()


async def test_a_pods_own_group_counts_before_the_sum_of_its_containers(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main", "sidecar")
    (pod,) = (await stage.provider().summary()).pods
    assert pod.cpu is not None
    assert pod.memory is not None
    assert pod.cpu.usage_core_nano_seconds == 2 * SECOND
    assert pod.memory.working_set_bytes == 1_800_000
    stage.files.group("/kubepods/podweb-uid", cpu=7 * SECOND, memory=1000)
    (pod,) = (await stage.provider().summary()).pods
    assert pod.cpu is not None
    assert pod.memory is not None
    assert pod.cpu.usage_core_nano_seconds == 7 * SECOND
    assert pod.memory.working_set_bytes == 900


async def test_the_use_of_cores_comes_from_two_collections(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("web", "main")
    provider = stage.provider()
    first = await provider.summary()
    mock_clock.jump(10)
    stage.files.group(f"/kubepods/podweb-uid/{sandbox.id}-main", cpu=6 * SECOND, memory=5, pid=100)
    stage.files.write("cgroup/cpu.stat", "usage_usec 25000000\n")
    second = await provider.summary()
    cpus = [first.pods[0].containers[0].cpu, second.pods[0].containers[0].cpu, second.pods[0].cpu, second.node.cpu]
    assert [cpu and cpu.usage_nano_cores for cpu in cpus] == [None, SECOND // 2, SECOND // 2, 2 * SECOND]


async def test_the_node_has_all_of_it(stage: Stage, mock_clock: MockClock) -> None:
    stage.runtime.images = v1.ImageFsInfoResponse(
        image_filesystems=[
            v1.FilesystemUsage(
                timestamp=3 * SECOND,
                fs_id=v1.FilesystemIdentifier(mountpoint=str(stage.files.root)),
                used_bytes=number(77),
                inodes_used=number(7),
            )
        ]
    )
    for path in ("/kubepods", "/daemons/kubelet", "/daemons/containerd"):
        stage.files.group(path, cpu=3000, memory=1000)
    meter = stage.files.meter(kubelet_cgroup="/daemons/kubelet", runtime_cgroup="/daemons/containerd")
    node = (await stage.provider(meter).summary()).node
    assert (node.node_name, node.start_time) == ("node-1", 1_700_000_000 * SECOND)
    assert node.memory is not None
    assert node.memory.available_bytes == 4 * GIB - node.memory.working_set_bytes  # type: ignore[operator]
    assert node.swap is not None
    assert node.network is not None
    assert (node.network.name, node.network.rx_bytes) == ("eth0", 1000)
    assert node.rlimit is not None
    assert node.rlimit.maxpid == 127000
    assert node.fs is not None
    assert node.fs.used_bytes
    assert node.fs.capacity_bytes
    assert node.runtime is not None
    assert node.runtime.image_fs is not None
    assert node.runtime.container_fs == node.runtime.image_fs
    assert (node.runtime.image_fs.used_bytes, node.runtime.image_fs.inodes_used) == (77, 7)
    assert node.runtime.image_fs.capacity_bytes == node.fs.capacity_bytes
    daemons = {daemon.name: daemon for daemon in node.system_containers}
    assert daemons.keys() == {"kubelet", "runtime", "pods"}
    assert daemons["kubelet"].start_time == EPOCH
    assert daemons["runtime"].start_time is None


async def test_without_a_group_of_all_pods_they_are_added_up(stage: Stage, mock_clock: MockClock) -> None:
    for name in ("a", "b"):
        sandbox = sandbox_of(name)
        stage.runtime.sandboxes.append(sandbox)
        stage.runtime.containers.append(container_of(sandbox, "c"))
        stage.group(f"/k8s.io/{sandbox.id}-c")
    (pods,) = (await stage.provider().summary()).node.system_containers
    assert pods.name == "pods"
    assert pods.memory is not None
    assert pods.memory.working_set_bytes == 1_800_000


async def test_the_full_picture_has_disks_networks_and_processes(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("web", "main")
    stage.runtime.stats = [stats_of(f"{sandbox.id}-main")]
    stage.files.write("logs/ns_web_web-uid/main/0.log", "x" * 10_000)
    stage.files.write("logs/ns_web_web-uid/main/0.log.20260101", "y")
    stage.files.write("logs/ns_web_web-uid/own.log", "z")
    stage.files.write("agent/pods/web-uid/etc-hosts", "127.0.0.1 localhost")
    spec = {"containers": [{"name": "main", "image": "i"}], "volumes": [{"name": "scratch", "emptyDir": {}}]}
    stage.view.wanted = [pod_from_dict({"metadata": {"name": "web", "uid": "web-uid"}, "spec": spec})]
    stage.view.usage = {"web-uid": {"scratch": VolumeUsage(at=datetime(2026, 1, 1, tzinfo=UTC), used=1000)}}
    (pod,) = (await stage.provider().summary()).pods
    (container,) = pod.containers
    assert container.rootfs is not None
    assert (container.rootfs.used_bytes, container.rootfs.inodes_used) == (8192, 3)
    assert container.rootfs.capacity_bytes, "of the file system that the layer is on"
    assert container.logs is not None
    assert container.logs.inodes_used == 2
    assert container.logs.used_bytes is not None
    assert container.logs.used_bytes >= 10_000
    assert isinstance(pod.network, NetworkStats)
    assert pod.network.rx_bytes == 1000
    assert pod.process_stats is not None
    assert pod.process_stats.process_count == 1
    assert [volume.name for volume in pod.volume] == ["scratch"]
    assert pod.ephemeral_storage is not None
    assert pod.ephemeral_storage.used_bytes is not None
    assert pod.ephemeral_storage.used_bytes > 8192 + 10_000 + 1000
    assert pod.ephemeral_storage.inodes_used == 3 + 2 + 1 + 1, "layer, logs, the pod's own log, /etc/hosts"


async def test_a_layer_on_an_unknown_file_system_has_its_use_alone(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("web", "main")
    stats = stats_of(f"{sandbox.id}-main")
    stats.writable_layer.fs_id.mountpoint = "/unknown/mount/point"
    stage.runtime.stats = [stats]
    (pod,) = (await stage.provider().summary()).pods
    rootfs = pod.containers[0].rootfs
    assert rootfs is not None
    assert (rootfs.used_bytes, rootfs.capacity_bytes) == (8192, None)


async def test_a_pod_on_the_machines_network_has_none_of_its_own(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("web", "main")
    stage.files.process(100, f"/kubepods/podweb-uid/{sandbox.id}-main", namespace="net:[1]")
    assert (await stage.provider().summary()).pods[0].network is None


async def test_processors_and_memory_alone_need_only_the_runtimes_lists(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main")
    summary = await stage.provider().summary(only_cpu_and_memory=True)
    assert sorted(stage.runtime.calls) == ["ListContainers", "ListPodSandbox"]
    (pod,) = summary.pods
    assert pod.cpu is not None
    assert pod.memory is not None
    assert (pod.network, pod.ephemeral_storage, pod.io, pod.process_stats) == (None, None, None, None)
    assert (pod.containers[0].rootfs, pod.containers[0].logs) == (None, None)
    assert (summary.node.fs, summary.node.rlimit, summary.node.network) == (None, None, None)


async def test_containers_without_a_group_are_told_by_the_runtime(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("vm", "main", groups=False)
    began = EPOCH // SECOND
    stats = stats_of(f"{sandbox.id}-main", at=began, cpu=5 * SECOND, memory=123)
    stage.runtime.stats = [stats]
    provider = stage.provider()
    (pod,) = (await provider.summary(only_cpu_and_memory=True)).pods
    assert pod.containers[0].cpu is not None
    assert (pod.containers[0].cpu.time, pod.containers[0].cpu.usage_core_nano_seconds) == (EPOCH, 5 * SECOND)
    assert pod.memory is not None
    assert pod.memory.working_set_bytes == 123
    assert stage.runtime.calls[2:] == ["ListPodSandboxStats", "ListContainerStats"], (
        "containerd 1.6 has only the second"
    )
    stage.runtime.calls.clear()
    mock_clock.jump(10)
    stage.runtime.stats = [stats_of(f"{sandbox.id}-main", at=began + 10, cpu=15 * SECOND, memory=123)]
    (pod,) = (await provider.summary(only_cpu_and_memory=True)).pods
    assert sorted(stage.runtime.calls) == ["ListContainerStats", "ListContainers", "ListPodSandbox"], "asked at once"
    assert pod.containers[0].cpu is not None
    assert pod.containers[0].cpu.usage_nano_cores == SECOND


async def test_a_runtime_that_knows_pods_tells_of_them_too(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("vm", "main", groups=False)
    stage.runtime.sandbox_stats = [
        v1.PodSandboxStats(
            attributes=v1.PodSandboxAttributes(id=sandbox.id),
            linux=v1.LinuxPodSandboxStats(
                cpu=v1.CpuUsage(timestamp=5 * SECOND, usage_core_nano_seconds=number(9), usage_nano_cores=number(4)),
                memory=v1.MemoryUsage(timestamp=5 * SECOND, working_set_bytes=number(8)),
                process=v1.ProcessUsage(timestamp=5 * SECOND, process_count=number(3)),
                network=v1.NetworkUsage(timestamp=5, default_interface=v1.NetworkInterfaceUsage(name="eth0")),
                containers=[stats_of(f"{sandbox.id}-main", cpu=1, memory=2)],
            ),
        )
    ]
    (pod,) = (await stage.provider().summary()).pods
    assert pod.cpu is not None
    assert pod.memory is not None
    assert pod.network is not None
    assert pod.process_stats is not None
    assert (pod.cpu.usage_core_nano_seconds, pod.cpu.usage_nano_cores, pod.memory.working_set_bytes) == (9, 4, 8)
    assert (pod.process_stats.process_count, pod.network.name) == (3, "eth0")
    assert pod.containers[0].memory is not None
    assert pod.containers[0].memory.working_set_bytes == 2


async def test_with_the_gate_the_runtime_is_believed_before_the_groups(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("web", "main")
    stage.runtime.stats = [stats_of(f"{sandbox.id}-main", cpu=42, memory=43)]
    for prefer, cpu in ((False, SECOND), (True, 42)):
        (pod,) = (await stage.provider(prefer_runtime=prefer).summary()).pods
        assert pod.containers[0].cpu is not None
        assert pod.containers[0].cpu.usage_core_nano_seconds == cpu


@pytest.mark.parametrize("rpc", ["ListContainers", "ListPodSandbox", "ListContainerStats", "ImageFsInfo"])
@pytest.mark.parametrize("how", ["failing", "hanging"])
async def test_what_a_call_would_have_told_is_missing_and_nothing_else(
    stage: Stage, mock_clock: MockClock, rpc: str, how: str
) -> None:
    stage.pod("web", "main")
    stage.runtime.images = v1.ImageFsInfoResponse(image_filesystems=[v1.FilesystemUsage(timestamp=1)])
    provider = stage.provider()
    await provider.summary()
    getattr(stage.runtime, how).add(rpc)
    mock_clock.jump(FRESH_FOR)
    found: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            found.append(await provider.summary())

        nursery.start_soon(ask)
        if how == "hanging":
            await wait_all_tasks_blocked()
            mock_clock.jump(RUNTIME_TIMEOUT)
    (summary,) = found
    assert len(summary.problems) == 1
    assert summary.node.memory is not None
    assert summary.node.fs is not None
    assert [pod.pod_ref.name for pod in summary.pods] == ["web"], "of the last lists"
    assert summary.pods[0].memory is not None
    assert (summary.node.runtime.image_fs is None) == (
        rpc == "ImageFsInfo" or not stage.runtime.images.image_filesystems
    )


async def test_lists_that_are_too_old_are_not_used(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main")
    provider = stage.provider()
    await provider.summary()
    stage.runtime.failing.add("ListContainers")
    mock_clock.jump(LISTS_KEPT)
    summary = await provider.summary()
    assert summary.pods == ()
    assert summary.problems == ("lists: rpc error: code = Unavailable desc = no connection",)
    text = (await provider.resource_text()).decode()
    assert "resource_scrape_error 1" in text
    assert "node_memory_working_set_bytes" in text


async def test_a_volume_manager_that_hangs_leaves_the_rest(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main")
    stage.view.wanted = [pod_from_dict({"metadata": {"name": "web", "uid": "web-uid"}, "spec": {"containers": []}})]
    stage.view.hangs = True
    provider = stage.provider()
    found: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            found.append(await provider.summary())

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        mock_clock.jump(RUNTIME_TIMEOUT)
    assert found[0].problems == ("volumes: no answer within 5 s",)
    assert found[0].pods[0].volume == ()


async def test_all_who_ask_at_the_same_time_get_one_collection(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main")
    provider = stage.provider()
    found: list[Any] = []
    async with trio.open_nursery() as nursery:
        for _ in range(20):

            async def ask() -> None:
                found.append(await provider.summary())

            nursery.start_soon(ask)
    assert stage.runtime.calls.count("ListContainers") == 1
    assert len({id(summary) for summary in found}) == 1
    mock_clock.jump(FRESH_FOR / 2)
    assert await provider.summary() is found[0]
    await provider.resource_samples()
    assert stage.runtime.calls.count("ListContainers") == 1, "the full picture has what resources need"
    mock_clock.jump(FRESH_FOR / 2)
    assert await provider.summary() is not found[0]


async def test_a_collection_of_resources_is_not_the_full_picture(stage: Stage, mock_clock: MockClock) -> None:
    provider = stage.provider()
    await provider.resource_samples()
    assert (await provider.summary()).node.fs is not None


async def test_when_the_first_who_asked_leaves_the_next_gets_the_answer(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main")
    stage.runtime.hanging.add("ListContainers")
    provider = stage.provider()
    found: list[Any] = []
    async with trio.open_nursery() as nursery:
        leaving = trio.CancelScope()

        async def ask(scope: trio.CancelScope) -> None:
            with scope:
                found.append(await provider.summary())

        nursery.start_soon(ask, leaving)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, trio.CancelScope())
        await wait_all_tasks_blocked()
        stage.runtime.hanging.clear()
        leaving.cancel()
    assert [len(summary.pods) for summary in found] == [1]


class _StuckMeter(Meter):
    """A disk hangs until it is let go."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.files.paths)
        self.stuck = threading.Event()
        self.entered = threading.Event()
        self.inside = 0

    def measure(self, *args: Any, **options: Any) -> Measured:
        self.inside += 1
        assert self.inside == 1, "one thread at a time"
        self.entered.set()
        self.stuck.wait(20)
        self.inside -= 1
        return super().measure(*args, **options)


async def test_a_disk_that_hangs_ends_in_an_error_and_later_in_an_answer(stage: Stage, mock_clock: MockClock) -> None:
    meter = _StuckMeter(stage)
    provider = stage.provider(meter)

    async def refused() -> None:
        with pytest.raises(StatsTimeoutError, match="look whether a disk"):
            await provider.summary()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await trio.to_thread.run_sync(meter.entered.wait, 10)
            mock_clock.jump(FILES_TIMEOUT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await wait_all_tasks_blocked(0.05)
            mock_clock.jump(FILES_TIMEOUT)
    finally:
        meter.stuck.set()
    mock_clock.jump(FRESH_FOR)
    assert (await provider.summary()).node.memory is not None


async def test_resources_that_cannot_be_measured_are_told_as_an_error(stage: Stage, mock_clock: MockClock) -> None:
    meter = _StuckMeter(stage)
    provider = stage.provider(meter)
    texts: list[bytes] = []
    try:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                texts.append(await provider.resource_samples())  # type: ignore[arg-type]

            nursery.start_soon(ask)
            await trio.to_thread.run_sync(meter.entered.wait, 10)
            mock_clock.jump(FILES_TIMEOUT)
    finally:
        meter.stuck.set()
    (families,) = texts
    assert [family.name for family in families] == ["resource_scrape_error"]  # type: ignore[attr-defined]


async def test_nonsense_from_the_runtime_is_a_problem_and_nothing_more(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main")
    stage.runtime.nonsense = b"\x0a\xff"
    summary = await stage.provider().summary()
    assert len(summary.problems) == 1
    assert summary.problems[0].startswith("statistics: ")
    assert summary.pods[0].memory is not None


async def test_the_event_loop_goes_on_while_many_pods_are_measured(stage: Stage) -> None:
    for index in range(100):
        stage.pod(f"pod-{index}", "main", "sidecar")
    provider = stage.provider()
    turns = 0
    async with trio.open_nursery() as nursery:

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(count)
        summary = await provider.summary()
        assert len(await provider.summary_json()) > 50_000
        nursery.cancel_scope.cancel()
    assert len(summary.pods) == 100
    assert turns > 10
