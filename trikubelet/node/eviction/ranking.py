"""In which order pods are ended when the node is short of something (kubelet: `rankMemoryPressure` and its like). Pure.

First those that use more than they requested, then the less important ones, then those that use most beyond their
request. A pod of which nothing is known comes before all those with which it is compared by usage. Equal pods keep
their order, where the kubelet leaves it to chance.

What counts as usage of a disk depends on which disk it is, and on what else lies on it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from trikubelet.api.pod_resources import pod_requests
from trikubelet.config.eviction_values import IMAGE_FS_SIGNALS, INODES, MEMORY, NODE_FS_SIGNALS, STORAGE, Layout, Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.api import Pod, Volume
    from trikubelet.node.eviction.model import FsUsage, PodUsage

Key = tuple[int, ...]
"""Pods with smaller ones are ended first."""

_NANO: Final = 1_000_000_000


class Part(enum.Enum):
    """What of a pod lies on a disk (kubelet: `fsStatsType`)."""

    ROOT = "containers' writable layers"
    LOGS = "containers' logs"
    VOLUMES = "local volumes"


def measured_parts(signal: Signal, layout: Layout) -> frozenset[Part]:
    """What pods have on the file system of a signal (kubelet: `buildSignalToRankFunc`)."""
    if layout is Layout.SINGLE:
        return frozenset(Part)
    if layout is Layout.DEDICATED:
        return frozenset({Part.LOGS, Part.VOLUMES}) if signal in NODE_FS_SIGNALS else frozenset({Part.ROOT})
    return frozenset() if signal in IMAGE_FS_SIGNALS else frozenset(Part)


def rank(signal: Signal, pods: Iterable[Pod], usage: Mapping[str, PodUsage], layout: Layout) -> list[Pod]:
    """The pods, the first to be ended first. `usage`: by UID."""

    def key(pod: Pod) -> Key:
        used = usage.get(pod.metadata.uid)
        match signal.resource:
            case "memory":
                return _by_memory(pod, used)
            case "pids":
                return _by_processes(pod, used)
            case resource:
                return _by_disk(pod, used, resource, measured_parts(signal, layout))

    return sorted(pods, key=key)


def priority(pod: Pod) -> int:
    """Of a pod without one: that of a cluster that has no priority classes."""
    return pod.spec.priority or 0


def _by_memory(pod: Pod, usage: PodUsage | None) -> Key:
    if usage is None:
        return (0, priority(pod))
    beyond = (usage.memory_working_set or 0) * _NANO - _request(pod, MEMORY)
    return (1 if beyond > 0 else 2, priority(pod), -beyond)


def _by_processes(pod: Pod, usage: PodUsage | None) -> Key:
    if usage is None:
        return (priority(pod), 0)
    return (priority(pod), 1, -(usage.processes or 0))


def _by_disk(pod: Pod, usage: PodUsage | None, resource: str, parts: frozenset[Part]) -> Key:
    """Inodes cannot be requested, so each pod that has one uses more than its request. The request of storage is
    subtracted from them, as the kubelet does."""
    if usage is None:
        return (0, priority(pod))
    used = disk_usage(pod, usage, resource, parts) * _NANO
    exceeds = used > _request(pod, resource)
    return (1 if exceeds else 2, priority(pod), _request(pod, STORAGE) - used)


def disk_usage(pod: Pod, usage: PodUsage, resource: str, parts: frozenset[Part]) -> int:
    """Bytes or inodes that a pod has on some file system."""
    counted = _inodes if resource == INODES else _bytes
    found: list[FsUsage] = []
    for container in usage.containers.values():
        if Part.ROOT in parts:
            found.append(container.rootfs)
        if Part.LOGS in parts:
            found.append(container.logs)
    if Part.VOLUMES in parts:
        local = (volume.name for volume in pod.spec.volumes if is_local(volume))
        found += (usage.volumes[name] for name in local if name in usage.volumes)
    return sum(map(counted, found))


def is_local(volume: Volume) -> bool:
    """Whether a volume lies on the node's own disk (`localVolumeNames`)."""
    return (
        volume.host_path is not None
        or volume.config_map is not None
        or volume.git_repo is not None
        or (volume.empty_dir is not None and not volume.empty_dir.medium)
    )


def _bytes(usage: FsUsage) -> int:
    return usage.bytes or 0


def _inodes(usage: FsUsage) -> int:
    return usage.inodes or 0


def _request(pod: Pod, resource: str) -> int:
    """In nanos, overhead included."""
    amount = pod_requests(pod).get(resource)
    return 0 if amount is None else amount.nanos
