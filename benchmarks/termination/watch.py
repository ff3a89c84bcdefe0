"""Sees from outside how pods end, in the same way whoever ends them, and without asking the agent anything.

What can be waited for is waited for: the kernel tells of the files that containers leave (inotify), of the ends of
processes (pidfds, taken while they run), and of what the runtime removes at the end of a sandbox's stop. A runtime's
list is only asked when an event says that more has ended than the list showed last, and then again and again until it
shows it. An event that the first list after it confirms gives the moment (a busy runtime may take a second for that
reply); otherwise the reply does.

    containerd   a container is gone when its task has been deleted (the event `/tasks/delete`) and ListContainers does
                 not show it running. A sandbox is gone when its network namespace has been removed, the last thing
                 that StopPodSandbox does, and ListPodSandbox does not show it ready. The lists are asked 2 ms after
                 an event, then every 2 ms; with more than five pods that is 100 ms.
    embedded     inside the agent's process nobody can be asked. A container is gone when the keeper has recorded its
                 end, a sandbox when the keeper, asked every 2 ms from then on, holds its namespaces no more.

A worker has finished when the agent has removed the pod's folder, the last thing that a worker does. Only of our agent:
a kubelet leaves that to its housekeeping.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio

from benchmarks.termination.phases import Phase, PodTimes
from benchmarks.termination.pods import SIGNALLED, PodPlan, find_processes, read_sign
from trikubelet.embedded.keeper import protocol
from trikubelet.linux.inotify import Inotify, Mask
from trikubelet.linux.socket_address import socket_address
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from trio_typing import TaskStatus

POD_UID: Final = "io.kubernetes.pod.uid"
FEW_PODS: Final = 5
PERIOD_OF_FEW: Final = 0.002
PERIOD_OF_MANY: Final = 0.1
MISSED_EVENT: Final = 0.5
"""Seconds after which a list is looked at even without an event."""
START_PATIENCE: Final = 10.0
RUNNING: Final = v1.ContainerState.CONTAINER_RUNNING
READY: Final = v1.PodSandboxState.SANDBOX_READY


@attrs.define
class WatchedPod:
    """A pod that runs, and when what happened to it."""

    plan: PodPlan
    pids: Mapping[str, int]
    """Of the containers' first processes."""
    containers: set[str]
    """Ids of those that are not known to be gone."""
    sandbox: str
    """Its id."""
    trace: Path
    """Is removed at the end of the sandbox's stop."""
    moments: dict[Phase, float] = attrs.field(factory=dict)

    last_gone: float = 0.0
    """When the last container of those that are gone was."""

    def note(self, phase: Phase, moment: float | None = None) -> None:
        """`moment`: now, unless given."""
        self.moments.setdefault(phase, time.monotonic() if moment is None else moment)

    def container_gone(self, container_id: str, moment: float | None = None) -> None:
        self.last_gone = max(self.last_gone, time.monotonic() if moment is None else moment)
        self.containers.discard(container_id)
        if not self.containers:
            self.note(Phase.CONTAINERS_GONE, self.last_gone)

    def times(self, asked: float) -> PodTimes:
        return PodTimes(self.plan.name, asked, self.moments)


