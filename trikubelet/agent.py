"""The agent: builds every part and opens the nurseries. Read this first.

The tree of scopes, from the outside in:

    run_agent                  the lock on the root folder, signals
    └─ embedded runtime        only with `--runtime-endpoint embedded`; outlives everything that calls it
       └─ channel              gRPC to the runtime
          └─ Agent.run         PLEG and its sources, probes, pod workers and sources, sync loop, housekeeping, local API
             └─ pod workers    a task per pod, in it one scope per sync

Information flows one way round: sources → sync loop → pod workers → runtime manager → runtime → PLEG → cache and sync
loop. Statuses leave through the status manager; people ask through the local API.
"""

from __future__ import annotations

from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.admission.admit import NodeAdmission
from trikubelet.agent_allocation import allocation_manager, resize_gates, resizing
from trikubelet.agent_devices import node_devices
from trikubelet.agent_disk import disk_caretakers
from trikubelet.agent_eviction import AgentEviction
from trikubelet.agent_node import local_view, look_at_node, node_observer, node_settings, watch_memory
from trikubelet.agent_options import AgentOptions, runtime_options
from trikubelet.agent_plugins import AgentPlugins
from trikubelet.agent_probes import ProbeParts
from trikubelet.agent_resources import ResourceParts
from trikubelet.agent_shutdown import node_shutdown
from trikubelet.agent_sources import configured_sources, warn_of_duplicate
from trikubelet.agent_stand_ins import StandIns
from trikubelet.config.sources.mux import PodSource, SourceMux
from trikubelet.cri.errors import CRIError
from trikubelet.doorkeeper import NodeDoorkeeper
from trikubelet.events import EventRecorder, EventType, NodeEvent, PodEvent
from trikubelet.housekeeping import Housekeeping
from trikubelet.logs import get_logger
from trikubelet.node.declared_features import usable_features
from trikubelet.node.runtime_state import RuntimeState
from trikubelet.pleg.ends import ContainerEnds
from trikubelet.pleg.pleg import Pleg
from trikubelet.pleg.sources import PlegSources
from trikubelet.pod_syncer import AgentPodSyncer
from trikubelet.pods.active_deadline import is_past_active_deadline
from trikubelet.pods.manager import PodManager
from trikubelet.pods.preempting import Preempting
from trikubelet.pods.workers import PodWorkers
from trikubelet.registry_access import RegistryAccess
from trikubelet.runtime.container import CREATE_CONTAINER_CONFIG_ERROR
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.pod_files import PodFiles
from trikubelet.runtime.swap import may_swap
from trikubelet.runtime.sysctls import SysctlAllowList
from trikubelet.status.manager import StatusManager
from trikubelet.sync_loop import SyncLoop
from trikubelet.volumes.no_cluster import NoClusterObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trio_typing import TaskStatus

    from trikubelet.admission.types import Admission
    from trikubelet.agent_cluster import ClusterParts
    from trikubelet.agent_volumes import VolumeParts
    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.cluster.types import ApiClient
    from trikubelet.cri.client import ImageClient, RuntimeClient
    from trikubelet.cri.v1 import VersionResponse
    from trikubelet.node.facts import NodeSettings
    from trikubelet.node.view import NodeView
    from trikubelet.runtime.image_gc import ImageCollector
    from trikubelet.runtime.log_rotation import LogRotator
    from trikubelet.shutdown.manager import ShutdownManager
    from trikubelet.stats.provider import StatsProvider
    from trikubelet.volumes.interface import PodVolumes

log = get_logger("agent")

CONNECT_RETRY: Final = 1.0
CONNECT_RETRY_LONGEST: Final = 10.0
REPORT_WITHOUT_RUNTIME: Final = 10.0
"""Seconds that a node's reports wait at the start for its runtime."""


