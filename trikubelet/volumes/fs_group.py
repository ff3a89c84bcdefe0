"""Giving a volume's files to a pod's group, on a thread, and telling the pod when that takes long
(kubelet: `VolumeOwnership`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.payload.ownership import Progress, has_owner, set_owner

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import Pod
    from trikubelet.telemetry.events import EventRecorder
    from trikubelet.volumes.disk import Disk
    from trikubelet.volumes.model import SetUpRequest

log = get_logger("volumes")

FIRST_REPORT: Final = 30.0
REPORT_PERIOD: Final = 60.0
DEADLINE: Final = 4 * 3600.0
"""Seconds. A volume may have millions of files; a share that does not answer must not be waited for for ever."""
REASON: Final = "VolumePermissionChangeInProgress"
_ADVICE: Final = (
    "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
    "#configure-volume-permission-and-ownership-change-policy-for-pods"
)


async def apply_fs_group(
    disk: Disk, recorder: EventRecorder, pod: Pod, folder: Path, group: int, *, change_policy: str
) -> Progress:
    """Give everything in `folder` to `group`, unless the policy is OnRootMismatch and its root is right already.

    Files that cannot be changed are left, and counted in what is returned. Raises OSError and `trio.TooSlowError`.
    Cancelling it ends the work soon; some files have the group then.
    """
    progress = Progress()

    def work() -> None:
        if change_policy != "OnRootMismatch" or not has_owner(folder, group, read_only=False):
            check = trio.from_thread.check_cancelled
            set_owner(folder, group, read_only=False, progress=progress, checkpoint=check)

    failure: OSError | trio.TooSlowError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_report, recorder, pod, _name(folder, pod.metadata.uid), progress)
        try:
            await disk.walk_foreign(folder, work, deadline=DEADLINE)
        except (OSError, trio.TooSlowError) as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return progress


async def give_to_group(disk: Disk, recorder: EventRecorder, request: SetUpRequest, folder: Path, group: int) -> None:
    """`apply_fs_group` for a volume that is set up for a pod: files that cannot be changed are told in the log.

    Raises VolumeError.
    """
    name = request.spec.name
    try:
        progress = await apply_fs_group(disk, recorder, request.pod, folder, group, change_policy=request.change_policy)
    except (OSError, trio.TooSlowError) as error:
        reason = str(error) or "the volume did not answer in time"
        raise VolumeError(name, f"applyFSGroup failed for vol {name}: {reason}") from error
    if progress.failures:
        first = str(progress.first_failure)
        log.warning("fsGroup not set on some files", volume=name, failures=progress.failures, first=first)


async def try_to_give_to_group(
    disk: Disk, recorder: EventRecorder, request: SetUpRequest, folder: Path, group: int
) -> None:
    """`give_to_group` for kinds whose pods start without the group, too: what fails is told in the log, and only a
    volume that does not answer in time raises VolumeError."""
    try:
        await give_to_group(disk, recorder, request, folder, group)
    except VolumeError as error:
        if isinstance(error.__cause__, trio.TooSlowError):
            raise
        log.warning("a volume is used without its fsGroup", volume=error.volume, problem=error.problem)


async def _report(recorder: EventRecorder, pod: Pod, name: str, progress: Progress) -> None:
    await trio.sleep(FIRST_REPORT)
    text = (
        f"Setting volume ownership for {name} is taking longer than expected, consider using OnRootMismatch - {_ADVICE}"
    )
    recorder.pod_event(pod, EventType.WARNING, REASON, text)
    while True:
        await trio.sleep(REPORT_PERIOD)
        text = f"Setting volume ownership for {name}, processed {progress.files} files."
        recorder.pod_event(pod, EventType.WARNING, REASON, text)


def _name(folder: Path, uid: str) -> str:
    """The path from the pod's UID on, as the kubelet tells it."""
    text = str(folder)
    at = text.find(uid)
    return text if at < 0 else text[at:]