class Eyes(Protocol):
    """How a kind of runtime is looked at."""

    async def find(self, plan: PodPlan, pids: Mapping[str, int]) -> WatchedPod:
        """A pod that runs."""

    async def watch(
        self, pods: Sequence[WatchedPod], *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Note when containers and sandboxes are gone, until cancelled."""

    async def is_empty(self) -> bool:
        """Whether nothing is left of any pod."""


# Everybody's


@asynccontextmanager
async def watching(
    eyes: Eyes, signs: Path, pod_folders: Path | None, plans: Sequence[PodPlan], patience: float
) -> AsyncIterator[list[WatchedPod]]:
    """Watch pods that run; at the end, wait until all has happened to all of them.

    `signs`: where their containers leave files; `pod_folders`: where our agent has a folder for each. Raises
    trio.TooSlowError after `patience` seconds.
    """
    lines = await trio.to_thread.run_sync(command_lines)
    pods = [await eyes.find(plan, find_processes(lines, plan)) for plan in plans]
    for pod in pods:
        if pod.pids.keys() != set(pod.plan.behaviour.containers):
            raise RuntimeError(f"expected a process of each container of {pod.plan.name}, found {pod.pids}")
    expected = [phase for phase in Phase if phase is not Phase.WORKER_FINISHED or pod_folders is not None]
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signs, signs, pods)
        for pod in pods:
            await nursery.start(_watch_processes, pod)
        if pod_folders is not None:
            await nursery.start(_watch_pod_folders, pod_folders, pods)
        await nursery.start(eyes.watch, pods)
        yield pods
        with trio.fail_after(patience):
            while not all(phase in pod.moments for phase in expected for pod in pods):  # noqa: ASYNC110 - not timed
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()


async def wait_for_signs(signs: Path, names: frozenset[str], patience: float) -> None:
    """Until containers have left these files."""
    with trio.fail_after(patience), Inotify() as inotify:
        inotify.watch(signs, Mask.CREATE)
        while not names <= set(os.listdir(signs)):  # noqa: PTH208 - a set of many names, again and again
            await inotify.wait()


async def _watch_signs(
    signs: Path, pods: Sequence[WatchedPod], *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    by_name = {pod.plan.name: pod for pod in pods}
    with Inotify() as inotify:
        inotify.watch(signs, Mask.CREATE)
        task_status.started()
        while True:
            for event in await inotify.wait():
                read = read_sign(event.name)
                if read is not None and read[2] == SIGNALLED and read[0] in by_name:
                    by_name[read[0]].note(Phase.FIRST_SIGNAL)


async def _watch_processes(pod: WatchedPod, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    await until_dead(pod.pids.values(), task_status=task_status)
    pod.note(Phase.PROCESS_DEAD)


async def until_dead(pids: Iterable[int], *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Wait for the ends of processes that run when this starts."""
    descriptors = [os.pidfd_open(pid) for pid in pids]
    task_status.started()
    try:
        for descriptor in descriptors:
            await trio.lowlevel.wait_readable(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def _watch_pod_folders(
    folder: Path, pods: Sequence[WatchedPod], *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    by_uid = {pod.plan.uid: pod for pod in pods}
    with Inotify() as inotify:
        inotify.watch(folder, Mask.DELETE | Mask.MOVED_FROM)
        task_status.started()
        while True:
            for event in await inotify.wait():
                if event.name in by_uid:
                    by_uid[event.name].note(Phase.WORKER_FINISHED)


def command_lines() -> dict[int, str]:
    """Of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


# containerd


class ContainerdEyes:
    """Looks at a containerd with a client of its own."""

    def __init__(self, runtime: RuntimeClient) -> None:
        self._runtime = runtime
        self._event = trio.Event()
        """Set, and replaced, when containerd or the kernel tells of an end."""
        self._told: dict[str, float] = {}
        """When events told that these have ended: ids of containers, names of networks."""
        self._contradicted: set[str] = set()
        """Those of them that a list showed all the same."""

    @classmethod
    @asynccontextmanager
    async def on(cls, socket: Path) -> AsyncIterator[ContainerdEyes]:
        """Connected to a containerd, and listening to its events."""
        async with open_unix_channel(socket) as channel, trio.open_nursery() as nursery:
            eyes = cls(RuntimeClient(channel))
            await nursery.start(eyes._listen, socket)
            yield eyes
            nursery.cancel_scope.cancel()

    async def find(self, plan: PodPlan, pids: Mapping[str, int]) -> WatchedPod:
        selector = {POD_UID: plan.uid}
        containers = await self._runtime.list_containers(v1.ContainerFilter(label_selector=selector))
        sandboxes = await self._runtime.list_pod_sandboxes(v1.PodSandboxFilter(label_selector=selector))
        ready = [sandbox.id for sandbox in sandboxes if sandbox.state is READY]
        if len(ready) != 1:
            raise RuntimeError(f"expected one sandbox of {plan.name} that is ready, found {len(ready)}")
        status = await self._runtime.pod_sandbox_status(ready[0], verbose=True)
        trace = network_namespace(json.loads(status.info["info"]))
        running = {container.id for container in containers if container.state is RUNNING}
        return WatchedPod(plan, pids, running, ready[0], trace)

    async def watch(
        self, pods: Sequence[WatchedPod], *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        period = PERIOD_OF_FEW if len(pods) <= FEW_PODS else PERIOD_OF_MANY
        self._told.clear()
        self._contradicted.clear()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_networks, pods)
            task_status.started()
            while True:
                if not any(self._stirs(pod) for pod in pods):
                    with trio.move_on_after(MISSED_EVENT):
                        await self._event.wait()
                await trio.sleep(period)
                await self._look(pods)

    async def is_empty(self) -> bool:
        return not await self._runtime.list_pod_sandboxes()

    def _stirs(self, pod: WatchedPod) -> bool:
        """Whether events have told more than the lists show."""
        return bool(pod.containers & self._told.keys()) or (
            Phase.SANDBOX_GONE not in pod.moments and pod.trace.name in self._told
        )

    async def _look(self, pods: Sequence[WatchedPod]) -> None:
        if any(pod.containers for pod in pods):
            told = set(self._told)
            listed = await self._runtime.list_containers()
            running = {container.id for container in listed if container.state is RUNNING}
            self._contradicted |= running & told
            for pod in pods:
                for gone in pod.containers - running:
                    pod.container_gone(gone, self._confirmed(gone))
        ended = [pod for pod in pods if Phase.SANDBOX_GONE not in pod.moments and not pod.trace.exists()]
        if ended:
            ready = {one.id for one in await self._runtime.list_pod_sandboxes() if one.state is READY}
            for pod in ended:
                if pod.sandbox in ready:
                    self._contradicted.add(pod.trace.name)
                else:
                    pod.note(Phase.SANDBOX_GONE, self._confirmed(pod.trace.name))

    def _confirmed(self, name: str) -> float | None:
        """When an event told it, if no list said otherwise since."""
        return None if name in self._contradicted else self._told.get(name)

    async def _watch_networks(
        self, pods: Sequence[WatchedPod], *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        names = {pod.trace.name for pod in pods}
        with Inotify() as inotify:
            for folder in {pod.trace.parent for pod in pods}:
                inotify.watch(folder, Mask.DELETE)
            task_status.started()
            while True:
                self._tell({event.name for event in await inotify.wait()} & names)

    async def _listen(self, socket: Path, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        command = ["ctr", "-a", str(socket), "-n", "k8s.io", "events"]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            task_status.started()
            rest = b""
            async for data in process.stdout:
                *lines, rest = (rest + data).split(b"\n")
                self._tell({found for line in lines if (found := deleted_task(line.decode())) is not None})
            raise RuntimeError("containerd's events ended")
        finally:
            process.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + START_PATIENCE):
                await process.wait()

    def _tell(self, ended: AbstractSet[str]) -> None:
        if ended:
            now = time.monotonic()
            self._told.update((name, now) for name in ended if name not in self._told)
            self._event.set()
            self._event = trio.Event()


def deleted_task(line: str) -> str | None:
    """The id of the container whose task has been deleted, in a line of `ctr events`."""
    head, brace, body = line.partition("{")
    if not brace or head.split()[-1:] != ["/tasks/delete"]:
        return None
    found = json.loads(brace + body).get("container_id")
    return found if isinstance(found, str) else None


def network_namespace(info: Mapping[str, Any]) -> Path:
    """The file that holds a sandbox's network, as containerd's verbose status says."""
    for namespace in info["runtimeSpec"]["linux"]["namespaces"]:
        if namespace["type"] == "network" and "path" in namespace:
            return Path(namespace["path"])
    raise RuntimeError("expected a sandbox with a network namespace of its own")


# The embedded runtime


@attrs.define
class EmbeddedEyes:
    """Looks at the files of an embedded runtime's keeper."""

    root: Path
    """The runtime's folder."""

    async def sandboxes(self) -> frozenset[str]:
        """Those whose namespaces the keeper holds."""
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            try:
                with socket_address(str(self.root / protocol.SOCKET_NAME)) as address:
                    await channel.connect(address)
                await channel.send(protocol.encode({"id": 0, "op": "list"})[0])
                answer: dict[str, Any] = {}
                while "ok" not in answer:  # events come too
                    message, control, _, _ = await channel.recvmsg(protocol.LARGEST_DATAGRAM, protocol.CONTROL_SPACE)
                    if not message:
                        return frozenset()
                    answer = protocol.decode(message, protocol.passed_descriptors(control))
            except OSError:
                return frozenset()  # it has ended
        return frozenset(answer["ok"]["sandboxes"])

    async def find(self, plan: PodPlan, pids: Mapping[str, int]) -> WatchedPod:
        containers: set[str] = set()
        sandbox = ""
        for folder in (self.root / "containers").iterdir():
            run = folder / "run.json"
            if run.exists() and json.loads(run.read_text())["pid"] in pids.values():
                containers.add(folder.name)
                sandbox = json.loads((folder / "container.json").read_text())["sandbox"]
        if sandbox not in await self.sandboxes():
            raise RuntimeError(f"expected the records of {plan.name} in {self.root}, and its sandbox with the keeper")
        return WatchedPod(plan, pids, containers, sandbox, self.root / "sandboxes" / sandbox)

    async def watch(
        self, pods: Sequence[WatchedPod], *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with Inotify() as inotify:
            containers = {
                inotify.watch(self.root / "containers" / container, Mask.MOVED_TO): (pod, container)
                for pod in pods
                for container in pod.containers
            }
            ended, without_containers = trio.open_memory_channel[WatchedPod](len(containers))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_sandboxes, without_containers)
                task_status.started()
                while True:
                    for event in await inotify.wait():
                        if event.watch in containers and event.name == "exit.json":
                            pod, container = containers[event.watch]
                            pod.container_gone(container)
                            if not pod.containers:
                                await ended.send(pod)

    async def _watch_sandboxes(self, ended: trio.MemoryReceiveChannel[WatchedPod]) -> None:
        """Asks the keeper only while a pod without containers may have a sandbox: its answers cost the pods time."""
        waiting: list[WatchedPod] = []
        while True:
            if not waiting:
                waiting.append(await ended.receive())
            with suppress(trio.WouldBlock):
                while True:
                    waiting.append(ended.receive_nowait())
            held = await self.sandboxes()
            for pod in [pod for pod in waiting if pod.sandbox not in held]:
                pod.note(Phase.SANDBOX_GONE)
                waiting.remove(pod)
            await trio.sleep(PERIOD_OF_FEW)

    async def is_empty(self) -> bool:
        await trio.lowlevel.checkpoint()
        return not any((self.root / "sandboxes").iterdir())
