"""Metric families as values: what `text_format` writes. No part of the agent needs Prometheus' library for them.

A counter keeps the kubelet's name also where that does not end in `_total`, as good names would: dashboards ask for it.
Families without samples are left out when they are written down, as by Go's library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from trikubelet.formats.values import frozen
from trikubelet.telemetry.metrics import Histogram, Labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOTAL: Final = "_total"
COUNTER: Final = "counter"

K = TypeVar("K", bound=Labels)
V = TypeVar("V", float, Histogram)
"""Families are made of one value, or of one for each combination of labels."""


@frozen
class Sample:
    """One value."""

    labels: Labels
    """The values, in the order of the family's names."""
    value: float
    at: int | None = None
    """Nanoseconds since 1970; None: no time is given, and the reader takes the time of reading."""


@frozen
class HistogramSample:
    """One histogram, whole: with a sample for each bucket there would be fourteen times as many objects, for each
    container that is probed."""

    labels: Labels
    bounds: tuple[float, ...]
    cumulated: tuple[int, ...]
    """As `Histogram.cumulated`."""
    sum: float


@frozen
class Family:
    """All series of one name."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    label_names: tuple[str, ...] = ()
    samples: Sequence[Sample] = ()


@frozen
class HistogramFamily:
    """All histograms of one name."""

    name: str
    help: str
    label_names: tuple[str, ...] = ()
    samples: Sequence[HistogramSample] = ()


AnyFamily: TypeAlias = Family | HistogramFamily

if TYPE_CHECKING:
    Collect = Callable[[], Iterable[AnyFamily]]
    """Gives the families of one part as they are now. It neither waits nor takes long."""


def counter(name: str, text: str, values: float | Mapping[K, float], labels: tuple[str, ...] = ()) -> Family:
    """`text` is the family's help. Raises ValueError for values that are not labelled with as many `labels`."""
    return Family(name, COUNTER, text, labels, _samples(values, labels))


def gauge(name: str, text: str, values: float | Mapping[K, float], labels: tuple[str, ...] = ()) -> Family:
    return Family(name, "gauge", text, labels, _samples(values, labels))


def histogram(
    name: str, text: str, values: Histogram | Mapping[K, Histogram], labels: tuple[str, ...] = ()
) -> HistogramFamily:
    samples = [
        HistogramSample(combination, one.bounds, one.cumulated, one.sum)
        for combination, one in _by_labels(values, labels).items()
    ]
    return HistogramFamily(name, text, labels, samples)


def is_counter(family: AnyFamily) -> bool:
    return isinstance(family, Family) and family.kind == COUNTER


def base_name(family: AnyFamily) -> str:
    """As OpenMetrics names a family: counters without `_total`."""
    return family.name.removesuffix(TOTAL) if is_counter(family) else family.name


def _samples(values: float | Mapping[K, float], labels: tuple[str, ...]) -> list[Sample]:
    return [Sample(combination, value) for combination, value in _by_labels(values, labels).items()]


def _by_labels(values: V | Mapping[K, V], labels: tuple[str, ...]) -> Mapping[K, V] | Mapping[Labels, V]:
    if not isinstance(values, Mapping):
        alone: Labels = ()
        return _by_labels({alone: values}, labels)
    for combination in values:
        if len(combination) != len(labels):
            raise ValueError(f"expected values of the labels {labels}, got {combination}")
    return values
