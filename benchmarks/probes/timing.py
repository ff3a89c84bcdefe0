"""How far from their grid probes came, by what a server saw of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from benchmarks.detect.crash import percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@attrs.frozen
class Timing:
    """Of many probes with the same period, in percent of it."""

    drift: float
    """Of the probe that drifts most: how much longer or shorter its periods are."""
    late_median: float
    """How late a probe came, on the grid of that one of its visits which was least late."""
    late_p99: float
    late_max: float
    seen: int
    missed: int
    """Points of a grid between two visits at which nobody came."""


def grid_of(visits: Sequence[float], period: float) -> tuple[float, list[float], int]:
    """The drift of one probe (seconds for each period), how late each visit was (seconds), and missed points."""
    first = visits[0]
    points = [round((visit - first) / period) for visit in visits]
    offsets = [visit - first - point * period for visit, point in zip(visits, points, strict=True)]
    mean_point, mean_offset = sum(points) / len(points), sum(offsets) / len(offsets)
    spread = sum((point - mean_point) ** 2 for point in points)
    slope = sum((point - mean_point) * (offset - mean_offset) for point, offset in zip(points, offsets, strict=True))
    least = min(offsets)
    missed = points[-1] - points[0] + 1 - len({*points})
    return (slope / spread if spread else 0.0), [offset - least for offset in offsets], missed


def timing(visits: Iterable[Sequence[float]], period: float) -> Timing:
    """Of all probes; those that were seen less than three times count as missed."""
    drifts, late, missed = [], [], 0
    for each in visits:
        if len(each) < 3:
            missed += 1
            continue
        drift, lateness, gaps = grid_of(each, period)
        drifts.append(abs(drift))
        late += lateness
        missed += gaps
    percent = 100 / period
    return Timing(
        percent * max(drifts),
        percent * percentile(late, 0.5),
        percent * percentile(late, 0.99),
        percent * max(late),
        len(late),
        missed,
    )
