"""The choice of dead containers and sandboxes to remove. Pure; the rules are the kubelet's (`kuberuntime_gc.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.container.model import ContainerState
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus


@frozen
class ContainerGCPolicy:
    """How many dead containers stay. Negative numbers mean no limit."""

    min_age: float = 0.0
    """Seconds since its creation that a container is kept at least."""
    max_per_pod_container: int = 1
    max_containers: int = -1


@frozen
class DeadContainer:
    """A container that does not run."""

    id: str
    name: str
    pod_uid: str
    created_at: float
    """Seconds since the epoch."""
    unknown: bool = False
    """It may run after all: kill it first."""
    attempt: int = 0
    never_started: bool = False
    """It was made, and is about to be started, unless the agent ended in between."""
    pod_sandbox_id: str = ""


@frozen
class SeenSandbox:
    """A sandbox, and whether it is in use."""

    id: str
    pod_uid: str
    created_at: float
    active: bool
    """Ready, or with containers in it."""
    attempt: int = 0


def containers_to_collect(
    containers: Iterable[DeadContainer],
    policy: ContainerGCPolicy,
    *,
    now: float,
    is_removed: Callable[[str], bool],
) -> list[DeadContainer]:
    """The containers to remove: all of removed pods, then the oldest beyond the policy's numbers.

    `now` in seconds since the epoch; `is_removed` tells of a pod's uid that nothing of the pod is needed any more.
    A container that was never started takes no place from one that ran, whose log and exit code may be wanted:
    the newest of a name stays, since it may be starting, and others go.
    """
    units: dict[tuple[str, str], list[DeadContainer]] = {}
    for container in sorted(containers, key=_age, reverse=True):
        # A clock that was set back makes containers of the future. Where no age is asked for, theirs does not matter.
        if policy.min_age <= 0 or container.created_at <= now - policy.min_age:
            units.setdefault((container.pod_uid, container.name), []).append(container)
    doomed: list[DeadContainer] = []
    for key in [key for key in units if is_removed(key[0])]:
        doomed += units.pop(key)
    for key, unit in list(units.items()):
        doomed += [container for container in unit[1:] if container.never_started]
        units[key] = [container for container in unit if not container.never_started]
        if not units[key]:
            del units[key]
    if policy.max_per_pod_container >= 0:
        doomed += _cut(units, policy.max_per_pod_container)
    if policy.max_containers >= 0 and _count(units) > policy.max_containers:
        doomed += _cut(units, max(1, policy.max_containers // len(units)))
        rest = [container for unit in units.values() for container in unit]
        rest.sort(key=_age, reverse=True)
        doomed += rest[policy.max_containers :]
    return doomed


def sandboxes_to_collect(sandboxes: Iterable[SeenSandbox], *, is_removed: Callable[[str], bool]) -> list[SeenSandbox]:
    """The sandboxes to remove: those not in use, of removed pods or older than the pod's newest."""
    by_pod: dict[str, list[SeenSandbox]] = {}
    for sandbox in sorted(sandboxes, key=_age, reverse=True):
        by_pod.setdefault(sandbox.pod_uid, []).append(sandbox)
    doomed: list[SeenSandbox] = []
    for uid, of_pod in by_pod.items():
        candidates = of_pod if is_removed(uid) else of_pod[1:]
        doomed += [sandbox for sandbox in candidates if not sandbox.active]
    return doomed


def dead_containers_beyond(status: PodRuntimeStatus, *, container_id: str = "", keep: int = 1) -> list[ContainerStatus]:
    """The pod's ended containers but the newest `keep` (kubelet: `getContainersToDeleteInPod`).

    With a container id, only containers with the name of that one are looked at.
    """
    dead = [container for container in status.container_statuses if container.state is ContainerState.EXITED]
    if container_id:
        found = next((one for one in status.container_statuses if one.id.id == container_id), None)
        dead = [] if found is None else [container for container in dead if container.name == found.name]
    dead.sort(key=lambda one: 0.0 if one.created_at is None else one.created_at.timestamp(), reverse=True)
    return dead[keep:]


def _age(one: DeadContainer | SeenSandbox) -> tuple[float, int]:
    """The attempt decides between two of the same moment."""
    return one.created_at, one.attempt


def _cut(units: dict[tuple[str, str], list[DeadContainer]], limit: int) -> list[DeadContainer]:
    """Shorten each list to its newest ones; returns the others."""
    cut: list[DeadContainer] = []
    for key, containers in units.items():
        cut += containers[limit:]
        units[key] = containers[:limit]
    return cut


def _count(units: dict[tuple[str, str], list[DeadContainer]]) -> int:
    return sum(len(containers) for containers in units.values())
