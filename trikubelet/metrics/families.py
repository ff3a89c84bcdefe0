"""Metric families out of what parts count.

A counter keeps the kubelet's name also where that does not end in `_total`, as good names would: dashboards ask for it.
Families without samples are left out when they are written down, as by Go's library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from trikubelet.measures import Histogram, Labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Collect = Callable[[], Iterable[Metric]]
    """Gives the families of one part as they are now. It neither waits nor takes long."""

TOTAL: Final = "_total"
COUNTER: Final = "counter"

K = TypeVar("K", bound=Labels)
V = TypeVar("V", float, Histogram)
"""Families are made of one value, or of one for each combination of labels."""


def counter(name: str, text: str, values: float | Mapping[K, float], labels: tuple[str, ...] = ()) -> Metric:
    """`text` is the family's help."""
    return _simple(name, text, COUNTER, values, labels)


def gauge(name: str, text: str, values: float | Mapping[K, float], labels: tuple[str, ...] = ()) -> Metric:
    return _simple(name, text, "gauge", values, labels)


def histogram(
    name: str, text: str, values: Histogram | Mapping[K, Histogram], labels: tuple[str, ...] = ()
) -> HistogramFamily:
    family = HistogramFamily(name, text)
    for combination, one in _by_labels(values).items():
        family.rows.append(HistogramRow(_named(labels, combination), one.bounds, one.cumulated, one.sum))
    return family


@attrs.frozen
class HistogramRow:
    """One histogram of a family."""

    labels: Mapping[str, str]
    bounds: tuple[float, ...]
    cumulated: tuple[int, ...]
    """As `Histogram.cumulated`."""
    sum: float

    def samples(self, name: str) -> Iterator[Sample]:
        labels = dict(self.labels)
        for bound, number in zip((*self.bounds, float("inf")), self.cumulated, strict=True):
            yield Sample(f"{name}_bucket", {**labels, "le": go_number(bound)}, number)
        yield Sample(f"{name}_count", labels, self.cumulated[-1])
        yield Sample(f"{name}_sum", labels, self.sum)


class HistogramFamily(Metric):
    """Keeps its histograms whole: with a sample for each bucket they would be fourteen times as many objects, for each
    container that is probed. Who wants samples gets them."""

    def __init__(self, name: str, text: str) -> None:
        self.rows: list[HistogramRow] = []
        super().__init__(name, text, "histogram")

    @property
    def samples(self) -> list[Sample]:
        return [sample for row in self.rows for sample in row.samples(self.name)]

    @samples.setter
    def samples(self, samples: list[Sample]) -> None:
        if samples:
            raise TypeError("samples of a histogram are made of its rows")


def has_samples(metric: Metric) -> bool:
    return bool(metric.rows if isinstance(metric, HistogramFamily) else metric.samples)


def is_named_freely(metric: Metric) -> bool:
    """Whether it is a counter whose name does not say so."""
    return metric.type == COUNTER and any(sample.name == metric.name for sample in metric.samples)


def _simple(name: str, text: str, kind: str, values: float | Mapping[K, float], labels: tuple[str, ...]) -> Metric:
    metric = Metric(name.removesuffix(TOTAL) if kind == COUNTER else name, text, kind)
    metric.samples = [
        Sample(name, _named(labels, combination), value) for combination, value in _by_labels(values).items()
    ]
    return metric


def _by_labels(values: V | Mapping[K, V]) -> Mapping[K, V] | Mapping[Labels, V]:
    if isinstance(values, Mapping):
        return values
    alone: Labels = ()
    return {alone: values}


def _named(labels: tuple[str, ...], values: Labels) -> dict[str, str]:
    return dict(zip(labels, values, strict=True))


def go_number(value: float) -> str:
    """As Prometheus' libraries write it: `1.0`, `+Inf`, `1.6777216e+07`."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]
