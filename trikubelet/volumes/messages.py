"""What users read when an operation on a volume fails: the kubelet's reasons and texts. Pure.

People search for these words, so they are the same here: `MountVolume.SetUp failed for volume "x" : …` in an event
`FailedMount`, `MapVolume.…` and `FailedMapVolume` for block devices. The name in them is the volume's in the pod, or
the persistent volume's when there is one (kubelet: `operation_generator.go`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.volumes.decisions import Action
from trikubelet.volumes.desired import AFFINITY_CHECK
from trikubelet.volumes.errors import VolumesNotReadyError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Pod
    from trikubelet.volumes.model import VolumeSpec

FAILED_MOUNT: Final = "FailedMount"
FAILED_MAP: Final = "FailedMapVolume"
RESIZE_FAILED: Final = "VolumeResizeFailed"
FILE_SYSTEM_RESIZED: Final = "FileSystemResizeSuccessful"
FILE_SYSTEM_RESIZE_FAILED: Final = "FileSystemResizeFailed"
FILE_SYSTEM_MISMATCH: Final = "FailedMountOnFilesystemMismatch"
SUCCESSFUL_MOUNT: Final = "SuccessfulMountVolume"

TIMED_OUT: Final = "context deadline exceeded"

_STEPS: Final = {
    Action.ATTACH: ("WaitForAttach", "WaitForAttach"),
    Action.STAGE: ("MountDevice", "SetUpDevice"),
    Action.SET_UP: ("SetUp", "MapPodDevice"),
    Action.REFRESH: ("SetUp", "MapPodDevice"),
}
"""What an operation is called for folders, and for block devices."""


def failure_event(action: Action, spec: VolumeSpec, problem: str, *, step: str = "") -> tuple[str, str] | None:
    """Reason and text of the event about a failed operation; None for one that has no event, as taking down.

    `step`: a part of the operation that has a name of its own.
    """
    if action is Action.EXPAND:
        return RESIZE_FAILED, about(spec, "NodeExpandVolume.NodeExpandVolume failed", problem)
    if action not in _STEPS:
        return None
    call, reason = ("MapVolume", FAILED_MAP) if spec.block else ("MountVolume", FAILED_MOUNT)
    if step == AFFINITY_CHECK:
        reason = FAILED_MOUNT
    return reason, about(spec, f"{call}.{step or _STEPS[action][spec.block]} failed", problem)


def expansion_event(spec: VolumeSpec, problem: str) -> tuple[str, str]:
    """For a volume that was set up and could not take its size then."""
    if spec.block:
        return FAILED_MAP, about(spec, "MapVolume.MarkVolumeAsMounted failed while expanding volume", problem)
    return FAILED_MOUNT, about(spec, "MountVolume.Setup failed while expanding volume", problem)


def expanded_event(spec: VolumeSpec, pod: Pod) -> tuple[str, str]:
    text = f'MountVolume.NodeExpandVolume succeeded for volume "{spec.inner_name}" {pod.spec.node_name}'
    return FILE_SYSTEM_RESIZED, text


def mismatch_event(spec: VolumeSpec, problem: str) -> tuple[str, str]:
    """About a persistent volume, when its disk has another file system than it says."""
    return FILE_SYSTEM_MISMATCH, f'MountVolume failed for volume "{spec.inner_name}" {problem}'


def read_only_event(spec: VolumeSpec) -> tuple[str, str]:
    """For a volume that should grow, and is mounted read-only."""
    text = f'MountVolume.NodeExpandVolume failed for volume "{spec.inner_name}" requested read-only file system'
    return FILE_SYSTEM_RESIZE_FAILED, text


def mapped_event(spec: VolumeSpec, folder: str) -> tuple[str, str]:
    """For a block device that is ready; `folder` holds the pod's link to it."""
    text = f'MapVolume.MapPodDevice succeeded for volume "{spec.inner_name}" volumeMapPath "{folder}"'
    return SUCCESSFUL_MOUNT, text


def about(spec: VolumeSpec, prefix: str, problem: str) -> str:
    """The blank before the colon is the kubelet's."""
    return f'{prefix} for volume "{spec.inner_name}" : {problem}'


def not_ready(
    unmounted: Iterable[str], unattached: Iterable[str], unprocessed: Iterable[str], problems: Iterable[str]
) -> VolumesNotReadyError:
    """Why a pod cannot start: `problems` with volumes of which it is not known what they are, else the time is over."""
    causes = tuple(problems)
    return VolumesNotReadyError(
        tuple(unmounted),
        tuple(unattached),
        tuple(unprocessed),
        cause="; ".join(causes) or TIMED_OUT,
        timed_out=not causes,
    )


def still_mounted(unique_names: Iterable[str], cause: str) -> str:
    """Why a pod that has ended is not done with."""
    return f"mounted volumes=[{' '.join(sorted(unique_names))}]: {cause}"
