"""Which pods end together when the node shuts down, and how much time each has. Pure.

The configuration gives periods for priorities: either for each, or, in short, one for all pods of which the last part
belongs to critical ones. Pods of one period end at the same time, those of lower priority before the others.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import POD_FAILED, POD_SUCCEEDED, Pod, PodStatus
from trikubelet.api.pod_kinds import SYSTEM_CRITICAL_PRIORITY
from trikubelet.config.kubelet_configuration import SHUTDOWN_GATES, ShutdownGracePeriod
from trikubelet.formats.values import frozen
from trikubelet.status.conditions import as_disrupted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trikubelet.config.kubelet_configuration import KubeletConfiguration

REASON: Final = "Terminated"
MESSAGE: Final = "Pod was terminated in response to imminent node shutdown."
_DEFAULT_PRIORITY: Final = 0
_SECOND: Final = timedelta(seconds=1)


@frozen
class PodGroup:
    """Pods that end at the same time."""

    priority: int
    seconds: int
    """For all of them to end."""
    pods: tuple[Pod, ...] = ()


def shutdown_periods(configuration: KubeletConfiguration) -> tuple[ShutdownGracePeriod, ...]:
    """By priority, the lowest first; empty: the node does not wait for its pods."""
    graceful, prioritized = map(configuration.enabled, SHUTDOWN_GATES)
    if not graceful:
        return ()
    periods = configuration.shutdown_grace_period_by_pod_priority
    if not periods or not prioritized:
        periods = _two_periods(configuration.shutdown_grace_period, configuration.shutdown_grace_period_critical_pods)
    return tuple(sorted(periods, key=lambda one: one.priority))


def _two_periods(all_pods: timedelta, critical_pods: timedelta) -> tuple[ShutdownGracePeriod, ...]:
    """Kubelet: `migrateConfig`."""
    if not timedelta(0) < all_pods >= critical_pods:
        return ()
    return (
        ShutdownGracePeriod(
            priority=_DEFAULT_PRIORITY, shutdown_grace_period_seconds=(all_pods - critical_pods) // _SECOND
        ),
        ShutdownGracePeriod(priority=SYSTEM_CRITICAL_PRIORITY, shutdown_grace_period_seconds=critical_pods // _SECOND),
    )


def time_for_all(periods: Iterable[ShutdownGracePeriod]) -> int:
    """Seconds that the shutdown has to be delayed for (kubelet: `periodRequested`)."""
    return sum(period.shutdown_grace_period_seconds for period in periods)


def group_by_priority(periods: Sequence[ShutdownGracePeriod], pods: Iterable[Pod]) -> tuple[PodGroup, ...]:
    """Every pod in the group of the highest priority that is not above its own, or in the lowest; empty groups too."""
    priorities = [period.priority for period in periods]
    members: list[list[Pod]] = [[] for _ in periods]
    for pod in pods:
        priority = pod.spec.priority or _DEFAULT_PRIORITY
        index = bisect_left(priorities, priority)
        if index == len(priorities) or priorities[index] > priority:
            index -= 1
        members[max(0, index)].append(pod)
    return tuple(
        PodGroup(period.priority, period.shutdown_grace_period_seconds, tuple(group))
        for period, group in zip(periods, members, strict=True)
    )


def late_groups(groups: Iterable[PodGroup], late: float) -> tuple[PodGroup, ...]:
    """The groups when `late` seconds are gone already: they are taken from those that come first."""
    left: list[PodGroup] = []
    for group in groups:
        gone = min(float(group.seconds), late)
        left.append(attrs.evolve(group, seconds=math.floor(group.seconds - gone)))
        late -= gone
    return tuple(left)


def grace_period(pod: Pod, seconds: int) -> int:
    """What a pod of a group with so many seconds gets: never more than it asks for."""
    own = pod.spec.termination_grace_period_seconds
    return seconds if own is None else min(own, seconds)


def terminated_status(status: PodStatus, generation: int) -> PodStatus:
    """What the status becomes of a pod that the shutdown has ended."""
    phase = status.phase if status.phase == POD_SUCCEEDED else POD_FAILED
    return as_disrupted(attrs.evolve(status, phase=phase, reason=REASON, message=MESSAGE), MESSAGE, generation)
