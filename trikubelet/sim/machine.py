"""The sandboxes and containers of a simulated node, and what time does to them.

There is no task per container. A running container that will end by itself has a planned end: a moment and an exit
code, decided when it starts and moved forward by signals. `settle` carries out the ends that are due, oldest first and
with their own time stamps; everything that looks at the machine settles it first, and a task that waits for an end
sleeps until it is planned. So ten thousand idle containers cost nothing, and one seed gives one history.

The corners are containerd's: names are reserved per attempt, only a created container of a ready sandbox starts, a
running container that is removed is killed first, the stop signal is sent once.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
from collections import Counter, deque
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from trikubelet.broadcast import Broadcast
from trikubelet.container.labels import POD_UID
from trikubelet.formats.values import define, frozen
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.clock import WallClock
    from trikubelet.sim.images import ImageShelf, SimulatedImage
    from trikubelet.sim.programs import Life, Program, ProgramBook

FIRST_PID = 5_000_000
"""Above any kernel's pid_max, so that a simulated pid is never that of a real process."""

T = TypeVar("T")

STOPPED_BY_KILL = 137
FAILED_TO_START = 128
LOST_WITH_THE_NODE = 255
GIVING_UP = 2.2
"""Seconds that containerd 1.6 takes to give up a start whose client has left: so long it cannot be removed."""
CUT_OFF = "failed to create containerd task: failed to create shim task: context canceled: unknown"
TOO_SLOW = "failed to create containerd task: failed to create shim task: context deadline exceeded: unknown"

CREATED = v1.ContainerState.CONTAINER_CREATED
RUNNING = v1.ContainerState.CONTAINER_RUNNING
EXITED = v1.ContainerState.CONTAINER_EXITED


@frozen
class PlannedEnd:
    """How a running container will end, if nothing else comes first."""

    time: float
    exit_code: int
    reason: str = ""
    message: str = ""


@define(eq=False)
class Run:
    """One run of a container: what tests ask about."""

    pod_uid: str
    pod_name: str
    pod_namespace: str
    container_name: str
    container_id: str
    attempt: int
    started_at: float
    """Trio time."""
    ended_at: float | None = None
    exit_code: int | None = None


@define(eq=False)
class Sandbox:
    id: str
    config: v1.PodSandboxConfig
    runtime_handler: str
    created_at: int
    """Nanoseconds since 1970, as everywhere in the CRI."""
    pid: int
    ip: str
    """Empty on the host's network and once it is stopped."""
    ready: bool = True
    stopped: trio.Event = attrs.field(factory=trio.Event)
    entry: v1.PodSandbox | None = None
    """Its entry in list replies, until something changes."""
    containers: dict[str, Container] = attrs.field(factory=dict)
    resources: v1.LinuxContainerResources | None = None
    """What it was updated to; None: it has what it was made with."""

    @property
    def name_key(self) -> str:
        metadata = self.config.metadata
        return f"{metadata.name}_{metadata.namespace}_{metadata.uid}_{metadata.attempt}"


@define(eq=False)
class Container:
    id: str
    sandbox: Sandbox
    config: v1.ContainerConfig
    program: Program
    image: SimulatedImage
    created_at: int
    state: v1.ContainerState = CREATED
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    pid: int = 0
    life: Life | None = None
    run: Run | None = None
    end: PlannedEnd | None = None
    signals: list[tuple[float, str]] = attrs.field(factory=list)
    """The signals it got, with their Trio times."""
    resources: v1.ContainerResources | None = None
    """What it was updated to; None: it has what it was made with."""
    memory_used: int = 0
    """Bytes, as its program would use them: for tests to set."""
    user: v1.ContainerUser | None = None
    """The identity of its first process; None: the runtime does not say."""
    entry: v1.Container | None = None
    """Its entry in list replies, until something changes."""
    changed: Broadcast[None] = attrs.field(factory=Broadcast)
    """Set, and replaced, when its state or its planned end changes."""

    @property
    def name(self) -> str:
        return self.config.metadata.name

    @property
    def pod_uid(self) -> str:
        return self.sandbox.config.metadata.uid

    @property
    def name_key(self) -> str:
        metadata, pod = self.config.metadata, self.sandbox.config.metadata
        return f"{metadata.name}_{pod.name}_{pod.namespace}_{pod.uid}_{metadata.attempt}"


