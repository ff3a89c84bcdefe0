"""The cgroups of the agent's pods, from what the configuration and the machine say.

The story: when the agent is made, the machine's hierarchies are read and judged. When the runtime answers, it is asked
which driver it uses; then the group of all pods and those of the classes are made and limited, and pods can be synced.

An agent with a configuration file gets what that asks for or does not start. Without one it makes do with what the
machine has: where it cannot have cgroups, that is said once, and pods run where the runtime puts them. In both cases
missing rights alone are no reason not to start.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, assert_never

import attrs
import trio

from trikubelet.api import Quantity
from trikubelet.cgroups.daemons import DaemonCgroups
from trikubelet.cgroups.driver_choice import UnknownDriverError, choose_driver, file_driver
from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.late import LatePodCgroups
from trikubelet.cgroups.lock import RootInUseError, hold_root
from trikubelet.cgroups.names import NODE_ALLOCATABLE, from_cgroupfs
from trikubelet.cgroups.node import NodeAllocatableError, NodeCgroupOptions, NodeCgroups, enforceable, open_pod_cgroups
from trikubelet.cgroups.ownership import Ownership, own_cgroup_root
from trikubelet.cgroups.pods import OPERATIONS, NoPodCgroups, PodCgroupManager
from trikubelet.cgroups.settings import MEMORY, PIDS, CgroupOptions
from trikubelet.cgroups.version import (
    CGROUP_V1_EVENT,
    CgroupFindings,
    examine,
    max_processes,
    online_cpus,
    read_hierarchies,
)
from trikubelet.node.capacity import capacity
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.supervision import supervise
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Histograms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from trio_typing import TaskStatus

    from trikubelet.agent.options import AgentOptions
    from trikubelet.api import Container, Pod
    from trikubelet.cgroups.driver_choice import DriverKind
    from trikubelet.cgroups.hierarchy import Hierarchies
    from trikubelet.cgroups.interface import CgroupDriver, PodCgroups
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.linux.machine import Machine
    from trikubelet.node.facts import NodeSettings
    from trikubelet.rpc.cri import v1
    from trikubelet.telemetry.events import EventRecorder

VERIFY_PERIOD: Final = 60.0
"""Seconds between looks at the groups of the classes (kubelet: `periodicQOSCgroupUpdateInterval`)."""

_LEAVE_WITHIN: Final = 5.0
"""Seconds for removing the agent's own group at the end: the next agent finds what is left."""

log = get_logger("cgroups")


class CgroupStartError(Exception):
    """The cgroups that the configuration asks for cannot be had. The text says why, and what to do."""


async def _verify_periodically(manager: PodCgroupManager) -> None:
    while True:
        await trio.sleep(VERIFY_PERIOD)
        await _verify(manager)


