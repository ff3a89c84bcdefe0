"""Which sandboxes and containers of the runtime's lists are measured.

The runtime lists what has ended too, and after a pod was made anew under its old name there are two sandboxes for a
while. A pod appears once, and each of its containers once (kubelet: `removeTerminatedPods`,
`removeTerminatedContainers`; there two running containers of one name would both appear, and make one series twice).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from trikubelet.container.labels import CONTAINER_NAME
from trikubelet.formats.values import frozen
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen(kw_only=True)
class RunningContainer:
    """A container that is measured."""

    id: str
    name: str
    created_at: int
    """Nanoseconds since 1970."""
    image: str = ""


@frozen(kw_only=True)
class MeasuredPod:
    """A pod with something to measure."""

    sandbox_id: str
    name: str
    namespace: str
    uid: str
    created_at: int
    containers: tuple[RunningContainer, ...]


def measured_pods(sandboxes: Iterable[v1.PodSandbox], containers: Iterable[v1.Container]) -> tuple[MeasuredPod, ...]:
    """All pods that have a running container, by namespace and name."""
    running = _newest_running(containers)
    pods = [
        MeasuredPod(
            sandbox_id=sandbox.id,
            name=sandbox.metadata.name,
            namespace=sandbox.metadata.namespace,
            uid=sandbox.metadata.uid,
            created_at=sandbox.created_at,
            containers=tuple(running[sandbox.id]),
        )
        for sandbox in _living_sandboxes(sandboxes)
        if sandbox.id in running
    ]
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.created_at)))


def _living_sandboxes(sandboxes: Iterable[v1.PodSandbox]) -> list[v1.PodSandbox]:
    """One for each UID; of pods that share a name those that are ready, else the newest."""
    by_name: dict[tuple[str, str], list[v1.PodSandbox]] = defaultdict(list)
    for sandbox in sorted(sandboxes, key=lambda one: one.created_at):
        by_name[sandbox.metadata.namespace, sandbox.metadata.name].append(sandbox)
    kept = []
    for same in by_name.values():
        ready = {one.metadata.uid: one for one in same if one.state == v1.PodSandboxState.SANDBOX_READY}
        kept += list(ready.values()) or same[-1:]
    return kept


def _newest_running(containers: Iterable[v1.Container]) -> dict[str, list[RunningContainer]]:
    """By sandbox, in the order of their making."""
    newest: dict[tuple[str, str], v1.Container] = {}
    for container in sorted(containers, key=lambda one: one.created_at):
        if container.state == v1.ContainerState.CONTAINER_RUNNING:
            newest[container.pod_sandbox_id, _name(container)] = container
    by_sandbox: dict[str, list[RunningContainer]] = defaultdict(list)
    for (sandbox, name), container in newest.items():
        image = container.image.user_specified_image or container.image.image or container.image_ref
        by_sandbox[sandbox].append(
            RunningContainer(id=container.id, name=name, created_at=container.created_at, image=image)
        )
    return dict(by_sandbox)


def _name(container: v1.Container) -> str:
    return container.labels.get(CONTAINER_NAME) or container.metadata.name
