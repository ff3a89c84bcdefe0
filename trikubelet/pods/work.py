"""What a pod's life is told, what it does next, and how that can end.

Only values: `machine` decides on them, `life` carries them out.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeAlias, assert_never, overload

import attrs

from trikubelet.api import Pod
from trikubelet.container.model import RunningPod
from trikubelet.pods.types import KillPod, KillRuntimePod, SyncPodType, UpdatePod

if TYPE_CHECKING:
    from trikubelet.pods.types import Request


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


def new_update(request: Request) -> Update:
    """What a request says of the pod."""
    match request:
        case UpdatePod():
            return ConfigUpdate(
                update_type=request.update_type,
                pod=request.pod,
                mirror_pod=request.mirror_pod,
                start_time=request.start_time,
            )
        case KillPod():
            return ConfigUpdate(
                update_type=SyncPodType.KILL,
                pod=request.pod,
                mirror_pod=request.mirror_pod,
                start_time=request.start_time,
            )
        case KillRuntimePod():
            return RuntimeUpdate(running_pod=request.running_pod, start_time=request.start_time)
        case _:
            assert_never(request)


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
    """Stop every container of the pod. How is in the phase: requests may still hasten it."""

    update: ConfigUpdate


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
    """The work was cancelled, since it was out of date."""


Outcome: TypeAlias = Completed | Failed | Cancelled


class RetryReason(enum.Enum):
    """Why a life that has nothing pending looks at its pod again."""

    RESYNC = "resync"
    ERROR = "error"
    NETWORK_NOT_READY = "network not ready"


@attrs.frozen
class Retry:
    """Look again later."""

    reason: RetryReason
    not_before: float | None = None
