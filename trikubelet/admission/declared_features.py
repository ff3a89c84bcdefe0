"""Declared features: abilities of a node beyond the oldest release that a control plane works with (KEP-5328).

A node names features in `status.declaredFeatures`. A pod needs some of them for what it asks, and some changes of a pod
need others. The scheduler and the API server compare; the node compares once more, for pods that came another way.
One list says of each feature which pods need it, so that what is declared and what is asked for have the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from trikubelet.api import Pod, is_sidecar
from trikubelet.formats.values import frozen

FAILED_CHECK: Final = "FailedNodeDeclaredFeaturesCheck"
"""The reason of the event for an update that needs what this node has not."""
RESTART_ALL_CONTAINERS: Final = "RestartAllContainersOnContainerExits"
_RESTART_ALL_ACTION: Final = "RestartAllContainers"


@frozen
class Feature:
    """One feature, and what needs it."""

    name: str
    needed_by_pod: Callable[[Pod], bool] = lambda _: False
    needed_by_update: Callable[[Pod, Pod], bool] = lambda _old, _new: False
    """Of the old pod to the new one."""


def _restarts_all_containers(pod: Pod) -> bool:
    return any(
        rule.action == _RESTART_ALL_ACTION
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for rule in container.restart_policy_rules
    )


def _maps_users_in_the_host_network(pod: Pod) -> bool:
    return pod.spec.host_network and pod.spec.host_users is False


def _resizes_the_pod(old: Pod, new: Pod) -> bool:
    return old.spec.resources != new.spec.resources


def _resizes_an_init_container(old: Pod, new: Pod) -> bool:
    after = {container.name: container.resources for container in new.spec.init_containers}
    return any(
        after.get(container.name, container.resources) != container.resources
        for container in old.spec.init_containers
        if not is_sidecar(container)
    )


REGISTRY: Final = (
    Feature("ExtendWebSocketsToKubelet"),
    Feature("InPlacePodLevelResourcesVerticalScaling", needed_by_update=_resizes_the_pod),
    Feature("InPlacePodVerticalScalingInitContainers", needed_by_update=_resizes_an_init_container),
    Feature(RESTART_ALL_CONTAINERS, needed_by_pod=_restarts_all_containers),
    Feature("UserNamespacesHostNetworkSupport", needed_by_pod=_maps_users_in_the_host_network),
)
"""By name, as they are declared and told."""


def declared(enabled: Collection[str]) -> tuple[str, ...]:
    """The enabled features, in the order in which a node declares them."""
    return tuple(feature.name for feature in REGISTRY if feature.name in enabled)


DECLARED: Final = declared(
    {
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        RESTART_ALL_CONTAINERS,
    }
)
"""The features that this agent has."""


def infer_for_scheduling(pod: Pod) -> tuple[str, ...]:
    """The features that a node needs to run the pod."""
    return tuple(feature.name for feature in REGISTRY if feature.needed_by_pod(pod))


def infer_for_update(old: Pod, new: Pod) -> tuple[str, ...]:
    """The features that a node needs to make the old pod the new one."""
    return tuple(feature.name for feature in REGISTRY if feature.needed_by_update(old, new))


def lack_of_features(needed: Collection[str], node: Collection[str]) -> str | None:
    """The message about features that the node has not declared; None when it has all."""
    missing = [name for name in needed if name not in node]
    if not missing:
        return None
    return f"Pod requires node features that are not available: {', '.join(missing)}"


def update_problem(old: Pod, new: Pod, node: Collection[str]) -> str | None:
    """The message of the event FAILED_CHECK for an update that the node cannot carry out; None for all others."""
    return lack_of_features(infer_for_update(old, new), node)
