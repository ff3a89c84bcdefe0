"""What was measured of volumes, and what follows from it. Nothing here measures."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

import attrs

from benchmarks.report import Result
from benchmarks.volumes.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

PER_VOLUME: Final = 0.005
"""Seconds that a configMap or secret volume may add to a pod's start."""
WITH_AIM: Final = (Kind.CONFIG_MAP, Kind.SECRET)


@attrs.frozen
class Round:
    """One turn of one kind and number of volumes. Seconds."""

    start: float
    """A pod with the volumes, from its creation until it is ready."""
    start_without: float
    """The same pod without them, right before or after."""
    cpu: float
    """Of the agent for the pod with the volumes, its end included."""
    cpu_without: float
    prepare: float
    """The volume manager alone, with objects in memory."""
    prepare_without: float
    bare: float
    """The calls of the file system alone."""


@attrs.define
class Case:
    """All turns of one kind and number of volumes."""

    kind: Kind
    count: int
    rounds: list[Round] = attrs.field(factory=list)

    @property
    def start(self) -> float:
        return median(turn.start for turn in self.rounds)

    @property
    def start_without(self) -> float:
        return median(turn.start_without for turn in self.rounds)

    @property
    def added(self) -> float:
        """By all volumes: the median of the differences within each turn, as the machine's speed varies."""
        return median(turn.start - turn.start_without for turn in self.rounds)

    @property
    def per_volume(self) -> float:
        return self.added / self.count

    @property
    def cpu_per_volume(self) -> float:
        return median(turn.cpu - turn.cpu_without for turn in self.rounds) / self.count

    @property
    def prepared(self) -> float:
        """What `prepare` takes for all volumes beyond what it takes for a pod without any."""
        return median(turn.prepare - turn.prepare_without for turn in self.rounds)

    @property
    def prepared_without(self) -> float:
        """What it takes for a pod without any."""
        return median(turn.prepare_without for turn in self.rounds)

    @property
    def bare(self) -> float:
        return median(turn.bare for turn in self.rounds)


def rows(cases: list[Case]) -> Iterator[list[str]]:
    """Milliseconds, a line for each case."""
    for case in cases:
        values = (case.start, case.start_without, case.per_volume, case.cpu_per_volume, case.prepared, case.bare)
        yield [f"{case.count} {case.kind}", *(f"{1000 * value:.1f}" for value in values)]


def aims(runtime: str, cases: list[Case]) -> list[Result]:
    """Below 5 ms per configMap or secret volume."""
    return [
        Result(
            f"{runtime}: each of {case.count} {case.kind} volumes adds to a pod's start",
            "ms",
            1000 * case.per_volume,
            1000 * PER_VOLUME,
        )
        for case in cases
        if case.kind in WITH_AIM
    ]
