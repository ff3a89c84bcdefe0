"""An allocation: the resources of a pod's containers, and of the pod as a whole, as they were granted. Pure.

Only cpu and memory can be resized, but the whole of a container's resources is kept: what is put into a pod has to be
what the container is started with. Containers' names are unique in a pod, so one map serves all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from trikubelet.api import Container, Pod, ResourceRequirements, from_dict, is_sidecar, to_dict
from trikubelet.formats.values import frozen

_CONTAINERS: Final = "ContainerResources"
_POD: Final = "PodLevelResources"


@frozen
class ResizeGates:
    """Which resizes this node knows; the feature gates of Kubernetes in brackets."""

    pod_level: bool = True
    """(InPlacePodLevelResourcesVerticalScaling) Otherwise such a resize is infeasible."""
    init_containers: bool = True
    """(InPlacePodVerticalScalingInitContainers) Otherwise, of the init containers, sidecars only."""


ALL_RESIZES: Final = ResizeGates()


@frozen
class PodAllocation:
    """What a pod was given. Overhead is not part of it: it never changes."""

    containers: Mapping[str, ResourceRequirements]
    """By the container's name; never of ephemeral containers."""
    pod: ResourceRequirements | None = None
    """Of the pod as a whole, where it asks for such (KEP-2837)."""


def allocation_of(pod: Pod, gates: ResizeGates = ALL_RESIZES) -> PodAllocation:
    """What the pod asks for, as what it is given (kubelet: `allocationFromPod`)."""
    resizable = [container for container in pod.spec.init_containers if gates.init_containers or is_sidecar(container)]
    return PodAllocation(
        {container.name: container.resources for container in (*resizable, *pod.spec.containers)},
        pod.spec.resources,
    )


def with_allocation(pod: Pod, allocation: PodAllocation, gates: ResizeGates = ALL_RESIZES) -> Pod:
    """The pod as it is allocated: the same object when it asks for just that (kubelet: `updatePodFromAllocation`).

    Containers that the allocation does not know keep what they ask for. So do pod-level resources where they cannot be
    resized and none are stored: a kubelet stores none then. (So it never sees that somebody wants others, although it
    has a refusal for that.)
    """
    init_containers = _with_resources(pod.spec.init_containers, allocation.containers)
    containers = _with_resources(pod.spec.containers, allocation.containers)
    unknown = allocation.pod is None and not gates.pod_level
    whole = pod.spec.resources if unknown else allocation.pod
    if (init_containers, containers, whole) == (pod.spec.init_containers, pod.spec.containers, pod.spec.resources):
        return pod
    spec = attrs.evolve(pod.spec, containers=containers, init_containers=init_containers, resources=whole)
    return attrs.evolve(pod, spec=spec)


def to_wire(allocation: PodAllocation) -> dict[str, Any]:
    """As in the kubelet's checkpoint file (`state.PodResourceInfo`)."""
    return {
        _CONTAINERS: {name: to_dict(resources) for name, resources in allocation.containers.items()},
        _POD: None if allocation.pod is None else to_dict(allocation.pod),
    }


def from_wire(wire: Any) -> PodAllocation:
    """Raises ValueError (DecodeError is one) for what is no allocation. Unknown fields are ignored."""
    if not isinstance(wire, dict):
        raise ValueError("expected an object for each pod")
    containers, whole = wire.get(_CONTAINERS) or {}, wire.get(_POD)
    if not isinstance(containers, dict):
        raise ValueError(f"expected {_CONTAINERS} to be an object")
    return PodAllocation(
        {name: from_dict(ResourceRequirements, resources) for name, resources in containers.items()},
        None if whole is None else from_dict(ResourceRequirements, whole),
    )


def _with_resources(
    containers: tuple[Container, ...], allocated: Mapping[str, ResourceRequirements]
) -> tuple[Container, ...]:
    """The same object when nothing differs."""
    if all(allocated.get(one.name, one.resources) == one.resources for one in containers):
        return containers
    return tuple(attrs.evolve(one, resources=allocated.get(one.name, one.resources)) for one in containers)
