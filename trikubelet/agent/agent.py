"""The agent: builds every part and opens the nurseries. Read this first.

The tree of scopes, from the outside in:

    run_agent                  the lock on the root folder, signals
    └─ embedded runtime        only with `--runtime-endpoint embedded`; outlives everything that calls it
       └─ channel              gRPC to the runtime
          └─ Agent.run         PLEG and its sources, pod workers, sources of pods, sync loop, housekeeping
             └─ pod workers    a task per pod: its life, with all that runs for it (`pods.life`)

Information flows one way round: sources → sync loop → pod workers → runtime manager → runtime → PLEG → cache and sync
loop. Statuses leave through the status manager; people ask through the local API.
"""

from __future__ import annotations

from functools import cached_property, partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.admission.admit import NodeAdmission
from trikubelet.admission.sysctls import SysctlAllowList
from trikubelet.agent.allocation import resize_gates, resizing
from trikubelet.agent.devices import node_devices
from trikubelet.agent.disk import disk_garbage_collectors
from trikubelet.agent.eviction import AgentEviction
from trikubelet.agent.node import local_view, look_at_node, node_settings, read_machine, watch_memory
from trikubelet.agent.options import AgentOptions, runtime_options
from trikubelet.agent.overrides import Overrides
from trikubelet.agent.plugins import AgentPlugins
from trikubelet.agent.registry_access import RegistryAccess
from trikubelet.agent.resources import ResourceParts
from trikubelet.agent.shutdown import AgentNode, node_shutdown
from trikubelet.agent.sources import configured_sources, warn_of_duplicate
from trikubelet.allocation.manager import AllocationContext, AllocationManager
from trikubelet.allocation.store import ALLOCATED_FILE
from trikubelet.broadcast import Broadcast, follow
from trikubelet.kube_client.object_getter import NoObjects
from trikubelet.node.declared_features import usable_features
from trikubelet.node.observer import FactSources, NodeObserver
from trikubelet.pleg.exits import ExitTracker
from trikubelet.pleg.pleg import Pleg
from trikubelet.pleg.sources import PlegSources
from trikubelet.pods.active_deadline import is_past_active_deadline
from trikubelet.pods.admitting import Admitting
from trikubelet.pods.housekeeping import Housekeeping
from trikubelet.pods.manager import DesiredPods, PodManager
from trikubelet.pods.preempting import Preempting
from trikubelet.pods.registry import PodWorkerRegistry
from trikubelet.pods.retry import RetryPolicy
from trikubelet.pods.sync_loop import SyncLoop, SyncLoopParts
from trikubelet.pods.syncer import SyncContext
from trikubelet.pods.workers import PodWorkers
from trikubelet.probes.asking import NetworkAndExec
from trikubelet.probes.manager import ProbeManager
from trikubelet.probes.prober import Prober
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.containers.resources import may_swap
from trikubelet.runtime.context import RuntimeContext
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.pod_files import PodFiles
from trikubelet.runtime.results import CREATE_CONTAINER_CONFIG_ERROR
from trikubelet.runtime.state import RuntimeState
from trikubelet.sources.mux import PodSource, SourceMux
from trikubelet.status.manager import StatusManager
from trikubelet.telemetry.events import EventRecorder, EventType, NodeEvent, PodEvent
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.no_cluster import NoClusterObjects

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trio_typing import TaskStatus

    from trikubelet.admission.types import Admission
    from trikubelet.agent.cluster import ClusterParts
    from trikubelet.agent.node import MachineView
    from trikubelet.agent.volumes import VolumeParts
    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.node_view import NodeView
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.linux.machine import Machine
    from trikubelet.node.facts import NodeSettings
    from trikubelet.node.stats.provider import StatsProvider
    from trikubelet.pods.registry import PodStates
    from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
    from trikubelet.rpc.cri.v1 import VersionResponse
    from trikubelet.runtime.images.gc import ImageCollector
    from trikubelet.runtime.logs.rotation import LogRotator
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
        overrides: Overrides = Overrides(),  # noqa: B008 - frozen
    ) -> None:
        self.options = options
        self.clock = clock
        self.runtime_client = runtime_client
        self.image_client = image_client
        self.runtime_version: VersionResponse | None = None
        self.recorder = EventRecorder(clock)
        self.recorder.add_listener(_log_event)
        self.plugins = AgentPlugins(options.root_dir, rng := overrides.rng or Random())
        # Pods, as desired and as known.
        self.pods = PodManager(now=trio.current_time)
        self.statuses = StatusManager(clock, self.pods, wanted_since=self.pods.wanted_since)
        registry = overrides.registry or PodWorkerRegistry()
        self.desired = DesiredPods(self.pods, registry, self.statuses)
        # The machine, and the node's object made of it.
        settings = node_settings(options)
        self.runtime_options = runtime_options(options)
        self.recovered: Broadcast[None] = Broadcast()
        """The runtime was away and answers again."""
        self.runtime_state = RuntimeState(runtime_client, on_recovery=partial(self.recovered.send, None))
        machine = read_machine(options, settings, overrides.machine)
        self._kernel_log = overrides.machine.kernel_log
        facts_changed: Broadcast[None] = Broadcast()
        self.devices = node_devices(options, overrides, self.desired, self.plugins, facts_changed)
        on_machine = not overrides.diskless
        self.shutdown = node_shutdown(options, self.recorder, clock, logind=overrides.logind, on_machine=on_machine)
        self.eviction = AgentEviction(usage=overrides.usage, measures=on_machine)
        self.resources = ResourceParts(
            options, settings, runtime_client.runtime_config, self.recorder, machine=machine, given=overrides.cgroups
        )
        self.observer = self._make_observer(machine, settings, overrides.machine, facts_changed)
        self.cluster = None if api_client is None else self._make_cluster(api_client, settings, rng)
        self.node: NodeView = local_view(settings, self.observer, clock) if self.cluster is None else self.cluster.node
        # What pods are made of.
        self.volume_parts, self.volumes = self._make_volumes(overrides.volumes, registry.states, rng)
        objects = None if self.cluster is None else self.cluster.cluster.objects
        registry_access = None if overrides.diskless else RegistryAccess.of_node(options, clock, objects)
        self._pod_files = overrides.pod_files or PodFiles(self.runtime_options)
        self.ends = ExitTracker(runtime_client)
        self.runtime = self._make_runtime(registry_access, overrides)
        self._garbage_collectors = () if registry_access is None else self._make_garbage_collectors(registry_access)
        self.pleg = Pleg(self.runtime)
        prober = Prober(overrides.asker or NetworkAndExec(runtime_client), self.recorder)
        self.probes = ProbeManager(prober, self.statuses, clock=clock, rng=rng, newest=self.pods.pod_by_uid)
        admission = self._make_admission()
        self.allocation = self._make_allocation(admission, overrides)
        # Who works on pods.
        self.reporters = (
            None if self.cluster is None else self.cluster.reporters(self.pods, self.statuses, registry.states)
        )
        self.workers = self._make_workers(registry, rng)
        self.preempting = Preempting(self.workers, self.recorder)
        self.sources = SourceMux(
            self._sources(overrides.sources),
            clock=clock,
            on_duplicate=warn_of_duplicate,
            recorder=self.recorder,
        )
        self.housekeeping = self._make_housekeeping()
        self.sync_loop = self._make_sync_loop(overrides.admission or admission, admission.features)
        self.pleg_sources = self._make_pleg_sources(overrides)
        self._introduce_parts()

    def _introduce_parts(self) -> None:
        """What parts tell others that were made after them."""
        self.runtime_client.on_removed = self.pleg.removed_by_agent
        self.runtime_state.add_health_check("PLEG", self.pleg_sources.relist.unhealthy_reason)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; pods and containers are left as they are then. Started when pods are being taken."""
        up = trio.Event()
        async with trio.open_nursery() as nursery:
            self._follow_changes(nursery)
            await nursery.start(self.devices.run, self.pleg.cache)
            nursery.start_soon(self._run_cluster, up)
            nursery.start_soon(watch_memory, self.recorder, self.runtime_options.machine, self._kernel_log)
            await self._connect()
            await nursery.start(self.runtime_state.run)
            await nursery.start(self.runtime.run)
            await nursery.start(self.observer.run)
            await nursery.start(self.allocation.run, self.preempting.make_room)
            look_at_node(
                self.runtime.user_namespaces, self._pod_files, self.runtime_options, self.options, self.recorder
            )
            nursery.start_soon(self.plugins.run)
            await nursery.start(self.resources.run, self._active_as_allocated)
            await nursery.start(self._run_volumes)
            await nursery.start(self.pleg.run)
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
                await nursery.start(self.shutdown.run, AgentNode(self))
            await nursery.start(self.sources.run, send_config)
            for collector in self._garbage_collectors:
                await nursery.start(collector.run)
            nursery.start_soon(self.eviction.run, self)
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
        from trikubelet.agent.stats import stats_provider

        return stats_provider(self)

    @property
    def image_collector(self) -> ImageCollector | None:
        """None on a node without a disk."""
        return self._garbage_collectors[0] if self._garbage_collectors else None

    async def drain(self) -> frozenset[str]:
        """End every pod gracefully and remove what it left: see `agent.drain`."""
        from trikubelet.agent.drain import drain  # at the end of some agents' lives

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
        from trikubelet.agent.cluster import ClusterParts  # only in a cluster

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
            pressure=self.eviction.conditions,
        )

    def _make_observer(
        self, machine: Machine | None, settings: NodeSettings, view: MachineView, changed: Broadcast[None]
    ) -> NodeObserver:
        sources = FactSources(
            runtime_version=lambda: self.runtime_version,
            devices=self.devices.resources,
            shutdown_problem=(lambda: None) if self.shutdown is None else self.shutdown.problem,
            volumes_in_use=lambda: self.volumes.in_use(),  # made later, of what the node's object says
            pressure=self.eviction.pressure,
            host=view.host,
            lookup=view.lookup,
            changed=changed,
        )
        return NodeObserver(machine, settings.addresses, self.runtime_state, self.image_client, sources)

    def _make_allocation(self, admission: NodeAdmission, overrides: Overrides) -> AllocationManager:
        """Raises CheckpointError for a file that cannot be used: nobody knows then what running pods have, and the
        kubelet does not start either."""
        node_changes: list[Broadcast[Any]] = [self.observer.changed]
        if self.cluster is not None:
            # What pods may have is what the API server's node says, which follows what was observed with each report.
            node_changes.append(self.cluster.node.reported)
        return AllocationManager(
            overrides.open_allocations(self.options.root_dir / ALLOCATED_FILE),
            AllocationContext(
                admission,
                node=self.node.cached,
                active=self.desired.active,
                pod_by_uid=self.pods.pod_by_uid,
                sources_ready=self.desired.sources_ready,
                node_changes=node_changes,
            ),
            self.recorder,
            self.clock,
            resize_gates(self.options.configuration.feature_gates),
        )

    def _make_runtime(self, registry_access: RegistryAccess | None, overrides: Overrides) -> RuntimeManager:
        cgroups = self.resources.cgroups
        return RuntimeManager(
            self.runtime_client,
            self.image_client,
            RuntimeContext(
                recorder=self.recorder,
                clock=self.clock,
                options=self.runtime_options,
                node=self.node,
                objects=NoObjects() if self.cluster is None else self.cluster.cluster.objects,
                mounts=self.volumes,
                files=self._pod_files,
                abilities=lambda: self.runtime_state.abilities,
                credentials=None if registry_access is None else registry_access.credentials,
                pull_records=None if registry_access is None else registry_access.pull_records,
                ended=self.ends.until_ended,
                resizing=resizing(
                    self.options, self.runtime_client, cgroups, self.resources.options, overrides.open_allocations
                ),
                cgroups=cgroups,
                extras=self.devices.extras,
            ),
        )

    def _make_garbage_collectors(self, registry_access: RegistryAccess) -> tuple[ImageCollector, LogRotator]:
        return disk_garbage_collectors(
            self.options.configuration,
            self.runtime_client,
            self.image_client,
            self.runtime,
            self._pod_files,
            recorder=self.recorder,
            clock=self.clock,
            on_collected=registry_access.pull_records.prune,
        )

    def _make_pleg_sources(self, overrides: Overrides) -> PlegSources:
        return PlegSources(
            self.pleg,
            self.runtime,
            self.runtime_client,
            self.clock,
            self.ends,
            enabled=self.options.pleg_sources,
            on_end=self.runtime.remember_end,
            on_recovery=self.sync_loop.runtime_is_back,
            make_pidfds=overrides.make_pidfds,
        )

    def _make_workers(self, registry: PodWorkerRegistry, rng: Random) -> PodWorkers:
        return PodWorkers(
            self._make_syncer().open_pod,
            self.pleg.cache,
            recorder=self.recorder,
            policy=RetryPolicy(resync_interval=self.options.configuration.sync_frequency.total_seconds()),
            rng=rng,
            desired=self.pods.desired,
            registry=registry,
        )

    def _make_syncer(self) -> SyncContext:
        return SyncContext(
            runtime=self.runtime,
            statuses=self.statuses,
            volumes=self.volumes,
            objects=NoClusterObjects() if self.cluster is None else self.cluster.cluster.watched,
            probes=self.probes,
            recorder=self.recorder,
            clock=self.clock,
            pleg=self.pleg,
            network_problem=lambda: self.runtime_state.conditions.network_problem,
            host_ips=self.node.host_ips,
            starts_nothing=lambda: self.shutdown is not None and self.shutdown.found_at_start,
            allocation=self.allocation,
            resource_health=self.devices.health,
            cgroups=self.resources.cgroups,
            mirrors=(lambda pod, mirror: None) if self.reporters is None else self.reporters.mirrors.ensure,
            durables=(self.allocation, self.volumes, self.resources.cgroups, self.runtime),
        )

    def _make_housekeeping(self) -> Housekeeping:
        return Housekeeping(
            self.pods,
            self.workers,
            self.runtime,
            self.statuses,
            self.volumes,
            self.pleg.cache,
            sources_ready=self.desired.sources_ready,
            recorder=self.recorder,
            container_gc=self.options.container_gc,
            held=self._held,
            cgroups=self.resources.cgroups,
            delete_mirror=None if self.reporters is None else self.reporters.mirrors.delete,
        )

    def _make_sync_loop(self, admission: Admission, features: Collection[str]) -> SyncLoop:
        return SyncLoop(
            SyncLoopParts(
                pods=self.pods,
                desired=self.desired,
                workers=self.workers,
                housekeeping=self.housekeeping,
                admitting=Admitting(
                    admission,
                    self.node,
                    self.preempting,
                    allocated=self.allocation.allocated,
                    devices=self.devices,
                ),
                statuses=self.statuses,
                probes=self.probes,
                allocation=self.allocation,
                cache=self.pleg.cache,
                recorder=self.recorder,
                past_deadline=self._past_active_deadline,
                sources_ready=partial(self.desired.handled, self.sources),
                features=frozenset(features),
                runtime_errors=self.runtime_state.errors,
                pods_changed=self.resources.cgroups.pods_changed,
            )
        )

    def _make_volumes(
        self, given: PodVolumes | None, states: PodStates, rng: Random
    ) -> tuple[VolumeParts | None, PodVolumes]:
        if given is not None:
            return None, given
        from trikubelet.agent.volumes import VolumeParts  # a simulated node has none

        parts = VolumeParts(
            self.options.root_dir,
            cluster=self.cluster,
            plugins=self.plugins,
            allocatable=lambda: self.node.cached().status.allocatable,
            recorder=self.recorder,
            clock=self.clock,
            rng=rng,
            containers_gone=states.should_pod_runtime_be_removed,
            usage_period=self.options.configuration.volume_stats_agg_period.total_seconds(),
        )
        return parts, parts.manager

    async def _run_volumes(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when the volumes that an earlier agent left are known."""
        await (self.volumes if self.volume_parts is None else self.volume_parts).run(task_status=task_status)

    def _report_in_use(self, _: None) -> None:
        if self.cluster is not None:
            self.cluster.node.report_soon()

    def _object_changed(self, key: tuple[str, str, str]) -> None:
        """A ConfigMap or Secret came or changed: pods whose containers' environment lacked it need not wait."""
        assert self.cluster is not None
        for uid in self.cluster.cluster.watched.referring(*key):
            if any(reason == CREATE_CONTAINER_CONFIG_ERROR for reason, _ in self.runtime.waiting_reasons(uid).values()):
                self.sync_loop.sync_soon(uid)

    def _sources(self, given: Sequence[PodSource] | None) -> list[PodSource]:
        sources = [*configured_sources(self.options, self.clock)] if given is None else [*given]
        return sources if self.cluster is None else [*sources, self.cluster.source]

    def _held(self) -> frozenset[str]:
        """UIDs of pods that housekeeping leaves alone: they wait for admission, or are wanted but cannot be read."""
        unread = () if self.cluster is None else self.cluster.cluster.pods.undecodable()
        return frozenset((*self.sync_loop.held, *(one.metadata.uid for one in unread)))

    def _follow_changes(self, nursery: trio.Nursery) -> None:
        """Start the tasks that have the sync loop and housekeeping act on what other parts broadcast."""
        sync_loop = self.sync_loop
        nursery.start_soon(follow, self.recovered.subscribe(), lambda _: sync_loop.runtime_is_back())
        nursery.start_soon(follow, self.allocation.retry_wanted.subscribe(), lambda _: sync_loop.retry_resizes_soon())
        nursery.start_soon(follow, self.workers.finished.subscribe(), self._clean_up_after)
        if (unhealthy := self.devices.follow_health()) is not None:
            nursery.start_soon(follow, unhealthy, sync_loop.sync_soon)
        nursery.start_soon(follow, self.volumes.pod_changes.subscribe(), sync_loop.sync_soon)
        if self.cluster is not None:
            reported = self.cluster.node.reported.subscribe(lambda _: None)
            in_use, objects = self.volumes.in_use_changes, self.cluster.cluster.watched.changes
            nursery.start_soon(follow, reported, self.volumes.reported_in_use)
            nursery.start_soon(follow, in_use.subscribe(), self._report_in_use)
            nursery.start_soon(follow, objects.subscribe(), self._object_changed)

    def _clean_up_after(self, _: str) -> None:
        self.sync_loop.housekeeping_soon()
        self.housekeeping.collect_soon()

    def _active_as_allocated(self) -> list[Pod]:
        return [self.allocation.allocated(pod) for pod in self.desired.active()]

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
