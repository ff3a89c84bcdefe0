"""Which container of a pod a command is about, and why it cannot be used. Messages are kubectl's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo

if TYPE_CHECKING:
    from trikubelet.api import Container, ContainerStatus, Pod

_ENDED = ("Succeeded", "Failed")


def chosen_container(pod: Pod, name: str | None, *, quiet: bool = False) -> Container:
    """The container called `name`, or the pod's default one, which is said on stderr when there are others.

    Raises CommandError (kubectl: `FindOrDefaultContainerByName`).
    """
    from trikubelet.node_api.log_location import default_container

    every = (*pod.spec.containers, *pod.spec.init_containers, *pod.spec.ephemeral_containers)
    wanted = default_container(pod) if name is None else name
    found = next((container for container in every if container.name == wanted), None)
    if found is None:
        raise CommandError(
            f"container {wanted} is not valid for pod {pod.metadata.name} out of: {container_names(pod)}"
        )
    annotated = "kubectl.kubernetes.io/default-container" in pod.metadata.annotations
    if name is None and len(every) > 1 and not annotated and not quiet:
        echo(f'Defaulted container "{found.name}" out of: {container_names(pod)}', err=True)
    return found


def container_names(pod: Pod) -> str:
    """All of them, those that are not usual ones with their kind."""
    names = [container.name for container in pod.spec.containers]
    names += [f"{container.name} (init)" for container in pod.spec.init_containers]
    names += [f"{container.name} (ephem)" for container in pod.spec.ephemeral_containers]
    return ", ".join(names)


def refuse_ended_pod(pod: Pod, doing: str) -> None:
    """Raises CommandError when none of the pod's containers will ever run again. `doing`: such as "exec into"."""
    if pod.status.phase in _ENDED:
        raise CommandError(f"cannot {doing} a container in a completed pod; current phase is {pod.status.phase}")


def why_not_running(pod: Pod, container: str) -> str:
    """What its status says of a container that was expected to run; "" when it says that it does."""
    every = (
        *pod.status.container_statuses,
        *pod.status.init_container_statuses,
        *pod.status.ephemeral_container_statuses,
    )
    status = next((status for status in every if status.name == container), None)
    state = "has not been created yet" if status is None else _state(status)
    return f"container {container} of pod {pod.metadata.namespace}/{pod.metadata.name} {state}" if state else ""


def _state(status: ContainerStatus) -> str:
    state = status.state
    if state.waiting is not None:
        reason = state.waiting.reason or "no reason given"
        return f"is waiting to start: {reason}" + (f": {state.waiting.message}" if state.waiting.message else "")
    if state.terminated is not None:
        return f"has ended with exit code {state.terminated.exit_code}"
    return ""
