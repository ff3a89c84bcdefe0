"""What one line of `trikubelet pods` says about a pod, in the words of `kubectl get pods` (kubectl: `printPod`).

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from trikubelet.api import Container, ContainerStateTerminated, ContainerStatus, Pod

NONE: Final = "<none>"


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
    statuses = pod.status.container_statuses
    ready = sum(1 for status in statuses if status.ready and status.state.running is not None)
    return PodRow(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        ready=f"{ready}/{len(pod.spec.containers)}",
        status=pod_status(pod),
        restarts=_restarts(pod, now),
        age=_age(pod, now),
        ip=pod.status.pod_ip or NONE,
        node=pod.spec.node_name or NONE,
    )


def pod_status(pod: Pod) -> str:
    """The one word that says how a pod is: `Running`, `CrashLoopBackOff`, `Init:0/2`, `Terminating`, …"""
    if pod.metadata.deletion_timestamp is not None:
        return "Unknown" if pod.status.reason == "NodeLost" else "Terminating"
    word = pod.status.reason or pod.status.phase or "Unknown"
    initializing = _init_status(pod)
    if initializing is not None:
        return initializing
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


def _init_status(pod: Pod) -> str | None:
    """`Init:…` while init containers are at work."""
    specs = {container.name: container for container in pod.spec.init_containers}
    for index, status in enumerate(pod.status.init_container_statuses):
        ended, waiting = status.state.terminated, status.state.waiting
        if (ended is not None and ended.exit_code == 0) or _is_started_sidecar(specs.get(status.name), status):
            continue
        if ended is not None:
            return f"Init:{_ended_status(ended)}"
        if waiting is not None and waiting.reason and waiting.reason != "PodInitializing":
            return f"Init:{waiting.reason}"
        return f"Init:{index}/{len(pod.spec.init_containers)}"
    return None


def _is_started_sidecar(spec: Container | None, status: ContainerStatus) -> bool:
    return spec is not None and spec.restart_policy == "Always" and bool(status.started)


def _ended_status(ended: ContainerStateTerminated) -> str:
    if ended.reason:
        return ended.reason
    return f"Signal:{ended.signal}" if ended.signal else f"ExitCode:{ended.exit_code}"


def _condition(pod: Pod, kind: str) -> bool:
    return any(condition.type == kind and condition.status == "True" for condition in pod.status.conditions)


def _restarts(pod: Pod, now: datetime) -> str:
    """Of the containers while they run, of the init containers while those do; with the age of the last one."""
    counted = [*pod.status.container_statuses]
    sidecars = {container.name for container in pod.spec.init_containers if container.restart_policy == "Always"}
    initializing = _init_status(pod) is not None
    for status in pod.status.init_container_statuses:
        if initializing or status.name in sidecars:
            counted.append(status)
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
