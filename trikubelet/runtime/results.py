"""What a sync did: one result an action, in order, with the kubelet's words for what failed."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import attrs

POST_START_HOOK_ERROR: Final = "PostStartHookError"
CRASH_LOOP_BACK_OFF: Final = "CrashLoopBackOff"
IMAGE_PULL_BACK_OFF: Final = "ImagePullBackOff"
_BACKOFF_REASONS: Final = frozenset({CRASH_LOOP_BACK_OFF, IMAGE_PULL_BACK_OFF})


class SyncAction(enum.Enum):
    """What was done (kubelet: `SyncAction`)."""

    START_CONTAINER = "StartContainer"
    KILL_CONTAINER = "KillContainer"
    REMOVE_CONTAINER = "RemoveContainer"
    CREATE_POD_SANDBOX = "CreatePodSandbox"
    CONFIG_POD_SANDBOX = "ConfigPodSandbox"
    KILL_POD_SANDBOX = "KillPodSandbox"
    RESIZE_POD = "ResizePodInPlace"


@attrs.frozen
class SyncResult:
    """One action and how it went."""

    action: SyncAction
    target: str
    """Name of the container, `name_namespace(uid)` of the pod for its sandbox."""
    reason: str = ""
    """Why it failed, in one word: `ErrImagePull`, `CrashLoopBackOff`. Empty: it did not fail."""
    message: str = ""
    retry_at: float | None = None
    """Trio time from which on another attempt makes sense, where that is known: the end of a backoff, or soon after the
    runtime was not at fault."""

    @property
    def failed(self) -> bool:
        return bool(self.reason)


@attrs.frozen
class SyncPodError(Exception):
    """A sync did not do all that it should; the next one goes on from there."""

    failures: Sequence[SyncResult]

    @property
    def retry_at(self) -> float | None:
        """Trio time of the next attempt; None: when such attempts are usually made."""
        return min((one.retry_at for one in self.failures if one.retry_at is not None), default=None)

    def __str__(self) -> str:
        """For logs: without what a hook said, which may be secret and belongs into the container's status only."""
        return ", ".join(
            f'failed to "{failure.action.value}" for "{failure.target}" with {failure.reason}'
            + ("" if failure.reason == POST_START_HOOK_ERROR else f": {failure.message}")
            for failure in self.failures
        )


@attrs.frozen
class PodSyncResult:
    """All that a sync did (kubelet: `PodSyncResult`)."""

    results: Sequence[SyncResult] = ()

    @property
    def error(self) -> SyncPodError | None:
        """What went wrong. Containers that wait in a backoff are not an error: see `backoffs`."""
        failures = [result for result in self.results if result.failed and result.reason not in _BACKOFF_REASONS]
        return SyncPodError(failures) if failures else None

    @property
    def resize_problem(self) -> str | None:
        """Why the pod could not be resized; None when it was, or did not have to be."""
        failed = (one.message for one in self.results if one.action is SyncAction.RESIZE_POD and one.failed)
        return next(failed, None)

    @property
    def backoffs(self) -> dict[str, float]:
        """Containers in CrashLoopBackOff or ImagePullBackOff with the Trio time at which that ends."""
        return {
            result.target: result.retry_at
            for result in self.results
            if result.retry_at is not None and result.reason in _BACKOFF_REASONS
        }
