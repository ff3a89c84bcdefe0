"""What the volume manager asks of a kind of volume (kubelet: `VolumePlugin` and its relatives).

A kind keeps nothing of a volume: what it set up, it can take down from the disk alone, also after a restart of the
agent. It never asks for what takes long on the event loop (`disk.Disk`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trikubelet.formats.values import frozen
from trikubelet.volumes.errors import TransientVolumeError, VolumeError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trikubelet.api import PersistentVolumeSpec, Quantity, Volume
    from trikubelet.volumes.model import MountedVolume, SetUpRequest, VolumeSpec, VolumeUsage


class VolumeKind(Protocol):
    """A kind. Its calls may be cancelled; then what they were at is uncertain."""

    @property
    def plugin(self) -> str:
        """For example `kubernetes.io/secret`."""
        ...

    @property
    def staged(self) -> bool:
        """Whether a volume is made ready for the node once (`stage`), before it is set up for each pod."""
        ...

    @property
    def takes_mount_options(self) -> bool:
        """Whether a persistent volume of the kind may have `mountOptions`."""
        ...

    @property
    def grows_on_node(self) -> bool:
        """Whether file systems of a kind that can grow do so on the node (kubelet: `RequiresFSResize`). False: its
        controller does all of it, and nobody is told anything here."""
        ...

    def refreshes(self, spec: VolumeSpec) -> bool:
        """Whether what it shows may change while a pod uses it: then it is set up again with each sync of the pod."""
        ...

    def unique_name(self, spec: VolumeSpec, uid: str) -> str:
        """The same for two pods only if they share the volume, and what is done for one waits for the other."""
        ...

    def path(self, uid: str, inner_name: str, *, block: bool = False) -> Path:
        """Where the volume is for a pod; for hostPath-like kinds where its folder would be. Raises ValueError."""
        ...

    def attachable(self, spec: VolumeSpec) -> bool:
        """Whether a controller has to attach it to the node first. Raises VolumeError while that is unknown."""
        ...

    def takes_mount_label(self, spec: VolumeSpec) -> bool:
        """Whether all of its files can get a SELinux label by a mount option (kubelet: `SupportsSELinuxContextMount`).
        Raises VolumeError while that is not known."""
        ...

    async def stage(self, request: SetUpRequest) -> Path | None:
        """Make the volume ready for the node; idempotent. Returns where. Raises VolumeError."""
        ...

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        """Make it ready for the pod; idempotent. Raises VolumeError."""
        ...

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        """Undo `set_up`; idempotent, from what is on disk. Raises VolumeError."""
        ...

    async def unstage(self, unique_name: str, spec: VolumeSpec) -> None:
        """Undo `stage`, after the last pod; idempotent. Raises VolumeError."""
        ...

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        """What an earlier agent set up there; None when nothing is. Raises VolumeError when that is unknown."""
        ...

    async def staged_volumes(self) -> list[VolumeSpec]:
        """What is staged by what the disk shows, also without any pod. Raises VolumeError, OSError and ValueError."""
        ...

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        """None when the kind cannot tell. Raises VolumeError."""
        ...

    async def expand(self, request: SetUpRequest, new_size: Quantity) -> None:
        """Let the file system of a volume that has grown take its size. Raises VolumeError, NotExpandedError for one
        with a reason that matters."""
        ...


@frozen
class Kinds:
    """All kinds of this agent. Those of flexVolume drivers come and go."""

    by_plugin: dict[str, VolumeKind]

    @classmethod
    def of(cls, kinds: Iterable[VolumeKind]) -> Kinds:
        return cls({kind.plugin: kind for kind in kinds})

    def find(self, spec: VolumeSpec) -> VolumeKind:
        """Raises VolumeError for a kind that this agent does not have, a transient one where it may come."""
        kind = self.by_plugin.get(spec.plugin)
        if kind is None:
            is_flex = any(one is not None and one.flex_volume is not None for one in _sources(spec))
            hint = "put its flexVolume driver into volumePluginDir, or use" if is_flex else "use"
            raise (TransientVolumeError if is_flex else VolumeError)(
                spec.name,
                f"expected a kind of volume that this agent has ({', '.join(sorted(self.by_plugin))}), "
                f"got {spec.plugin}: no volume plugin matched; {hint} a CSI driver for it",
            )
        return kind

    def add(self, kind: VolumeKind) -> None:
        self.by_plugin[kind.plugin] = kind

    def remove(self, plugin: str) -> None:
        del self.by_plugin[plugin]


def _sources(spec: VolumeSpec) -> tuple[Volume | PersistentVolumeSpec | None, ...]:
    return spec.volume, None if spec.persistent is None else spec.persistent.spec
