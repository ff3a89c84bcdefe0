"""The actual resources of containers and pods: `resources` and `allocatedResources` of the status.

`containerStatuses[].resources` begins with what is allocated, and for a running container cpu and memory are replaced
by what is known of them (kubelet: `convertContainerStatusResources`): what the runtime says, else what it was told,
else what was reported before. The runtime tells a cpu request as shares and a cpu limit as a quota; it knows nothing of
a memory request. Below 2m of a request and 10m of a limit the kernel makes no difference, so there what is allocated is
shown, as long as both are below. What cannot be resized is shown as it is allocated.

Of a pod as a whole (KEP-5419), what was allocated is what it requests. Once it runs, what it really has is what its
cgroup enforces: cpu and memory, and a limit only when nothing in the pod is without one. Where that cgroup was not
read, it is what the cgroup was last set from; then nothing is rounded as a kernel rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.allocation.model import PodAllocation, with_allocation
from trikubelet.api import (
    POD_RUNNING,
    QOS_BEST_EFFORT,
    Quantity,
    ResourceRequirements,
    pod_limits,
    pod_requests,
    qos_class,
)
from trikubelet.cgroups.interface import CgroupReading
from trikubelet.cgroups.settings import CPU, MEMORY, MIN_MILLI_CPU_LIMIT, MIN_SHARES, milli_of_quota, milli_of_shares
from trikubelet.container.model import ContainerState, RuntimeResources
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Container, ContainerStatus, Pod, PodStatus
    from trikubelet.container import model

_ZERO: Final = Quantity()
_NOTHING: Final = ResourceRequirements()
_MIN_CPU: Final = Quantity.from_milli(MIN_SHARES)
"""The least that a kernel gives any group of processes: asking for no more is as good as asking for nothing."""
_MIN_CPU_LIMIT: Final = Quantity.from_milli(MIN_MILLI_CPU_LIMIT)


@frozen
class ActualResources:
    """What is known of a pod's resources, beside what the runtime reports of its containers."""

    actuated: PodAllocation | None = None
    """The resources that the runtime was last told; None where they were not recorded."""
    group: CgroupReading | None = None
    """The settings of the pod's cgroup; None where they were not read."""

    def of_container(
        self, container: Container, seen: model.ContainerStatus, old: ContainerStatus | None
    ) -> ResourceRequirements:
        """`container`: as allocated; `old`: what was reported of it before."""
        allocated = container.resources
        if seen.state is not ContainerState.RUNNING:
            return allocated
        told = None if self.actuated is None else self.actuated.containers.get(container.name)
        known = _known(seen.resources, told)
        before = _before(seen, old)
        limits = _shown(
            allocated.limits, before.limits, known.cpu_limit, known.memory_limit, negligible=MIN_MILLI_CPU_LIMIT
        )
        requests = _shown(
            allocated.requests, before.requests, known.cpu_request, known.memory_request, negligible=MIN_SHARES
        )
        if (limits, requests) == (allocated.limits, allocated.requests):
            return allocated
        return attrs.evolve(allocated, limits=limits, requests=requests)

    def of_pod(self, pod: Pod) -> Pod:
        """The pod with what it was actuated with, in place of what it is allocated."""
        return pod if self.actuated is None else with_allocation(pod, self.actuated)


@frozen
class _Known:
    """Thousandths of a processor, and bytes. None: it is not known."""

    cpu_request: int | None = None
    cpu_limit: int | None = None
    memory_request: int | None = None
    memory_limit: int | None = None


def _known(said: RuntimeResources | None, told: ResourceRequirements | None) -> _Known:
    """What the runtime says; of a runtime that says nothing, what it was told."""
    if said is not None:
        memory = None if told is None else told.requests.get(MEMORY, _ZERO).value() or None
        return _Known(said.cpu_request, said.cpu_limit, memory, said.memory_limit)
    if told is None:
        return _Known()
    return _Known(
        told.requests.get(CPU, _ZERO).milli_value(),
        told.limits.get(CPU, _ZERO).milli_value(),
        told.requests.get(MEMORY, _ZERO).value(),
        told.limits.get(MEMORY, _ZERO).value(),
    )


def _before(seen: model.ContainerStatus, old: ContainerStatus | None) -> ResourceRequirements:
    """What was reported of the same run of the container."""
    if old is None or old.state.running is None or old.container_id != str(seen.id):
        return _NOTHING
    return old.resources or _NOTHING


