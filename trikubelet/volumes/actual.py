"""What there is of a volume on the node: whether it is attached, staged, and mounted for which pods. Pure.

Everything that may be there is in here, also what is uncertain: an operation that ended without a clear answer, or
what an earlier agent left on disk. What is uncertain is not given to containers, and it is taken down like what is sure
to be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from trikubelet.api import Quantity
from trikubelet.formats.values import frozen
from trikubelet.volumes.model import MountedVolume, Presence, VolumeSpec


@frozen(kw_only=True)
class PodMount:
    """A volume set up for one pod, surely or perhaps."""

    presence: Presence
    """Never ABSENT: then there is no PodMount."""
    spec: VolumeSpec
    mounted: MountedVolume | None = None
    """What the kind said when it last set it up."""
    inherited: bool = False
    """Something was there before this agent tried, from an earlier one or from half a tear-down: that setting it up
    failed for good does not mean that nothing is there."""
    shown: int = 0
    """Up to which `Wanted.request` it is up to date."""
    began: float = 0.0
    """Trio time at which it was last made up to date."""
    refresh_due: float | None = None
    """Trio time at which its content has to be renewed."""


@frozen(kw_only=True)
class ActualVolume:
    """One volume, by its unique name, with all pods that have it."""

    attached: bool = False
    """A controller has attached it to this node. Only for volumes that need it."""
    device_path: str = ""
    staged: Presence = Presence.ABSENT
    staged_spec: VolumeSpec | None = None
    """What was staged, for it to be undone."""
    staging_path: Path | None = None
    staging_inherited: bool = False
    """As `PodMount.inherited`."""
    mounts: Mapping[str, PodMount] = attrs.field(factory=dict)
    """By the pod's UID."""
    size: Quantity | None = None
    """What the file system is known to have; None for volumes that do not grow."""
    stays: bool = False
    """Its driver does not grow it while it is on the node."""
    refused: bool = False
    """Its driver has failed for good to grow it."""
    label: str | None = None
    """The SELinux label that it is mounted with, all over the node; None while nothing is there, or that is unknown."""

    @property
    def is_nothing(self) -> bool:
        """Nothing of the volume is on this node."""
        return not self.mounts and self.staged is Presence.ABSENT

    def is_present(self, uid: str) -> bool:
        """Whether containers of the pod may use it."""
        mount = self.mounts.get(uid)
        return mount is not None and mount.presence is Presence.PRESENT

    def is_elsewhere(self, uid: str) -> bool:
        """Whether another pod has it, surely or perhaps."""
        return any(other != uid for other in self.mounts)

    def with_mount(self, uid: str, mount: PodMount) -> ActualVolume:
        return attrs.evolve(self, mounts={**self.mounts, uid: mount})

    def without_mount(self, uid: str) -> ActualVolume:
        return attrs.evolve(self, mounts={other: mount for other, mount in self.mounts.items() if other != uid})
