"""Families about resizes of pods that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.telemetry.families import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.allocation.manager import AllocationManager
    from trikubelet.telemetry.families import AnyFamily
    from trikubelet.telemetry.metrics import Histograms

_PENDING: Final = (("deferred",), ("infeasible",))


def collect_resizes(allocation: AllocationManager, durations: Histograms) -> Iterator[AnyFamily]:
    """`durations`: how long resizes took that were granted, in milliseconds."""
    counts, now = allocation.counts, allocation.statistics()
    text = "Changes of containers' resources that pods were asked for."
    labels = ("resource", "requirement", "operation")
    yield counter("kubelet_container_requested_resizes_total", text, counts.requested, labels)
    pending = {reason: now.pending.get(reason, 0) for reason in _PENDING}
    yield gauge("kubelet_pod_pending_resizes", "Pods whose resize is not granted.", pending, ("reason",))
    text = "Pods whose resize is granted, and not done yet."
    yield gauge("kubelet_pod_in_progress_resizes", text, now.in_progress)
    text = "Resizes that this node can never grant, by what is in the way."
    yield counter("kubelet_pod_infeasible_resizes_total", text, counts.infeasible, ("reason_detail",))
    text = "Resizes that were granted after they had to wait, by what made it possible."
    yield counter("kubelet_pod_deferred_accepted_resizes_total", text, counts.deferred_accepted, ("retry_trigger",))
    text = "Milliseconds that it took to have a pod run with the resources that it was granted."
    yield histogram("kubelet_pod_resize_duration_milliseconds", text, durations, ("success",))
