"""What the rest of the agent sees of cgroups: a driver for single groups, and the groups of pods.

A driver knows one way to make and fill a group (files of v1, files of v2, systemd) and nothing of pods. `PodCgroups` is
what pods are synced with; where the agent may not or shall not write cgroups, `NoPodCgroups` takes its place and
everything else stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.settings import CgroupReading, CgroupSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Pod
    from trikubelet.cgroups.names import CgroupName

__all__ = ["CgroupDriver", "CgroupError", "CgroupReading", "CgroupSettings", "PodCgroups"]


class CgroupDriver(Protocol):
    """One way to work with cgroups.

    Every method may take as long as the kernel does, is cancellable, and raises CgroupError; what was begun when it is
    cancelled may still happen.
    """

    @property
    def version(self) -> Literal[1, 2]: ...

    def literal(self, name: CgroupName) -> str:
        """The path from the root of the hierarchies: what CRI calls `cgroup_parent`. Raises CgroupNameError."""
        ...

    def name_of(self, literal: str) -> CgroupName:
        """The name of a path as a configuration gives it."""
        ...

    async def missing(self, name: CgroupName) -> list[str]:
        """What a complete group would need: folders in v1, controllers in v2; empty when it exists."""
        ...

    async def exists(self, name: CgroupName) -> bool:
        """Whether the group is there in every hierarchy that counts (kubelet: `Exists`)."""
        ...

    async def create(self, name: CgroupName, settings: CgroupSettings) -> None:
        """Make the group and those above it, then set it. A group that is there, whole or in part, is completed."""
        ...

    async def make(self, name: CgroupName, settings: CgroupSettings, owner: str = "") -> bool:
        """`create` the group unless it exists, in which case its limits stay. True: made just now.

        Marks a group that has no mark as `owner`'s, which is empty where groups get none.
        """
        ...

    async def mark(self, name: CgroupName, owner: str) -> None:
        """Write the owner's mark on the group in each hierarchy. Where no mark can be written, the log says so."""
        ...

    async def marks(self, names: Sequence[CgroupName]) -> dict[CgroupName, frozenset[str]]:
        """The owners' marks on each of these groups that is there in any hierarchy."""
        ...

    async def update(self, name: CgroupName, settings: CgroupSettings) -> None:
        """Set a group that exists. Raises MemoryInUseError where the kernel refuses a memory limit for that."""
        ...

    async def read(self, name: CgroupName) -> CgroupReading: ...

    async def children(self, name: CgroupName) -> list[CgroupName]:
        """The groups directly below that this driver's names can tell, in any hierarchy; none where there is none."""
        ...

    async def kill(self, name: CgroupName) -> None:
        """SIGKILL everything inside and below, and wait until it is gone. Raises CgroupBusyError for what stays."""
        ...

    async def remove(self, name: CgroupName) -> None:
        """Delete the group and those below it in every hierarchy, those made by others too. One that is gone is no
        error; raises CgroupBusyError where something keeps it for longer than a few seconds."""
        ...

    async def discard(self, name: CgroupName) -> None:
        """Delete the group where nothing is in it; one that holds groups or processes stays."""
        ...

    async def processes(self, name: CgroupName) -> list[int]:
        """Pids of everything in the group and below it, in any hierarchy."""
        ...


class PodCgroups(Protocol):
    """The groups of pods. Methods raise CgroupError."""

    def parent_of(self, pod: Pod) -> str:
        """The path of the pod's group for CRI; empty: the runtime's own choice."""
        ...

    async def exists(self, pod: Pod) -> bool:
        """Whether the pod's group is there; True where pods have none."""
        ...

    async def ensure(self, pod: Pod) -> bool:
        """Make the pod's group where it is not there. True: made just now. `pod` is the pod as allocated."""
        ...

    async def read(self, pod: Pod) -> CgroupReading | None:
        """What the pod's group says; None where there is none."""
        ...

    async def set(self, pod: Pod, settings: CgroupSettings) -> None:
        """Change the pod's group: a resize. What `settings` leaves out stays."""
        ...

    async def release(self, uid: str) -> None:
        """Kill what is left in the pod's group and delete it, wherever it may be. A group of another owner stays."""
        ...

    async def found(self) -> dict[str, CgroupName]:
        """The groups of this agent's pods that are there, by uid: those of others are not among them."""
        ...

    async def throttle(self, uid: str) -> None:
        """Leave a pod that should be gone the smallest share of the processors."""
        ...

    def pods_changed(self) -> None:
        """Pods came, went or were resized: their classes' groups follow soon. Never blocks."""
        ...
