"""The values of a pod's life, and the pure rules on them.

A request (`types`) becomes an *update*: what it says of the pod. The pod is in one of six *phases*, one class each,
with exactly what is known in that phase. What cannot be together cannot be built: a pod that never started has no sync
in flight, one whose containers have ended has no kill, one that has finished has nothing pending. Requests to end add
up: a deletion may follow a kill, an eviction a deletion, and each can only make the end come sooner. A phase gives out
*work*, which ends with an *outcome*.

Which phase may follow which is the table of `machine`, which decides; `life` carries the work out.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias, overload

import attrs

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import is_terminal
from trikubelet.container.model import RunningPod
from trikubelet.formats.values import frozen
from trikubelet.pods.types import Kill, KillPod, KillRuntimePod, Request, SyncPodType, UpdatePod

MINIMUM_GRACE_PERIOD: Final = 1
"""Seconds that every pod gets at least."""

DELETED: Final = "deleted through the API server"
NOT_DESIRED: Final = "no source names the pod any more"
AGENT_ENDS: Final = "the agent ends, and its pods with it"
"""Those that ask for the end of pods without saying more; see `Ending`."""

# --- Updates ---------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ConfigUpdate:
    """A pod as its source describes it."""

    update_type: SyncPodType
    pod: Pod
    mirror_pod: Pod | None = None
    start_time: float | None = None
    """When the agent learned of the change; None for a repetition, whose latency means nothing."""


@frozen(kw_only=True)
class RuntimeUpdate:
    """A pod of which only the runtime knows: it can be ended, nothing else."""

    running_pod: RunningPod
    start_time: float | None = None


Update: TypeAlias = ConfigUpdate | RuntimeUpdate


def new_update(request: Request) -> Update:
    """What a request says of the pod."""
    if isinstance(request, KillRuntimePod):
        return RuntimeUpdate(running_pod=request.running_pod, start_time=request.start_time)
    return ConfigUpdate(
        update_type=SyncPodType.KILL if isinstance(request, KillPod) else request.update_type,
        pod=request.pod,
        mirror_pod=request.mirror_pod,
        start_time=request.start_time,
    )


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


# --- Phases ----------------------------------------------------------------------------------------------------------


@frozen
class Identity:
    """What never changes while a worker knows a pod."""

    uid: str
    full_name: str
    static: bool
    first_seen: float


@frozen
class Ending:
    """The circumstances of the pod's end."""

    asked_at: float
    deleted: bool = False
    """Marked for deletion, or gone from its source."""
    evicted: bool = False
    restart_requested: bool = False
    """A pod with this UID was created anew: forget this one as soon as it has finished."""
    asked_by: tuple[str, ...] = ()
    """Who asked for it, in the order in which they did, for people."""


@frozen(kw_only=True)
class WaitingToStart:
    """Known, and not yet allowed to touch the runtime."""

    identity: Identity
    pending: ConfigUpdate


@frozen(kw_only=True)
class Syncing:
    """Set up and kept running."""

    identity: Identity
    started_at: float
    active: ConfigUpdate
    pending: ConfigUpdate | None = None
    in_flight: bool = False


@frozen(kw_only=True)
class TerminationRequested:
    """Asked to end. A sync may still be in flight, so containers may still start."""

    identity: Identity
    ending: Ending
    kill: Kill
    active: ConfigUpdate | None
    """None for a pod that never started."""
    pending: Update
    in_flight: bool = False
    """Of the sync that is being cancelled."""
    observed_runtime: bool = False
    """The runtime was seen to hold this pod."""


@frozen(kw_only=True)
class Terminating:
    """Being ended. No container of it starts any more."""

    identity: Identity
    ending: Ending
    kill: Kill
    active: Update
    pending: Update | None = None
    in_flight: bool = False


@frozen(kw_only=True)
class Terminated:
    """Nothing of it runs; what it held is being released."""

    identity: Identity
    ending: Ending
    terminated_at: float
    active: ConfigUpdate
    pending: ConfigUpdate | None = None
    in_flight: bool = False


@frozen(kw_only=True)
class Finished:
    """History. There is no worker any more."""

    identity: Identity
    ending: Ending
    terminated_at: float
    has_config: bool
    """False for a pod that never started."""


Phase: TypeAlias = WaitingToStart | Syncing | TerminationRequested | Terminating | Terminated | Finished


# --- Requests to end -------------------------------------------------------------------------------------------------


