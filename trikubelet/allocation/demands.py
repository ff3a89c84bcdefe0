"""Which containers and pods get CPUs and memory of their own, and how much.

Only pods of the class Guaranteed do. In a pod with resources of its own, beside those of its containers, nobody does;
with the feature gate `PodLevelResourceManagers` the pod does as a whole, and those of its containers that would be
Guaranteed alone (KEP-5526).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api.constants import QOS_GUARANTEED
from trikubelet.api.pod_resources import is_huge_page_resource, is_pod_level_resource, is_sidecar
from trikubelet.api.qos import qos_class

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trikubelet.api import Container, Pod, Quantity

_NANO = 10**9

Amounts = dict[str, int]
"""Bytes by resource: `memory`, `hugepages-2Mi`."""


def has_pod_level_resources(pod: Pod) -> bool:
    resources = pod.spec.resources
    return resources is not None and any(map(is_pod_level_resource, (*resources.requests, *resources.limits)))


def all_containers(pod: Pod) -> tuple[Container, ...]:
    """Init containers first: the order in which they get what they ask for."""
    return (*pod.spec.init_containers, *pod.spec.containers)


def ends_before_others(pod: Pod, container: Container) -> bool:
    """Whether it is an init container that is no sidecar: what it has is free for those that come after it."""
    return not is_sidecar(container) and any(one.name == container.name for one in pod.spec.init_containers)


def is_exclusive(pod: Pod, container: Container, *, pod_level: bool) -> bool:
    """Whether the container can have something of its own at all. `pod_level`: the feature gate."""
    if qos_class(pod) != QOS_GUARANTEED:
        return False
    return not has_pod_level_resources(pod) or (pod_level and _is_guaranteed_alone(container))


def _is_guaranteed_alone(container: Container) -> bool:
    requests, limits = container.resources.requests, container.resources.limits
    return all(
        name in requests and requests[name].nanos > 0 and requests[name] == limits.get(name)
        for name in ("cpu", "memory")
    )


def container_cpus(pod: Pod, container: Container, *, pod_level: bool) -> int:
    """How many CPUs the container gets for itself; 0 also for a request that is no whole number."""
    if not is_exclusive(pod, container, pod_level=pod_level):
        return 0
    return _whole(container.resources.requests.get("cpu"))


def pod_cpus(pod: Pod, *, pod_level: bool) -> int:
    """How many CPUs the pod's containers have for themselves at the same time."""
    if has_pod_level_resources(pod):
        assert pod.spec.resources is not None
        whole = pod_level and qos_class(pod) == QOS_GUARANTEED
        return _whole(pod.spec.resources.requests.get("cpu")) if whole else 0
    return at_once(pod, lambda one: {"cpu": container_cpus(pod, one, pod_level=pod_level)}).get("cpu", 0)


def container_memory(pod: Pod, container: Container, *, pod_level: bool) -> Amounts:
    """The memory and huge pages that the container gets for itself. Empty where it gets none."""
    if not is_exclusive(pod, container, pod_level=pod_level):
        return {}
    return _bytes(container.resources.requests)


def pod_memory(pod: Pod, *, pod_level: bool) -> Amounts:
    """The memory and huge pages that the pod's containers have for themselves at the same time."""
    if has_pod_level_resources(pod):
        assert pod.spec.resources is not None
        if not pod_level or qos_class(pod) != QOS_GUARANTEED:
            return {}
        return {name: size for name, size in _bytes(pod.spec.resources.requests).items() if size > 0}

    def needed(container: Container) -> Amounts:
        return container_memory(pod, container, pod_level=pod_level)

    # What only init containers ask for is not counted, as in the kubelet.
    asked = {name for container in pod.spec.containers for name in needed(container)}
    return {name: size for name, size in at_once(pod, needed).items() if name in asked}


def at_once(pod: Pod, needed: Callable[[Container], Amounts]) -> Amounts:
    """The most that is needed at one time: containers and sidecars together, or one init container beside the sidecars
    that were started before it (KEP-753)."""
    sidecars: Amounts = {}
    most: Amounts = {}
    for container in pod.spec.init_containers:
        for name, amount in needed(container).items():
            if is_sidecar(container):
                sidecars[name] = sidecars.get(name, 0) + amount
            else:
                most[name] = max(most.get(name, 0), sidecars.get(name, 0) + amount)
    running = dict(sidecars)
    for container in pod.spec.containers:
        for name, amount in needed(container).items():
            running[name] = running.get(name, 0) + amount
    return {name: max(running.get(name, 0), most.get(name, 0)) for name in running | most}


def _whole(quantity: Quantity | None) -> int:
    return 0 if quantity is None or quantity.nanos % _NANO else quantity.nanos // _NANO


def _bytes(requests: Mapping[str, Quantity]) -> Amounts:
    return {
        name: -(-quantity.nanos // _NANO)
        for name, quantity in requests.items()
        if name == "memory" or is_huge_page_resource(name)
    }
