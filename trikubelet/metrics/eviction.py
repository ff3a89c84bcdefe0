"""Families about pods that were ended for what they, or the node, had too little of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.telemetry.families import counter, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.telemetry.families import AnyFamily
    from trikubelet.telemetry.metrics import Counts, Histograms

LABELS = ("eviction_signal",)


def collect_eviction(evictions: Counts, ages: Histograms) -> Iterator[AnyFamily]:
    """Of an `EvictionManager`."""
    text = "Pods that were evicted, by what there was too little of, or by which limit of their own they were beyond."
    yield counter("kubelet_evictions", text, evictions, LABELS)
    text = "How old the measurement was by which a pod was chosen to be evicted."
    yield histogram("kubelet_eviction_stats_age_seconds", text, ages, LABELS)
