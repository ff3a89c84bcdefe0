"""The quality of service class of a pod: which pods are spared when a node runs out of a resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api.constants import QOS_BEST_EFFORT, QOS_BURSTABLE, QOS_GUARANTEED
from trikubelet.api.pod_resources import ResourceList, add, is_pod_level_resource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api.objects import Pod

_COMPUTE: Final = frozenset({"cpu", "memory"})


def qos_class(pod: Pod) -> str:
    """What the status says, else what follows from the spec (kubelet: `GetPodQOS`)."""
    return pod.status.qos_class or compute_qos_class(pod)


def compute_qos_class(pod: Pod) -> str:
    """Guaranteed: all have limits for cpu and memory, and request just that. BestEffort: no container requests
    anything.

    Pod-level resources, where there are any, stand for the containers'. Ephemeral containers do not count.
    """
    whole = pod.spec.resources
    if whole is not None and has_pod_level_resources(pod):
        demands = [whole]
    else:
        demands = [container.resources for container in (*pod.spec.containers, *pod.spec.init_containers)]
    requests = _positive_sums(demand.requests for demand in demands)
    limits = _positive_sums(demand.limits for demand in demands)
    if not requests and not limits:
        return QOS_BEST_EFFORT
    all_limited = all(demand.limits.get("cpu") and demand.limits.get("memory") for demand in demands)
    return QOS_GUARANTEED if all_limited and requests == limits else QOS_BURSTABLE


def has_pod_level_resources(pod: Pod) -> bool:
    """Whether it asks for something as a whole (`IsPodLevelResourcesSet`)."""
    whole = pod.spec.resources
    return whole is not None and any(map(is_pod_level_resource, (*whole.requests, *whole.limits)))


def _positive_sums(lists: Iterable[ResourceList]) -> ResourceList:
    total: ResourceList = {}
    for amounts in lists:
        add(total, {name: amount for name, amount in amounts.items() if name in _COMPUTE and amount.nanos > 0})
    return total
