"""Looking at the runtime: which pods there are, and everything about one of them.

PLEG calls this, others read what PLEG keeps. What vanishes between the list and the status is left out, every other
error is the caller's: a half-known pod must never look like a pod with half its containers.

Two things are remembered, since they never change: a running container's process id, which only the verbose status
tells, and all that there is to say of a container that has ended.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from trikubelet.cri import v1
from trikubelet.cri.errors import CRIError
from trikubelet.runtime.convert import (
    container_status,
    listed_container,
    listed_sandbox,
    pid_from_info,
    sandbox_status,
)
from trikubelet.runtime.labels import POD_UID, PodIdentity, read_identity
from trikubelet.runtime.model import (
    ContainerStatus,
    PodRuntimeStatus,
    RunningPod,
    RuntimeContainer,
    SandboxStatus,
)
from trikubelet.runtime.termination import termination_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from trikubelet.cri.client import RuntimeClient
    from trikubelet.runtime.pod_files import PodFiles

_CONCURRENT_CALLS: Final = 8
_MOST_REMEMBERED: Final = 5000

T = TypeVar("T")
Entry = TypeVar("Entry")


class Observer:
    """Reads the runtime's state. Any number of calls at a time."""

    def __init__(self, runtime: RuntimeClient, files: PodFiles) -> None:
        self._runtime = runtime
        self._files = files
        self._pids: OrderedDict[str, int] = OrderedDict()
        self._ended: OrderedDict[str, ContainerStatus] = OrderedDict()

    async def pods(self, runtime_name: str, *, everything: bool) -> list[RunningPod]:
        """All pods, newest first, with running containers and ready sandboxes only unless `everything` is asked for.

        Raises CRIError.
        """
        container_filter = sandbox_filter = None
        if not everything:
            running = v1.ContainerStateValue(state=v1.ContainerState.CONTAINER_RUNNING)
            ready = v1.PodSandboxStateValue(state=v1.PodSandboxState.SANDBOX_READY)
            container_filter, sandbox_filter = v1.ContainerFilter(state=running), v1.PodSandboxFilter(state=ready)
        sandboxes = await self._runtime.list_pod_sandboxes(sandbox_filter)
        containers = await self._runtime.list_containers(container_filter)
        return group_by_pod(sandboxes, containers, runtime_name)

    async def pod_status(self, runtime_name: str, uid: str, name: str, namespace: str) -> PodRuntimeStatus:
        """Everything about one pod; without a name, its sandbox tells it. Raises CRIError."""
        began = trio.current_time()
        selector = {POD_UID: uid}
        sandboxes = await self._runtime.list_pod_sandboxes(v1.PodSandboxFilter(label_selector=selector))
        containers = await self._runtime.list_containers(v1.ContainerFilter(label_selector=selector))

        async def inspect_sandbox(entry: v1.PodSandbox) -> SandboxStatus:
            return sandbox_status((await self._runtime.pod_sandbox_status(entry.id)).status)

        async def inspect_container(entry: v1.Container) -> ContainerStatus:
            return await self._container_status(runtime_name, entry)

        sandbox_statuses = await _each(sorted(sandboxes, key=_sandbox_age), inspect_sandbox)
        container_statuses = await _each(sorted(containers, key=_container_age), inspect_container)
        newest = next(iter(sandbox_statuses), None)
        if not name and sandboxes:
            name, namespace = sandboxes[0].metadata.name, sandboxes[0].metadata.namespace
        return PodRuntimeStatus(
            uid=uid,
            name=name,
            namespace=namespace,
            ips=newest.ips if newest is not None and newest.ready else (),
            container_statuses=tuple(container_statuses),
            sandbox_statuses=tuple(sandbox_statuses),
            observed_at=began,
        )

    async def _container_status(self, runtime_name: str, entry: v1.Container) -> ContainerStatus:
        if entry.state == v1.ContainerState.CONTAINER_EXITED and entry.id in self._ended:
            return self._ended[entry.id]
        pid = self._pids.get(entry.id, 0)
        listed_running = entry.state == v1.ContainerState.CONTAINER_RUNNING
        reply = await self._runtime.container_status(entry.id, verbose=listed_running and not pid)
        status = reply.status
        message = ""
        if status.state == v1.ContainerState.CONTAINER_RUNNING:
            if not pid and (pid := pid_from_info(reply.info)):
                _remember(self._pids, entry.id, pid)
        else:
            self._pids.pop(entry.id, None)
            pid = 0
        if status.state == v1.ContainerState.CONTAINER_EXITED:
            message = termination_message(status, self._files)
        seen = container_status(
            status,
            runtime_name=runtime_name,
            pod_sandbox_id=entry.pod_sandbox_id,
            pid=pid,
            termination_message=message,
        )
        if status.state == v1.ContainerState.CONTAINER_EXITED:
            _remember(self._ended, entry.id, seen)
        return seen


