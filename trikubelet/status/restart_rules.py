"""Whether all containers of a pod restart because one of them ended in a way that its rules name (KEP-5532)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api import ALL_CONTAINERS_RESTARTING, CONDITION_TRUE
from trikubelet.container.model import ContainerState
from trikubelet.container.restart_policy import matching_restart_rule

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod, PodStatus
    from trikubelet.container.model import PodRuntimeStatus

RESTART_ALL_CONTAINERS: Final = "RestartAllContainers"


def could_restart_all(pod: Pod) -> bool:
    """Whether any rule of the pod asks for it."""
    return any(
        rule.action == RESTART_ALL_CONTAINERS
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for rule in container.restart_policy_rules
    )


def is_restarting_all(status: PodStatus) -> bool:
    """Whether the status says that all containers restart."""
    return any(
        condition.type == ALL_CONTAINERS_RESTARTING and condition.status == CONDITION_TRUE
        for condition in status.conditions
    )


def restarts_all(pod: Pod, observed: PodRuntimeStatus, previous: PodStatus) -> bool:
    """Whether all containers restart now: it was reported before, or a container has ended so."""
    if not could_restart_all(pod):
        return False
    if is_restarting_all(previous):
        return True
    reported = {status.name: status for status in (*previous.init_container_statuses, *previous.container_statuses)}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        seen = observed.find_container(container.name)
        if seen is not None and seen.state is ContainerState.EXITED and _asks_for_all(container, seen.exit_code):
            return True
        known = reported.get(container.name)
        end = None if known is None else known.state.terminated
        if end is not None and _asks_for_all(container, end.exit_code):
            return True
    return False


def all_removed(pod: Pod, observed: PodRuntimeStatus) -> bool:
    """Whether the runtime holds none of the containers any more: the restart can begin."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return all(observed.find_container(container.name) is None for container in containers)


def _asks_for_all(container: Container, exit_code: int) -> bool:
    rule = matching_restart_rule(container, exit_code)
    return rule is not None and rule.action == RESTART_ALL_CONTAINERS
