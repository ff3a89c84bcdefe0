"""Which SELinux label a volume is mounted with (`mount -o context=`), so that nobody has to relabel its files.

That can be done when the label is known before the containers start, is the same for all of them, and the driver says
that its volumes can be mounted so. All pods of this node that use a volume have to agree on it. For now only volumes
with the access mode ReadWriteOncePod are, until the gate `SELinuxMount` is on; of others is only counted how often it
would not go well then (KEP-1710; kubelet: `GetMountSELinuxLabel`, `desiredStateOfWorld.AddPodToVolume`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from trikubelet.api.persistent_volumes import (
    READ_ONLY_MANY,
    READ_WRITE_MANY,
    READ_WRITE_ONCE,
    READ_WRITE_ONCE_POD,
)
from trikubelet.api.security_context import effective_security_context
from trikubelet.linux.selinux import LabelError
from trikubelet.volumes.desired import csi_driver_of
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.model import MountLabel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trikubelet.api import Pod, SELinuxOptions
    from trikubelet.linux.selinux import ContainerLabels
    from trikubelet.volumes.kinds.protocol import VolumeKind
    from trikubelet.volumes.model import VolumeSpec

GATE: Final = "SELinuxMount"
RECURSIVE: Final = "Recursive"
CONTAINERS: Final = "container"
PODS: Final = "pod_context_mismatch"
VOLUMES: Final = "volume_context_mismatch"
_MODES: Final = ((READ_WRITE_MANY, "RWX"), (READ_ONLY_MANY, "ROX"), (READ_WRITE_ONCE, "RWO"))


class MountLabels:
    """Decides, and counts how that went. `labels` is None where SELinux is off; `every_mode`: the gate."""

    def __init__(self, labels: ContainerLabels | None = None, *, every_mode: bool = False) -> None:
        self._labels = labels
        self._every_mode = every_mode
        self.admitted: Counter[tuple[str, str]] = Counter()
        """Volumes with a label, by plugin and access mode."""
        self.errors: Mapping[str, Counter[tuple[str, ...]]] = {what: Counter() for what in (CONTAINERS, PODS, VOLUMES)}
        """By what did not go well, then by access mode; for VOLUMES by plugin and access mode."""
        self.warnings: Mapping[str, Counter[tuple[str, ...]]] = {what: Counter() for what in self.errors}
        """The same for volumes that are not mounted with labels anyway."""

    @property
    def selinux(self) -> bool:
        """Whether the machine has it on."""
        return self._labels is not None

    def of(
        self, pod: Pod, spec: VolumeSpec, kind: VolumeKind, others: MountLabel | None, *, has: str | None = None
    ) -> MountLabel:
        """`others`: what a pod that came earlier has agreed to; None when no pod wants the volume. `has`: what it is
        mounted with for this pod, by an earlier agent. Raises VolumeError for a pod that cannot have it."""
        if self._labels is None:
            return MountLabel()
        if has is not None and self._uses_labels(spec):
            return MountLabel(has, has)
        can_be_mounted = kind.takes_mount_label(spec)
        try:
            found = {self._labels.of_files(options) for options in container_options(pod, spec.name)}
        except LabelError as error:
            self._mismatch(CONTAINERS, spec, f"failed to construct SELinux label: {error}")
            found = set()
        if len(found) > 1:
            self._mismatch(PODS, spec, f"multiple SELinux labels found: {','.join(sorted(found))}")
            found, can_be_mounted = set(), False
        security = pod.spec.security_context
        recursive = security is not None and security.se_linux_change_policy == RECURSIVE
        known = found.pop() if found and can_be_mounted and not recursive else ""
        if others is None and known:
            self.admitted[_plugin(spec), access_mode(spec)] += 1
        if others is not None and can_be_mounted and others.known != known:
            problem = f'conflicting SELinux labels of volume {spec.inner_name}: "{others.known}" and "{known}"'
            self._mismatch(VOLUMES, spec, problem)
        return MountLabel(known, known if self._uses_labels(spec) else "")

    def _uses_labels(self, spec: VolumeSpec) -> bool:
        """Kubelet: `VolumeSupportsSELinuxMount`."""
        if spec.persistent is None:
            return False
        return self._every_mode or spec.persistent.spec.access_modes == (READ_WRITE_ONCE_POD,)

    def _mismatch(self, what: str, spec: VolumeSpec, problem: str) -> None:
        uses = self._uses_labels(spec)
        mode = access_mode(spec)
        counted = (self.errors if uses else self.warnings)[what]
        counted[(_plugin(spec), mode) if what == VOLUMES else (mode,)] += 1
        if uses:
            raise VolumeError(spec.name, problem)


def container_options(pod: Pod, volume_name: str) -> Iterator[SELinuxOptions]:
    """What the containers that mount the volume ask for; nothing for one that does not ask."""
    for container in (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers):
        options = effective_security_context(pod, container).se_linux_options
        if options is not None and any(mount.name == volume_name for mount in container.volume_mounts):
            yield options


def access_mode(spec: VolumeSpec) -> str:
    """For metrics: the widest mode, `inline` for a pod's own volume."""
    if spec.persistent is None:
        return "inline"
    modes = spec.persistent.spec.access_modes
    return next((short for mode, short in _MODES if mode in modes), "RWOP" if READ_WRITE_ONCE_POD in modes else "")


def _plugin(spec: VolumeSpec) -> str:
    """With the driver's name, as unique names of volumes have it."""
    driver = csi_driver_of(spec)
    return spec.plugin if driver is None else f"{spec.plugin}/{driver}"


def mount_option(label: str) -> str:
    """In quotes, since levels have commas."""
    quoted = label.replace("\\", "\\\\").replace('"', '\\"')
    return f'context="{quoted}"'
