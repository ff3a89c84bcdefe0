"""What asks a pod to end, and how much time its end may take.

The requests add up: a deletion may follow a kill, an eviction a deletion. What they share is that each can only make
the end come sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api.pod_kinds import is_terminal
from trikubelet.pods.phases import Ending, Kill
from trikubelet.pods.types import KillPod, KillRuntimePod, UpdatePod
from trikubelet.pods.work import ConfigUpdate, Update

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.pods.types import Request

MINIMUM_GRACE_PERIOD: Final = 1
"""Seconds that every pod gets at least."""


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
    """Of a pod that nobody asked to end: it has run its course, or nobody wants it any more."""
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
    return attrs.evolve(ending, deleted=ending.deleted or deleted, evicted=ending.evicted or evicted)
