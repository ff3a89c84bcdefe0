"""What a pod as a whole was given: `status.allocatedResources` and `status.resources` (KEP-5419).

What was allocated is what the pod requests. What it really has, once it runs, is what its cgroup enforces: processor
and memory, and a limit only when nothing in the pod is without one. Until the agent reads that cgroup it says what the
cgroup is made from; so nothing here is rounded as a kernel rounds.
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Pod, PodStatus

_MIN_CPU: Final = Quantity("2m")
"""The least that a kernel gives any group of processes: asking for no more is as good as asking for nothing."""


def with_pod_resources(pod: Pod, status: PodStatus) -> PodStatus:
    """The status with what the pod has in `status.phase` (kubelet: `convertToAPIPodLevelResourcesStatus`)."""
    return attrs.evolve(
        status,
        resources=_enforced(pod) if status.phase == POD_RUNNING else _allocated(pod),
        allocated_resources=pod_requests(pod),
    )


def _allocated(pod: Pod) -> ResourceRequirements:
    return attrs.evolve(_asked(pod), requests=pod_requests(pod), limits=pod_limits(pod))


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
