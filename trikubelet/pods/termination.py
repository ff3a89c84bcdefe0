"""What asks a pod to end, and how much time its end may take.

The requests add up: a deletion may follow a kill, an eviction a deletion. What they share is that each can only make
the end come sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.pods.classify import is_terminal
from trikubelet.pods.types import SyncPodType
from trikubelet.pods.worker_messages import ConfigUpdate, Update
from trikubelet.pods.worker_phases import Ending, Kill

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.pods.types import UpdatePodOptions

MINIMUM_GRACE_PERIOD: Final = 1
"""Seconds that every pod gets at least."""


def asks_to_end(options: UpdatePodOptions) -> bool:
    """Whether an update, by itself, asks the pod to end."""
    pod = options.pod
    return (
        pod is None
        or pod.metadata.deletion_timestamp is not None
        or is_terminal(pod)
        or options.update_type is SyncPodType.KILL
    )


def effective_grace_period(current: int | None, pod: Pod | None, override: int | None) -> int:
    """The grace period in seconds: the smallest that was ever asked for, else the spec's, and at least one.

    `current` is the one in force, None before there is one. Kubelet: `calculateEffectiveGracePeriod`.
    """
    deletion = None if pod is None else pod.metadata.deletion_grace_period_seconds
    asked = [seconds for seconds in (current, deletion, override) if seconds is not None]
    if not asked and pod is not None and pod.spec.termination_grace_period_seconds is not None:
        asked = [pod.spec.termination_grace_period_seconds]
    return max(MINIMUM_GRACE_PERIOD, min(asked, default=MINIMUM_GRACE_PERIOD))


def further_kill(kill: Kill | None, newest: Update, options: UpdatePodOptions) -> Kill:
    """The kill in force (None: none yet) as a further update changes it. `newest` has the newest known spec."""
    pod = newest.pod if isinstance(newest, ConfigUpdate) else None
    asked = options.kill_options
    override = None if asked is None else asked.grace_period_override
    grace_period = effective_grace_period(None if kill is None else kill.grace_period, pod, override)
    status_fn = None if kill is None else kill.status_fn
    waiting = () if kill is None else kill.waiting
    if asked is not None:
        status_fn = asked.pod_status_fn or status_fn
        waiting += () if asked.on_completed is None else (asked.on_completed,)
    return Kill(grace_period=grace_period, status_fn=status_fn, waiting=waiting)


def further_ending(ending: Ending, options: UpdatePodOptions) -> Ending:
    """The circumstances of the end as a further update adds to them."""
    deleted = options.pod is None or options.pod.metadata.deletion_timestamp is not None
    evicted = options.kill_options is not None and options.kill_options.evict
    return attrs.evolve(ending, deleted=ending.deleted or deleted, evicted=ending.evicted or evicted)
