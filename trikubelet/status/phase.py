"""The phase of a pod: its containers' states summed up in one word (kubelet: `getPhase`).

Init containers first: one that failed for good fails the pod, one that is not done keeps it Pending. Sidecars count as
running or waiting, but how they end says nothing of the pod. Then the main containers: any that waits for its first
start keeps the pod Pending; any that runs makes it Running; when all have stopped, the restart policies say whether it
goes on, and the exit codes how it ended.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, assert_never

from trikubelet.api import POD_FAILED, POD_PENDING, POD_RUNNING, POD_SUCCEEDED, is_sidecar
from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.container.restart_policy import should_restart
from trikubelet.status.container_statuses import RESTARTING_ALL_CONTAINERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.api import Container, ContainerStateTerminated, ContainerStatus, Pod

State = Literal["unknown", "waiting", "running", "ended", "ended, waiting"]
"""`waiting` never ran; `ended, waiting` ran before and is to run again."""


def pod_phase(pod: Pod, statuses: Sequence[ContainerStatus], *, terminal: bool, initialized: bool) -> str:
    """The phase that follows from the statuses of init and main containers.

    `terminal`: no container of the pod will be started again. `initialized`: a main container was already made in the
    sandbox of today, so sidecars that start again do not make the pod Pending.
    """
    by_name = {status.name: status for status in statuses}
    init = _count_init_containers(pod, by_name)
    if init["failed for good"]:
        return POD_FAILED
    sidecars = _count_sidecars(pod, by_name)
    main = _count_main_containers(pod, by_name)
    if init["pending"] or (sidecars["pending"] and not initialized) or sidecars["waiting"] + main["waiting"]:
        return POD_PENDING
    if sidecars["unknown"] + main["unknown"]:
        return POD_PENDING
    if sidecars["running"] + main["running"]:
        return POD_RUNNING
    if not main["stopped"]:
        return POD_PENDING
    over = main["stopped"] == main["stopped for good"] or (terminal and not is_static_pod(pod))
    if not over:
        return POD_RUNNING
    return POD_SUCCEEDED if main["stopped"] == main["succeeded"] else POD_FAILED


def _state(status: ContainerStatus | None) -> State:
    if status is None:
        return "unknown"
    if status.state.running is not None:
        return "running"
    if status.state.terminated is not None:
        return "ended"
    if status.state.waiting is not None:
        return "waiting" if status.last_state.terminated is None else "ended, waiting"
    return "unknown"


def _end(status: ContainerStatus) -> ContainerStateTerminated:
    end = status.state.terminated or status.last_state.terminated
    if end is None:
        raise ValueError(f"container {status.name} has not ended")
    return end


def _restarts(container: Container, pod: Pod, end: ContainerStateTerminated) -> bool:
    return end.reason == RESTARTING_ALL_CONTAINERS or should_restart(container, pod, end.exit_code)


def _count_init_containers(pod: Pod, statuses: Mapping[str, ContainerStatus]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for container in pod.spec.init_containers:
        if is_sidecar(container):
            continue
        status = statuses.get(container.name)
        state = _state(status)
        if status is None or state in ("unknown", "waiting", "running"):
            counts["pending"] += 1
            continue
        end = _end(status)
        if end.exit_code != 0 and not _restarts(container, pod, end):
            counts["failed for good"] += 1
    return counts


def _count_sidecars(pod: Pod, statuses: Mapping[str, ContainerStatus]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for container in pod.spec.init_containers:
        if not is_sidecar(container):
            continue
        status = statuses.get(container.name)
        if status is None:
            counts["unknown"] += 1
            continue
        state = _state(status)
        match state:
            case "running":
                counts["running"] += 1
                counts["pending"] += not status.started
            case "waiting":
                counts["waiting"] += 1
                counts["pending"] += 1
            case "unknown":
                counts["unknown"] += 1
                counts["pending"] += 1
            case "ended" | "ended, waiting":
                pass
            case _:
                assert_never(state)
    return counts


def _count_main_containers(pod: Pod, statuses: Mapping[str, ContainerStatus]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for container in pod.spec.containers:
        status = statuses.get(container.name)
        state = _state(status)
        if status is None or state in ("unknown", "waiting", "running"):
            counts[state] += 1
            continue
        end = _end(status)
        counts["stopped"] += 1
        counts["stopped for good"] += not _restarts(container, pod, end)
        counts["succeeded"] += state == "ended" and end.exit_code == 0
    return counts
