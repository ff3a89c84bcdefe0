"""The results of a sync: one for each action, in order, with the kubelet's words for what failed.

The reasons of the last failed starts are kept in memory only, as in the kubelet.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from trikubelet.formats.values import define, frozen

POST_START_HOOK_ERROR: Final = "PostStartHookError"
CREATE_CONTAINER_CONFIG_ERROR: Final = "CreateContainerConfigError"
CRASH_LOOP_BACK_OFF: Final = "CrashLoopBackOff"
IMAGE_PULL_BACK_OFF: Final = "ImagePullBackOff"
MAX_ENTRIES: Final = 1000
_BACKOFF_REASONS: Final = frozenset({CRASH_LOOP_BACK_OFF, IMAGE_PULL_BACK_OFF})


class SyncAction(enum.Enum):
    """The kinds of actions (kubelet: `SyncAction`)."""

    START_CONTAINER = "StartContainer"
    KILL_CONTAINER = "KillContainer"
    REMOVE_CONTAINER = "RemoveContainer"
    CREATE_POD_SANDBOX = "CreatePodSandbox"
    CONFIG_POD_SANDBOX = "ConfigPodSandbox"
    KILL_POD_SANDBOX = "KillPodSandbox"
    RESIZE_POD = "ResizePodInPlace"


@frozen
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


@frozen
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


@frozen
class PodSyncResult:
    """All that a sync did (kubelet: `PodSyncResult`)."""

    results: Sequence[SyncResult] = ()
    made: Mapping[str, str] = attrs.field(factory=dict)
    """The sandbox and the containers that it made, as `container.model.contents` has them. There may be more where
    something failed."""

    @property
    def error(self) -> SyncPodError | None:
        """The failures. Containers that wait in a backoff are not an error: see `backoffs`."""
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


@define
class WaitingReasons:
    """The last attempt to start a container, if it failed, by pod and container (kubelet: `ReasonCache`).

    Best effort: the oldest go when there are too many.
    """

    _reasons: OrderedDict[tuple[str, str], SyncResult] = attrs.field(factory=OrderedDict, init=False)

    def record(self, uid: str, result: SyncResult) -> None:
        """An attempt to start one of the pod's containers went like this."""
        key = (uid, result.target)
        if not result.failed:
            self._reasons.pop(key, None)
            return
        self._reasons[key] = result
        self._reasons.move_to_end(key)
        if len(self._reasons) > MAX_ENTRIES:
            self._reasons.popitem(last=False)

    def of_pod(self, uid: str) -> dict[str, tuple[str, str]]:
        """Reason and message for each of the pod's containers that could not be started, by name."""
        return {name: (failed.reason, failed.message) for name, failed in self.failures(uid).items()}

    def failures(self, uid: str) -> dict[str, SyncResult]:
        """The whole results, by name of the container."""
        return {name: failed for (pod, name), failed in self._reasons.items() if pod == uid}