def _remember(memory: OrderedDict[str, T], container_id: str, value: T) -> None:
    memory[container_id] = value
    if len(memory) > _MOST_REMEMBERED:
        memory.popitem(last=False)


def group_by_pod(
    sandboxes: Iterable[v1.PodSandbox], containers: Iterable[v1.Container], runtime_name: str
) -> list[RunningPod]:
    """Put list entries together by pod, newest first.

    A sandbox's pod is in its metadata, a container's in its labels, or else it is its sandbox's.
    """
    pods: dict[str, RunningPod] = {}
    pod_of_sandbox: dict[str, PodIdentity] = {}
    for sandbox in sorted(sandboxes, key=_sandbox_age):
        metadata = sandbox.metadata
        owner = PodIdentity(metadata.uid, metadata.name, metadata.namespace)
        pod_of_sandbox[sandbox.id] = owner
        seen = listed_sandbox(sandbox, runtime_name)
        pod = _pod_of(pods, owner)
        # Sorted newest first, so that the pod ends up with its oldest sandbox's time.
        pods[owner.uid] = attrs.evolve(pod, created_at=seen.created_at, sandboxes=(*pod.sandboxes, seen))
    found: dict[str, list[RuntimeContainer]] = {}
    for container in sorted(containers, key=_container_age):
        owner = read_identity(container.labels)
        if not owner.uid:
            owner = pod_of_sandbox.get(container.pod_sandbox_id, owner)
        if owner.uid:
            pods[owner.uid] = _pod_of(pods, owner)
            found.setdefault(owner.uid, []).append(listed_container(container, runtime_name))
    complete = [attrs.evolve(pod, containers=tuple(found.get(uid, ()))) for uid, pod in pods.items()]
    dated = [pod for pod in complete if pod.created_at is not None]
    undated = [pod for pod in complete if pod.created_at is None]
    return [*sorted(dated, key=_pod_age, reverse=True), *undated]


def _pod_of(pods: dict[str, RunningPod], owner: PodIdentity) -> RunningPod:
    return pods.get(owner.uid) or RunningPod(uid=owner.uid, name=owner.name, namespace=owner.namespace)


def _pod_age(pod: RunningPod) -> float:
    return 0.0 if pod.created_at is None else pod.created_at.timestamp()


def _sandbox_age(sandbox: v1.PodSandbox) -> tuple[int, int, str]:
    """Newest first: by attempt, then by time, then by id for a stable order."""
    return (-sandbox.metadata.attempt, -sandbox.created_at, sandbox.id)


def _container_age(container: v1.Container) -> tuple[int, int, str]:
    return (-container.created_at, -container.metadata.attempt, container.id)


async def _each(entries: Sequence[Entry], inspect: Callable[[Entry], Awaitable[T]]) -> list[T]:
    """Inspect entries, several at a time, in their order; those that are gone by then are left out."""
    found: dict[int, T] = {}
    failures: list[CRIError] = []
    turns = trio.CapacityLimiter(_CONCURRENT_CALLS)

    async def one(index: int, entry: Entry) -> None:
        async with turns:
            try:
                found[index] = await inspect(entry)
            except CRIError as error:
                if not error.not_found:
                    failures.append(error)

    if len(entries) == 1:
        await one(0, entries[0])
    else:
        async with trio.open_nursery() as nursery:
            for index, entry in enumerate(entries):
                nursery.start_soon(one, index, entry)
    if failures:
        raise failures[0]
    return [found[index] for index in sorted(found)]
