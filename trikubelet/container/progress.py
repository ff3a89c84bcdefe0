"""How far a pod has come, read from what was seen of it: what the plan of a pod and its status both ask. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.container.model import ContainerState
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus


@frozen
class SandboxChange:
    """Whether a pod needs a new sandbox, and the attempt's number. `sandbox_id`: the one to use, or to be replaced."""

    changed: bool
    attempt: int = 0
    sandbox_id: str = ""


def pod_sandbox_changed(pod: Pod, status: PodRuntimeStatus) -> SandboxChange:
    """Whether the pod needs a new sandbox (kubelet: `PodSandboxChanged`)."""
    if not status.sandbox_statuses:
        return SandboxChange(changed=True)
    newest = status.sandbox_statuses[0]
    replaced = SandboxChange(True, newest.attempt + 1, newest.id)
    ready = sum(sandbox.ready for sandbox in status.sandbox_statuses)
    if ready > 1 or not newest.ready:
        return replaced
    if newest.host_network != pod.spec.host_network:
        return attrs.evolve(replaced, sandbox_id="")
    if not pod.spec.host_network and newest.network_reported and not newest.ips:
        return replaced
    return SandboxChange(False, newest.attempt, newest.id)


def any_main_container_created(pod: Pod, status: PodRuntimeStatus) -> bool:
    """Whether a main container was ever made, which means that initialization was once complete."""
    seen = (ContainerState.CREATED, ContainerState.RUNNING, ContainerState.EXITED)
    return any_main_container_in(pod, status, seen)


def any_main_container_in(pod: Pod, status: PodRuntimeStatus, states: Iterable[ContainerState]) -> bool:
    """Whether a main container is in one of these states."""
    found = (status.find_container(container.name) for container in pod.spec.containers)
    return any(container is not None and container.state in states for container in found)
