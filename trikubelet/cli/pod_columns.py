"""What one line of `trikubelet pods` says about a pod, in the words of `kubectl get pods` (kubectl: `printPod`).

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api import ContainerStatus
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from trikubelet.api import ContainerStateTerminated, Pod

NONE: Final = "<none>"
_ENDED: Final = ("Succeeded", "Failed")


@frozen
class PodRow:
    """One line."""

    namespace: str
    name: str
    ready: str
    status: str
    restarts: str
    age: str
    ip: str
    node: str


def pod_row(pod: Pod, now: datetime) -> PodRow:
    """The line of a pod; `now` gives ages."""
    sidecars = _sidecars(pod)
    progress = _Initialization.of(pod)
    ready = sum(1 for status in progress.done if status.name in sidecars and status.ready)
    if progress.is_over:
        ready += sum(1 for status in pod.status.container_statuses if status.ready and status.state.running is not None)
    return PodRow(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        ready=f"{ready}/{len(pod.spec.containers) + len(sidecars)}",
        status=pod_status(pod),
        restarts=_restarts(pod, now),
        age=_age(pod, now),
        ip=pod.status.pod_ip or NONE,
        node=pod.spec.node_name or NONE,
    )


def pod_status(pod: Pod) -> str:
    """The one word that says how a pod is: `Running`, `CrashLoopBackOff`, `Init:0/2`, `Terminating`, …

    A sidecar may fail after the pod was initialized: `Init:Error` is then the word only if the containers have none of
    their own, which those of a pod that has ended always have.
    """
    status = pod.status
    if pod.metadata.deletion_timestamp is not None:
        if status.reason == "NodeLost":
            return "Unknown"
        if status.phase not in _ENDED:
            return "Terminating"
    word = status.reason or status.phase or "Unknown"
    if any(one.type == "PodScheduled" and one.reason == "SchedulingGated" for one in status.conditions):
        word = "SchedulingGated"
    progress = _Initialization.of(pod)
    if progress.current is not None:
        word = _init_status(pod, progress)
    return _status_of_containers(pod, word) if progress.is_over else word


def _status_of_containers(pod: Pod, word: str) -> str:
    """The word of the first container that has one, or the given one."""
    running = False
    for status in reversed(pod.status.container_statuses):
        state = status.state
        if state.waiting is not None and state.waiting.reason:
            word = state.waiting.reason
        elif state.terminated is not None:
            word = _ended_status(state.terminated)
        elif status.ready and state.running is not None:
            running = True
    if word == "Completed" and running:
        word = "Running" if _condition(pod, "Ready") else "NotReady"
    return word


@frozen
class _Initialization:
    """How far the init containers of a pod are."""

    done: tuple[ContainerStatus, ...]
    """Those that have ended with success, and sidecars that have started, in order."""
    current: ContainerStatus | None
    """The first other one."""
    is_over: bool

    @classmethod
    def of(cls, pod: Pod) -> _Initialization:
        """A pod that was initialized stays so, also when one of its sidecars ends."""
        sidecars = _sidecars(pod)
        statuses = pod.status.init_container_statuses
        for index, status in enumerate(statuses):
            ended = status.state.terminated
            if (ended is None or ended.exit_code != 0) and not (status.name in sidecars and status.started):
                return cls(tuple(statuses[:index]), status, _condition(pod, "Initialized"))
        return cls(tuple(statuses), None, is_over=True)


def _init_status(pod: Pod, progress: _Initialization) -> str:
    assert progress.current is not None
    state = progress.current.state
    if state.terminated is not None:
        return f"Init:{_ended_status(state.terminated)}"
    if state.waiting is not None and state.waiting.reason and state.waiting.reason != "PodInitializing":
        return f"Init:{state.waiting.reason}"
    return f"Init:{len(progress.done)}/{len(pod.spec.init_containers)}"


def _sidecars(pod: Pod) -> frozenset[str]:
    return frozenset(container.name for container in pod.spec.init_containers if container.restart_policy == "Always")


def _ended_status(ended: ContainerStateTerminated) -> str:
    if ended.reason:
        return ended.reason
    return f"Signal:{ended.signal}" if ended.signal else f"ExitCode:{ended.exit_code}"


def _condition(pod: Pod, kind: str) -> bool:
    return any(condition.type == kind and condition.status == "True" for condition in pod.status.conditions)


def _restarts(pod: Pod, now: datetime) -> str:
    """Of containers and sidecars, or of init containers while the pod is initialized; with the age of the last one."""
    sidecars = _sidecars(pod)
    progress = _Initialization.of(pod)
    begun = progress.done if progress.current is None else (*progress.done, progress.current)
    counted = [status for status in begun if not progress.is_over or status.name in sidecars]
    if progress.is_over:
        counted += pod.status.container_statuses
    number = sum(status.restart_count for status in counted)
    ends = [
        status.last_state.terminated.finished_at
        for status in counted
        if status.last_state.terminated is not None and status.last_state.terminated.finished_at is not None
    ]
    return f"{number} ({human_duration(now - max(ends))} ago)" if number and ends else str(number)


def _age(pod: Pod, now: datetime) -> str:
    born = pod.status.start_time or pod.metadata.creation_timestamp
    return human_duration(now - born) if born is not None else "<unknown>"


def human_duration(duration: timedelta) -> str:
    """An age as kubectl shows it: `42s`, `5m30s`, `3h`, `2d4h` (apimachinery: `HumanDuration`)."""
    seconds = int(duration.total_seconds())
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(big: int, unit: str, small: int, small_unit: str) -> str:
    return f"{big}{unit}{small}{small_unit}" if small else f"{big}{unit}"
