"""Counters and histograms of the parts: plain numbers, independent of how they are served.

A part keeps counts and histograms where it does its work, and they are read at a scrape
(`trikubelet.metrics`). So a part knows nothing of metrics' names, and nothing is computed without a scrape: counting
once takes less than a microsecond. All of it happens in Trio's thread, so there is no lock.

Labels are what there may be few of. What comes from outside (an exit code, a word of the runtime) is bounded where it
is counted, with `bounded`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

DEFAULT_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: upper bounds of buckets, Prometheus' default ones."""
OTHER: Final = "other"

Labels: TypeAlias = tuple[str, ...]
"""The values of labels, in an order that the counting part defines."""
Counts: TypeAlias = Counter[Labels]


def bounded(value: str, known: Collection[str]) -> str:
    """The value, or `other` when it is none of those that are known."""
    return value if value in known else OTHER


class Histogram:
    """How often values fell below each of some bounds."""

    __slots__ = ("_buckets", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...] = DEFAULT_BOUNDS) -> None:
        """`bounds`: the buckets' upper ones, growing. A value that is one of them counts to that bucket."""
        self.bounds = bounds
        self.sum = 0.0
        self._buckets = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        self.sum += value
        self._buckets[bisect_left(self.bounds, value)] += 1

    def add(self, other: Histogram) -> None:
        """Count all that another one with the same bounds has counted."""
        assert other.bounds == self.bounds
        self.sum += other.sum
        self._buckets = [mine + theirs for mine, theirs in zip(self._buckets, other._buckets, strict=True)]

    @property
    def count(self) -> int:
        return sum(self._buckets)

    @property
    def cumulated(self) -> tuple[int, ...]:
        """How many values were at most each of the bounds, and in the end how many there were at all."""
        return tuple(accumulate(self._buckets))


class Histograms(dict[Labels, Histogram]):
    """A histogram for each combination of labels, from its first value on."""

    def __init__(self, bounds: tuple[float, ...] = DEFAULT_BOUNDS, always: Iterable[Labels] = ()) -> None:
        """`always`: labels whose histograms are there before their first value."""
        super().__init__()
        self.bounds = bounds
        for labels in always:
            self[labels] = Histogram(bounds)

    def observe(self, labels: Labels, value: float) -> None:
        histogram = self.get(labels)
        if histogram is None:
            histogram = self[labels] = Histogram(self.bounds)
        histogram.observe(value)


def exponential_bounds(first: float, factor: float, number: int) -> tuple[float, ...]:
    """Bounds each of which is `factor` times the one before (Prometheus: `ExponentialBuckets`)."""
    bounds = [first]
    while len(bounds) < number:
        bounds.append(bounds[-1] * factor)
    return tuple(bounds)
