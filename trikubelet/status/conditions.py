"""The conditions of a pod that the agent owns (kubelet: `status/generate.go`).

Times of transitions are not set here; the status manager knows what was true before.

All containers of a pod restart when one of them ended in a way that its rules name (KEP-5532); the condition
AllContainersRestarting is true meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import (
    ALL_CONTAINERS_RESTARTING,
    CONDITION_FALSE,
    CONDITION_TRUE,
    CONTAINERS_READY,
    DISRUPTION_TARGET,
    POD_FAILED,
    POD_INITIALIZED,
    POD_READY,
    POD_READY_TO_START_CONTAINERS,
    POD_RESIZE_IN_PROGRESS,
    POD_RESIZE_PENDING,
    POD_SCHEDULED,
    POD_SUCCEEDED,
    PodCondition,
    is_sidecar,
)
from trikubelet.container.model import ContainerState
from trikubelet.container.progress import pod_sandbox_changed
from trikubelet.container.restart_policy import matching_restart_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trikubelet.api import Container, ContainerStatus, Pod, PodStatus
    from trikubelet.container.model import PodRuntimeStatus

OWNED_CONDITIONS: Final = frozenset(
    {
        POD_SCHEDULED,
        POD_READY,
        POD_INITIALIZED,
        CONTAINERS_READY,
        POD_RESIZE_IN_PROGRESS,
        POD_RESIZE_PENDING,
        POD_READY_TO_START_CONTAINERS,
        ALL_CONTAINERS_RESTARTING,
    }
)
"""Conditions that only the agent sets. Others are kept as they are found."""
RESIZE_CONDITIONS: Final = frozenset({POD_RESIZE_PENDING, POD_RESIZE_IN_PROGRESS})
"""Owned conditions that come with their times, from the allocation manager."""
SHARED_CONDITIONS: Final = frozenset({DISRUPTION_TARGET})
"""Conditions that the agent sets, and others too."""

_COMPLETED: Final = "PodCompleted"
_FAILED: Final = "PodFailed"
_NOT_READY: Final = "ContainersNotReady"
_NOT_INITIALIZED: Final = "ContainersNotInitialized"
_GATES_NOT_READY: Final = "ReadinessGatesNotReady"
_TERMINATION_BY_KUBELET: Final = "TerminationByKubelet"
_RESTART_STARTED: Final = "RestartAllContainersStarted"
RESTART_ALL_CONTAINERS: Final = "RestartAllContainers"


def find_condition(conditions: Iterable[PodCondition], type_: str) -> PodCondition | None:
    return next((condition for condition in conditions if condition.type == type_), None)


def scheduled_condition(pod: Pod) -> PodCondition:
    """A pod that is here was scheduled."""
    return _condition(pod, POD_SCHEDULED, CONDITION_TRUE)


def ready_to_start_condition(pod: Pod, observed: PodRuntimeStatus) -> PodCondition:
    """Whether the pod has its sandbox, with an address where it needs one (KEP-3085)."""
    changed = pod_sandbox_changed(pod, observed).changed
    return _condition(pod, POD_READY_TO_START_CONTAINERS, CONDITION_FALSE if changed else CONDITION_TRUE)


def initialized_condition(
    pod: Pod, previous: PodStatus, statuses: Sequence[ContainerStatus], phase: str
) -> PodCondition:
    """Whether all init containers are done and all sidecars have started."""
    by_name = {status.name: status for status in statuses}
    unknown = [container.name for container in pod.spec.init_containers if container.name not in by_name]
    incomplete = [
        container.name
        for container in pod.spec.init_containers
        if container.name in by_name and not _is_initialized(container, by_name[container.name])
    ]
    if phase == POD_SUCCEEDED and not unknown:
        return _condition(pod, POD_INITIALIZED, CONDITION_TRUE, _COMPLETED)
    main = {container.name for container in pod.spec.containers}
    if any(
        status.name in main and (status.state.running is not None or status.state.terminated is not None)
        for status in statuses
    ):
        return _condition(pod, POD_INITIALIZED, CONDITION_TRUE)
    before = find_condition(previous.conditions, POD_INITIALIZED)
    if not (unknown or incomplete) or (before is not None and before.status == CONDITION_TRUE):
        # Init containers that run again, in a new sandbox, do not undo that the pod was initialized.
        return _condition(pod, POD_INITIALIZED, CONDITION_TRUE)
    message = _list_containers(("unknown", unknown), ("incomplete", incomplete))
    return _condition(pod, POD_INITIALIZED, CONDITION_FALSE, _NOT_INITIALIZED, message)


def containers_ready_condition(pod: Pod, statuses: Sequence[ContainerStatus], phase: str) -> PodCondition:
    """Whether all main containers and sidecars are ready."""
    by_name = {status.name: status for status in statuses}
    watched = [container for container in pod.spec.init_containers if is_sidecar(container)]
    names = [container.name for container in (*watched, *pod.spec.containers)]
    unknown = [name for name in names if name not in by_name]
    unready = [name for name in names if name in by_name and not by_name[name].ready]
    if phase == POD_FAILED or (phase == POD_SUCCEEDED and not unknown):
        return terminal_condition(pod, CONTAINERS_READY, phase)
    if unknown or unready:
        message = _list_containers(("unknown", unknown), ("unready", unready))
        return _condition(pod, CONTAINERS_READY, CONDITION_FALSE, _NOT_READY, message)
    return _condition(pod, CONTAINERS_READY, CONDITION_TRUE)


def ready_condition(
    pod: Pod, conditions: Sequence[PodCondition], statuses: Sequence[ContainerStatus], phase: str
) -> PodCondition:
    """Whether the pod serves: its containers are ready and its readiness gates, found in `conditions`, are true."""
    containers = containers_ready_condition(pod, statuses, phase)
    if containers.status != CONDITION_TRUE:
        return _condition(pod, POD_READY, containers.status, containers.reason, containers.message)
    closed = []
    shown = {condition.type: condition for condition in reversed(conditions)} if pod.spec.readiness_gates else {}
    for gate in pod.spec.readiness_gates:
        condition = shown.get(gate.condition_type)
        if condition is None:
            closed.append(f'corresponding condition of pod readiness gate "{gate.condition_type}" does not exist.')
        elif condition.status != CONDITION_TRUE:
            name = gate.condition_type
            closed.append(f'the status of pod readiness gate "{name}" is not "True", but {condition.status}')
    if closed:
        return _condition(pod, POD_READY, CONDITION_FALSE, _GATES_NOT_READY, ", ".join(closed))
    return _condition(pod, POD_READY, CONDITION_TRUE)


def readiness_differs(pod: Pod) -> bool:
    """Whether the API server shows the pod as ready or not ready against its readiness gates, which others set.

    Only such a pod needs a sync when its status has changed (kubelet: `NeedToReconcilePodReadiness`).
    """
    if not pod.spec.readiness_gates:
        return False
    status = pod.status
    shown = find_condition(status.conditions, POD_READY)
    statuses = (*status.init_container_statuses, *status.container_statuses)
    due = ready_condition(pod, status.conditions, statuses, status.phase)
    return shown is not None and (shown.status, shown.message) != (due.status, due.message)


def restarting_condition(pod: Pod, observed: PodRuntimeStatus, previous: PodStatus, phase: str) -> PodCondition:
    """Whether all containers are being removed in order to start again (KEP-5532)."""
    if phase in (POD_SUCCEEDED, POD_FAILED):
        reason = _COMPLETED if phase == POD_SUCCEEDED else _FAILED
        return PodCondition(type=ALL_CONTAINERS_RESTARTING, status=CONDITION_FALSE, reason=reason)
    if not restarts_all(pod, observed, previous) or all_removed(pod, observed):
        return PodCondition(type=ALL_CONTAINERS_RESTARTING, status=CONDITION_FALSE)
    return PodCondition(
        type=ALL_CONTAINERS_RESTARTING,
        status=CONDITION_TRUE,
        reason=_RESTART_STARTED,
        message="container exited with restart policy rule",
    )


def terminal_condition(pod: Pod, type_: str, phase: str) -> PodCondition:
    """Ready and ContainersReady of a pod that has ended."""
    return _condition(pod, type_, CONDITION_FALSE, _FAILED if phase == POD_FAILED else _COMPLETED)


def as_disrupted(status: PodStatus, message: str, generation: int) -> PodStatus:
    """The status of a pod that the node ends for its own sake, with the condition that says so.

    `generation`: of the pod's spec.
    """
    disrupted = PodCondition(
        type=DISRUPTION_TARGET,
        status=CONDITION_TRUE,
        observed_generation=generation,
        reason=_TERMINATION_BY_KUBELET,
        message=message,
    )
    others = (condition for condition in status.conditions if condition.type != DISRUPTION_TARGET)
    return attrs.evolve(status, conditions=(*others, disrupted))


def _is_initialized(container: Container, status: ContainerStatus) -> bool:
    return bool(status.started) if is_sidecar(container) else status.ready


def _list_containers(*kinds: tuple[str, list[str]]) -> str:
    return ", ".join(f"containers with {kind} status: [{' '.join(names)}]" for kind, names in kinds if names)


def _condition(pod: Pod, type_: str, status: str, reason: str = "", message: str = "") -> PodCondition:
    return PodCondition(
        type=type_, status=status, reason=reason, message=message, observed_generation=pod.metadata.generation
    )


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
