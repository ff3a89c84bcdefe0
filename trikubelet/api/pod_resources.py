"""What a pod as a whole asks for and may use (component-helpers/resource).

Containers run together, init containers one after the other before them, and restartable init containers (sidecars)
stay: a pod needs the sum of its containers and sidecars, or what one init container needs beside the sidecars that were
started before it, whichever is more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api.constants import RESTART_ALWAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trikubelet.api.container import Container
    from trikubelet.api.objects import Pod
    from trikubelet.api.quantity import Quantity

ResourceList = dict[str, "Quantity"]


def is_sidecar(container: Container) -> bool:
    """Whether an init container is restartable: it keeps running beside the pod's containers (KEP-753)."""
    return container.restart_policy == RESTART_ALWAYS


def aggregate_container_requests(pod: Pod) -> ResourceList:
    """What the containers of a pod request together, by resource name; pod-level requests and overhead not counted."""
    return _aggregate(pod, lambda container: container.resources.requests)


def aggregate_container_limits(pod: Pod) -> ResourceList:
    """The sum of the containers' limits; a container without a limit counts as nothing."""
    return _aggregate(pod, lambda container: container.resources.limits)


def pod_requests(pod: Pod, *, overhead: bool = True) -> ResourceList:
    """What the pod requests: pod-level requests where they are set, else the containers', and its overhead on top.

    Without `overhead` it is what the containers share, as CRI has it for a sandbox.
    """
    requests = aggregate_container_requests(pod)
    if pod.spec.resources is not None:
        requests |= {
            name: amount for name, amount in pod.spec.resources.requests.items() if is_pod_level_resource(name)
        }
    if overhead:
        add(requests, pod.spec.overhead)
    return requests


def pod_limits(pod: Pod, *, overhead: bool = True) -> ResourceList:
    """What the pod may use at most: overhead is added to limits that exist, unless it is not to count."""
    limits = aggregate_container_limits(pod)
    if pod.spec.resources is not None:
        limits |= {name: amount for name, amount in pod.spec.resources.limits.items() if is_pod_level_resource(name)}
    if overhead:
        add(limits, {name: amount for name, amount in pod.spec.overhead.items() if name in limits})
    return limits


def is_huge_page_resource(name: str) -> bool:
    return name.startswith("hugepages-")


def is_pod_level_resource(name: str) -> bool:
    """Whether a pod as a whole can ask for the resource (KEP-2837)."""
    return name in ("cpu", "memory") or is_huge_page_resource(name)


def add(total: ResourceList, amounts: Mapping[str, Quantity]) -> None:
    """Add `amounts` to `total`, name by name."""
    for name, amount in amounts.items():
        total[name] = total[name] + amount if name in total else amount


def raise_to(total: ResourceList, amounts: Mapping[str, Quantity]) -> None:
    """Raise `total` to `amounts` where they are more, name by name."""
    for name, amount in amounts.items():
        if name not in total or amount > total[name]:
            total[name] = amount


def _aggregate(pod: Pod, amounts_of: Callable[[Container], Mapping[str, Quantity]]) -> ResourceList:
    together: ResourceList = {}
    for container in pod.spec.containers:
        add(together, amounts_of(container))
    sidecars: ResourceList = {}
    at_start: ResourceList = {}
    for container in pod.spec.init_containers:
        needed: ResourceList = dict(sidecars)
        add(needed, amounts_of(container))
        if is_sidecar(container):
            add(together, amounts_of(container))
            sidecars = needed
        raise_to(at_start, needed)
    raise_to(together, at_start)
    return together