class Agent:
    """All parts of one node agent, on a runtime that is reached through the clients."""

    def __init__(
        self,
        options: AgentOptions,
        runtime_client: RuntimeClient,
        image_client: ImageClient,
        *,
        clock: WallClock,
        api_client: ApiClient | None = None,
        stand_ins: StandIns = StandIns(),  # noqa: B008 - frozen
    ) -> None:
        self.options = options
        self.clock = clock
        self.runtime_client = runtime_client
        self.image_client = image_client
        self.runtime_version: VersionResponse | None = None
        self._finish_listeners: list[Callable[[str], None]] = []
        self.recorder = EventRecorder(clock)
        self.recorder.add_listener(_log_event)
        self.pods = PodManager(now=trio.current_time)
        self.statuses = StatusManager(clock, self.pods, wanted_since=self.pods.wanted_since)
        self.ends = ContainerEnds(runtime_client)
        self.runtime_state = RuntimeState(runtime_client, on_recovery=lambda: self.sync_loop.runtime_is_back())
        self.runtime_options = runtime_options(options)
        self.shutdown: ShutdownManager | None = None
        settings = node_settings(options)
        rng = stand_ins.rng or Random()
        self.plugins = AgentPlugins(options.root_dir, rng)
        self.devices = node_devices(self, stand_ins)
        self.observer = node_observer(self, settings, stand_ins.machine)
        self._kernel_log = stand_ins.machine.kernel_log
        self.resources = ResourceParts(
            options,
            settings,
            runtime_client,
            self.recorder,
            machine=lambda: self.observer.facts().machine,
            active_pods=lambda: map(self.allocation.allocated, self.sync_loop.active_pods()),
            stand_in=stand_ins.cgroups,
        )
        self.cluster = None if api_client is None else self._make_cluster(api_client, settings, rng)
        self.node: NodeView = local_view(settings, self.observer, clock) if self.cluster is None else self.cluster.node
        admission = self._make_admission()
        self.allocation = allocation_manager(self, admission, stand_ins.open_allocations)
        self.volume_parts, self.volumes = self._make_volumes(stand_ins.volumes, rng)
        objects = None if self.cluster is None else self.cluster.cluster.objects
        registry_access = None if stand_ins.diskless else RegistryAccess.of_node(options, clock, objects)
        self._pod_files = stand_ins.pod_files or PodFiles(self.runtime_options)
        self.runtime = self._make_runtime(registry_access, stand_ins)
        self.probes = ProbeParts(
            runtime_client,
            self.statuses,
            recorder=self.recorder,
            clock=clock,
            rng=rng,
            newest=self.pods.pod_by_uid,
            asker=stand_ins.asker,
        )
        self._caretakers = () if registry_access is None else self._make_caretakers(registry_access)
        self.pleg = Pleg(self.runtime)
        self.pleg_sources = self._make_pleg_sources(stand_ins)
        self.reporters = (
            None if self.cluster is None else self.cluster.reporters(self.pods, self.statuses, lambda: self.workers)
        )
        self.workers = self._make_workers(stand_ins, rng)
        self.sources = SourceMux(
            self._sources(stand_ins.sources),
            clock=clock,
            on_duplicate=warn_of_duplicate,
            recorder=self.recorder,
        )
        self.housekeeping = self._make_housekeeping()
        self.preempting = Preempting(self.workers, self.recorder)
        self.sync_loop = self._make_sync_loop(stand_ins.admission or admission, admission.features)
        self.shutdown = node_shutdown(self, logind=stand_ins.logind, on_machine=not stand_ins.diskless)
        self.eviction = AgentEviction(self, stand_in=stand_ins.usage, measures=not stand_ins.diskless)
        self._introduce_parts()

    def _introduce_parts(self) -> None:
        """What parts tell others that were made after them."""
        self.runtime_client.on_removed = self.pleg.removed_by_agent
        self.runtime_state.add_health_check("PLEG", self.pleg_sources.relist.unhealthy_reason)
        self.volumes.on_pod_changed(self.sync_loop.sync_soon)
        if self.cluster is not None:
            self.cluster.on_volumes_reported(self.volumes.reported_in_use)
            self.volumes.on_in_use_changed(self.cluster.node.report_soon)
            self.cluster.cluster.watched.subscribe(self._object_changed)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; pods and containers are left as they are then. Started when pods are being taken."""
        up = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.devices.run)
            nursery.start_soon(self._run_cluster, up)
            nursery.start_soon(watch_memory, self.recorder, self.runtime_options.machine, self._kernel_log)
            await self._connect()
            await nursery.start(self.runtime_state.run)
            await nursery.start(self.runtime.run)
            await nursery.start(self.observer.run)
            await nursery.start(self.allocation.run)
            look_at_node(
                self.runtime.user_namespaces, self._pod_files, self.runtime_options, self.options, self.recorder
            )
            nursery.start_soon(self.plugins.run)
            await nursery.start(self.resources.run)
            await nursery.start(self._run_volumes)
            await nursery.start(self.pleg.run)
            await nursery.start(self.probes.run)
            await nursery.start(self.workers.run)
            await nursery.start(self.housekeeping.run)
            send_config, config = trio.open_memory_channel[Any](0)
            # The loop takes lifecycle events from here on: the first relist may bring many.
            await nursery.start(self.sync_loop.run, config, self.pleg.events)
            await nursery.start(self.pleg_sources.run)
            up.set()
            if self.reporters is not None:
                await nursery.start(self.reporters.run)
            if self.shutdown is not None:  # before pods arrive: it may be shutting down just now
                await nursery.start(self.shutdown.run)
            await nursery.start(self.sources.run, send_config)
            for caretaker in self._caretakers:
                await nursery.start(caretaker.run)
            nursery.start_soon(self.eviction.run)
            task_status.started()

    async def _run_cluster(self, up: trio.Event) -> None:
        """A node that is only restarting is reported when it is up again. One whose runtime does not answer shall not
        look dead meanwhile: it keeps its lease, and says why it is not ready."""
        with trio.move_on_after(REPORT_WITHOUT_RUNTIME):
            await up.wait()
        if self.cluster is None:
            self.recorder.node_event(EventType.NORMAL, "Starting", "Starting kubelet.")
        else:
            await self.cluster.run()

    @cached_property
    def stats(self) -> StatsProvider:
        """Measures the node and its pods; made for the first who asks. Raises OSError where there is no /proc."""
        from trikubelet.agent_stats import stats_provider

        return stats_provider(self)

    @property
    def image_collector(self) -> ImageCollector | None:
        """None on a node without a disk."""
        return self._caretakers[0] if self._caretakers else None

    def on_worker_finished(self, listener: Callable[[str], None]) -> None:
        """`listener` is called with the UID of each pod whose worker has stopped; it must not block."""
        self._finish_listeners.append(listener)

    async def drain(self) -> frozenset[str]:
        """End every pod gracefully and remove what it left: see `agent_drain`."""
        from trikubelet.agent_drain import drain  # at the end of some agents' lives

        return await drain(self)

    async def _connect(self) -> None:
        """Wait until the runtime answers."""
        pause = CONNECT_RETRY
        while True:
            try:
                version = await self.runtime.connect()
            except CRIError as error:
                log.warning(
                    "the runtime does not answer yet",
                    endpoint=self.options.runtime_endpoint,
                    error=str(error),
                    retry_in=pause,
                )
                await trio.sleep(pause)
                pause = min(2 * pause, CONNECT_RETRY_LONGEST)
            else:
                self.runtime_version = version
                log.info("runtime", name=version.runtime_name, version=version.runtime_version)
                return

    def _make_cluster(self, api_client: ApiClient, settings: NodeSettings, rng: Random) -> ClusterParts:
        from trikubelet.agent_cluster import ClusterParts  # only in a cluster

        return ClusterParts(
            api_client,
            self.options,
            settings,
            self.observer,
            self.runtime_client,
            recorder=self.recorder,
            clock=self.clock,
            rng=rng,
            reset_extended=lambda: self.devices.reset_extended,
        )

    def _make_admission(self) -> NodeAdmission:
        state = self.runtime_state
        return NodeAdmission(
            sysctls=SysctlAllowList.of_node(
                self.runtime_options.allowed_unsafe_sysctls, self.runtime_options.machine.kernel
            ),
            machine=self.runtime_options.machine,
            abilities=lambda: state.abilities if state.answered else None,
            features=usable_features(self.options.configuration.feature_gates),
            resizes_pod_level=resize_gates(self.options.configuration.feature_gates).pod_level,
            devices=self.devices,
            shutting_down=lambda: self.shutdown is not None and self.shutdown.shutting_down,
            has_begun=lambda pod: self.pleg.cache.has_begun(pod.metadata.uid),
            may_swap=lambda pod, container: may_swap(pod, container, self.runtime_options),
            pressure=lambda: self.eviction.conditions(),
        )

    def _make_runtime(self, registry_access: RegistryAccess | None, stand_ins: StandIns) -> RuntimeManager:
        cgroups = self.resources.cgroups
        return RuntimeManager(
            self.runtime_client,
            self.image_client,
            recorder=self.recorder,
            clock=self.clock,
            options=self.runtime_options,
            node=self.node,
            objects=None if self.cluster is None else self.cluster.cluster.objects,
            mounts=self.volumes,
            files=self._pod_files,
            abilities=lambda: self.runtime_state.abilities,
            credentials=None if registry_access is None else registry_access.credentials,
            pull_records=None if registry_access is None else registry_access.pull_records,
            ended=self.ends.until_ended,
            resizing=resizing(
                self.options, self.runtime_client, cgroups, self.resources.options, stand_ins.open_allocations
            ),
            cgroups=cgroups,
            on_turn=lambda uid, container: self.probes.manager.stop_container(uid, container),
            extras=self.devices.extras,
        )

    def _make_caretakers(self, registry_access: RegistryAccess) -> tuple[ImageCollector, LogRotator]:
        return disk_caretakers(
            self.options.configuration,
            self.runtime_client,
            self.image_client,
            self.runtime,
            self._pod_files,
            recorder=self.recorder,
            clock=self.clock,
            on_collected=registry_access.pull_records.prune,
        )

    def _make_pleg_sources(self, stand_ins: StandIns) -> PlegSources:
        return PlegSources(
            self.pleg,
            self.runtime,
            self.runtime_client,
            self.clock,
            self.ends,
            enabled=self.options.pleg_sources,
            on_end=self.runtime.note_end,
            on_recovery=lambda: self.sync_loop.runtime_is_back(),
            make_pidfds=stand_ins.make_pidfds,
        )

    def _make_workers(self, stand_ins: StandIns, rng: Random) -> PodWorkers:
        return PodWorkers(
            self._make_syncer(),
            self.pleg.cache,
            recorder=self.recorder,
            resync_interval=self.options.configuration.sync_frequency.total_seconds(),
            rng=rng,
            desired=self.pods.desired,
            on_finished=self._worker_finished,
            registry=stand_ins.registry,
        )

    def _make_syncer(self) -> AgentPodSyncer:
        syncer = AgentPodSyncer(
            runtime=self.runtime,
            statuses=self.statuses,
            volumes=self.volumes,
            objects=NoClusterObjects() if self.cluster is None else self.cluster.cluster.watched,
            probes=self.probes.manager,
            recorder=self.recorder,
            clock=self.clock,
            pleg=self.pleg,
            network_problem=lambda: self.runtime_state.conditions.network_problem,
            host_ips=self.node.host_ips,
            starts_nothing=lambda: self.shutdown is not None and self.shutdown.found_at_start,
            allocation=self.allocation,
            resource_health=self.devices.health,
            cgroups=self.resources.cgroups,
        )
        if self.reporters is not None:
            syncer.mirrors = self.reporters.mirrors.ensure
        return syncer

    def _make_housekeeping(self) -> Housekeeping:
        return Housekeeping(
            self.pods,
            self.workers,
            self.runtime,
            self.statuses,
            self.volumes,
            self.pleg.cache,
            sources_ready=lambda: self.sync_loop.sources_ready,
            recorder=self.recorder,
            container_gc=self.options.container_gc,
            held=self._held,
            clean_probes=self.probes.manager.cleanup,
            cgroups=self.resources.cgroups,
            delete_mirror=None if self.reporters is None else self.reporters.mirrors.delete,
        )

    def _make_sync_loop(self, admission: Admission, features: Collection[str]) -> SyncLoop:
        doorkeeper = NodeDoorkeeper(
            admission=admission,
            node=self.node,
            preempting=self.preempting,
            statuses=self.statuses,
            recorder=self.recorder,
            cache=self.pleg.cache,
            allocated=self.allocation.allocated,
            features=features,
            devices=self.devices,
        )
        return SyncLoop(
            self.pods,
            self.workers,
            self.housekeeping,
            doorkeeper,
            self.probes,
            self.allocation,
            past_deadline=self._past_active_deadline,
            sources_ready=self.sources.sources_ready,
            runtime_errors=self.runtime_state.errors,
            pods_changed=self.resources.cgroups.pods_changed,
        )

    def _make_volumes(self, given: PodVolumes | None, rng: Random) -> tuple[VolumeParts | None, PodVolumes]:
        if given is not None:
            return None, given
        from trikubelet.agent_volumes import VolumeParts  # a simulated node has none

        parts = VolumeParts(
            self.options.root_dir,
            cluster=self.cluster,
            plugins=self.plugins,
            allocatable=lambda: self.node.cached().status.allocatable,
            recorder=self.recorder,
            clock=self.clock,
            rng=rng,
            containers_gone=lambda uid: self.workers.states.should_pod_runtime_be_removed(uid),
            usage_period=self.options.configuration.volume_stats_agg_period.total_seconds(),
        )
        return parts, parts.manager

    async def _run_volumes(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when the volumes that an earlier agent left are known."""
        await (self.volumes if self.volume_parts is None else self.volume_parts).run(task_status=task_status)

    def _object_changed(self, plural: str, namespace: str, name: str) -> None:
        """A ConfigMap or Secret came or changed: pods whose containers' environment lacked it need not wait."""
        assert self.cluster is not None
        for uid in self.cluster.cluster.watched.referring(plural, namespace, name):
            if any(reason == CREATE_CONTAINER_CONFIG_ERROR for reason, _ in self.runtime.waiting_reasons(uid).values()):
                self.sync_loop.sync_soon(uid)

    def _sources(self, given: Sequence[PodSource] | None) -> list[PodSource]:
        sources = [*configured_sources(self.options, self.clock)] if given is None else [*given]
        return sources if self.cluster is None else [*sources, self.cluster.source]

    def _held(self) -> frozenset[str]:
        """UIDs of pods that housekeeping leaves alone: they wait for admission, or are wanted but cannot be read."""
        unread = () if self.cluster is None else self.cluster.cluster.pods.undecodable()
        return frozenset((*self.sync_loop.held, *(one.metadata.uid for one in unread)))

    def _worker_finished(self, uid: str) -> None:
        self.sync_loop.housekeeping_soon()
        self.housekeeping.collect_soon()
        for listener in self._finish_listeners:
            listener(uid)

    def _past_active_deadline(self, pod: Pod) -> bool:
        if pod.spec.active_deadline_seconds is None:
            return False
        reported = self.statuses.get_pod_status(pod.metadata.uid)
        start_time = None if reported is None else reported.start_time
        return is_past_active_deadline(pod, start_time, self.clock.now())


def _log_event(event: PodEvent | NodeEvent) -> None:
    emit = log.warning if event.type is EventType.WARNING else log.info
    about = {"pod": f"{event.namespace}/{event.name}"} if isinstance(event, PodEvent) else {"node": True}
    emit(event.message, **about, reason=event.reason)
