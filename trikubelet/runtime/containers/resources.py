"""Requests and limits of a pod as the kernel gets them: shares, quota, limits, swap, and OOM scores.

Pure. The formulas are the kubelet's (`kuberuntime_container_linux.go`, `qos/policy.go`,
`component-helpers/resource`), since two agents that computed differently would resize each other's containers.

Swap (KEP-2400): with LimitedSwap, on cgroup v2, a burstable pod's container gets the part of the node's swap that its
memory request is of the node's memory. NoSwap is the default.

Memory QoS (KEP-2570), on cgroup v2 and with the gate MemoryQoS only: with the policy TieredReservation the kernel does
not take requested memory away, never from Guaranteed pods (`memory.min`), from others only in need (`memory.low`). And
a container that may use more than it requests is slowed down before it is killed at its limit (`memory.high`).
"""

from __future__ import annotations

import mmap
import re
from typing import TYPE_CHECKING, Final

from trikubelet.api import (
    QOS_BURSTABLE,
    QOS_GUARANTEED,
    Quantity,
    aggregate_container_requests,
    is_huge_page_resource,
    is_sidecar,
    pod_limits,
    pod_requests,
    qos_class,
)
from trikubelet.api.pod_kinds import is_critical_pod
from trikubelet.cgroups.settings import CPU, HUGEPAGES_PREFIX, MEMORY, NO_QUOTA, cpu_quota, cpu_shares, memory_limit
from trikubelet.linux.huge_pages import page_size_name
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.runtime.options import RuntimeOptions

_ZERO: Final = Quantity()
_GUARANTEED_OOM_SCORE: Final = -997
_BEST_EFFORT_OOM_SCORE: Final = 1000
LIMITED_SWAP: Final = "LimitedSwap"
_SWAP_MAX: Final = "memory.swap.max"
TIERED_RESERVATION: Final = "TieredReservation"


def container_resources(pod: Pod, container: Container, options: RuntimeOptions) -> v1.LinuxContainerResources:
    """The limits that a container runs in (kubelet: `generateLinuxContainerResources`)."""
    resources = linux_resources(
        container.resources.requests.get(CPU),
        _limit(pod, container, CPU),
        _limit(pod, container, MEMORY),
        options,
    )
    _lift_quota(resources, pod, container, options)
    resources.oom_score_adj = oom_score_adjust(pod, container, options.machine.memory_capacity)
    resources.hugepage_limits = _hugepage_limits(pod, container, options.machine.hugepage_sizes)
    _set_swap_limit(resources, pod, container, options)
    _set_memory_protection(resources, pod, container, options)
    return resources


def sandbox_resources(pod: Pod, options: RuntimeOptions) -> v1.LinuxContainerResources:
    """The resources of all containers of the pod together, without its overhead."""
    requests = pod_requests(pod, overhead=False)
    limits = pod_limits(pod, overhead=False)
    resources = linux_resources(requests.get(CPU), limits.get(CPU, _ZERO), limits.get(MEMORY, _ZERO), options)
    _lift_quota(resources, pod, None, options)
    return resources


def overhead_resources(pod: Pod, options: RuntimeOptions) -> v1.LinuxContainerResources:
    """The resources of the sandbox itself."""
    overhead = pod.spec.overhead
    if not overhead:
        return v1.LinuxContainerResources()
    cpu = overhead.get(CPU, _ZERO)
    return linux_resources(cpu, cpu, overhead.get(MEMORY, _ZERO), options)


def linux_resources(
    cpu_request: Quantity | None, cpu_limit: Quantity, memory: Quantity, options: RuntimeOptions
) -> v1.LinuxContainerResources:
    """Amounts as cgroup settings; without a CPU request its limit counts (kubelet: `calculateLinuxResources`)."""
    request = cpu_limit if cpu_request is None else cpu_request
    resources = v1.LinuxContainerResources(
        cpu_shares=cpu_shares(request.milli_value()), memory_limit_in_bytes=memory_limit(memory)
    )
    if options.cpu_cfs_quota:
        resources.cpu_period = options.cpu_cfs_quota_period
        resources.cpu_quota = cpu_quota(cpu_limit.milli_value(), options.cpu_cfs_quota_period)
    if options.machine.cgroup_v2 and not options.single_process_oom_kill:
        resources.unified = {"memory.oom.group": "1"}
    return resources


def _lift_quota(
    resources: v1.LinuxContainerResources, pod: Pod, container: Container | None, options: RuntimeOptions
) -> None:
    """Who has CPUs of its own is not kept from using them (gate DisableCPUQuotaWithExclusiveCPUs)."""
    if options.cpu_cfs_quota and options.has_exclusive_cpus(pod, container):
        resources.cpu_quota = NO_QUOTA


