"""How long the pods of an API server take to start: the latency that Kubernetes promises something about.

The story of a pod: the watch brings it, not started yet, and this begins to follow it. Events tell when its images were
pulled. When the watch brings it back with every container running, it has started, also for whoever waits for it in the
cluster: that moment counts, against the pod's creation. For the promise (the "SLI") the time that images and init
containers took does not count, and pods with volumes of their own do not count at all (kubelet:
`pod_startup_latency_tracker.go`). Mirror pods are not followed: what they show was created by nobody in the cluster.

Nothing is kept of a pod once it has started, or ended, or gone.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from trikubelet.api import CONDITION_FALSE, POD_SCHEDULED, Pod, is_sidecar
from trikubelet.api.pod_kinds import is_mirror_pod, is_terminal
from trikubelet.formats.values import define
from trikubelet.status.metrics import START_BOUNDS
from trikubelet.telemetry.events import PodEvent
from trikubelet.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.clock import WallClock
    from trikubelet.telemetry.events import AnyEvent

PULLING: Final = "Pulling"
PULLED: Final = "Pulled"

Interval: TypeAlias = tuple[datetime, datetime]


@define
class _Starting:
    """A pod that has not started yet."""

    pulling: dict[str, datetime] = attrs.field(factory=dict)
    """By the part of the pod that wants the image, since when. Attempts that fail go on until one succeeds."""
    pulls: list[Interval] = attrs.field(factory=list)


class PodStartLatency:
    """Follows pods from their creation to their start."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._starting: dict[str, _Starting] = {}
        self.total = Histogram(START_BOUNDS)
        """Seconds."""
        self.promised = Histogram(START_BOUNDS)
        """Seconds without pulls and init containers, of pods without volumes that last."""
        self.first_with_network: float | None = None
        """The same, of the first pod that has a network of its own."""

    @property
    def followed(self) -> int:
        """Pods that have not started yet."""
        return len(self._starting)

    def served(self, old: Pod | None, new: Pod | None) -> None:
        """The API server has another version of a pod of this node, has it no more (None), or has a new one."""
        if new is None:
            if old is not None:
                self._starting.pop(old.metadata.uid, None)
            return
        uid = new.metadata.uid
        if is_mirror_pod(new) or is_terminal(new) or _unschedulable(new):
            self._starting.pop(uid, None)
        elif old is None and new.status.start_time is None:
            self._starting[uid] = _Starting()
        elif uid in self._starting and _all_running(new):
            self._started(new, self._starting.pop(uid))

    def heard(self, event: AnyEvent) -> None:
        """Something was told of a pod or the node."""
        if not isinstance(event, PodEvent) or event.reason not in (PULLING, PULLED):
            return
        starting = self._starting.get(event.uid)
        if starting is None:
            return
        if event.reason == PULLING:
            starting.pulling.setdefault(event.field_path, event.last_seen)
        else:
            began = starting.pulling.pop(event.field_path, None)
            if began is not None:
                starting.pulls.append((began, event.last_seen))

    def _started(self, pod: Pod, starting: _Starting) -> None:
        created = pod.metadata.creation_timestamp
        if created is None:
            return
        total = (self._clock.now() - created).total_seconds()
        self.total.observe(total)
        if _is_stateful(pod):
            return
        promised = total - covered(starting.pulls) - _init_seconds(pod)
        self.promised.observe(promised)
        if self.first_with_network is None and not pod.spec.host_network:
            self.first_with_network = promised


def covered(intervals: Iterable[Interval]) -> float:
    """The seconds in which at least one of them was going on."""
    seconds, until = 0.0, None
    for begin, end in sorted(intervals):
        if until is None or begin > until:
            seconds += (end - begin).total_seconds()
            until = end
        elif end > until:
            seconds += (end - until).total_seconds()
            until = end
    return seconds


def _init_seconds(pod: Pod) -> float:
    sidecars = {container.name for container in pod.spec.init_containers if is_sidecar(container)}
    ends = (one.state.terminated for one in pod.status.init_container_statuses if one.name not in sidecars)
    return sum(
        (end.finished_at - end.started_at).total_seconds()
        for end in ends
        if end is not None and end.started_at is not None and end.finished_at is not None
    )


def _all_running(pod: Pod) -> bool:
    statuses = pod.status.container_statuses
    running = (status.state.running for status in statuses)
    return bool(statuses) and all(one is not None and one.started_at is not None for one in running)


def _unschedulable(pod: Pod) -> bool:
    """A pod that the scheduler had to make room for is not promised anything."""
    return any(one.type == POD_SCHEDULED and one.status == CONDITION_FALSE for one in pod.status.conditions)


def _is_stateful(pod: Pod) -> bool:
    return any(
        volume.secret is None
        and volume.config_map is None
        and volume.downward_api is None
        and volume.empty_dir is None
        and volume.projected is None
        for volume in pod.spec.volumes
    )
