"""Looking at the runtime: which pods there are, and everything about one of them.

PLEG calls this, others read what PLEG keeps. What vanishes between the list and the status is left out, every other
error is the caller's: a half-known pod must never look like a pod with half its containers.

Where the ids of all that a pod holds are known, nothing is listed. When one of them is gone, or somebody else may have
made something, the lists tell.

Runtimes that have container events put the containers of a sandbox into its status, and say so by a timestamp (CRI-O;
the kubelet reads it when its evented PLEG is on): two calls tell all of a pod. Others are asked for each container.

The status of a container that has ended never changes, and is remembered. Its message is read from its termination
file, or from the end of its log where it asked for that. The kubelet's limits: 4096 bytes of the file; 80 lines and
2048 bytes of the log, which is in the CRI's format (`<time> <stream> <F|P> <text>`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from trikubelet.container.labels import POD_UID, PodIdentity, read_container_record, read_identity
from trikubelet.container.model import ContainerStatus, PodRuntimeStatus, RunningPod, RuntimeContainer
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.containers.mounts import termination_path
from trikubelet.runtime.convert import (
    container_status,
    cut_off_container,
    listed_container,
    listed_sandbox,
    sandbox_status,
    start_was_cut_off,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.runtime.pod_files import PodFiles

_CONCURRENT_CALLS: Final = 8
_MOST_REMEMBERED: Final = 5000

T = TypeVar("T")
Entry = TypeVar("Entry")
FALLBACK_TO_LOGS_ON_ERROR: Final = "FallbackToLogsOnError"
MAX_MESSAGE: Final = 4096
MAX_LOG_MESSAGE: Final = 2048
MAX_LOG_LINES: Final = 80
# Eighty lines of a log are within its last bytes, unless lines are longer than the message may be anyway.
_LOG_TAIL: Final = 64 * 1024


class Observer:
    """Reads the runtime's state. Any number of calls at a time."""

    def __init__(self, runtime: RuntimeClient, files: PodFiles) -> None:
        self._runtime = runtime
        self._files = files
        self._ended: OrderedDict[str, ContainerStatus] = OrderedDict()
        self._failed_starts: OrderedDict[str, None] = OrderedDict()
        """Containers that the runtime refused to start, or did not start in time, as it answered to this agent."""

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

    async def pod_status(
        self, runtime_name: str, uid: str, name: str, namespace: str, contents: Mapping[str, str] | None = None
    ) -> PodRuntimeStatus:
        """Everything about one pod; without a name, its sandbox tells it. `contents`: all that the pod holds, where
        that is known (`container.model.contents`). Raises CRIError."""
        began = trio.current_time()
        seen = None if contents is None else await self._known_contents(runtime_name, contents)
        if seen is None:
            listed = await self._runtime.list_pod_sandboxes(v1.PodSandboxFilter(label_selector={POD_UID: uid}))
            replies = await self._inspect_sandboxes([entry.id for entry in listed])
            containers = self._carried_containers(runtime_name, replies)
            if containers is None:
                containers = await self._ask_for_containers(runtime_name, uid)
            if not name and listed:
                name, namespace = listed[0].metadata.name, listed[0].metadata.namespace
        else:
            replies, containers = seen
            if not name:
                name, namespace = replies[0].status.metadata.name, replies[0].status.metadata.namespace
        statuses = [sandbox_status(reply.status) for reply in replies]
        newest = next(iter(statuses), None)
        ready = {status.id for status in statuses if status.ready}
        return PodRuntimeStatus(
            uid=uid,
            name=name,
            namespace=namespace,
            ips=newest.ips if newest is not None and newest.ready else (),
            container_statuses=tuple(
                cut_off_container(one, sandbox_ready=one.pod_sandbox_id in ready) if one.start_cut_off else one
                for one in containers
            ),
            sandbox_statuses=tuple(statuses),
            observed_at=began,
        )

    async def _known_contents(
        self, runtime_name: str, contents: Mapping[str, str]
    ) -> tuple[list[v1.PodSandboxStatusResponse], list[ContainerStatus]] | None:
        """The pod's sandboxes and containers, newest first. None when one of them is gone: then nothing is known."""

        async def inspect_container(container_id: str) -> ContainerStatus:
            if container_id in self._ended:
                return self._ended[container_id]
            reply = await self._runtime.container_status(container_id)
            return self._seen_container(runtime_name, reply.status, contents[container_id])

        sandboxes = [one for one, sandbox in contents.items() if one == sandbox]
        containers = [one for one, sandbox in contents.items() if one != sandbox]
        replies = await self._inspect_sandboxes(sandboxes)
        if not sandboxes or len(replies) < len(sandboxes):
            return None
        statuses = self._carried_containers(runtime_name, replies)
        if statuses is None:
            statuses = sorted(await _each(containers, inspect_container), key=_status_age)
        gone = set(containers) - {status.id.id for status in statuses}
        return None if gone else (replies, statuses)

    async def _inspect_sandboxes(self, ids: Sequence[str]) -> list[v1.PodSandboxStatusResponse]:
        """Newest first; those that are gone are left out."""
        replies = await _each(ids, self._runtime.pod_sandbox_status)
        return sorted(replies, key=lambda reply: _sandbox_age(reply.status))

    def _carried_containers(
        self, runtime_name: str, replies: Sequence[v1.PodSandboxStatusResponse]
    ) -> list[ContainerStatus] | None:
        """The containers that are told of with their sandboxes, newest first; None when the runtime does not do so."""
        if not replies or not all(reply.timestamp for reply in replies):
            return None
        carried = [(status, reply.status.id) for reply in replies for status in reply.containers_statuses]
        carried.sort(key=lambda status_in_sandbox: _container_age(status_in_sandbox[0]))
        return [self._seen_container(runtime_name, *status_in_sandbox) for status_in_sandbox in carried]

    async def _ask_for_containers(self, runtime_name: str, uid: str) -> list[ContainerStatus]:
        async def inspect_container(entry: v1.Container) -> ContainerStatus:
            if entry.state == v1.ContainerState.CONTAINER_EXITED and entry.id in self._ended:
                return self._ended[entry.id]
            reply = await self._runtime.container_status(entry.id)
            return self._seen_container(runtime_name, reply.status, entry.pod_sandbox_id)

        containers = await self._runtime.list_containers(v1.ContainerFilter(label_selector={POD_UID: uid}))
        return await _each(sorted(containers, key=_container_age), inspect_container)

    def start_failed(self, container_id: str) -> None:
        """The start failed while this agent waited for it, so it was not cut off by the end of an agent."""
        self._failed_starts[container_id] = None
        self._ended.pop(container_id, None)
        if len(self._failed_starts) > _MOST_REMEMBERED:
            self._failed_starts.popitem(last=False)

    def seen_end(self, container_id: str) -> ContainerStatus | None:
        """The last status of a container, if it was seen to have ended and is remembered."""
        return self._ended.get(container_id)

    def remember_end(self, runtime_name: str, status: v1.ContainerStatus, pod_sandbox_id: str) -> None:
        """Remember the status of an ended container from an event, as if it had been inspected."""
        if status.state == v1.ContainerState.CONTAINER_EXITED:
            self._seen_container(runtime_name, status, pod_sandbox_id)

    def _seen_container(self, runtime_name: str, status: v1.ContainerStatus, sandbox_id: str) -> ContainerStatus:
        exited = status.state == v1.ContainerState.CONTAINER_EXITED
        if exited and status.id in self._ended:
            return self._ended[status.id]
        message = termination_message(status, self._files) if exited else ""
        seen = container_status(
            status,
            runtime_name=runtime_name,
            pod_sandbox_id=sandbox_id,
            termination_message=message,
            start_cut_off=start_was_cut_off(status) and status.id not in self._failed_starts,
        )
        if exited:
            self._ended[status.id] = seen
            if len(self._ended) > _MOST_REMEMBERED:
                self._ended.popitem(last=False)
        return seen


