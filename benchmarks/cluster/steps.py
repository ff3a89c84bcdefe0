"""What is known of pods that came and went, and what follows from it: percentiles, the floor, aims. Nothing here
measures."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

import attrs

from benchmarks.report import Result
from benchmarks.termination.phases import percentile

if TYPE_CHECKING:
    from trikubelet.api import Pod

OURS: Final = "trikubelet"
FLOOR: Final = "floor"
OVER_FLOOR: Final = 0.09
"""Seconds that a pod in a cluster may take beyond the bare calls."""
BESIDE_FLOOR: Final = 1.3
"""Times the bare calls that many pods at once may take."""


class Step(enum.Enum):
    """What a watch of the API server shows of a pod, and the kernel of its processes, in this order."""

    REPORTED = "first status"
    """The agent has reported something of it."""
    READY = "ready"
    DEAD = "process dead"
    """The kernel says so."""
    ENDED = "ended"
    """It was deleted, and all its containers are reported to have ended."""
    GONE = "gone"
    """Its object is no more."""

    @property
    def of_end(self) -> bool:
        """Whether it counts from the deletion, not from the creation."""
        return self in (Step.DEAD, Step.ENDED, Step.GONE)


FLOOR_STEPS: Final = (Step.READY, Step.DEAD, Step.GONE)
"""Those that the bare client has too: its calls to start a pod, or to end it, have returned."""


def steps_shown(event: str, pod: Pod) -> frozenset[Step]:
    """The steps that a pod has behind it, or with it, when a watch tells this."""
    shown = set()
    if pod.status.start_time is not None:
        shown.add(Step.REPORTED)
    if any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions):
        shown.add(Step.READY)
    containers = pod.status.container_statuses
    ended = bool(containers) and all(container.state.terminated is not None for container in containers)
    if pod.metadata.deletion_timestamp is not None and ended:
        shown.add(Step.ENDED)
    if event == "DELETED":
        shown.add(Step.GONE)
    return frozenset(shown)


@attrs.define
class PodTimes:
    """One pod, from its creation until it is gone. Times are seconds of one clock, whichever."""

    pod: str
    created: float = math.nan
    """When its object was about to be created, or the first call was about to be made."""
    deleted: float = math.nan
    """The same of its end."""
    moments: dict[Step, float] = attrs.field(factory=dict)

    def note(self, step: Step, moment: float) -> None:
        """Only the first time counts."""
        self.moments.setdefault(step, moment)

    def after(self, step: Step) -> float | None:
        """Seconds from being asked; None where the moment is not known."""
        moment = self.moments.get(step)
        return None if moment is None else moment - self.asked(step)

    def asked(self, step: Step) -> float:
        return self.deleted if step.of_end else self.created


@attrs.frozen
class Rest:
    """What an agent takes while nothing happens to its pods."""

    cpu: float
    """Percent of a core."""
    resident: float
    """MiB."""


@attrs.frozen
class Batch:
    """Pods that were created at once, and deleted at once."""

    pods: Sequence[PodTimes]
    cpu: float | None = None
    """Seconds of the agent from the first creation until nothing was left, with whatever else it did then."""
    cpu_of_end: float = 0.0
    """Those of them from the first deletion."""
    rest: Rest | None = None
    """While all of them ran."""

    def last(self, step: Step) -> float | None:
        """Seconds from the first that was asked to the last that got there; None when not all did."""
        known = [pod.moments[step] for pod in self.pods if step in pod.moments]
        if not known or len(known) < len(self.pods):
            return None
        return max(known) - min(pod.asked(step) for pod in self.pods)


@attrs.define
class Measurements:
    """Every batch there was, by who took part."""

    batches: dict[str, list[Batch]] = attrs.field(factory=dict)
    rests: dict[tuple[str, int], Rest] = attrs.field(factory=dict)
    """By who rested with how many pods."""

    def add(self, contestant: str, batch: Batch) -> None:
        self.batches.setdefault(contestant, []).append(batch)

    def seconds(self, contestant: str, step: Step) -> list[float]:
        """From being asked, for every pod for which it is known."""
        times = (pod.after(step) for batch in self.batches.get(contestant, []) for pod in batch.pods)
        return [seconds for seconds in times if seconds is not None]

    def lasts(self, contestant: str, step: Step) -> list[float]:
        """For every batch."""
        lasts = (batch.last(step) for batch in self.batches.get(contestant, []))
        return [seconds for seconds in lasts if seconds is not None]

    @property
    def nodes(self) -> list[str]:
        """Those whose processor time was counted: agents."""
        return [name for name, batches in self.batches.items() if batches[0].cpu is not None]

    def cpu_per_pod(self, node: str) -> float:
        """Seconds."""
        return self._of_each_pod(node, lambda batch: batch.cpu or 0)

    def cpu_of_end(self, node: str) -> float:
        """Seconds of it."""
        return self._of_each_pod(node, lambda batch: batch.cpu_of_end)

    def _of_each_pod(self, node: str, seconds: Callable[[Batch], float]) -> float:
        batches = self.batches[node]
        return sum(map(seconds, batches)) / sum(len(batch.pods) for batch in batches)

    def floor(self, step: Step) -> str | None:
        """Of the bare clients, the one whose batches were there first; None when none was."""
        floors = [name for name in self.batches if name.startswith(FLOOR) and self.lasts(name, step)]
        return min(floors, key=lambda name: median(self.lasts(name, step)), default=None)


def aims(runtime: str, pods: int, measured: Measurements) -> list[Result]:
    """What was to be shown. Many pods at once on the embedded runtime cost next to nothing but our own CPU: no aim."""
    results = []
    for step, way in ((Step.READY, "created to ready"), (Step.GONE, "deleted to gone")):
        floor = measured.floor(step)
        if floor is None or not measured.lasts(OURS, step):
            continue
        if pods == 1:
            ours, bare = measured.seconds(OURS, step), measured.seconds(floor, step)
            for share in (50, 99):
                over = percentile(ours, share) - percentile(bare, share)
                results.append(Result(f"one pod, {way} over the floor (p{share})", "s", over, OVER_FLOOR))
        elif runtime == "containerd":
            times = median(measured.lasts(OURS, step)) / median(measured.lasts(floor, step))
            aim = f"{pods} pods at once, {way}: the last beside the floor (medians)"
            results.append(Result(aim, "times", times, BESIDE_FLOOR))
    return results
