"""Which containers go, and in which order, when all containers of a pod start again (RestartAllContainers). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.container.model import ContainerID, ContainerState
from trikubelet.container.restart_policy import matching_restart_rule

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.container.model import PodRuntimeStatus


@attrs.frozen
class ContainerToReset:
    """A container to remove, after a kill where it may still run, because all containers of the pod restart."""

    id: ContainerID
    name: str
    kill: bool


def containers_to_reset(pod: Pod, status: PodRuntimeStatus) -> tuple[ContainerToReset, ...]:
    """All containers in the order of their removal; the one that asked for it goes last, so that it can ask again."""
    init_sources, init_targets = _sources_and_targets(pod.spec.init_containers, status)
    sources, targets = _sources_and_targets(pod.spec.containers, status)
    return (*targets, *init_targets, *sources, *init_sources)


def _sources_and_targets(
    containers: tuple[Container, ...], status: PodRuntimeStatus
) -> tuple[list[ContainerToReset], list[ContainerToReset]]:
    sources: list[ContainerToReset] = []
    targets: list[ContainerToReset] = []
    for container in containers:
        for observed in status.container_statuses:
            if observed.name != container.name:
                continue
            ended = observed.state is ContainerState.EXITED
            rule = matching_restart_rule(container, observed.exit_code) if ended else None
            asked = rule is not None and rule.action == "RestartAllContainers"
            reset = ContainerToReset(observed.id, container.name, kill=not ended)
            (sources if asked else targets).append(reset)
    return sources, targets