def group_by_pod(
    sandboxes: Iterable[v1.PodSandbox], containers: Iterable[v1.Container], runtime_name: str
) -> list[RunningPod]:
    """Put list entries together by pod, newest first.

    A sandbox's pod is in its metadata, a container's in its labels, or else it is its sandbox's.
    """
    sandboxes_of: dict[PodIdentity, list[RuntimeContainer]] = {}
    containers_of: dict[PodIdentity, list[RuntimeContainer]] = {}
    owners: dict[str, PodIdentity] = {}
    pod_of_sandbox: dict[str, PodIdentity] = {}
    for sandbox in sorted(sandboxes, key=_sandbox_age):
        metadata = sandbox.metadata
        owner = owners.setdefault(metadata.uid, PodIdentity(metadata.uid, metadata.name, metadata.namespace))
        pod_of_sandbox[sandbox.id] = owner
        sandboxes_of.setdefault(owner, []).append(listed_sandbox(sandbox, runtime_name))
    for container in sorted(containers, key=_container_age):
        owner = read_identity(container.labels)
        if not owner.uid:
            owner = pod_of_sandbox.get(container.pod_sandbox_id, owner)
        if owner.uid:
            owner = owners.setdefault(owner.uid, owner)
            containers_of.setdefault(owner, []).append(listed_container(container, runtime_name))
    complete = [
        _listed_pod(owner, sandboxes_of.get(owner, ()), containers_of.get(owner, ())) for owner in owners.values()
    ]
    dated = [pod for pod in complete if pod.created_at is not None]
    undated = [pod for pod in complete if pod.created_at is None]
    return [*sorted(dated, key=_pod_age, reverse=True), *undated]


