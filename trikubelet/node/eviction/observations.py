"""What a summary of the node says about its resources and pods (kubelet: `makeSignalObservations`). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.config.eviction_values import Signal
from trikubelet.node.eviction.model import NOTHING_USED, ContainerUsage, FsUsage, Observation, PodMemoryUsage, PodUsage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trikubelet.node.stats.model import FsStats, MemoryStats, NodeStats, PodStats, Summary, VolumeStats

_NANO: Final = 1_000_000_000
_PODS: Final = "pods"
"""The name under which a summary has the group of all pods."""


def observe(summary: Summary) -> dict[Signal, Observation]:
    """How much there is of each resource; what the summary does not tell is left out."""
    return dict(_observations(summary.node))


def _observations(node: NodeStats) -> Iterator[tuple[Signal, Observation]]:
    memory = _of_memory(node.memory)
    if memory is not None:
        yield Signal.MEMORY, memory
    for group in node.system_containers:
        of_pods = _of_memory(group.memory) if group.name == _PODS else None
        if of_pods is not None:
            yield Signal.ALLOCATABLE_MEMORY, of_pods
    yield from _of_file_system(node.fs, Signal.NODE_FS, Signal.NODE_FS_INODES)
    if node.runtime is not None:
        yield from _of_file_system(node.runtime.image_fs, Signal.IMAGE_FS, Signal.IMAGE_FS_INODES)
        yield from _of_file_system(node.runtime.container_fs, Signal.CONTAINER_FS, Signal.CONTAINER_FS_INODES)
    limit = node.rlimit
    if limit is not None and limit.maxpid is not None and limit.curproc is not None:
        available = limit.maxpid - limit.curproc
        yield Signal.PIDS, Observation(available=available, capacity=limit.maxpid, at=_seconds(limit.time))


def usage_by_pod(summary: Summary) -> dict[str, PodUsage]:
    """What each pod uses, by UID."""
    return {pod.pod_ref.uid: _usage_of(pod) for pod in summary.pods}


def memory_of_pod(summary: Summary, uid: str) -> PodMemoryUsage | None:
    """All memory that a pod has in use; None for a pod that the summary does not have."""
    for pod in summary.pods:
        if pod.pod_ref.uid == uid:
            return PodMemoryUsage(
                pod=None if pod.memory is None else pod.memory.usage_bytes,
                containers={
                    container.name: container.memory.usage_bytes
                    for container in pod.containers
                    if container.memory is not None and container.memory.usage_bytes is not None
                },
            )
    return None


def _of_memory(memory: MemoryStats | None) -> Observation | None:
    """Without a limit nothing can be said: there is no end to what is available."""
    if memory is None or memory.available_bytes is None or memory.working_set_bytes is None:
        return None
    return Observation(
        available=memory.available_bytes,
        capacity=memory.available_bytes + memory.working_set_bytes,
        at=_seconds(memory.time),
        used=memory.usage_bytes,
    )


def _of_file_system(fs: FsStats | None, space: Signal, inodes: Signal) -> Iterator[tuple[Signal, Observation]]:
    if fs is None:
        return
    if fs.available_bytes is not None and fs.capacity_bytes is not None:
        yield space, Observation(available=fs.available_bytes, capacity=fs.capacity_bytes, at=_seconds(fs.time))
    if fs.inodes_free is not None and fs.inodes is not None:
        yield inodes, Observation(available=fs.inodes_free, capacity=fs.inodes, at=_seconds(fs.time))


def _usage_of(pod: PodStats) -> PodUsage:
    memory, processes, ephemeral = pod.memory, pod.process_stats, pod.ephemeral_storage
    return PodUsage(
        memory_working_set=None if memory is None else memory.working_set_bytes,
        memory_usage=None if memory is None else memory.usage_bytes,
        processes=None if processes is None else processes.process_count,
        containers={
            container.name: ContainerUsage(
                memory_working_set=None if container.memory is None else container.memory.working_set_bytes,
                rootfs=_fs_usage(container.rootfs),
                logs=_fs_usage(container.logs),
            )
            for container in pod.containers
        },
        volumes=usage_of_volumes(pod.volume),
        ephemeral=None if ephemeral is None else ephemeral.used_bytes,
    )


def usage_of_volumes(volumes: Iterable[VolumeStats]) -> dict[str, FsUsage]:
    """By name in the pod."""
    return {volume.name: _fs_usage(volume) for volume in volumes}


def _fs_usage(fs: FsStats | None) -> FsUsage:
    return NOTHING_USED if fs is None else FsUsage(bytes=fs.used_bytes, inodes=fs.inodes_used)


def _seconds(nanoseconds: int | None) -> float | None:
    """An unknown time is 0 on the wire, and None here."""
    return nanoseconds / _NANO if nanoseconds else None
