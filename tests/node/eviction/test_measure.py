"""Measuring with the node's statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.node.eviction.situations import amounts, make_pod
from tests.node.stats.fake_runtime import stats_of
from tests.node.stats.node_files import NodeFiles
from tests.node.stats.stage import Stage
from trikubelet.config.eviction_values import Layout, Signal
from trikubelet.node.eviction.measure import StatsUsageSource, layout_of
from trikubelet.node.eviction.model import FsUsage, PodMemoryUsage, PodUsage, UsageError
from trikubelet.node.stats.cgroup_files import CgroupReading
from trikubelet.node.stats.compose import Facts, ImageFileSystem
from trikubelet.node.stats.measure import Measured
from trikubelet.node.stats.model import NodeStats, Summary, VolumeStats
from trikubelet.node.stats.provider import FRESH_FOR, Collection, StatsTimeoutError
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.api import Pod

S = Signal
NODE, IMAGES, LAYERS = "/dev/sda1", "/dev/sdb1", "/dev/sdc1"


def collection(
    *, images: str | None = None, layers: str | None = None, node: str = NODE, at: float = 0.0
) -> Collection:
    """With images and layers on devices, where they are known."""
    devices = {"/images": images or "", "/layers": layers or ""}
    return Collection(
        summary=Summary(node=NodeStats(node_name="n")),
        facts=Facts(
            node_name="n",
            started=0,
            image_fs=None if images is None else ImageFileSystem(path="/images", time=1),
            container_fs=None if layers is None else ImageFileSystem(path="/layers", time=1),
        ),
        measured=Measured(
            at=0, machine=CgroupReading(path="/", at=0), groups={}, daemons={}, node_fs_device=node, devices=devices
        ),
        full=True,
        made_at=at,
    )


@pytest.mark.parametrize(
    ("images", "layers", "layout"),
    [
        (NODE, None, Layout.SINGLE),
        (NODE, NODE, Layout.SINGLE),
        (IMAGES, None, Layout.DEDICATED),
        (IMAGES, IMAGES, Layout.DEDICATED),
        (IMAGES, NODE, Layout.SPLIT),
        (IMAGES, LAYERS, Layout.SPLIT),
        (NODE, LAYERS, Layout.SPLIT),
        (None, None, None),
        ("", None, None),
        (NODE, "", None),
    ],
)
def test_where_images_and_layers_lie(images: str | None, layers: str | None, layout: Layout | None) -> None:
    assert layout_of(collection(images=images, layers=layers)) is layout


def test_a_node_whose_own_disk_is_not_known_says_nothing() -> None:
    assert layout_of(collection(images=IMAGES, node="")) is None


@attrs.define
class FakeStatistics:
    """Gives what it is told to, with the time at which it was asked."""

    answers: list[Collection | None] = attrs.field(factory=list)
    asked: list[tuple[float, bool]] = attrs.field(factory=list)

    looked_at: list[list[str]] = attrs.field(factory=list)

    async def collect(self, *, full: bool) -> Collection:
        self.asked.append((trio.current_time(), full))
        answer = self.answers.pop(0)
        if answer is None:
            raise StatsTimeoutError(10)
        return answer

    async def collect_node(self, uids: Sequence[str] = ()) -> Collection:
        self.looked_at.append(list(uids))
        return await self.collect(full=False)

    async def volumes_of(self, pod: Pod) -> tuple[VolumeStats, ...]:
        return (VolumeStats(name=f"volume of {pod.metadata.name}", used_bytes=7),)


async def test_a_layout_that_is_not_told_is_the_last_one(autojump_clock: MockClock) -> None:
    now = trio.current_time()
    statistics = FakeStatistics([collection(at=now), collection(images=IMAGES, at=now), collection(at=now)])
    source = StatsUsageSource(lambda: statistics)
    layouts = [(await source.measure([])).layout for _ in range(3)]
    assert layouts == [Layout.SINGLE, Layout.DEDICATED, Layout.DEDICATED]


async def test_what_was_collected_before_is_not_used(autojump_clock: MockClock) -> None:
    """It may not know that a pod has ended since."""
    await trio.sleep(5)
    now = trio.current_time()
    statistics = FakeStatistics([collection(at=now - 0.25), collection(at=now + 1)])
    await StatsUsageSource(lambda: statistics).measure([])
    assert statistics.asked == [(now, True), (now - 0.25 + FRESH_FOR, True)]


async def test_files_that_cannot_be_read_in_time_are_an_error() -> None:
    source = StatsUsageSource(lambda: FakeStatistics([None]))
    with pytest.raises(UsageError, match="whether a disk of this node hangs"):
        await source.measure([])


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(NodeFiles(tmp_path))
    stage.pod("web", "main", "side")
    stage.files.group("/kubepods", memory=3_000_000, memory__max=10_000_000)
    stage.runtime.images = v1.ImageFsInfoResponse(
        image_filesystems=[
            v1.FilesystemUsage(timestamp=5_000_000_000, fs_id=v1.FilesystemIdentifier(mountpoint=str(tmp_path)))
        ]
    )
    return stage


async def test_a_node_is_measured(stage: Stage) -> None:
    measured = await StatsUsageSource(stage.provider).measure([])
    assert set(measured.observations) == set(Signal)
    memory = measured.observations[S.MEMORY]
    assert memory.capacity == 4 * 2**30
    assert 0 < memory.available < memory.capacity
    of_pods = measured.observations[S.ALLOCATABLE_MEMORY]
    assert (of_pods.available, of_pods.capacity, of_pods.used) == (7_300_000, 10_000_000, 3_000_000)
    assert list(measured.pods) == ["web-uid"]
    pod = measured.pods["web-uid"]
    assert sorted(pod.containers) == ["main", "side"]
    assert pod.processes == 2
    assert measured.layout is Layout.SINGLE


async def test_a_look_is_at_the_node_and_at_what_is_known_of_volumes(stage: Stage) -> None:
    provider = stage.provider()
    measured = await StatsUsageSource(lambda: provider).measure_node([])
    complete = await StatsUsageSource(lambda: provider).measure([])
    assert (measured.pods, measured.complete, complete.complete) == ({}, False, True)
    assert measured.observations.keys() == complete.observations.keys() == set(Signal)
    for signal, observed in measured.observations.items():
        assert observed.capacity == complete.observations[signal].capacity
    statistics = FakeStatistics([collection()])
    measured = await StatsUsageSource(lambda: statistics).measure_node([make_pod("p")])
    assert statistics.looked_at == [[]], "the node only"
    assert measured.pods == {"p": PodUsage(volumes={"volume of p": FsUsage(bytes=7)})}


async def test_layers_and_logs_are_looked_at_only_of_pods_with_limits_of_storage(stage: Stage, tmp_path: Path) -> None:
    stage.pod("other", "main")
    web = stage.runtime.containers[0]
    stage.runtime.stats = [stats_of(container.id) for container in stage.runtime.containers]
    stage.files.write("logs/ns_web_web-uid/main/0.log", "x" * 5000)
    provider = stage.provider()
    limited = make_pod("web-uid", limits=amounts(disk="1Gi"))
    measured = await StatsUsageSource(lambda: provider).measure_node([limited, make_pod("other-uid")])
    assert web.metadata.name == "main"
    assert measured.pods["other-uid"] == PodUsage()
    found = measured.pods["web-uid"]
    assert found.containers["main"].rootfs == FsUsage(bytes=8192, inodes=3)
    assert found.containers["main"].logs == FsUsage(bytes=8192, inodes=1)
    assert found.ephemeral == 8192 * 3
    assert not measured.complete


async def test_where_images_are_is_asked_now_and_then(stage: Stage, mock_clock: MockClock) -> None:
    provider = stage.provider()
    source = StatsUsageSource(lambda: provider)
    stage.runtime.calls.clear()
    for _ in range(12):
        assert S.IMAGE_FS in (await source.measure_node([])).observations
        mock_clock.jump(10)
    assert stage.runtime.calls == ["ImageFsInfo"] * 2
    stage.runtime.failing.add("ImageFsInfo")
    mock_clock.jump(60)
    assert S.IMAGE_FS in (await source.measure_node([])).observations


async def test_the_memory_of_one_pod(stage: Stage) -> None:
    source = StatsUsageSource(stage.provider)
    found = await source.pod_memory(make_pod("web-uid"))
    assert found == PodMemoryUsage(pod=2_000_000, containers={"main": 1_000_000, "side": 1_000_000})


async def test_the_memory_of_a_pod_that_does_not_run() -> None:
    source = StatsUsageSource(lambda: FakeStatistics([collection(at=trio.current_time() + 1)]))
    with pytest.raises(UsageError, match="expected the memory usage of pod other_ns"):
        await source.pod_memory(make_pod("other"))