@frozen
class Change:
    """Something happened to a container (or to a sandbox, then `container` is None)."""

    time: float
    kind: v1.ContainerEventType
    sandbox: Sandbox
    container: Container | None = None


class Machine:
    """All sandboxes and containers. Its methods take effect at once; only waiting for ends takes time."""

    def __init__(
        self, clock: WallClock, images: ImageShelf, programs: ProgramBook, *, seed: int, run_limit: int
    ) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.containers: dict[str, Container] = {}
        self.sandboxes_by_pod: dict[str, dict[str, Sandbox]] = {}
        """By the UID in their labels, which is how agents ask for them."""
        self.containers_by_pod: dict[str, dict[str, Container]] = {}
        self.runs: deque[Run] = deque(maxlen=run_limit)
        self.observers: list[Callable[[Change], None]] = []
        """Called with every change, in order. They must not call back."""
        self.activity: Broadcast[None] = Broadcast()
        """Set, and replaced, when anything changes."""
        self._clock = clock
        self._images = images
        self._programs = programs
        self._seed = seed
        self._names: dict[str, str] = {}
        self._ids: Counter[str] = Counter()
        self._starts: Counter[tuple[str, str]] = Counter()
        self._pids = itertools.count(FIRST_PID)
        self._addresses = itertools.count(2)
        self._ends: list[tuple[float, int, Container, PlannedEnd]] = []
        self._order = itertools.count()

    # Time

    def timestamp(self, time: float | None = None) -> int:
        """A moment of Trio's time (default: now) as nanoseconds since 1970."""
        ago = 0.0 if time is None else trio.current_time() - time
        return round((self._clock.now().timestamp() - ago) * 1e6) * 1000

    def next_end(self) -> float:
        """When the next planned end is due, infinity where none is planned."""
        while self._ends and self._ends[0][2].end is not self._ends[0][3]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else math.inf

    def settle(self) -> None:
        """End what is due by now."""
        now = trio.current_time()
        while self.next_end() <= now:
            time, _, container, end = heapq.heappop(self._ends)
            self._finish(container, time, end)

    async def wait_ended(self, container: Container, timeout: float = math.inf) -> bool:
        """Wait for the end of a run. False when `timeout` seconds passed first."""
        deadline = trio.current_time() + timeout
        while True:
            self.settle()
            if container.state is not RUNNING:
                return True
            if trio.current_time() >= deadline:
                return False
            with trio.move_on_at(min(deadline, container.end.time if container.end else math.inf)):
                await container.changed.wait()

    # Sandboxes

    def run_sandbox(self, config: v1.PodSandboxConfig, runtime_handler: str) -> Sandbox:
        metadata = config.metadata
        host_network = config.linux.security_context.namespace_options.network is v1.NamespaceMode.NODE
        sandbox = Sandbox(
            id=self._new_id("sandbox", metadata.uid),
            config=config,
            runtime_handler=runtime_handler,
            created_at=self.timestamp(),
            pid=next(self._pids),
            ip="" if host_network else self._new_address(),
        )
        self._reserve("sandbox", sandbox.name_key, sandbox.id)
        self.sandboxes[sandbox.id] = sandbox
        self.sandboxes_by_pod.setdefault(config.labels.get(POD_UID, ""), {})[sandbox.id] = sandbox
        self._publish(v1.ContainerEventType.CONTAINER_CREATED_EVENT, sandbox)
        self._publish(v1.ContainerEventType.CONTAINER_STARTED_EVENT, sandbox)
        return sandbox

    def find_sandbox(self, sandbox_id: str) -> Sandbox:
        """Raises GRPCError NOT_FOUND."""
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None:
            raise GRPCError(Status.NOT_FOUND, f'an error occurred when try to find sandbox "{sandbox_id}": not found')
        return sandbox

    async def stop_sandbox(self, sandbox: Sandbox) -> None:
        """Kill its containers, then end it and free its address. Works again and again."""
        for container in list(sandbox.containers.values()):
            await self.stop_container(container, 0)
        sandbox.ip = ""
        self.fail_sandbox(sandbox)

    def fail_sandbox(self, sandbox: Sandbox) -> None:
        """The sandbox ends by itself; its containers go on, as they do when a pause container dies."""
        if sandbox.ready:
            sandbox.ready = False
            sandbox.stopped.set()
            self._publish(v1.ContainerEventType.CONTAINER_STOPPED_EVENT, sandbox)

    async def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Stop it if it is not, remove its containers, forget it."""
        await self.stop_sandbox(sandbox)
        for container in list(sandbox.containers.values()):
            await self.remove_container(container)
        if self.sandboxes.pop(sandbox.id, None) is not None:
            _drop(self.sandboxes_by_pod, sandbox.config.labels.get(POD_UID, ""), sandbox.id)
            del self._names[f"sandbox/{sandbox.name_key}"]
            self._publish(v1.ContainerEventType.CONTAINER_DELETED_EVENT, sandbox)

    # Containers

    def create_container(self, sandbox: Sandbox, config: v1.ContainerConfig) -> Container:
        image = self._images.find(config.image.image)
        if image is None:
            text = f'failed to resolve image "{config.image.image}": not found'
            raise GRPCError(Status.NOT_FOUND, text)
        metadata = sandbox.config.metadata
        names = {config.image.image, config.image.user_specified_image, image.id, image.digest_reference, *image.tags}
        program = self._programs.find(config.metadata.name, names, metadata.name)
        if program.create_error:
            raise GRPCError(Status.UNKNOWN, program.create_error)
        container = Container(
            id=self._new_id("container", f"{metadata.uid}/{config.metadata.name}"),
            sandbox=sandbox,
            config=config,
            program=program,
            image=image,
            created_at=self.timestamp(),
        )
        self._reserve("container", container.name_key, container.id)
        self.containers[container.id] = container
        self.containers_by_pod.setdefault(config.labels.get(POD_UID, ""), {})[container.id] = container
        sandbox.containers[container.id] = container
        self._publish(v1.ContainerEventType.CONTAINER_CREATED_EVENT, sandbox, container)
        return container

    def find_container(self, container_id: str) -> Container:
        """Raises GRPCError NOT_FOUND."""
        self.settle()
        container = self.containers.get(container_id)
        if container is None:
            text = f'an error occurred when try to find container "{container_id}": not found'
            raise GRPCError(Status.NOT_FOUND, text)
        return container

    def start_container(self, container: Container) -> None:
        """Begin the next life. Raises GRPCError where containerd would."""
        now = trio.current_time()
        if container.state is not CREATED:
            text = (
                f'failed to set starting state for container "{container.id}": container is in {container.state.name}'
            )
            raise GRPCError(Status.UNKNOWN, f"{text} state")
        if container.end is not None:
            raise GRPCError(Status.UNKNOWN, "container is already in starting state")
        metadata = container.sandbox.config.metadata
        key = (metadata.uid, container.name)
        life = container.program.life(self._starts[key])
        problem = life.start_error
        if not container.sandbox.ready:
            problem = f'sandbox container "{container.sandbox.id}" is not running'
        else:
            self._starts[key] += 1
        if problem:
            self._finish(container, now, PlannedEnd(now, FAILED_TO_START, "StartError", problem))
            raise GRPCError(Status.UNKNOWN, problem)
        container.life = life
        container.state = RUNNING
        container.pid = next(self._pids)
        container.started_at = self.timestamp(now)
        container.run = Run(
            pod_uid=metadata.uid,
            pod_name=metadata.name,
            pod_namespace=metadata.namespace,
            container_name=container.name,
            container_id=container.id,
            attempt=container.config.metadata.attempt,
            started_at=now,
        )
        self.runs.append(container.run)
        self._publish(v1.ContainerEventType.CONTAINER_STARTED_EVENT, container.sandbox, container)
        if life.duration is not None:
            self.plan_end(container, PlannedEnd(now + life.duration, life.exit_code, life.reason, life.message))

    def give_up_start(self, container_id: str, problem: str) -> None:
        """The client left in the middle of a start, or its deadline passed: as containerd does, give it up, which takes
        a while."""
        container = self.containers.get(container_id)
        if container is None or container.state is not CREATED or container.end is not None:
            return
        container.end = PlannedEnd(trio.current_time() + GIVING_UP, FAILED_TO_START, "StartError", problem)
        heapq.heappush(self._ends, (container.end.time, next(self._order), container, container.end))
        self._wake(container)

    async def stop_container(self, container: Container, timeout: float) -> None:
        """Send the stop signal, SIGKILL after `timeout` seconds (at once for 0), and wait for the end."""
        self.settle()
        if container.state is not RUNNING or container.life is None:
            return
        life = container.life
        if timeout > 0:
            stop_signal = container.config.stop_signal or v1.Signal.SIGTERM
            if not container.signals:
                self._record_signal(container, stop_signal.name or "SIGTERM")
                if life.sigterm is not None:
                    end = PlannedEnd(trio.current_time() + life.sigterm, life.sigterm_exit_code)
                    self.plan_end(container, end)
            if await self.wait_ended(container, timeout):
                return
        self._record_signal(container, "SIGKILL")
        self.plan_end(container, PlannedEnd(trio.current_time() + life.sigkill, STOPPED_BY_KILL))
        await self.wait_ended(container)

    def plan_end(self, container: Container, end: PlannedEnd) -> None:
        """A running container ends like this, unless it has an earlier end already."""
        if container.state is not RUNNING or (container.end is not None and container.end.time <= end.time):
            return
        container.end = end
        heapq.heappush(self._ends, (end.time, next(self._order), container, end))
        self._wake(container)

    async def remove_container(self, container: Container) -> None:
        """Kill it if it runs, and forget it."""
        await self.stop_container(container, 0)
        if container.state is CREATED and container.end is not None:
            problem = f'failed to set removing state for container "{container.id}": container is in starting state'
            raise GRPCError(Status.UNKNOWN, f"{problem}, can't be removed")
        if self.containers.pop(container.id, None) is None:
            return
        container.sandbox.containers.pop(container.id, None)
        _drop(self.containers_by_pod, container.config.labels.get(POD_UID, ""), container.id)
        del self._names[f"container/{container.name_key}"]
        self._publish(v1.ContainerEventType.CONTAINER_DELETED_EVENT, container.sandbox, container)

    def reboot(self) -> None:
        """The node lost its power: every sandbox and container ends at once, without exit codes of their own."""
        now = trio.current_time()
        for container in self.running():
            self._finish(container, now, PlannedEnd(now, LOST_WITH_THE_NODE, "Unknown"))
        for sandbox in self.sandboxes.values():
            sandbox.ip = ""
            self.fail_sandbox(sandbox)

    def running(self) -> list[Container]:
        self.settle()
        return [container for container in self.containers.values() if container.state is RUNNING]

    def by_pid(self, pid: int) -> Container | None:
        """The running container with this pid."""
        return next((container for container in self.running() if container.pid == pid), None)

    # Inside

    def _finish(self, container: Container, time: float, end: PlannedEnd) -> None:
        container.state = EXITED
        container.end = None
        container.pid = 0
        container.exit_code = end.exit_code
        container.reason = end.reason
        container.message = end.message
        container.finished_at = self.timestamp(time)
        if container.run is not None:
            container.run.ended_at = time
            container.run.exit_code = end.exit_code
        self._publish(v1.ContainerEventType.CONTAINER_STOPPED_EVENT, container.sandbox, container, time=time)

    def _record_signal(self, container: Container, signal: str) -> None:
        container.signals.append((trio.current_time(), signal))

    def _reserve(self, kind: str, name: str, owner: str) -> None:
        key = f"{kind}/{name}"
        if key in self._names:
            text = f'failed to reserve {kind} name "{name}": name "{name}" is reserved for "{self._names[key]}"'
            raise GRPCError(Status.UNKNOWN, text)
        self._names[key] = owner

    def _publish(
        self,
        kind: v1.ContainerEventType,
        sandbox: Sandbox,
        container: Container | None = None,
        *,
        time: float | None = None,
    ) -> None:
        if container is None:
            sandbox.entry = None
        else:
            container.entry = None
        change = Change(trio.current_time() if time is None else time, kind, sandbox, container)
        for observer in self.observers:
            observer(change)
        self._wake(container)

    def _wake(self, container: Container | None) -> None:
        if container is not None:
            container.changed.send(None)
        self.activity.send(None)

    def _new_id(self, kind: str, key: str) -> str:
        """An id that depends on the seed and on what it is for, not on what else goes on."""
        name = f"{kind}/{key}"
        self._ids[name] += 1
        return hashlib.sha256(f"{self._seed}/{name}/{self._ids[name]}".encode()).hexdigest()

    def _new_address(self) -> str:
        number = next(self._addresses) % (1 << 16)
        return f"10.88.{number >> 8}.{number & 0xFF}"


def _drop(index: dict[str, dict[str, T]], pod_uid: str, identifier: str) -> None:
    of_pod = index.get(pod_uid, {})
    of_pod.pop(identifier, None)
    if not of_pod:
        index.pop(pod_uid, None)
