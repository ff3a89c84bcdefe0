"""Who has which CPUs and which memory: gives, remembers and takes back (kubelet: `cm.containerManagerImpl`).

    admission     `admit`: a pod gets all that its containers ask for, or nothing
    runtime       `affinity`: what a container is started with
    reconciler    `changed`, `cpus`: what containers that run may use from now on
    clean-up      `forget`: a pod has ended, or does not begin

All that can be given is in values (`topology/admit.py`), so a refusal leaves everything as it was. What was given is in
the kubelet's files, `cpu_manager_state` and `memory_manager_state`, before a container starts with it. What a pod was
given that never came to be, because the agent was killed in between or a device plugin refused, is free again when
somebody asks next.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.allocation.cpus import checkpoint as cpu_checkpoint
from trikubelet.allocation.cpus.manager import CpuManager
from trikubelet.allocation.cpus.state import CpuState
from trikubelet.allocation.cpus.static_policy import CpuStateError
from trikubelet.allocation.cpus.static_policy import StaticPolicy as CpuPolicy
from trikubelet.allocation.demands import all_containers, container_cpus, has_pod_level_resources
from trikubelet.allocation.manager_metrics import ManagerCounts, cpu_usage
from trikubelet.allocation.memory import checkpoint as memory_checkpoint
from trikubelet.allocation.memory.manager import MemoryManager
from trikubelet.allocation.memory.state import MemoryState
from trikubelet.allocation.memory.static_policy import MemoryStateError
from trikubelet.allocation.memory.static_policy import StaticPolicy as MemoryPolicy
from trikubelet.allocation.topology.admit import CONTAINER_SCOPE, admit
from trikubelet.allocation.topology.policy import NONE, TopologyPolicy
from trikubelet.broadcast import Broadcast
from trikubelet.formats.go_checkpoint import GoCheckpointError
from trikubelet.formats.values import frozen
from trikubelet.linux.durable_files import finish_write
from trikubelet.linux.state_file import StateFile
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trio_typing import TaskStatus

    from trikubelet.allocation.manager_metrics import CpuUsage
    from trikubelet.allocation.memory.state import Block
    from trikubelet.allocation.topology.admit import ResourceManager
    from trikubelet.api import Container, Pod

log = get_logger("allocation")

STATIC_CPUS: Final = "static"
NO_CPUS: Final = "none"
STATIC_MEMORY: Final = "Static"
NO_MEMORY: Final = "None"
"""Names of policies, as the files have them."""


class ResourceStateError(Exception):
    """What is written down of CPUs or memory cannot be used. The text says why, and what to do."""

    def __init__(self, path: Path | None, problem: object) -> None:
        super().__init__(
            f"{path}: {problem}: end the pods of this node (`kubectl drain`), remove the file and start the agent again"
        )


@frozen
class ManagerSettings:
    """The policies of a node."""

    topology: TopologyPolicy = attrs.field(factory=partial(TopologyPolicy, NONE))
    scope: str = CONTAINER_SCOPE
    cpus: CpuPolicy | None = None
    """None: the policy "none"."""
    memory: MemoryPolicy | None = None
    """None: the policy "None"."""
    pod_level: bool = False
    """The feature gate `PodLevelResourceManagers`."""


@frozen
class Affinity:
    """Where a container may run: sets, of which the empty one is no restriction."""

    cpus: int = 0
    nodes: int = 0
    """NUMA nodes that its memory comes from."""


ANYWHERE: Final = Affinity()


class ResourceManagers:
    """`run` has to run, or nothing is written down."""

    def __init__(
        self,
        settings: ManagerSettings,
        folder: Path | None,
        *,
        needed: Callable[[str], bool],
        sources_ready: Callable[[], bool],
    ) -> None:
        """`folder`: where the files are; None for a node without a disk. `needed`: whether a pod, by its UID, is wanted
        here and has not ended, or something of it may still run; `sources_ready`: whether all that are wanted are
        known.

        Reads the files. Raises ResourceStateError.
        """
        self._settings = settings
        self.counts = ManagerCounts(settings)
        self._needed = needed
        self._sources_ready = sources_ready
        self._files: list[StateFile] = []
        self._cpus = None if settings.cpus is None else CpuManager(settings.cpus, CpuState())
        self._memory = None if settings.memory is None else MemoryManager(settings.memory, MemoryState())
        self._started_with: dict[str, dict[str, int]] = {}
        """The CPUs of containers when they were started, by UID and name."""
        self.changed: Broadcast[None] = Broadcast()
        """The CPUs that containers share are others."""
        self._open_cpus(None if folder is None else folder / cpu_checkpoint.FILE)
        self._open_memory(None if folder is None else folder / memory_checkpoint.FILE)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write down what changes, until cancelled."""
        async with trio.open_nursery() as nursery:
            for file in self._files:
                nursery.start_soon(supervise, file.run)
                file.changed()
            task_status.started()
            await trio.sleep_forever()

    # Admission and the end.

    def admit(self, pod: Pod, devices: ResourceManager) -> ResourceManager:
        """Give the pod's containers all that they ask for. `devices`: where plugins have some; returned as it is
        afterwards, with what was agreed on. A pod that has it all keeps it.

        Raises AllocationError (`topology.hints`); then nothing has been given.
        """
        self._forget_ended(pod)
        settings, before = self._settings, (self._cpus, self._memory)
        managers: list[ResourceManager] = [one for one in (devices, *before) if one is not None]
        with self.counts.admission(pod):
            after = iter(admit(settings.topology, settings.scope, managers, pod, pod_level=settings.pod_level))
        devices = next(after)
        self._set(*(one for one in after if isinstance(one, CpuManager | MemoryManager)))
        self.counts.given(pod, before, (self._cpus, self._memory))
        return devices

    def forget(self, uid: str) -> None:
        """The pod has ended, or does not begin: what it has is free. No error if it has nothing."""
        self._started_with.pop(uid, None)
        self._keep(lambda one: one != uid)

    async def release(self, uid: str) -> None:
        """`forget`, as one of the things that outlive the process (`pods.syncer`)."""
        self.forget(uid)

    def _forget_ended(self, pod: Pod) -> None:
        if self._sources_ready():
            self._keep(lambda uid: uid == pod.metadata.uid or self._needed(uid))

    def _keep(self, wanted: Callable[[str], bool]) -> None:
        """What pods have for whose UIDs `wanted` is true."""
        kept = []
        for manager in (self._cpus, self._memory):
            if manager is not None and not all(map(wanted, manager.state.containers)):
                kept.append(
                    manager.keep_only({uid: its for uid, its in manager.state.containers.items() if wanted(uid)})
                )
        self._set(*kept)

    def _set(self, *managers: CpuManager | MemoryManager) -> None:
        for manager in managers:
            if isinstance(manager, CpuManager):
                before, self._cpus = self._cpus, manager
                changed = before is None or before.state is not manager.state
                if changed and (before is None or before.state.shared != manager.state.shared):
                    self.changed.send(None)
            else:
                changed = self._memory is None or self._memory.state is not manager.state
                self._memory = manager
            if changed:
                for file in self._files:
                    file.changed()

    # Containers.

    async def affinity(self, pod: Pod, container: Container) -> Affinity:
        """What the container is started with; the next agent knows of it when this returns. Raises CheckpointError: it
        cannot be written down, so the container must not be started with it.

        Memory of init containers that have ended is free from now on.
        """
        if self._cpus is None and self._memory is None:
            return ANYWHERE
        if self._memory is not None:
            self._set(self._memory.when_it_starts(pod, container))
        for file in self._files:
            await file.kept()
        nodes = 0
        for block in self.memory(pod.metadata.uid, container.name):
            nodes |= block.nodes
        cpus = self.cpus(pod.metadata.uid, container.name)
        self._started_with.setdefault(pod.metadata.uid, {})[container.name] = cpus
        return Affinity(cpus, nodes)

    def started_with(self, uid: str, container: str) -> int | None:
        """The CPUs that the container had when it was last started; None if an earlier agent did it."""
        return self._started_with.get(uid, {}).get(container)

    def cpus(self, uid: str, container: str) -> int:
        """The CPUs that a container may use: its own, else those that are shared; none where there is no policy.

        With `strict-cpu-reservation` it may be that none is shared: then those that are reserved, rather than some that
        another container has for itself.
        """
        if self._cpus is None:
            return 0
        own = self._cpus.state.get(uid, container)
        return (self._cpus.state.shared or self._cpus.policy.reserved) if own is None else own

    def exclusive_cpus(self, uid: str, container: str) -> int:
        """The CPUs that it has for itself."""
        return 0 if self._cpus is None else self._cpus.state.get(uid, container) or 0

    def memory(self, uid: str, container: str) -> tuple[Block, ...]:
        """What it has of NUMA nodes."""
        return () if self._memory is None else self._memory.state.get(uid, container) or ()

    def has_exclusive_cpus(self, pod: Pod, container: Container | None = None) -> bool:
        """Whether the container, or the pod as a whole, has CPUs that nobody else uses, so that a quota of CPU time
        makes no sense for it (kubelet: `ContainerHasExclusiveCPUs`, `PodHasExclusiveCPUs`)."""
        if self._cpus is None or pod.metadata.uid not in self._cpus.state.containers:
            return False
        if container is None:
            of_containers = (self.has_exclusive_cpus(pod, one) for one in all_containers(pod))
            return all(of_containers) if has_pod_level_resources(pod) else any(of_containers)
        if self._cpus.state.get(pod.metadata.uid, container.name) is None:
            return False
        # Containers that share the CPUs of their pod have an entry, too.
        return not has_pod_level_resources(pod) or container_cpus(pod, container, pod_level=True) > 0

    # What others ask.

    @property
    def allocatable_cpus(self) -> int:
        """The CPUs that containers can have for themselves."""
        return 0 if self._cpus is None else self._cpus.policy.allocatable

    @property
    def allocatable_memory(self) -> Iterator[Block]:
        """The memory of NUMA nodes that containers can have for themselves."""
        if self._memory is not None:
            yield from self._memory.policy.allocatable()

    def cpu_usage(self) -> CpuUsage | None:
        """None without a policy for CPUs."""
        return None if self._cpus is None else cpu_usage(self._cpus)

    # Files.

    def _open_cpus(self, path: Path | None) -> None:
        """Raises ResourceStateError."""
        name, pod_level = NO_CPUS if self._cpus is None else STATIC_CPUS, self._settings.pod_level
        parse = partial(cpu_checkpoint.from_bytes, policy=name, containers={}, pod_level=pod_level)
        written = None if path is None else _content(path, parse)
        state = CpuState()
        try:
            if written is not None:
                state = parse(written)
            if self._cpus is not None:
                self._cpus = attrs.evolve(self._cpus, state=self._cpus.policy.start(state))
        except (GoCheckpointError, CpuStateError) as error:
            raise ResourceStateError(path, error) from error
        if path is None or self._cpus is None:
            return

        def snapshot() -> Callable[[], bytes]:
            assert self._cpus is not None
            return partial(cpu_checkpoint.to_bytes, name, self._cpus.state, pod_level=pod_level)

        self._files.append(StateFile(path, snapshot, written=written))

    def _open_memory(self, path: Path | None) -> None:
        """Raises ResourceStateError."""
        name, pod_level = NO_MEMORY if self._memory is None else STATIC_MEMORY, self._settings.pod_level
        parse = partial(memory_checkpoint.from_bytes, policy=name, pod_level=pod_level)
        written = None if path is None else _content(path, parse)
        state = MemoryState()
        try:
            if written is not None:
                state = parse(written)
            if self._memory is not None:
                self._memory = attrs.evolve(self._memory, state=self._memory.policy.start(state))
        except (GoCheckpointError, MemoryStateError) as error:
            raise ResourceStateError(path, error) from error
        if path is None or self._memory is None:
            return

        def snapshot() -> Callable[[], bytes]:
            assert self._memory is not None
            return partial(memory_checkpoint.to_bytes, name, self._memory.state, pod_level=pod_level)

        self._files.append(StateFile(path, snapshot, written=written))


def _content(path: Path, parse: Callable[[bytes], object]) -> bytes | None:
    """What the file says, or was to say when its writer was killed; None where there is none.

    Raises ResourceStateError.
    """

    def is_whole(content: bytes) -> bool:
        try:
            parse(content)
        except GoCheckpointError:
            return False
        return True

    try:
        finish_write(path, is_whole)
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResourceStateError(path, f"cannot be read: {error.strerror}") from error
