"""Families about who has CPUs, memory and NUMA nodes for itself; only of the managers whose policy is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.allocation.topology.policy import NONE
from trikubelet.telemetry.families import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.allocation.manager_metrics import CpuUsage, ManagerCounts
    from trikubelet.telemetry.families import AnyFamily


def collect_resource_managers(counts: ManagerCounts, cpus: CpuUsage | None) -> Iterator[AnyFamily]:
    """`cpus`: how they are used now; None without a policy for them."""
    settings = counts.settings
    if settings.topology.name != NONE:
        yield from _topology(counts)
    if cpus is not None:
        yield from _cpus(counts, cpus)
    if settings.memory is not None:
        text = "Containers that were to have memory of their own, each time that their pod was asked about."
        yield counter("kubelet_memory_manager_pinning_requests_total", text, counts.requests["memory",])
        text = "Containers that could not have memory of their own, so that their pod was refused."
        yield counter("kubelet_memory_manager_pinning_errors_total", text, counts.errors["memory",])
    labels = ("scope", "boundary")
    text = "Containers, or pods, whose resources are all within one boundary, as a policy promises or as it came out."
    yield counter("kubelet_container_aligned_compute_resources_count", text, counts.aligned, labels)
    text = "Pods that were refused since their resources, or a container's, could not be within one boundary."
    yield counter("kubelet_container_aligned_compute_resources_failure_count", text, counts.misaligned, labels)
    if settings.pod_level:
        yield from _pod_level(counts)


def _topology(counts: ManagerCounts) -> Iterator[AnyFamily]:
    text = "Pods that were asked about, so that all that they ask for comes from NUMA nodes that fit together."
    yield counter("kubelet_topology_manager_admission_requests_total", text, counts.admissions)
    text = "Pods that were refused, as there were no such NUMA nodes or they had not enough."
    yield counter("kubelet_topology_manager_admission_errors_total", text, counts.refusals)
    text = "Milliseconds that it took to answer."
    yield histogram("kubelet_topology_manager_admission_duration_ms", text, counts.durations)


def _cpus(counts: ManagerCounts, usage: CpuUsage) -> Iterator[AnyFamily]:
    text = "Containers that were to have CPUs of their own, each time that their pod was asked about."
    yield counter("kubelet_cpu_manager_pinning_requests_total", text, counts.requests["cpu",])
    text = "Containers that could not have CPUs of their own, so that their pod was refused."
    yield counter("kubelet_cpu_manager_pinning_errors_total", text, counts.errors["cpu",])
    text = "CPUs that containers could have for themselves and that are shared, in thousandths."
    yield gauge("kubelet_cpu_manager_shared_pool_size_millicores", text, usage.shared * 1000)
    text = "CPUs that containers have for themselves."
    yield gauge("kubelet_cpu_manager_exclusive_cpu_allocation_count", text, usage.exclusive)
    text = "CPUs of each NUMA node that containers have for themselves."
    by_node = {(str(node),): number for node, number in usage.by_node.items()}
    yield gauge("kubelet_cpu_manager_allocation_per_numa", text, by_node, ("numa_node",))


def _pod_level(counts: ManagerCounts) -> Iterator[AnyFamily]:
    """With the feature gate `PodLevelResourceManagers`."""
    text = "Resources that were given to containers, by whether the node or their pod had them before."
    labels = ("resource_name", "source")
    yield counter("resource_manager_allocations_total", text, counts.allocations, labels)
    text = "Refusals because a resource could not be given."
    yield counter("resource_manager_allocation_errors_total", text, counts.allocation_errors, labels)
    text = "Containers that were given something, by whether it is theirs alone."
    labels = ("resource_name", "assignment_type")
    yield counter("resource_manager_container_assignments", text, counts.assignments, labels)
