"""A pod gets all that it asks for on NUMA nodes that fit together, or nothing (kubelet: `topologymanager/scope*.go`).

Resource managers are values: one that has given something is another value. So a pod that is refused half-way has
taken nothing, and there is nothing to give back. (In the kubelet what its first containers got stays theirs until stale
state is removed.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, Self

from trikubelet.allocation.demands import all_containers, has_pod_level_resources
from trikubelet.allocation.topology.hints import AllocationError
from trikubelet.allocation.topology.policy import NONE
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trikubelet.allocation.topology.hints import Hints, TopologyHint
    from trikubelet.allocation.topology.policy import TopologyPolicy
    from trikubelet.api import Container, Pod

CONTAINER_SCOPE: Final = "container"
POD_SCOPE: Final = "pod"

TOPOLOGY_AFFINITY: Final = "TopologyAffinityError"


class ResourceManager(Protocol):
    """Has something to give: CPUs, memory, devices. Frozen."""

    def is_settled(self, pod: Pod, container: Container) -> bool:
        """Whether the container has what it asks for, or gets nothing."""

    def hints(self, pod: Pod, container: Container) -> Hints:
        """Where it could be given to the container; empty: it gets nothing, or from anywhere."""

    def pod_hints(self, pod: Pod) -> Hints:
        """Where it could be given to all containers of the pod."""

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Self:
        """After it was given to the container. Raises AllocationError."""

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> Self:
        """After it was given to a pod with resources of its own. Raises AllocationError."""


@frozen
class NothingToGive:
    """A resource manager of a node that has none of its resources."""

    def is_settled(self, pod: Pod, container: Container) -> bool:
        return True

    def hints(self, pod: Pod, container: Container) -> Hints:
        return {}

    def pod_hints(self, pod: Pod) -> Hints:
        return {}

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Self:
        return self

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> Self:
        return self


def admit(
    policy: TopologyPolicy, scope: str, managers: Sequence[ResourceManager], pod: Pod, *, pod_level: bool = False
) -> tuple[ResourceManager, ...]:
    """The managers after all of the pod's containers got what they ask for, in the same order.

    A container that has it already keeps it, wherever it is, so a pod may be admitted again. Raises AllocationError.
    `pod_level`: the feature gate `PodLevelResourceManagers`.
    """
    after = tuple(managers)
    if all(manager.is_settled(pod, container) for manager in after for container in all_containers(pod)):
        return after
    if policy.name == NONE or scope == CONTAINER_SCOPE:
        for container in all_containers(pod):
            if all(manager.is_settled(pod, container) for manager in after):
                continue
            hint = _agree(policy, (manager.hints(pod, container) for manager in after))
            after = tuple(manager.allocate(pod, container, hint) for manager in after)
        return after
    hint = _agree(policy, (manager.pod_hints(pod) for manager in after))
    if pod_level and has_pod_level_resources(pod):
        return tuple(manager.allocate_pod(pod, hint) for manager in after)
    for container in all_containers(pod):
        after = tuple(manager.allocate(pod, container, hint) for manager in after)
    return after


def _agree(policy: TopologyPolicy, hints: Iterator[Hints]) -> TopologyHint:
    """Raises AllocationError. With the policy "none" nobody is asked."""
    hint, admitted = policy.merge(hints)
    if not admitted:
        raise AllocationError(
            f'no NUMA nodes have all that is requested as the policy "{policy.name}" of the topology manager wants it',
            TOPOLOGY_AFFINITY,
        )
    return hint
