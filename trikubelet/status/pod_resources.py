"""What a pod as a whole was given: `status.allocatedResources` and `status.resources` (KEP-5419).

What was allocated is what the pod requests. What it really has, once it runs, is what its cgroup enforces: processor
and memory, and a limit only when nothing in the pod is without one. Where that cgroup was not read, it is what the
cgroup was last set from; then nothing here is rounded as a kernel rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import (
    POD_RUNNING,
    QOS_BEST_EFFORT,
    Quantity,
    ResourceRequirements,
    pod_limits,
    pod_requests,
    qos_class,
)
from trikubelet.cgroups.settings import MIN_MILLI_CPU_LIMIT
from trikubelet.status.actual_resources import cpu_limit_of, cpu_request_of, memory_limit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Pod, PodStatus
    from trikubelet.cgroups.interface import CgroupReading
    from trikubelet.status.actual_resources import ActualResources

_MIN_CPU: Final = Quantity("2m")
"""The least that a kernel gives any group of processes: asking for no more is as good as asking for nothing."""
_MIN_CPU_LIMIT: Final = Quantity.from_milli(MIN_MILLI_CPU_LIMIT)
_ZERO: Final = Quantity()


def with_pod_resources(
    pod: Pod, status: PodStatus, actual: ActualResources | None = None, previous: ResourceRequirements | None = None
) -> PodStatus:
    """The status with what the pod, given as allocated, has in `status.phase` (`convertToAPIPodLevelResourcesStatus`).

    `previous`: what was reported of it while it ran.
    """
    if status.phase != POD_RUNNING:
        shown = _allocated(pod)
    elif actual is not None and actual.group is not None:
        shown = _read(pod, actual.group, previous or ResourceRequirements())
    else:
        shown = _enforced(pod if actual is None else actual.of_pod(pod))
    return attrs.evolve(status, resources=shown, allocated_resources=pod_requests(pod))


def _allocated(pod: Pod) -> ResourceRequirements:
    return attrs.evolve(_asked(pod), requests=pod_requests(pod), limits=pod_limits(pod))


def _read(pod: Pod, group: CgroupReading, previous: ResourceRequirements) -> ResourceRequirements:
    """What the pod's cgroup says; where it does not say, what was reported before. It knows of no memory request."""
    asked = _asked(pod)
    requests, limits = dict(asked.requests), dict(asked.limits)
    _put(requests, previous.requests, "cpu", _milli(cpu_request_of(group)), negligible=_MIN_CPU)
    _put(limits, previous.limits, "cpu", _milli(cpu_limit_of(group)), negligible=_MIN_CPU_LIMIT)
    memory = memory_limit_of(group)
    _put(limits, previous.limits, "memory", None if memory is None else Quantity.from_bytes_count(memory))
    together = pod_requests(pod)
    if "memory" in together:
        requests.setdefault("memory", together["memory"])
    return attrs.evolve(asked, requests=requests, limits=limits)


def _put(
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


def _milli(amount: int | None) -> Quantity | None:
    return None if amount is None else Quantity.from_milli(amount)


def _enforced(pod: Pod) -> ResourceRequirements:
    asked = _asked(pod)
    requests, limits = dict(asked.requests), dict(asked.limits)
    together = pod_requests(pod)
    if "cpu" in together and together["cpu"] > _MIN_CPU:
        requests["cpu"] = together["cpu"]
    if "memory" in together:
        requests.setdefault("memory", together["memory"])
    at_most = pod_limits(pod)
    limits |= {name: at_most[name] for name in ("cpu", "memory") if name in at_most and _is_limited(pod, name)}
    return attrs.evolve(asked, requests=requests, limits=limits)


def _asked(pod: Pod) -> ResourceRequirements:
    return pod.spec.resources or ResourceRequirements()


def _is_limited(pod: Pod, name: str) -> bool:
    """Whether the pod's cgroup has a limit: the pod has one, or everything in it has (`ResourceConfigForPod`)."""
    if qos_class(pod) == QOS_BEST_EFFORT:
        return False
    if _positive(_asked(pod).limits, name):
        return True
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return all(_positive(container.resources.limits, name) for container in containers)


def _positive(amounts: Mapping[str, Quantity], name: str) -> bool:
    return bool(amounts.get(name))