def _listed_pod(
    owner: PodIdentity, sandboxes: Sequence[RuntimeContainer], containers: Sequence[RuntimeContainer]
) -> RunningPod:
    """Sandboxes come newest first; the pod is as old as the oldest."""
    return RunningPod(
        uid=owner.uid,
        name=owner.name,
        namespace=owner.namespace,
        created_at=sandboxes[-1].created_at if sandboxes else None,
        containers=tuple(containers),
        sandboxes=tuple(sandboxes),
    )


def _pod_age(pod: RunningPod) -> float:
    return 0.0 if pod.created_at is None else pod.created_at.timestamp()


def _sandbox_age(sandbox: v1.PodSandbox | v1.PodSandboxStatus) -> tuple[int, int, str]:
    """Newest first: by attempt, then by time, then by id for a stable order."""
    return (-sandbox.metadata.attempt, -sandbox.created_at, sandbox.id)


def _container_age(container: v1.Container | v1.ContainerStatus) -> tuple[int, int, str]:
    return (-container.created_at, -container.metadata.attempt, container.id)


def _status_age(status: ContainerStatus) -> tuple[float, int, str]:
    """The same of what was read before."""
    created = 0.0 if status.created_at is None else status.created_at.timestamp()
    return (-created, -status.restart_count, status.id.id)


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


def termination_message(status: v1.ContainerStatus, files: PodFiles) -> str:
    """The message of an ended container. Problems with reading become part of the message, as in the kubelet."""
    record = read_container_record(status.annotations)
    # A container that never ran has no log.
    fall_back = (
        record.termination_message_policy == FALLBACK_TO_LOGS_ON_ERROR
        and status.exit_code != 0
        and status.reason != "ContainerCannotRun"
    )
    path = _host_path(status, record.termination_message_path)
    if path is not None:
        try:
            data = files.read_tail(path, MAX_MESSAGE)
        except OSError as error:
            return f"Error on reading termination log {path}: {error}"
        if data:
            return data.decode(errors="replace")
    if not fall_back or not status.log_path:
        return ""
    try:
        tail = files.read_tail(status.log_path, _LOG_TAIL)
    except OSError as error:
        return f"Error on reading termination message from logs: {error}"
    return last_log_text(tail or b"", whole=len(tail or b"") < _LOG_TAIL)


def last_log_text(tail: bytes, *, whole: bool) -> str:
    """The text of the last lines of a CRI log. `whole`: this is all of the log, so its first line is whole."""
    lines = tail.splitlines()
    if not whole:
        lines = lines[1:]
    texts: list[bytes] = []
    for line in lines[-MAX_LOG_LINES:]:
        fields = line.split(b" ", 3)
        if len(fields) == 4:
            texts.append(fields[3] + (b"" if fields[2].startswith(b"P") else b"\n"))
    return b"".join(texts)[-MAX_LOG_MESSAGE:].decode(errors="replace")


def _host_path(status: v1.ContainerStatus, container_path: str) -> str | None:
    if not container_path:
        return None
    wanted = termination_path(container_path)
    return next((mount.host_path for mount in status.mounts if mount.container_path == wanted), None)