def _shown(
    allocated: Mapping[str, Quantity],
    before: Mapping[str, Quantity],
    cpu: int | None,
    memory: int | None,
    *,
    negligible: int,
) -> dict[str, Quantity]:
    """`negligible`: thousandths of a processor that are as good as none."""
    shown = dict(allocated)
    if not shown:
        return shown
    if cpu is None:
        shown |= {name: amount for name, amount in before.items() if name == CPU}
    elif max(cpu, shown.get(CPU, _ZERO).milli_value()) > negligible:
        _put(shown, CPU, Quantity.from_milli(cpu))
    if memory is None:
        shown |= {name: amount for name, amount in before.items() if name == MEMORY}
    else:
        _put(shown, MEMORY, Quantity.from_bytes_count(memory))
    return shown


def _put(amounts: dict[str, Quantity], name: str, amount: Quantity) -> None:
    """An amount that is the same stays as it was written, and nothing does not take the place of no word."""
    if amounts.get(name, _ZERO) != amount:
        amounts[name] = amount


def with_pod_resources(
    pod: Pod, status: PodStatus, actual: ActualResources | None = None, previous: ResourceRequirements | None = None
) -> PodStatus:
    """The status with what the pod, given as allocated, has in `status.phase` (`convertToAPIPodLevelResourcesStatus`).

    `previous`: what was reported of it while it ran.
    """
    if status.phase != POD_RUNNING:
        shown = _allocated(pod)
    elif actual is not None and actual.group is not None:
        shown = _read(pod, actual.group, previous or _NOTHING)
    else:
        shown = _enforced(pod if actual is None else actual.of_pod(pod))
    return attrs.evolve(status, resources=shown, allocated_resources=pod_requests(pod))


def _allocated(pod: Pod) -> ResourceRequirements:
    return attrs.evolve(_asked(pod), requests=pod_requests(pod), limits=pod_limits(pod))


def _read(pod: Pod, group: CgroupReading, previous: ResourceRequirements) -> ResourceRequirements:
    """What the pod's cgroup says; where it does not say, what was reported before. It knows of no memory request."""
    asked = _asked(pod)
    requests, limits = dict(asked.requests), dict(asked.limits)
    _put_read(requests, previous.requests, CPU, _cpu_request(group), negligible=_MIN_CPU)
    _put_read(limits, previous.limits, CPU, _cpu_limit(group), negligible=_MIN_CPU_LIMIT)
    _put_read(limits, previous.limits, MEMORY, _memory_limit(group))
    together = pod_requests(pod)
    if MEMORY in together:
        requests.setdefault(MEMORY, together[MEMORY])
    return attrs.evolve(asked, requests=requests, limits=limits)


def _put_read(
    shown: dict[str, Quantity],
    previous: Mapping[str, Quantity],
    name: str,
    amount: Quantity | None,
    *,
    negligible: Quantity = _ZERO,
) -> None:
    if amount is None:
        shown |= {name: previous[name]} if name in previous else {}
    elif amount > negligible or shown.get(name, _ZERO) > negligible:
        shown[name] = amount


def _cpu_request(group: CgroupReading) -> Quantity | None:
    """None where the cgroup does not say (kubelet: `CPURequestsFromConfig`)."""
    milli = milli_of_shares(group.cpu_shares) if group.cpu_shares else 0
    return Quantity.from_milli(milli) if milli else None


def _cpu_limit(group: CgroupReading) -> Quantity | None:
    """None without a limit (kubelet: `CPULimitsFromConfig`)."""
    if not group.cpu_period or group.cpu_quota is None:
        return None
    milli = milli_of_quota(group.cpu_quota, group.cpu_period)
    return Quantity.from_milli(milli) if milli else None


def _memory_limit(group: CgroupReading) -> Quantity | None:
    """None without a limit (kubelet: `MemoryLimitsFromConfig`)."""
    limit = group.memory_limit or 0
    return Quantity.from_bytes_count(limit) if limit > 0 else None


def _enforced(pod: Pod) -> ResourceRequirements:
    asked = _asked(pod)
    requests, limits = dict(asked.requests), dict(asked.limits)
    together = pod_requests(pod)
    if CPU in together and together[CPU] > _MIN_CPU:
        requests[CPU] = together[CPU]
    if MEMORY in together:
        requests.setdefault(MEMORY, together[MEMORY])
    at_most = pod_limits(pod)
    limits |= {name: at_most[name] for name in (CPU, MEMORY) if name in at_most and _is_limited(pod, name)}
    return attrs.evolve(asked, requests=requests, limits=limits)


def _asked(pod: Pod) -> ResourceRequirements:
    return pod.spec.resources or _NOTHING


def _is_limited(pod: Pod, name: str) -> bool:
    """Whether the pod's cgroup has a limit: the pod has one, or everything in it has (`ResourceConfigForPod`)."""
    if qos_class(pod) == QOS_BEST_EFFORT:
        return False
    if _asked(pod).limits.get(name):
        return True
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return all(container.resources.limits.get(name) for container in containers)
