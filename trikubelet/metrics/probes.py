"""Families about probes, for a page of their own: they are the only ones with the names of pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.probes.metrics import BUCKETS
from trikubelet.telemetry.families import HistogramFamily, HistogramSample, counter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.probes.metrics import ProbeMetrics
    from trikubelet.telemetry.families import AnyFamily

TOTAL_LABELS = ("probe_type", "result", "container", "pod", "namespace", "pod_uid")
DURATION_LABELS = ("probe_type", "container", "pod", "namespace")


def collect_probes(metrics: ProbeMetrics) -> Iterator[AnyFamily]:
    samples = metrics.samples()
    totals = {tuple(one.labels[name] for name in TOTAL_LABELS): one.value for one in samples.totals}
    yield counter("prober_probe_total", "Probes that came to a result.", totals, TOTAL_LABELS)
    durations = [
        HistogramSample(tuple(one.labels[name] for name in DURATION_LABELS), BUCKETS, one.buckets, one.sum)
        for one in samples.durations
    ]
    text = "How long probes took, with all their tries."
    yield HistogramFamily("prober_probe_duration_seconds", text, DURATION_LABELS, durations)
