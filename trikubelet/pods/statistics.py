"""What the pod workers tell of themselves: counts by phase and by work, and how long changes took to take effect."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.pods.phases import Cancelled, CleanUpPod, ConfigUpdate, Failed, SyncPod
from trikubelet.pods.types import SyncPodType
from trikubelet.telemetry.metrics import DEFAULT_BOUNDS, Histogram, Histograms, exponential_bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.pods.phases import Outcome, Phase, Work

LATENCY_BOUNDS: Final = DEFAULT_BOUNDS
"""Seconds: upper bounds of the buckets, as of the kubelet's `pod_worker_duration_seconds`."""

TERMINATED: Final = "terminated"


@frozen
class LatencyStatistics:
    """Times from learning of a change to the end of the work it caused."""

    count: int
    seconds: float
    """The sum."""
    at_most: tuple[int, ...]
    """How many took at most so long, for each of `LATENCY_BOUNDS`."""


@frozen(kw_only=True)
class PodWorkersStatistics:
    """What a debugger or a metrics endpoint wants to see. Pods are counted by phase."""

    waiting_to_start: int
    syncing: int
    termination_requested: int
    terminating: int
    terminated: int
    finished: int
    tasks: int
    in_flight: int
    works: dict[str, int]
    """Works begun, by kind: `SyncPod`, `TerminatePod`, `TerminateRuntimePod`, `CleanUpPod`."""
    failures: int
    cancellations: int
    latencies: dict[str, LatencyStatistics]
    """By operation: the kind of update (`create`, `update`, `sync`, `kill`), or `terminated`. Works that failed count,
    as in the kubelet; what was cancelled has not ended, and goes on under the update that cancelled it."""


class WorkerCounts:
    """Counts while the workers work."""

    def __init__(self) -> None:
        self._works: Counter[str] = Counter()
        self._failures = 0
        self._cancellations = 0
        self.latencies = Histograms()
        """Seconds by operation, as in `PodWorkersStatistics`."""
        self.start_latencies = Histogram()
        """Seconds from learning of a pod to the beginning of its first sync."""
        self.containers_per_pod = Histogram(exponential_bounds(1, 2, 5))
        """Main containers of each pod that began."""

    def begun(self, work: Work, now: float) -> None:
        self._works[type(work).__name__] += 1
        if isinstance(work, SyncPod) and work.update.update_type is SyncPodType.CREATE:
            self.containers_per_pod.observe(len(work.update.pod.spec.containers))
            if work.update.start_time is not None:
                self.start_latencies.observe(now - work.update.start_time)

    def ended(self, work: Work, outcome: Outcome, now: float) -> None:
        self._failures += isinstance(outcome, Failed)
        if isinstance(outcome, Cancelled):
            self._cancellations += 1
        elif work.update.start_time is not None:
            self.latencies.observe((_operation(work),), now - work.update.start_time)

    def statistics(self, by_phase: Mapping[type[Phase], int], *, tasks: int, in_flight: int) -> PodWorkersStatistics:
        pods = {phase.__name__: count for phase, count in by_phase.items()}
        return PodWorkersStatistics(
            waiting_to_start=pods.get("WaitingToStart", 0),
            syncing=pods.get("Syncing", 0),
            termination_requested=pods.get("TerminationRequested", 0),
            terminating=pods.get("Terminating", 0),
            terminated=pods.get("Terminated", 0),
            finished=pods.get("Finished", 0),
            tasks=tasks,
            in_flight=in_flight,
            works=dict(self._works),
            failures=self._failures,
            cancellations=self._cancellations,
            latencies={operation: _statistics(histogram) for (operation,), histogram in self.latencies.items()},
        )


def _statistics(histogram: Histogram) -> LatencyStatistics:
    *at_most, count = histogram.cumulated
    return LatencyStatistics(count, histogram.sum, tuple(at_most))


def _operation(work: Work) -> str:
    if isinstance(work, CleanUpPod):
        return TERMINATED
    if isinstance(work.update, ConfigUpdate):
        return work.update.update_type.value
    return SyncPodType.KILL.value
