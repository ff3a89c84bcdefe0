"""What a summary of the node says."""

from __future__ import annotations

from trikubelet.config.eviction_values import Signal
from trikubelet.node.eviction.model import ContainerUsage, FsUsage, Observation, PodMemoryUsage, PodUsage
from trikubelet.node.eviction.observations import memory_of_pod, observe, usage_by_pod
from trikubelet.node.stats.model import (
    ContainerStats,
    FsStats,
    MemoryStats,
    NodeStats,
    PodRef,
    PodStats,
    ProcessStats,
    RlimitStats,
    RuntimeStats,
    Summary,
    VolumeStats,
)

GIB = 2**30
AT = 1_700_000_000_500_000_000


def memory(available: int | None = None, working_set: int | None = None, usage: int | None = None) -> MemoryStats:
    return MemoryStats(time=AT, available_bytes=available, working_set_bytes=working_set, usage_bytes=usage)


def file_system(available: int, capacity: int, free: int, inodes: int) -> FsStats:
    return FsStats(time=AT, available_bytes=available, capacity_bytes=capacity, inodes_free=free, inodes=inodes)


def test_every_signal_is_observed() -> None:
    node = NodeStats(
        node_name="n",
        memory=memory(GIB, 2 * GIB, 3 * GIB),
        system_containers=(
            ContainerStats(name="pods", memory=memory(4 * GIB, GIB, GIB)),
            ContainerStats(name="kubelet", memory=memory(1, 1, 1)),
        ),
        fs=file_system(1024, 2048, 10, 20),
        runtime=RuntimeStats(image_fs=file_system(3, 4, 5, 6), container_fs=file_system(7, 8, 9, 10)),
        rlimit=RlimitStats(time=AT, maxpid=255816, curproc=1000),
    )
    at = 1_700_000_000.5
    assert observe(Summary(node=node)) == {
        Signal.MEMORY: Observation(available=GIB, capacity=3 * GIB, at=at, used=3 * GIB),
        Signal.ALLOCATABLE_MEMORY: Observation(available=4 * GIB, capacity=5 * GIB, at=at, used=GIB),
        Signal.NODE_FS: Observation(available=1024, capacity=2048, at=at),
        Signal.NODE_FS_INODES: Observation(available=10, capacity=20, at=at),
        Signal.IMAGE_FS: Observation(available=3, capacity=4, at=at),
        Signal.IMAGE_FS_INODES: Observation(available=5, capacity=6, at=at),
        Signal.CONTAINER_FS: Observation(available=7, capacity=8, at=at),
        Signal.CONTAINER_FS_INODES: Observation(available=9, capacity=10, at=at),
        Signal.PIDS: Observation(available=254816, capacity=255816, at=at),
    }


def test_what_is_not_told_is_not_observed() -> None:
    node = NodeStats(
        node_name="n",
        memory=memory(working_set=GIB),
        system_containers=(ContainerStats(name="pods", memory=memory(working_set=GIB)),),
        fs=FsStats(time=AT, available_bytes=1, inodes_free=1),
        runtime=RuntimeStats(image_fs=FsStats(used_bytes=7)),
        rlimit=RlimitStats(time=AT, maxpid=1),
    )
    assert observe(Summary(node=node)) == {}
    assert observe(Summary(node=NodeStats(node_name="n"))) == {}


def test_a_time_that_nobody_noted_is_none() -> None:
    node = NodeStats(node_name="n", fs=FsStats(time=0, available_bytes=1, capacity_bytes=2))
    assert observe(Summary(node=node))[Signal.NODE_FS].at is None


FULL = PodStats(
    pod_ref=PodRef(name="p", namespace="ns", uid="full"),
    memory=memory(working_set=5, usage=6),
    process_stats=ProcessStats(process_count=7),
    containers=(
        ContainerStats(
            name="b",
            memory=memory(working_set=1, usage=2),
            rootfs=FsStats(used_bytes=10, inodes_used=11),
            logs=FsStats(used_bytes=12, inodes_used=13),
        ),
        ContainerStats(name="a"),
    ),
    volume=(VolumeStats(name="v", used_bytes=20, inodes_used=21),),
    ephemeral_storage=FsStats(used_bytes=42),
)
BARE = PodStats(pod_ref=PodRef(name="q", namespace="ns", uid="bare"))
SUMMARY = Summary(node=NodeStats(node_name="n"), pods=(FULL, BARE))


def test_usage_of_pods() -> None:
    found = usage_by_pod(SUMMARY)
    assert found == {
        "full": PodUsage(
            memory_working_set=5,
            memory_usage=6,
            processes=7,
            containers={
                "b": ContainerUsage(
                    memory_working_set=1, rootfs=FsUsage(bytes=10, inodes=11), logs=FsUsage(bytes=12, inodes=13)
                ),
                "a": ContainerUsage(),
            },
            volumes={"v": FsUsage(bytes=20, inodes=21)},
            ephemeral=42,
        ),
        "bare": PodUsage(),
    }
    assert list(found["full"].containers) == ["b", "a"]


def test_memory_of_one_pod() -> None:
    assert memory_of_pod(SUMMARY, "full") == PodMemoryUsage(pod=6, containers={"b": 2})
    assert memory_of_pod(SUMMARY, "bare") == PodMemoryUsage()
    assert memory_of_pod(SUMMARY, "other") is None