def asks_to_end(request: Request) -> bool:
    """Whether a request, by itself, asks the pod to end."""
    if not isinstance(request, UpdatePod):
        return True
    return request.pod.metadata.deletion_timestamp is not None or is_terminal(request.pod)


def effective_grace_period(current: int | None, pod: Pod | None, override: int | None) -> int:
    """The grace period in seconds: the smallest that was ever asked for, else the spec's, and at least one.

    `current` is the one in force, None before there is one. Kubelet: `calculateEffectiveGracePeriod`.
    """
    deletion = None if pod is None else pod.metadata.deletion_grace_period_seconds
    asked = [seconds for seconds in (current, deletion, override) if seconds is not None]
    if not asked and pod is not None and pod.spec.termination_grace_period_seconds is not None:
        asked = [pod.spec.termination_grace_period_seconds]
    return max(MINIMUM_GRACE_PERIOD, min(asked, default=MINIMUM_GRACE_PERIOD))


def first_kill(pod: Pod, now: float) -> Kill:
    """The kill of a pod that no request asked to end: it has run its course, or is no longer desired."""
    grace_period = effective_grace_period(None, pod, None)
    return Kill(grace_period, now + grace_period)


def further_kill(kill: Kill | None, newest: Update, request: Request, now: float) -> Kill:
    """The kill in force (None: none yet) as a further request changes it. `newest` has the newest known spec.

    The deadline is the earliest of what all requests asked for, each counted from its own time.
    """
    pod = newest.pod if isinstance(newest, ConfigUpdate) else None
    override = None if isinstance(request, UpdatePod) else request.grace_period_override
    status_fn = request.pod_status_fn if isinstance(request, KillPod) else None
    grace_period = effective_grace_period(None if kill is None else kill.grace_period, pod, override)
    deadline = now + grace_period
    if kill is not None:
        deadline, status_fn = min(deadline, kill.deadline), status_fn or kill.status_fn
    return Kill(grace_period, deadline, status_fn)


def further_ending(ending: Ending, request: Request) -> Ending:
    """The circumstances of the end as a further request adds to them."""
    deleted = isinstance(request, KillRuntimePod) or request.pod.metadata.deletion_timestamp is not None
    evicted = isinstance(request, KillPod) and request.evict
    return attrs.evolve(
        ending,
        deleted=ending.deleted or deleted,
        evicted=ending.evicted or evicted,
        asked_by=_also_asked_by(ending.asked_by, request),
    )


def _also_asked_by(known: tuple[str, ...], request: Request) -> tuple[str, ...]:
    """Each is named once: a deleted pod is seen again and again. What comes of an end is no further reason for it."""
    if not isinstance(request, UpdatePod):
        newer = request.asked_by
    elif request.pod.metadata.deletion_timestamp is not None:
        newer = DELETED
    elif not known and is_terminal(request.pod):
        newer = f"the pod is {request.pod.status.phase} already"
    else:
        newer = ""
    return known if not newer or newer in known else (*known, newer)


# --- Work and its outcome --------------------------------------------------------------------------------------------


@frozen
class SyncPod:
    """Make the runtime match the pod."""

    update: ConfigUpdate


@frozen
class TerminatePod:
    """Stop every container of the pod. How is in the phase: requests may still hasten it."""

    update: ConfigUpdate


@frozen
class TerminateRuntimePod:
    """Stop a pod of which only the runtime knows."""

    update: RuntimeUpdate


@frozen
class CleanUpPod:
    """Release what the pod held."""

    update: ConfigUpdate


Work: TypeAlias = SyncPod | TerminatePod | TerminateRuntimePod | CleanUpPod


@frozen
class Completed:
    """The work succeeded."""

    terminal: bool = False
    """Of a sync: the pod has run its course."""
    why: str = ""
    """Why it has, for people."""


@frozen
class Failed:
    """The work raised."""

    network_not_ready: bool = False
    retry_at: float | None = None
    """When a backoff behind the failure expires, if there is one."""


@frozen
class Cancelled:
    """The work was cancelled, since it was out of date."""


Outcome: TypeAlias = Completed | Failed | Cancelled


class RetryReason(enum.Enum):
    """Why a life that has nothing pending looks at its pod again."""

    RESYNC = "resync"
    ERROR = "error"
    NETWORK_NOT_READY = "network not ready"


@frozen
class Retry:
    """Look again later."""

    reason: RetryReason
    not_before: float | None = None
