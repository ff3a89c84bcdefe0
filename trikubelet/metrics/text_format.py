"""Two formats of text: Prometheus' 0.0.4 as Go's library writes it, and OpenMetrics 1.0.

Python's library writes two things of 0.0.4 otherwise that people would notice who look at kubelets: it gives every
counter a name that ends in `_total` in its header, and it writes the bounds of buckets as `1.0` where Go has `1`, which
is part of the bucket's name. And it takes long: a page with the probes of 500 pods has 18,000 lines. So this writes, in
pieces, between which others may have their turn.

OpenMetrics knows no counter whose name does not end in `_total`: such keep their name here, and lose their type.
"""

from __future__ import annotations

import enum
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from trikubelet.metrics.families import COUNTER, TOTAL, HistogramFamily, go_number, is_named_freely

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Sample

    from trikubelet.metrics.families import HistogramRow

PIECE: Final = 1000
"""Lines that are written at once: a millisecond or two."""
ROWS: Final = PIECE // 10
"""Histograms that are written at once."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class TextFormat(enum.Enum):
    """By their content types."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def write_text(metrics: Iterable[Metric], form: TextFormat = TextFormat.TEXT) -> Iterator[bytes]:
    """The families in their order, in pieces."""
    for metric in metrics:
        name, kind = _header(metric, form)
        yield f"# HELP {name} {_help(metric, form)}\n# TYPE {name} {kind}\n".encode()
        if isinstance(metric, HistogramFamily):
            for start in range(0, len(metric.rows), ROWS):
                rows = metric.rows[start : start + ROWS]
                yield "".join(_histogram(metric.name, row, form) for row in rows).encode()
        else:
            for start in range(0, len(metric.samples), PIECE):
                yield _lines(metric.samples[start : start + PIECE], form).encode()
    if form is TextFormat.OPENMETRICS:
        yield b"# EOF\n"


def _header(metric: Metric, form: TextFormat) -> tuple[str, str]:
    """The family's name and type."""
    if form is TextFormat.OPENMETRICS:
        return metric.name, "unknown" if is_named_freely(metric) else metric.type
    counted = metric.type == COUNTER and not is_named_freely(metric)
    return f"{metric.name}{TOTAL}" if counted else metric.name, metric.type


def _help(metric: Metric, form: TextFormat) -> str:
    return metric.documentation.translate(_ESCAPES if form is TextFormat.OPENMETRICS else _HELP_ESCAPES)


def _lines(samples: Sequence[Sample], form: TextFormat) -> str:
    whole = form is TextFormat.TEXT
    lines = [f"{sample.name}{_labels(sample.labels, whole)} {_number(sample.value, whole)}\n" for sample in samples]
    return "".join(lines)


def _histogram(name: str, row: HistogramRow, form: TextFormat) -> str:
    whole = form is TextFormat.TEXT
    labels = _labels(row.labels, whole)
    before = f"{name}_bucket{labels[:-1]}," if labels else f"{name}_bucket{{"
    lines = [
        f'{before}le="{bound}"}} {_number(number, whole)}\n'
        for bound, number in zip(_bounds(row.bounds, whole), row.cumulated, strict=True)
    ]
    lines.append(f"{name}_count{labels} {_number(row.cumulated[-1], whole)}\n")
    lines.append(f"{name}_sum{labels} {_number(row.sum, whole)}\n")
    return "".join(lines)


@lru_cache(maxsize=100)
def _bounds(bounds: tuple[float, ...], whole: bool) -> tuple[str, ...]:
    """As the label `le` has them. `whole`: whole numbers are written as such."""
    return tuple(_number(float(bound), whole) for bound in (*bounds, math.inf))


def _labels(labels: Mapping[str, str], whole: bool) -> str:
    """`whole`: as in `_bounds`."""
    if not labels:
        return ""
    pairs = []
    for name, value in labels.items():
        if name == "le":
            value = value.removesuffix(".0") if whole else value
        elif "\\" in value or "\n" in value or '"' in value:
            value = value.translate(_ESCAPES)
        pairs.append(f'{name}="{value}"')
    return "{" + ",".join(pairs) + "}"


def _number(value: float, whole: bool) -> str:
    if isinstance(value, int):
        return str(value) if whole else f"{value}.0"
    return go_number(value).removesuffix(".0") if whole else go_number(value)
