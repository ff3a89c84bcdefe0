"""Lifecycle events as the difference of two observations of one pod. Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from trikubelet.container.model import ContainerState
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.container.model import PodRuntimeStatus, RunningPod


class LifecycleEventType(enum.Enum):
    """The kubelet's names (`PodLifeCycleEventType`). Sandboxes count as containers."""

    CONTAINER_STARTED = "ContainerStarted"
    CONTAINER_DIED = "ContainerDied"
    CONTAINER_REMOVED = "ContainerRemoved"


@frozen
class PodLifecycleEvent:
    """Something that happened to one container of a pod."""

    uid: str
    type: LifecycleEventType
    container_id: str = ""


ContainerStates = dict[str, ContainerState]
"""State by id of all containers and sandboxes of a pod."""


def states_of_status(status: PodRuntimeStatus) -> ContainerStates:
    """The states that an inspection saw, as the runtime's lists show them."""
    states = {
        container.id.id: ContainerState.EXITED if container.start_cut_off else container.state
        for container in status.container_statuses
    }
    for sandbox in status.sandbox_statuses:
        states[sandbox.id] = ContainerState.RUNNING if sandbox.ready else ContainerState.EXITED
    return states


def states_of_pod(pod: RunningPod) -> ContainerStates:
    """The states that a relist saw."""
    return {container.id.id: container.state for container in (*pod.containers, *pod.sandboxes)}


def compare(
    uid: str, before: Mapping[str, ContainerState], after: Mapping[str, ContainerState]
) -> list[PodLifecycleEvent]:
    """The events between two observations (kubelet: `generateEvents`).

    A container that ran and is gone yields died and removed. One that was never seen to run and ended yields died.
    Created and unknown ones are no news, as in the kubelet, which drops those events before sending.
    """
    events: list[PodLifecycleEvent] = []
    for container_id in [*after, *(gone for gone in before if gone not in after)]:
        old, new = before.get(container_id), after.get(container_id)
        if old is new:
            continue
        events.extend(PodLifecycleEvent(uid, kind, container_id) for kind in _transition(old, new))
    return events


def _transition(old: ContainerState | None, new: ContainerState | None) -> tuple[LifecycleEventType, ...]:
    match new:
        case ContainerState.RUNNING:
            return (LifecycleEventType.CONTAINER_STARTED,)
        case ContainerState.EXITED:
            return (LifecycleEventType.CONTAINER_DIED,)
        case ContainerState.CREATED | ContainerState.UNKNOWN:
            return ()
        case None:
            if old is ContainerState.EXITED:
                return (LifecycleEventType.CONTAINER_REMOVED,)
            return (LifecycleEventType.CONTAINER_DIED, LifecycleEventType.CONTAINER_REMOVED)
