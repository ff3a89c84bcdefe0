"""What evicted pods say of their end (kubelet: `evictionMessage`, `evictPod`). Pure.

The texts are the kubelet's, blanks at their ends included: tools look for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import POD_FAILED, Quantity
from trikubelet.config.eviction_values import INODES, MEMORY, PIDS, STORAGE
from trikubelet.status.conditions import as_disrupted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trikubelet.api import Pod, PodStatus
    from trikubelet.config.eviction_values import Signal, Threshold
    from trikubelet.node.eviction.model import ContainerUsage, Observation, PodUsage

REASON: Final = "Evicted"
THRESHOLD_MET: Final = "EvictionThresholdMet"

OFFENDING_CONTAINERS: Final = "offending_containers"
OFFENDING_CONTAINERS_USAGE: Final = "offending_containers_usage"
OFFENDING_POD: Final = "offending_pod"
OFFENDING_POD_USAGE: Final = "offending_pod_usage"
STARVED_RESOURCE: Final = "starved_resource"
"""Annotations of the event."""

_COUNTED: Final = frozenset({INODES, PIDS})
"""Resources whose amounts are written as plain numbers."""


def eviction_message(
    resource: str,
    pod: Pod,
    usage: PodUsage | None,
    thresholds: Iterable[Threshold],
    observations: Mapping[Signal, Observation],
) -> tuple[str, dict[str, str]]:
    """Why a pod was ended for the node's sake: the text of its status and its event, and the event's annotations.

    `usage`: the pod's, None if nothing is known of it. `thresholds`: those that are acted on, the most urgent first.
    """
    texts = [f"The node was low on resource: {resource}. ", _what_was_left(resource, thresholds, observations)]
    if usage is None:
        return "".join(texts), {}
    annotations: dict[str, str] = {}
    request = None if pod.spec.resources is None else pod.spec.resources.requests.get(resource)
    if resource == MEMORY and request is not None and usage.memory_working_set is not None:
        used = Quantity.from_bytes_count(usage.memory_working_set)
        texts.append(_beyond("Pod", pod.metadata.name, used, request, resource))
        annotations |= {OFFENDING_POD: pod.metadata.name, OFFENDING_POD_USAGE: str(used)}
    offenders = dict(_offenders(resource, pod, usage))
    texts += (_beyond("Container", name, *amounts, resource) for name, amounts in offenders.items())
    annotations[OFFENDING_CONTAINERS] = ",".join(offenders)
    annotations[OFFENDING_CONTAINERS_USAGE] = ",".join(str(used) for used, _ in offenders.values())
    annotations[STARVED_RESOURCE] = resource
    return "".join(texts), annotations


def evicted_status(status: PodStatus, message: str) -> PodStatus:
    """What the status becomes of a pod that was ended for what it used itself."""
    return attrs.evolve(status, phase=POD_FAILED, reason=REASON, message=message)


def disrupted_status(status: PodStatus, message: str, generation: int) -> PodStatus:
    """The same of a pod that was ended for the node's sake, with the condition that counts as a disruption."""
    return as_disrupted(evicted_status(status, message), message, generation)


def _what_was_left(resource: str, thresholds: Iterable[Threshold], observations: Mapping[Signal, Observation]) -> str:
    """Of the first threshold for the resource that something was observed of."""
    for threshold in thresholds:
        observed = observations.get(threshold.signal)
        if observed is not None and threshold.signal.resource == resource:
            wanted = threshold.value.of(observed.capacity)
            counted = resource in _COUNTED
            available = (Quantity if counted else Quantity.from_bytes_count)(observed.available)
            return f"Threshold quantity: {wanted}, available: {available}. "
    return ""


def _offenders(resource: str, pod: Pod, usage: PodUsage) -> Iterator[tuple[str, tuple[Quantity, Quantity]]]:
    """Containers that use more than they requested, with both amounts. Ephemeral ones cannot request anything, so they
    would always be to blame."""
    containers = {each.name: each for each in (*pod.spec.containers, *pod.spec.init_containers)}
    for name, measured in usage.containers.items():
        container, bytes_used = containers.get(name), _usage_of(measured, resource)
        if container is None or bytes_used is None:
            continue
        used = Quantity.from_bytes_count(bytes_used)
        request = container.resources.requests.get(resource, Quantity(0))
        if used > request:
            yield name, (used, request)


def _usage_of(container: ContainerUsage, resource: str) -> int | None:
    if resource == MEMORY:
        return container.memory_working_set
    if resource == STORAGE and container.rootfs.bytes is not None and container.logs.bytes is not None:
        return container.rootfs.bytes + container.logs.bytes
    return None


def _beyond(kind: str, name: str, used: Quantity, request: Quantity, resource: str) -> str:
    return f"{kind} {name} was using {used}, request is {request}, has larger consumption of {resource}. "