def oom_score_adjust(pod: Pod, container: Container, memory_capacity: int) -> int:
    """When a container is killed as memory runs out: -997 last, 1000 first (kubelet: `GetContainerOOMScoreAdjust`)."""
    if pod.spec.priority_class_name == "system-node-critical":
        return _GUARANTEED_OOM_SCORE
    quality = qos_class(pod)
    if quality != QOS_BURSTABLE:
        return _GUARANTEED_OOM_SCORE if quality == QOS_GUARANTEED else _BEST_EFFORT_OOM_SCORE
    spare = _unassigned_memory_per_container(pod)
    score = _oom_score(_memory_request(container) + spare, memory_capacity)
    if is_sidecar(container) and any(init.name == container.name for init in pod.spec.init_containers):
        smallest = min(_memory_request(main) for main in pod.spec.containers)
        score = min(score, _oom_score(smallest + spare, memory_capacity))
    if score < 1000 + _GUARANTEED_OOM_SCORE:
        return 1000 + _GUARANTEED_OOM_SCORE
    return score - 1 if score == _BEST_EFFORT_OOM_SCORE else score


def _oom_score(memory_request: int, memory_capacity: int) -> int:
    return 1000 - 1000 * memory_request // memory_capacity


def _memory_request(container: Container) -> int:
    return container.resources.requests.get(MEMORY, _ZERO).value()


def _unassigned_memory_per_container(pod: Pod) -> int:
    """The part of a pod-level memory request that no container claims, shared out evenly."""
    if pod.spec.resources is None or not pod.spec.resources.requests.get(MEMORY):
        return 0
    claimed = aggregate_container_requests(pod).get(MEMORY, _ZERO)
    spare = pod.spec.resources.requests[MEMORY].value() - claimed.value()
    return spare // (len(pod.spec.containers) + len(pod.spec.init_containers))


def _limit(pod: Pod, container: Container, resource: str) -> Quantity:
    """The container's limit, or the pod's where only that is set."""
    own = container.resources.limits.get(resource, _ZERO)
    if own or pod.spec.resources is None:
        return own
    return pod.spec.resources.limits.get(resource, _ZERO)


def _hugepage_limits(pod: Pod, container: Container, sizes: tuple[str, ...]) -> list[v1.HugepageLimit]:
    """A limit for every page size of the machine, 0 where none is asked for."""
    wanted: dict[str, int] = {}
    pod_level = pod.spec.resources.limits if pod.spec.resources is not None else {}
    for amounts in (pod_level, container.resources.limits):
        for name, amount in amounts.items():
            if is_huge_page_resource(name) and re.fullmatch(r"\d+[A-Za-z]*", name.removeprefix(HUGEPAGES_PREFIX)):
                wanted[page_size_name(Quantity(name.removeprefix(HUGEPAGES_PREFIX)).value())] = amount.value()
    return [v1.HugepageLimit(page_size=size, limit=wanted.get(size, 0)) for size in sizes]


def _set_swap_limit(
    resources: v1.LinuxContainerResources, pod: Pod, container: Container, options: RuntimeOptions
) -> None:
    """Set the swap limit, after the memory limit (kubelet: `configureContainerSwapResources`).

    Nothing is set where the kernel does not count swap per cgroup.
    """
    machine = options.machine
    if not machine.swap_controller:
        return
    if machine.cgroup_v2:
        resources.unified = {**resources.unified, _SWAP_MAX: str(_allowed_swap(pod, container, options))}
    else:
        # Memory and swap together: as much as memory alone leaves nothing for swap.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes


def may_swap(pod: Pod, container: Container, options: RuntimeOptions) -> bool:
    """Whether a container may use swap at all (kubelet: `GetContainerSwapBehavior`)."""
    machine = options.machine
    if options.swap_behavior != LIMITED_SWAP or not (machine.swap_controller and machine.cgroup_v2):
        return False
    own = container.resources
    # Equal also when there is neither. A container that gets what it asks for has no use for swap.
    if own.requests.get(MEMORY, _ZERO) == own.limits.get(MEMORY, _ZERO):
        return False
    return not is_critical_pod(pod) and qos_class(pod) == QOS_BURSTABLE


def _allowed_swap(pod: Pod, container: Container, options: RuntimeOptions) -> int:
    """Bytes of swap for a container on cgroup v2."""
    request, memory = _memory_request(container), options.machine.memory_capacity
    if request > memory or not may_swap(pod, container, options):
        return 0
    # In floating point, as the kubelet does: agents that disagreed by a byte would resize each other's containers.
    return int(request / memory * options.machine.swap_capacity)


def _set_memory_protection(
    resources: v1.LinuxContainerResources, pod: Pod, container: Container, options: RuntimeOptions
) -> None:
    """Set the protected memory and the throttling limit."""
    if not (options.memory_qos and options.machine.cgroup_v2):
        return
    request = _memory_request(container)
    limit = container.resources.limits.get(MEMORY, _ZERO).value()
    if request and options.memory_reservation_policy == TIERED_RESERVATION:
        protection = {"memory.min" if qos_class(pod) == QOS_GUARANTEED else "memory.low": str(request)}
    else:
        protection = {"memory.min": "0", "memory.low": "0"}
    resources.unified = {**resources.unified, **protection}
    high = _throttled_from(request, limit or options.allocatable_memory, options.memory_throttling_factor)
    # Without request and limit too: a container of a BestEffort pod has nothing to exceed.
    if request != limit and high > request:
        resources.unified["memory.high"] = str(high)


def _throttled_from(request: int, most: int, factor: float) -> int:
    """Bytes, whole pages; computed in floating point, as the kubelet does."""
    if not most:
        return 0
    return int((request + (most - request) * factor) // 1 / mmap.PAGESIZE) * mmap.PAGESIZE
