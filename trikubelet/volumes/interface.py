"""What the rest of the agent asks of the owner of pods' volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from trio_typing import TaskStatus

    from trikubelet.api import Pod
    from trikubelet.broadcast import Broadcast
    from trikubelet.volumes.model import MountedVolume, VolumeUsage
    from trikubelet.volumes.waits import VolumeWait


class PodVolumes(Protocol):
    """Implemented by `manager.VolumeManager`, on a simulated node by `sim.memory.MemoryMounts`."""

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Set up, refresh and take down until cancelled. Started when what is on disk is known."""
        ...

    def of_pod(self, uid: str, nursery: trio.Nursery) -> AbstractContextManager[None]:
        """Within, what is done to volumes for this pod alone runs in its nursery."""
        ...

    async def prepare(self, pod: Pod) -> None:
        """Return once the pod's folders and all volumes that its containers mount are there.

        Free when they are. Raises VolumesNotReadyError, after two minutes at the latest. When cancelled the volumes
        stay wanted, and the work on them goes on.
        """
        ...

    def refresh(self, pod: Pod) -> None:
        """The pod is synced: what its volumes show may be older than the pod. Never waits."""
        ...

    async def release(self, uid: str) -> None:
        """Return once everything of a pod whose containers have ended is unmounted, and its folders are gone.

        Fine when there is nothing. Raises VolumeError, StillMountedError and OSError; the next call goes on.
        """
        ...

    async def remove(self, uid: str) -> None:
        """The same for a pod that is known from the disk only."""
        ...

    async def pod_uids(self) -> set[str]:
        """The UIDs of all pods that have a folder."""
        ...

    def waits(self, uid: str) -> tuple[VolumeWait, ...]:
        """What of the pod's volumes is not there yet, or, when the pod has been released, is still there."""
        ...

    def mounted(self, pod: Pod, volume_name: str) -> MountedVolume | None:
        """None when the pod has no such volume or it is not there yet."""
        ...

    def host_path(self, pod: Pod, volume_name: str) -> Path | None:
        """The path of `mounted`."""
        ...

    async def bind_subpath(self, pod: Pod, container: str, index: int, volume_name: str, sub_path: str) -> Path:
        """What a container gets to mount for its volume mount number `index`: something in the volume, bound to a place
        that the pod cannot change. Made as a folder when missing. Raises OSError or ValueError."""
        ...

    def supplemental_groups(self, pod: Pod) -> tuple[int, ...]:
        """Groups that its persistent volumes want its containers in."""
        ...

    def in_use(self) -> tuple[str, ...] | None:
        """`node.status.volumesInUse`, sorted; None while it is not known."""
        ...

    @property
    def pod_changes(self) -> Broadcast[str]:
        """UIDs of pods: a volume that the pod waits for is there, or has failed."""
        ...

    async def usage(self, uid: str) -> Mapping[str, VolumeUsage]:
        """By the name in the pod. Never walks a tree itself: as last measured."""
        ...
