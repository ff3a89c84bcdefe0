"""What goes into a pod's worker, what it is told to run, how that can end, and what the worker's state commands.

Only values: `worker_state` decides on them, `workers` carries them out.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, overload

import attrs

from trikubelet.api import Pod
from trikubelet.pods.types import SyncPodType
from trikubelet.runtime.model import RunningPod

if TYPE_CHECKING:
    from trikubelet.pods.types import UpdatePodOptions


@attrs.frozen(kw_only=True)
class ConfigUpdate:
    """A pod as its source describes it."""

    update_type: SyncPodType
    pod: Pod
    mirror_pod: Pod | None = None
    start_time: float | None = None
    """When the agent learned of the change; None for a repetition, whose latency means nothing."""


@attrs.frozen(kw_only=True)
class RuntimeUpdate:
    """A pod of which only the runtime knows: it can be ended, nothing else."""

    running_pod: RunningPod
    start_time: float | None = None


Update: TypeAlias = ConfigUpdate | RuntimeUpdate


def new_update(options: UpdatePodOptions) -> Update:
    """What a request says of the pod. Raises ValueError when it names none."""
    if options.pod is not None:
        return ConfigUpdate(
            update_type=options.update_type,
            pod=options.pod,
            mirror_pod=options.mirror_pod,
            start_time=options.start_time,
        )
    if options.running_pod is None:
        raise ValueError("an update needs a pod or a running pod, got neither")
    return RuntimeUpdate(running_pod=options.running_pod, start_time=options.start_time)


@overload
def coalesce(pending: Update | None, newer: ConfigUpdate) -> ConfigUpdate: ...
@overload
def coalesce(pending: Update | None, newer: Update) -> Update: ...
def coalesce(pending: Update | None, newer: Update) -> Update:
    """The newer update, with the start time of the oldest that it stands for: latency counts from there."""
    times = [each.start_time for each in (pending, newer) if each is not None and each.start_time is not None]
    return attrs.evolve(newer, start_time=min(times, default=None))


@overload
def remember(active: Update | None, taken: ConfigUpdate) -> ConfigUpdate: ...
@overload
def remember(active: Update | None, taken: Update) -> Update: ...
def remember(active: Update | None, taken: Update) -> Update:
    """What is remembered of an update that is worked on, to be done again later: a mirror pod once seen is kept.

    A repetition is a plain sync, and its latency was measured already.
    """
    match taken:
        case ConfigUpdate():
            mirror_pod = taken.mirror_pod or (active.mirror_pod if isinstance(active, ConfigUpdate) else None)
            return attrs.evolve(taken, mirror_pod=mirror_pod, update_type=SyncPodType.SYNC, start_time=None)
        case RuntimeUpdate():
            return attrs.evolve(taken, start_time=None)


@attrs.frozen
class SyncPod:
    """Make the runtime match the pod."""

    update: ConfigUpdate


@attrs.frozen
class TerminatePod:
    """Stop every container of the pod."""

    update: ConfigUpdate
    grace_period: int
    """Seconds."""


@attrs.frozen
class TerminateRuntimePod:
    """Stop a pod of which only the runtime knows."""

    update: RuntimeUpdate


@attrs.frozen
class CleanUpPod:
    """Release what the pod held."""

    update: ConfigUpdate


Work: TypeAlias = SyncPod | TerminatePod | TerminateRuntimePod | CleanUpPod


@attrs.frozen
class Completed:
    """The work succeeded."""

    terminal: bool = False
    """Of a sync: the pod has run its course."""


@attrs.frozen
class Failed:
    """The work raised."""

    network_not_ready: bool = False
    retry_at: float | None = None
    """When a backoff behind the failure expires, if there is one."""


@attrs.frozen
class Cancelled:
    """The work was cancelled on command."""


Outcome: TypeAlias = Completed | Failed | Cancelled


class RetryReason(enum.Enum):
    """Why a worker that has nothing pending looks at its pod again."""

    RESYNC = "resync"
    ERROR = "error"
    NETWORK_NOT_READY = "network not ready"


@attrs.frozen
class StartWorker:
    uid: str


@attrs.frozen
class StopWorker:
    uid: str


@attrs.frozen
class Wake:
    """There is an update to take: the worker shall call `begin` when it is free."""

    uid: str


@attrs.frozen
class Run:
    """The answer to `begin`."""

    uid: str
    work: Work


@attrs.frozen
class CancelWork:
    """The work in flight is out of date. Whoever runs it reports `done` all the same."""

    uid: str


@attrs.frozen
class Retry:
    """Look again later. Replaces the retry told before."""

    uid: str
    reason: RetryReason
    not_before: float | None = None


@attrs.frozen
class Notify:
    """Tell those who wait for the pod's containers to have ended."""

    uid: str
    callbacks: tuple[Callable[[], None], ...]


Command: TypeAlias = StartWorker | StopWorker | Wake | Run | CancelWork | Retry | Notify