class ResourceParts:
    """What the agent has of cgroups. `cgroups` may be handed to others at once; `run` it before pods are synced."""

    def __init__(
        self,
        options: AgentOptions,
        settings: NodeSettings,
        runtime_config: Callable[[], Awaitable[v1.RuntimeConfigResponse]],
        recorder: EventRecorder,
        *,
        machine: Machine | None,
        has_exclusive_cpus: Callable[[Pod, Container | None], bool],
        ownership: Ownership = Ownership(),  # noqa: B008 - frozen
        given: PodCgroups | None = None,
    ) -> None:
        """`runtime_config` asks the runtime. `ownership` tells the agent's groups from those of others. `given` are
        used instead of the machine's cgroups.

        Reads small files. Raises CgroupStartError.
        """
        self._configuration = options.configuration
        self._required = options.configured
        self._own_root = has_own_cgroup_root(options)
        self._ownership = ownership
        self._settings = settings
        self._runtime_config = runtime_config
        self._recorder = recorder
        self._machine = machine
        self._findings = CgroupFindings()
        self.durations = Histograms(always=OPERATIONS)
        """Seconds that operations on pods' groups took."""
        self._manager: PodCgroupManager | None = None
        self.cgroups = LatePodCgroups(NoPodCgroups() if given is None else given)
        self._hierarchies = None if given is not None else self._examined()
        self._daemons = _daemons(options.configuration, self._hierarchies)
        self.options = attrs.evolve(
            cgroup_options(options.configuration, self._hierarchies),
            has_exclusive_cpus=lambda pod: has_exclusive_cpus(pod, None),
        )
        """What pods' groups are set by."""

    def protected_memory(self) -> tuple[int, int] | None:
        """See `PodCgroupManager.protected_memory`."""
        return None if self._manager is None else self._manager.protected_memory()

    async def run(
        self, active_pods: Callable[[], Iterable[Pod]], *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Make the groups and keep them, until cancelled. Started when pods may be put into them.

        `active_pods`: those that count, as allocated. The runtime has to answer. Raises CgroupStartError before that.
        """
        if self._daemons is None:
            await self._run_pods(active_pods, task_status=task_status)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._daemons.run)
            await self._run_pods(active_pods, task_status=task_status)

    async def _run_pods(self, active_pods: Callable[[], Iterable[Pod]], *, task_status: TaskStatus[None]) -> None:
        self._report_findings()
        with ExitStack() as held:
            try:
                opened = await self._open(held, active_pods)
            except (CgroupError, NodeAllocatableError, CgroupStartError) as error:
                if self._required or isinstance(error, RootInUseError):
                    raise CgroupStartError(str(error)) from error
                _go_without(error)
                opened = None
            if opened is None:
                task_status.started()
                return
            node, manager = opened
            self._manager = manager
            self.cgroups.open(manager)
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(supervise, manager.run)
                    await nursery.start(supervise, node.run)
                    task_status.started()
                    await supervise(_verify_periodically, manager)
            finally:
                if self._own_root:
                    with trio.move_on_after(_LEAVE_WITHIN, shield=True):
                        await _leave(node, manager)

    def _examined(self) -> Hierarchies | None:
        """The hierarchies that can be used, None without any. Raises CgroupStartError."""
        configuration = self._configuration
        try:
            hierarchies = read_hierarchies()
        except OSError as error:
            self._findings = CgroupFindings(problem=str(error))
            return None
        findings = examine(
            hierarchies,
            fail_cgroup_v1=configuration.fail_cgroup_v1 and self._required,
            single_process_oom_kill=configuration.single_process_oom_kill,
        )
        if findings.problem is not None and self._required:
            raise CgroupStartError(f"{findings.problem}: boot with cgroup v2, or set failCgroupV1: false")
        self._findings = findings
        return hierarchies if findings.problem is None else None

    def _report_findings(self) -> None:
        findings = self._findings
        if findings.problem is not None:
            _go_without(findings.problem)
        if findings.event is not None:
            self._recorder.node_event(EventType.WARNING, CGROUP_V1_EVENT, findings.event)
        if findings.warning is not None:
            log.warning(findings.warning)

    async def _open(
        self, held: ExitStack, active_pods: Callable[[], Iterable[Pod]]
    ) -> tuple[NodeCgroups, PodCgroupManager] | None:
        """Make the groups. None: there shall be none, or there may not.

        Raises CgroupError, NodeAllocatableError and CgroupStartError.
        """
        if self._hierarchies is None or not self._configuration.cgroups_per_qos:
            return None
        driver = _driver(await self._choose_driver(), self._hierarchies)
        options = self._node_options()
        node = NodeCgroups(driver, options, self._recorder)
        manager = PodCgroupManager(
            driver,
            options.pods_root,
            self.options,
            active_pods=active_pods,
            allocatable_memory=lambda: _memory_of_pods(options),
            durations=self.durations,
            ownership=self._ownership,
            earlier_root=(NODE_ALLOCATABLE,) if self._own_root else None,
        )
        try:
            held.enter_context(hold_root(driver.literal(options.pods_root)))
        except RootInUseError:
            raise
        except OSError as error:
            _go_without(f"cannot take the lock of {driver.literal(options.pods_root)}: {error}")
            return None
        opened = await open_pod_cgroups(node, manager, required=self._required)
        await node.enforce_reserved()
        return (node, manager) if opened is manager else None

    async def _choose_driver(self) -> DriverKind:
        try:
            return await choose_driver(self._runtime_config, self._configuration.cgroup_driver)
        except (CRIError, UnknownDriverError) as error:
            raise CgroupStartError(
                f"the runtime does not say which cgroup driver it uses: {error}: look at its log, or update it"
            ) from error

    def _node_options(self) -> NodeCgroupOptions:
        """Raises CgroupNameError."""
        configuration, settings = self._configuration, self._settings
        amounts = capacity(
            self._machine,
            max_pods=settings.max_pods,
            pods_per_core=settings.pods_per_core,
            local_storage=settings.local_storage,
        )
        most = max_processes()
        if most is not None:
            amounts[PIDS] = Quantity(most)
        return NodeCgroupOptions(
            cgroup_root=from_cgroupfs(configuration.cgroup_root),
            own_root_of=self._ownership.mark if self._own_root else "",
            capacity=amounts,
            kube_reserved=settings.reservations.kube,
            system_reserved=settings.reservations.system,
            enforce=frozenset(configuration.enforce_node_allocatable),
            kube_reserved_cgroup=configuration.kube_reserved_cgroup,
            system_reserved_cgroup=configuration.system_reserved_cgroup,
            cpus=online_cpus(),
            memory_qos=self.options.memory_qos,
        )


def cgroup_options(configuration: KubeletConfiguration, hierarchies: Hierarchies | None) -> CgroupOptions:
    """What pods' groups are set by. `hierarchies` None: there are none."""
    reserved = configuration.qos_reserved.get(MEMORY) if configuration.enabled("QOSReserved") else None
    return CgroupOptions(
        cpu_cfs_quota=configuration.cpu_cfs_quota,
        cpu_cfs_quota_period=round(configuration.cpu_cfs_quota_period.total_seconds() * 1e6),
        pod_pids_limit=configuration.pod_pids_limit,
        memory_qos=configuration.enabled("MemoryQoS") and hierarchies is not None and hierarchies.version == 2,
        tiered_reservation=configuration.memory_reservation_policy == "TieredReservation",
        qos_reserved_memory=int(reserved.removesuffix("%")) if reserved else None,
        hugepage_sizes=() if hierarchies is None else hierarchies.page_sizes,
    )


def _daemons(configuration: KubeletConfiguration, hierarchies: Hierarchies | None) -> DaemonCgroups | None:
    """None: nobody is to be moved, or there are no groups. Raises CgroupStartError."""
    agent, system = configuration.kubelet_cgroups, configuration.system_cgroups
    if hierarchies is None or not (agent or system):
        return None
    try:
        return DaemonCgroups(file_driver(hierarchies), agent=agent, system=system)
    except ValueError as error:
        raise CgroupStartError(str(error)) from error


def _driver(kind: DriverKind, hierarchies: Hierarchies) -> CgroupDriver:
    match kind:
        case "cgroupfs":
            return file_driver(hierarchies)
        case "systemd":
            from trikubelet.cgroups.systemd import systemd_driver  # and with it all of D-Bus

            return systemd_driver(hierarchies)
        case _:
            assert_never(kind)


def _memory_of_pods(options: NodeCgroupOptions) -> int | None:
    """Bytes."""
    given = enforceable(options.capacity, options.kube_reserved, options.system_reserved)
    return given[MEMORY].value() if MEMORY in given else None


async def _verify(manager: PodCgroupManager) -> None:
    try:
        await manager.verify_tiers()
    except CgroupError as error:
        log.warning("cannot look at the cgroups of the QoS classes", problem=str(error))


async def _leave(node: NodeCgroups, manager: PodCgroupManager) -> None:
    """Remove the agent's own cgroup root, unless pods run on."""
    try:
        if not await manager.found():
            await node.leave()
    except CgroupError as error:
        log.warning("the agent's own cgroup stays", problem=str(error))


def has_own_cgroup_root(options: AgentOptions) -> bool:
    """True if the agent makes and removes its cgroup root: it has no cluster, and nobody named another root."""
    return options.cluster is None and options.configuration.cgroup_root == own_cgroup_root(options.root_dir)


def _go_without(problem: object) -> None:
    log.warning(
        "pods run without cgroups of their own, as with cgroupsPerQOS: false",
        problem=str(problem),
    )
