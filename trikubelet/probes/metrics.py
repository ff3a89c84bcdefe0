"""What is counted of probes, under the kubelet's names: `prober_probe_total` and `prober_probe_duration_seconds`.

Plain values: `trikubelet.metrics` turns them into families. They are kept for each worker and go with it, so that
pods that are gone leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.container.probe_results import ProbeResult
from trikubelet.formats.values import define, frozen
from trikubelet.telemetry.metrics import DEFAULT_BOUNDS, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Pod
    from trikubelet.probes.types import ProbeKey

BUCKETS: Final = DEFAULT_BOUNDS
"""Upper bounds of the durations' buckets in seconds, Prometheus' default ones."""

RESULT_LABELS: Final = {
    ProbeResult.SUCCESS: "successful",
    ProbeResult.FAILURE: "failed",
    ProbeResult.UNKNOWN: "unknown",
}


@frozen
class ProbeTotal:
    """A sample of the counter `prober_probe_total`."""

    labels: Mapping[str, str]
    """probe_type, container, pod, namespace, pod_uid and result."""
    value: int


@frozen
class ProbeDurations:
    """A sample of the histogram `prober_probe_duration_seconds`."""

    labels: Mapping[str, str]
    """probe_type, container, pod and namespace."""
    buckets: tuple[int, ...]
    """How many took no longer than each of `BUCKETS`, and in the end how many there were at all."""
    sum: float
    """Seconds of all of them."""

    @property
    def count(self) -> int:
        return self.buckets[-1]


@frozen
class ProbeSamples:
    """Everything, at one moment."""

    totals: tuple[ProbeTotal, ...]
    durations: tuple[ProbeDurations, ...]


@define
class _Counts:
    """What one worker did."""

    pod: str
    namespace: str
    results: dict[ProbeResult, int] = attrs.field(factory=dict)
    durations: Histogram = attrs.field(factory=lambda: Histogram(BUCKETS))


class ProbeMetrics:
    """Counts the probes that came to a result."""

    def __init__(self) -> None:
        self._counts: dict[ProbeKey, _Counts] = {}

    def count(self, key: ProbeKey, pod: Pod, result: ProbeResult, seconds: float | None) -> None:
        """A probe came to a result. `seconds` that it took with all its tries; None: its duration does not count."""
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = _Counts(pod.metadata.name, pod.metadata.namespace)
        counts.results[result] = counts.results.get(result, 0) + 1
        if seconds is not None:
            counts.durations.observe(seconds)

    def drop(self, key: ProbeKey) -> None:
        """Forget a worker."""
        self._counts.pop(key, None)

    def samples(self) -> ProbeSamples:
        """What was counted so far."""
        totals = tuple(
            ProbeTotal({**_labels(key, counts), "pod_uid": key.pod_uid, "result": RESULT_LABELS[result]}, number)
            for key, counts in self._counts.items()
            for result, number in counts.results.items()
        )
        return ProbeSamples(totals, tuple(_durations(self._counts.items())))


def _labels(key: ProbeKey, counts: _Counts) -> dict[str, str]:
    return {
        "probe_type": key.kind.value,
        "container": key.container,
        "pod": counts.pod,
        "namespace": counts.namespace,
    }


def _durations(counted: Iterable[tuple[ProbeKey, _Counts]]) -> Iterable[ProbeDurations]:
    """One sample for equal labels: a pod and the one that takes its place have the same, for these have no UID."""
    by_labels: dict[tuple[str, ...], tuple[dict[str, str], Histogram]] = {}
    for key, counts in counted:
        if counts.durations.count:
            labels = _labels(key, counts)
            by_labels.setdefault(tuple(labels.values()), (labels, Histogram(BUCKETS)))[1].add(counts.durations)
    for labels, histogram in by_labels.values():
        yield ProbeDurations(labels, histogram.cumulated, histogram.sum)
