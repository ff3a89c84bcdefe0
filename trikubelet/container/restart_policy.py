"""Whether a container starts again when it has ended: the policies of container and pod, and the container's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api import RESTART_NEVER, RESTART_ON_FAILURE
from trikubelet.container.model import ContainerState

if TYPE_CHECKING:
    from trikubelet.api import Container, ContainerRestartRule, Pod
    from trikubelet.container.model import ContainerStatus


def should_restart(container: Container, pod: Pod, exit_code: int) -> bool:
    """Whether the restart policies let an ended container start again (api: `ContainerShouldRestart`)."""
    if container.restart_policy is not None:
        if matching_restart_rule(container, exit_code) is not None:
            return True
        policy = container.restart_policy
    else:
        policy = pod.spec.restart_policy
    if policy == RESTART_ON_FAILURE:
        return exit_code != 0
    return policy != RESTART_NEVER


def matching_restart_rule(container: Container, exit_code: int) -> ContainerRestartRule | None:
    """The container's first rule that names the exit code (api: `FindMatchingContainerRestartRule`)."""
    if container.restart_policy is None:
        return None
    for rule in container.restart_policy_rules:
        codes = rule.exit_codes
        if codes is None:
            continue
        listed = exit_code in codes.values
        if (codes.operator == "In" and listed) or (codes.operator == "NotIn" and not listed):
            return rule
    return None


def restarts_on_failure(pod: Pod, container: Container) -> bool:
    """The policy where there is no exit code to ask the rules about."""
    return (container.restart_policy or pod.spec.restart_policy) != RESTART_NEVER


def to_be_restarted(pod: Pod, container: Container, observed: ContainerStatus | None) -> bool:
    """Whether a container that does not run is to be started (kubelet: `ShouldContainerBeRestarted`)."""
    if pod.metadata.deletion_timestamp is not None:
        return False
    if observed is None or observed.state in (ContainerState.UNKNOWN, ContainerState.CREATED):
        return True
    if observed.state is ContainerState.RUNNING:
        return False
    return should_restart(container, pod, observed.exit_code)
