"""What is known of pods that ended, and what follows from it: percentiles, the floor, aims. Nothing here measures."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from statistics import median
from typing import Final

import attrs

from benchmarks.report import Result
from benchmarks.termination.pods import Behaviour

OURS: Final = "trikubelet"
FLOOR: Final = "floor"


class Phase(enum.Enum):
    """A moment in the end of a pod, in their order."""

    FIRST_SIGNAL = "first signal"
    PROCESS_DEAD = "process dead"
    CONTAINERS_GONE = "containers gone"
    SANDBOX_GONE = "sandbox gone"
    WORKER_FINISHED = "worker finished"


@attrs.frozen
class PodTimes:
    """One pod's end. Times are seconds of one clock, whichever."""

    pod: str
    asked: float
    """When its manifest was removed; for a grace period that was shortened, the moment of that."""
    moments: dict[Phase, float]

    def after(self, phase: Phase) -> float | None:
        """Seconds from being asked; None where the moment is not known, or came before."""
        moment = self.moments.get(phase)
        return None if moment is None or moment < self.asked else moment - self.asked

    @property
    def overhead(self) -> float | None:
        """Seconds until the sandbox was gone beyond those that the process took to end."""
        gone, signal = self.after(Phase.SANDBOX_GONE), self.after(Phase.FIRST_SIGNAL)
        dead = self.after(Phase.PROCESS_DEAD)
        return None if gone is None or signal is None or dead is None else gone - (dead - signal)


@attrs.frozen
class Batch:
    """Pods that were asked to end at once."""

    pods: Sequence[PodTimes]
    cpu: float | None = None
    """Seconds of the agent for all of them, from their manifests to their removal, beyond what it takes when idle."""

    def last(self, phase: Phase) -> float | None:
        """Seconds from the first that was asked to the last that got there; None when not all did."""
        moments = [pod.moments.get(phase) for pod in self.pods]
        known = [moment for moment in moments if moment is not None]
        return max(known) - min(pod.asked for pod in self.pods) if known and len(known) == len(moments) else None


@attrs.frozen
class Percentiles:
    """Of some values. The p-th is the least value that p percent of them do not exceed."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Raises ValueError where there are none."""
        if not values:
            raise ValueError("expected at least one value")
        p50, p90, p99 = (percentile(values, share) for share in (50, 90, 99))
        return cls(len(values), p50, p90, p99, max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """By the nearest rank: always one of the values, so that few of them promise nothing."""
    ranked = sorted(values)
    return ranked[max(math.ceil(share / 100 * len(ranked)), 1) - 1]


@attrs.frozen
class Key:
    """Who ended which pods."""

    behaviour: Behaviour
    contestant: str


@attrs.define
class Measurements:
    """Every batch there was."""

    batches: dict[Key, list[Batch]] = attrs.field(factory=dict)

    def add(self, behaviour: Behaviour, contestant: str, batch: Batch) -> None:
        self.batches.setdefault(Key(behaviour, contestant), []).append(batch)

    def of(self, behaviour: Behaviour, contestant: str) -> list[Batch]:
        return self.batches.get(Key(behaviour, contestant), [])

    @property
    def behaviours(self) -> list[Behaviour]:
        return list(dict.fromkeys(key.behaviour for key in self.batches))

    def contestants(self, behaviour: Behaviour) -> list[str]:
        """The floor first, then the others as they came."""
        names = [key.contestant for key in self.batches if key.behaviour is behaviour]
        return sorted(names, key=lambda name: name != FLOOR)

    def seconds(self, behaviour: Behaviour, contestant: str, phase: Phase) -> list[float]:
        """From being asked, for every pod for which it is known."""
        times = (pod.after(phase) for batch in self.of(behaviour, contestant) for pod in batch.pods)
        return [seconds for seconds in times if seconds is not None]

    def lasts(self, behaviour: Behaviour, contestant: str, phase: Phase = Phase.SANDBOX_GONE) -> list[float]:
        """For every batch."""
        lasts = (batch.last(phase) for batch in self.of(behaviour, contestant))
        return [seconds for seconds in lasts if seconds is not None]

    def cpu_per_pod(self, contestant: str, behaviour: Behaviour) -> float | None:
        """Seconds; None where nobody counted."""
        counted = [batch for batch in self.of(behaviour, contestant) if batch.cpu is not None]
        pods = sum(len(batch.pods) for batch in counted)
        return sum(batch.cpu or 0 for batch in counted) / pods if pods else None

    def with_best_floor(self) -> Measurements:
        """With one floor for each behaviour: of bare clients, the one whose batches were over first."""
        best = Measurements()
        for behaviour in self.behaviours:
            names = self.contestants(behaviour)
            floors = [name for name in names if name.startswith(FLOOR)]
            for name in names:
                if name not in floors:
                    best.batches[Key(behaviour, name)] = self.of(behaviour, name)
            if floors:
                fastest = min(floors, key=lambda name: median(self.lasts(behaviour, name) or [math.inf]))
                best.batches[Key(behaviour, FLOOR)] = self.of(behaviour, fastest)
        return best


def aims(runtime: str, pods: int, measured: Measurements) -> list[Result]:
    """What was to be shown: of pods that exit when they are asked to."""
    behaviour = Behaviour.EXITS_ON_TERM
    ours = measured.seconds(behaviour, OURS, Phase.SANDBOX_GONE)
    floor = measured.seconds(behaviour, FLOOR, Phase.SANDBOX_GONE)
    if not ours or not floor:
        return []
    if runtime == "embedded":
        return _overhead_aims(measured)
    results = []
    if pods == 1:
        for share, goal in ((50, 1.25), (99, 1.6)):
            aim = f"one pod, asked to sandbox gone beside the floor (p{share})"
            results.append(Result(aim, "times", percentile(ours, share) / percentile(floor, share), goal))
    else:
        lasts, floors = measured.lasts(behaviour, OURS), measured.lasts(behaviour, FLOOR)
        if lasts and floors:
            aim = f"{pods} pods at once, asked to the last sandbox gone beside the floor (medians)"
            results.append(Result(aim, "times", median(lasts) / median(floors), 1.3))
    cpu = measured.cpu_per_pod(OURS, behaviour)
    if runtime == "containerd" and cpu is not None:
        results.append(Result(f"our CPU per pod, start and stop, {pods} at once", "ms", 1000 * cpu, 40))
    return results


def _overhead_aims(measured: Measurements) -> list[Result]:
    batches = measured.of(Behaviour.EXITS_ON_TERM, OURS)
    overheads = [pod.overhead for batch in batches for pod in batch.pods]
    known = [seconds for seconds in overheads if seconds is not None]
    return [
        Result(f"sandbox gone beyond the process's own exit (p{share})", "ms", 1000 * percentile(known, share), 50)
        for share in (50, 99)
        if known
    ]
