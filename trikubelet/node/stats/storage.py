"""What pods use of disks, added up (kubelet: `volume_stat_calculator.go`, `calcEphemeralStorage`). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.formats.values import frozen
from trikubelet.node.stats.model import ContainerStats, FsStats, PvcRef, VolumeStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.api import Pod, Volume
    from trikubelet.volumes.model import VolumeUsage


@frozen(kw_only=True)
class PodVolumeStats:
    """The volumes of one pod that were measured. Only the ephemeral ones count against the node's disk."""

    ephemeral: tuple[VolumeStats, ...] = ()
    persistent: tuple[VolumeStats, ...] = ()


def pod_volume_stats(pod: Pod, usage: Mapping[str, VolumeUsage]) -> PodVolumeStats:
    """`usage`: by the volume's name in the pod. What a kind of volume does not tell counts as 0."""
    ephemeral: list[VolumeStats] = []
    persistent: list[VolumeStats] = []
    for volume in pod.spec.volumes:
        measured = usage.get(volume.name)
        if measured is not None:
            stats = _volume_stats(pod, volume, measured)
            (ephemeral if _is_local(volume) else persistent).append(stats)
    return PodVolumeStats(ephemeral=tuple(ephemeral), persistent=tuple(persistent))


def ephemeral_storage(
    node: FsStats,
    containers: Iterable[ContainerStats],
    volumes: Iterable[VolumeStats],
    others: Iterable[FsStats | None],
) -> FsStats:
    """All that a pod uses of the node's disk. `node`: the file system; `others`: the pod's own logs and files."""
    total = FsStats(
        time=node.time,
        available_bytes=node.available_bytes,
        capacity_bytes=node.capacity_bytes,
        inodes_free=node.inodes_free,
        inodes=node.inodes,
    )
    parts: list[FsStats | None] = []
    for container in containers:
        parts += (container.rootfs, container.logs)
    for part in (*parts, *volumes, *others):
        if part is not None:
            total = attrs.evolve(
                total,
                time=max((time for time in (total.time, part.time) if time is not None), default=None),
                used_bytes=added(total.used_bytes, part.used_bytes),
                inodes_used=added(total.inodes_used, part.inodes_used),
            )
    return total


def added(first: int | None, second: int | None) -> int | None:
    """The sum of what is known."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _volume_stats(pod: Pod, volume: Volume, usage: VolumeUsage) -> VolumeStats:
    return VolumeStats(
        time=int(usage.at.timestamp() * 1_000_000) * 1000,
        name=volume.name,
        pvc_ref=_claim(pod, volume),
        available_bytes=usage.available or 0,
        capacity_bytes=usage.capacity or 0,
        used_bytes=usage.used or 0,
        inodes=usage.inodes or 0,
        inodes_free=usage.inodes_free or 0,
        inodes_used=usage.inodes_used or 0,
    )


def _claim(pod: Pod, volume: Volume) -> PvcRef | None:
    if volume.persistent_volume_claim is not None:
        return PvcRef(name=volume.persistent_volume_claim.claim_name, namespace=pod.metadata.namespace)
    if volume.ephemeral is not None:
        return PvcRef(name=f"{pod.metadata.name}-{volume.name}", namespace=pod.metadata.namespace)
    return None


def _is_local(volume: Volume) -> bool:
    """On the node's own disk (kubelet: `IsLocalEphemeralVolume`); what is in memory counts as memory."""
    on_disk = volume.empty_dir is not None and not volume.empty_dir.medium
    return on_disk or volume.config_map is not None or volume.git_repo is not None
