"""`/metrics/resource`: what metrics-server reads, and so what `kubectl top` and autoscalers see.

Names, labels and help texts are the kubelet's (`metrics/collectors/resource_metrics.go`); most are stable API. Values
have the time at which they were measured, since rates are computed from them: a series read twice within a collection
must not look like a standstill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.telemetry.families import Family, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.node.stats.model import ContainerStats, NodeStats, PodStats, Summary

_SECOND: Final = 1e9
_POD: Final = ("pod", "namespace")
_CONTAINER: Final = ("container", "pod", "namespace")
_NOT_WINDOWS: Final = "Reported only on non-windows systems"

FAMILIES: Final = {
    family.name: family
    for family in (
        Family(
            "node_cpu_usage_seconds_total",
            "counter",
            "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        ),
        Family("node_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the node in bytes"),
        Family("node_swap_usage_bytes", "gauge", f"[ALPHA] Current swap usage of the node in bytes. {_NOT_WINDOWS}"),
        Family(
            "container_cpu_usage_seconds_total",
            "counter",
            "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
            _CONTAINER,
        ),
        Family(
            "container_memory_working_set_bytes",
            "gauge",
            "[STABLE] Current working set of the container in bytes",
            _CONTAINER,
        ),
        Family(
            "container_swap_usage_bytes",
            "gauge",
            f"[ALPHA] Current amount of the container swap usage in bytes. {_NOT_WINDOWS}",
            _CONTAINER,
        ),
        Family(
            "container_swap_limit_bytes",
            "gauge",
            f"[ALPHA] Current amount of the container swap limit in bytes. {_NOT_WINDOWS}",
            _CONTAINER,
        ),
        Family(
            "container_start_time_seconds",
            "gauge",
            "[STABLE] Start time of the container since unix epoch in seconds",
            _CONTAINER,
        ),
        Family(
            "pod_cpu_usage_seconds_total",
            "counter",
            "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
            _POD,
        ),
        Family("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes", _POD),
        Family(
            "pod_swap_usage_bytes",
            "gauge",
            f"[ALPHA] Current amount of the pod swap usage in bytes. {_NOT_WINDOWS}",
            _POD,
        ),
        Family(
            "resource_scrape_error",
            "gauge",
            "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
        ),
    )
}


def resource_families(summary: Summary | None) -> list[Family]:
    """All families that have series. None: nothing could be measured, which `resource_scrape_error` shows.

    So is a summary that lacks something; what it has is given all the same.
    """
    series: dict[str, list[Sample]] = {name: [] for name in FAMILIES}
    failed = summary is None or bool(summary.problems)
    series["resource_scrape_error"].append(Sample((), float(failed)))
    if summary is not None:
        # The node's own series have no labels, and are the same three of a pod.
        for name, sample in _usage("node", summary.node, ()):
            series[name].append(sample)
        for pod in summary.pods:
            for name, sample in _pod(pod):
                series[name].append(sample)
    return [
        Family(family.name, family.kind, family.help, family.label_names, series[name])
        for name, family in FAMILIES.items()
        if series[name]
    ]


def _pod(pod: PodStats) -> Iterator[tuple[str, Sample]]:
    labels = (pod.pod_ref.name, pod.pod_ref.namespace)
    yield from _usage("pod", pod, labels)
    for container in pod.containers:
        yield from _container(container, (container.name, *labels))


def _container(container: ContainerStats, labels: tuple[str, ...]) -> Iterator[tuple[str, Sample]]:
    yield from _usage("container", container, labels)
    if container.start_time is not None and container.start_time >= _SECOND:
        yield "container_start_time_seconds", Sample(labels, container.start_time / _SECOND)
    swap = container.swap
    if swap is not None and swap.swap_available_bytes is not None:
        limit = swap.swap_available_bytes + (swap.swap_usage_bytes or 0)
        yield "container_swap_limit_bytes", Sample(labels, limit, swap.time)


def _usage(
    whose: str, stats: NodeStats | PodStats | ContainerStats, labels: tuple[str, ...]
) -> Iterator[tuple[str, Sample]]:
    cpu, memory, swap = stats.cpu, stats.memory, stats.swap
    if cpu is not None and cpu.usage_core_nano_seconds is not None:
        value = cpu.usage_core_nano_seconds / _SECOND
        yield f"{whose}_cpu_usage_seconds_total", Sample(labels, value, cpu.time)
    if memory is not None and memory.working_set_bytes is not None:
        yield f"{whose}_memory_working_set_bytes", Sample(labels, memory.working_set_bytes, memory.time)
    if swap is not None and swap.swap_usage_bytes is not None:
        yield f"{whose}_swap_usage_bytes", Sample(labels, swap.swap_usage_bytes, swap.time)
