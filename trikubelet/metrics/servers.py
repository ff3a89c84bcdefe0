"""Families about requests to this node, and about its health checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.metrics.health_checks import HEALTHZ
from trikubelet.telemetry.families import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.metrics.health_checks import HealthChecks
    from trikubelet.metrics.http_requests import RequestCounts
    from trikubelet.node.podresources.metrics import PodResourcesMetrics
    from trikubelet.telemetry.families import AnyFamily
    from trikubelet.tracing.exporter import ExportCounts


def collect_http(counts: RequestCounts) -> Iterator[AnyFamily]:
    labels = ("method", "path", "server_type", "long_running")
    yield counter("kubelet_http_requests_total", "Requests to the node's servers.", counts.requests, labels)
    text = "How long requests to the node's servers took."
    yield histogram("kubelet_http_requests_duration_seconds", text, counts.durations, labels)
    text = "Requests that the node's servers are busy with."
    yield gauge("kubelet_http_inflight_requests", text, counts.in_flight, labels)
    text = "Requests for streams that came over WebSocket."
    yield counter("kubelet_websocket_streaming_requests_total", text, counts.websockets, ("subresource",))


def collect_pod_resources(metrics: PodResourcesMetrics) -> Iterator[AnyFamily]:
    for name, text, counts in (
        ("requests_total", "Requests to the pod resources API.", metrics.requests),
        ("requests_list", "Calls of List.", metrics.lists),
        ("requests_get", "Calls of Get.", metrics.gets),
        ("requests_get_allocatable", "Calls of GetAllocatableResources.", metrics.allocatables),
        ("errors_list", "Calls of List that failed.", metrics.failed_lists),
        ("errors_get", "Calls of Get that failed.", metrics.failed_gets),
        ("errors_get_allocatable", "Calls of GetAllocatableResources that failed.", metrics.failed_allocatables),
    ):
        yield counter(f"kubelet_pod_resources_endpoint_{name}", text, counts, ("server_api_version",))


def collect_health(checks: HealthChecks) -> Iterator[AnyFamily]:
    """Looks, too."""
    checks.check()
    results = {(name, HEALTHZ): int(healthy) for name, healthy in checks.results.items()}
    yield gauge("kubernetes_healthcheck", "Whether a health check passes.", results, ("name", "type"))
    counts = {(name, HEALTHZ, result): number for (name, result), number in checks.counts.items()}
    text = "What health checks found, as often as they were asked."
    yield counter("kubernetes_healthchecks_total", text, counts, ("name", "type", "status"))


def collect_spans(counts: ExportCounts) -> Iterator[AnyFamily]:
    """Of an agent with traces."""
    text = "Spans that have ended, by what became of them."
    outcomes = {("exported",): counts.exported, ("dropped",): counts.dropped}
    yield counter("trikubelet_spans_total", text, outcomes, ("outcome",))
