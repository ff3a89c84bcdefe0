"""Which container's log is meant: a name in a pod stands for one container after the other.

Pure; the texts are those that users of `kubectl logs` know (kubelet: `validateContainerLogStatus`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import ContainerStatus, Pod, PodStatus

_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


@frozen
class LogTarget:
    """A container's log."""

    path: Path
    """The file that the runtime writes to now (`log_path` of the container's CRI status)."""
    container_id: str
    running: bool
    """False: nothing more will be written."""


class LogNotAvailableError(Exception):
    """There is no log to read. The text tells the user why; `not_found` when what was asked for does not exist."""

    def __init__(self, message: str, *, not_found: bool = False) -> None:
        super().__init__(message)
        self.not_found = not_found


def container_for_logs(pod_name: str, status: PodStatus, container_name: str, *, previous: bool) -> str:
    """The id of the container to read, without its `runtime://`. Raises LogNotAvailableError.

    With `previous` that is the one that ran before the present one; else the running one, or the last that ended.
    """
    quoted = f'container "{container_name}" in pod "{pod_name}"'
    found = _status_of(status, container_name)
    if found is None:
        raise LogNotAvailableError(f"{quoted} is not available")
    last = "" if found.last_state.terminated is None else found.last_state.terminated.container_id
    state = found.state
    if previous:
        if not last:
            raise LogNotAvailableError(f"previous terminated {quoted} not found")
        chosen = last
    elif state.running is not None:
        chosen = found.container_id
    elif state.terminated is not None or found.last_state.terminated is not None:
        # The newest may have ended without ever having been created: the one before it has a log.
        chosen = (state.terminated.container_id if state.terminated is not None else "") or last
        if not chosen:
            raise LogNotAvailableError(f"{quoted} is terminated")
    else:
        raise LogNotAvailableError(f"{quoted} is waiting to start{_why(found)}")
    return chosen.partition("://")[2] or chosen


def _status_of(status: PodStatus, name: str) -> ContainerStatus | None:
    every = (*status.container_statuses, *status.init_container_statuses, *status.ephemeral_container_statuses)
    return next((candidate for candidate in every if candidate.name == name), None)


def _why(status: ContainerStatus) -> str:
    waiting = status.state.waiting
    match None if waiting is None else waiting.reason:
        case None:
            return " - no logs yet"
        case "ErrImagePull":
            return ": image can't be pulled"
        case "ImagePullBackOff":
            return ": trying and failing to pull image"
        case reason:
            return f": {reason}"


def default_container(pod: Pod) -> str:
    """The container that is meant when none is named: the annotated one, else the first; "" when there is none."""
    names = [container.name for container in pod.spec.containers]
    annotated = pod.metadata.annotations.get(_DEFAULT_CONTAINER, "")
    every = (*names, *(container.name for container in (*pod.spec.init_containers, *pod.spec.ephemeral_containers)))
    return annotated if annotated in every else next(iter(names), "")
