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

from trikubelet.agent.allocation import allocation_manager, node_admission
from trikubelet.agent.claims import node_claims
from trikubelet.agent.devices import node_devices
from trikubelet.agent.eviction import AgentEviction
from trikubelet.agent.node import local_view, look_at_node, node_settings, read_machine, watch_memory
from trikubelet.agent.options import EMBEDDED, AgentOptions, runtime_options
from trikubelet.agent.overrides import Overrides
from trikubelet.agent.plugins import AgentPlugins, label_folders
from trikubelet.agent.pods import admitting, housekeeping, pod_workers, sync_loop
from trikubelet.agent.registry_access import RegistryAccess
from trikubelet.agent.resource_managers import resource_managers, with_exclusive_cpus
from trikubelet.agent.resources import ResourceParts
from trikubelet.agent.root_folder import ownership_of
from trikubelet.agent.runtime import cpuset_reconciler, disk_garbage_collectors, pleg_sources, runtime_manager
from trikubelet.agent.shutdown import AgentNode, drain, node_shutdown
from trikubelet.agent.sources import file_source, source_mux
from trikubelet.allocation.store import AllocationStore
from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast
from trikubelet.container.labels import owned_by
from trikubelet.node.observer import FactSources, NodeObserver
from trikubelet.node.pod_cidrs import PodCIDRUpdater
from trikubelet.pleg.exits import ExitTracker
from trikubelet.pleg.pleg import Pleg
from trikubelet.pods.journal import Journal
from trikubelet.pods.manager import DesiredPods, PodManager
from trikubelet.pods.preempting import Preempting
from trikubelet.probes.asking import NetworkAndExec
from trikubelet.probes.manager import ProbeManager
from trikubelet.probes.prober import Prober
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.pod_files import PodFiles
from trikubelet.runtime.state import RuntimeState
from trikubelet.status.manager import StatusManager
from trikubelet.supervision import supervise
from trikubelet.telemetry.events import AnyEvent, EventRecorder, EventType, NodeEvent, ObjectEvent, PodEvent
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.steps import Steps
from trikubelet.volumes.no_cluster import NoClusterObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trio_typing import TaskStatus

    from trikubelet.agent.cluster import ClusterParts, PodReporters
    from trikubelet.agent.tracing import Tracing
    from trikubelet.agent.volumes import VolumeParts
    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.node_view import NodeView
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.linux.machine import Machine
    from trikubelet.node.address_choice import HostAddresses
    from trikubelet.node.facts import NodeSettings
    from trikubelet.node.observer import Lookup
    from trikubelet.node.stats.provider import StatsProvider
    from trikubelet.pods.registry import PodStates
    from trikubelet.pods.syncer import AgentPodSyncer
    from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
    from trikubelet.rpc.cri.v1 import VersionResponse
    from trikubelet.runtime.images.gc import ImageCollector
    from trikubelet.volumes.interface import PodVolumes

log = get_logger("agent")

CONNECTING: Final = Backoff(first=1.0, longest=10.0)
"""Between two attempts to reach the runtime."""
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
        tracing: Tracing | None = None,
        pull_progress: Callable[[str], str] = lambda image: "",
    ) -> None:
        """`tracing`: makes traces of what the agent does; the clients' channels may be its too. `pull_progress`: how
        far the pull of an image is, for people; empty where the runtime does not tell."""
        self.options = options
        self.tracing = tracing
        self.clock = clock
        self.runtime_client = runtime_client
        self.image_client = image_client
        self.runtime_version: VersionResponse | None = None
        self.recorder = EventRecorder(clock)
        self.recorder.add_listener(_log_event)
        self.plugins = AgentPlugins(options.root_dir, rng := overrides.rng or Random())
        # Pods, as desired and as known.
        self.pods = PodManager(now=trio.current_time)
        self.journal = Journal(clock)
        self.recorder.add_listener(self.journal.event)
        self.statuses = StatusManager(
            clock, self.pods, wanted_since=self.pods.wanted_since, on_change=self.journal.reported
        )
        registry = overrides.make_registry(self.journal.moved)
        self.steps = Steps()
        self.pull_progress = pull_progress
        self.writing_manifests = trio.Lock()
        """Held while manifests are changed for a person."""
        self.desired = DesiredPods(self.pods, registry, self.statuses)
        # The machine, and the node's object made of it.
        settings = node_settings(options)
        facts_changed: Broadcast[None] = Broadcast()
        self.runtime_state = RuntimeState(runtime_client, facts_changed)
        machine = read_machine(options, settings, overrides.machine)
        self.managers = resource_managers(
            options,
            overrides,
            self.desired,
            self.may_run,
            machine=machine,
            settings=settings,
            standalone=api_client is None,
        )
        self.runtime_options = with_exclusive_cpus(runtime_options(options), options, self.managers)
        self._kernel_log = overrides.machine.kernel_log
        numa_nodes = () if self.managers is None else self.managers.counts.settings.topology.nodes
        self.devices = node_devices(
            options, overrides, self.desired, self.may_run, self.plugins, facts_changed, numa_nodes
        )
        on_machine = not overrides.diskless
        self.shutdown = node_shutdown(options, self.recorder, clock, logind=overrides.logind, on_machine=on_machine)
        self.eviction = AgentEviction(usage=overrides.usage, measures=on_machine)
        self.pod_files = overrides.pod_files or PodFiles(self.runtime_options)
        ownership = ownership_of(options, self.pod_files.pod_log_directories(), reads=on_machine)
        if options.runtime_endpoint != EMBEDDED:  # all that is in the embedded runtime is this agent's
            runtime_client.owns = partial(owned_by, ownership)
        self.resources = ResourceParts(
            options,
            settings,
            runtime_client.runtime_config,
            self.recorder,
            machine=machine,
            has_exclusive_cpus=self.runtime_options.has_exclusive_cpus,
            ownership=ownership,
            given=overrides.cgroups,
        )
        lookup = None if api_client is None else overrides.machine.lookup
        self.observer = self._make_observer(machine, settings, overrides.machine.host, lookup, facts_changed)
        self.cluster = None if api_client is None else self._make_cluster(api_client, settings, rng)
        self.node: NodeView = local_view(settings, self.observer, clock) if self.cluster is None else self.cluster.node
        # What pods are made of, and what is seen of them.
        cluster = None if self.cluster is None else self.cluster.cluster
        self.objects = NoClusterObjects() if cluster is None else cluster.watched
        self.volume_parts, self.volumes = self._make_volumes(overrides.volumes, states := registry.states, rng)
        self.ends = ExitTracker(runtime_client)
        self.claims = node_claims(self, overrides, rng)
        objects = None if cluster is None else cluster.objects
        access = None if overrides.diskless else RegistryAccess.of_node(options, clock, objects)
        from_files = AllocationStore.open_or_begin_anew if self.cluster is None else AllocationStore.open
        open_allocations = overrides.open_allocations or from_files
        self.runtime = runtime_manager(self, access, open_allocations)
        self.credential_plugins = None if access is None else access.credentials.plugins
        self.pull_records = None if access is None else access.pull_records
        self._garbage_collectors = () if access is None else disk_garbage_collectors(self, access)
        self.pleg = Pleg(
            self.runtime,
            on_demand=options.configuration.enabled("PLEGOnDemandRelist"),
            on_observed=self.journal.observed,
        )
        runtime_client.on_removed = self.pleg.removed_by_agent
        self._cpusets = cpuset_reconciler(self)
        self.pleg_sources = pleg_sources(self, overrides.make_pidfds)
        self.runtime_state.add_health_check("PLEG", self.pleg_sources.relist.unhealthy_reason)
        prober = Prober(overrides.asker or NetworkAndExec(runtime_client), self.recorder)
        anew = options.configuration.enabled("ChangeContainerStatusOnKubeletRestart")
        self.probes = ProbeManager(
            prober, self.statuses, clock=clock, rng=rng, newest=self.pods.pod_by_uid, begins_anew=anew
        )
        # What decides about pods, and what works on them.
        admission = node_admission(self)
        self.allocation = allocation_manager(self, admission, open_allocations)
        self.reporters = None if self.cluster is None else self._make_reporters(self.cluster, states)
        self.syncers: Mapping[str, AgentPodSyncer] = {}
        """What acts on pods whose lives go on, by UID."""
        self.workers = pod_workers(self, registry, rng)
        self.preempting = Preempting(self.workers, self.recorder)
        self.admitting = admitting(self, overrides.admission or admission)
        self.housekeeping = housekeeping(self)
        self.files = None if overrides.sources is not None else file_source(options, clock, self.recorder)
        """Manifests on the disk; None where there is no folder of them."""
        self.sources = source_mux(
            options, clock, self.recorder, files=self.files, given=overrides.sources, cluster=self.cluster
        )
        self.sync_loop = sync_loop(self, admission.features)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; pods and containers are left as they are then. Started when pods are being taken."""
        up = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.devices.run, self.pleg.cache)
            if self.managers is not None:
                await nursery.start(self.managers.run)
            nursery.start_soon(self._run_cluster, up)
            nursery.start_soon(supervise, watch_memory, self.recorder, self.runtime_options.machine, self._kernel_log)
            await self._connect()
            if (pod_cidr := self._own_pod_cidr()) is not None:
                nursery.start_soon(supervise, pod_cidr.run)
            await nursery.start(supervise, self.runtime_state.run)
            await nursery.start(self.runtime.run)
            await nursery.start(self.observer.run)
            await nursery.start(self.allocation.run, self.preempting.make_room)
            look_at_node(
                self.runtime.user_namespaces, self.pod_files, self.runtime_options, self.options, self.recorder
            )
            if self.runtime_options.machine.selinux:
                label_folders(self.options.root_dir)
            await nursery.start(self.claims.run)
            nursery.start_soon(supervise, self.plugins.run)
            await nursery.start(self.resources.run, self._active_as_allocated)
            await nursery.start(self._run_volumes)
            await nursery.start(self.pleg.run)
            if self._cpusets is not None:
                await nursery.start(self._cpusets.run)
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
                await nursery.start(supervise, collector.run)
            nursery.start_soon(supervise, self.eviction.run, self)
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

    def _own_pod_cidr(self) -> PodCIDRUpdater | None:
        """Tells a foreign runtime of `podCIDR`, where no API server says which networks pods have."""
        configured = self.options.configuration.pod_cidr
        if self.cluster is not None or not configured or self.options.runtime_endpoint == EMBEDDED:
            return None
        updater = PodCIDRUpdater(self.runtime_client.update_runtime_config)
        updater.update((configured,))
        return updater

    @cached_property
    def stats(self) -> StatsProvider:
        """Measures the node and its pods; made when first asked for. Raises OSError where there is no /proc."""
        from trikubelet.agent.stats import stats_provider

        return stats_provider(self)

    @property
    def image_collector(self) -> ImageCollector | None:
        """None on a node without a disk."""
        return self._garbage_collectors[0] if self._garbage_collectors else None

    async def drain(self) -> frozenset[str]:
        """End every pod gracefully and remove what it left: see `agent.shutdown`."""
        return await drain(self)

    async def _connect(self) -> None:
        """Wait until the runtime answers."""
        pause = CONNECTING.first
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
                pause = CONNECTING.after(pause)
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

    def _make_reporters(self, cluster: ClusterParts, states: PodStates) -> PodReporters:
        def may_run(uid: str) -> bool:
            """What a pod that has ended held is given to others (`PodCouldHaveRunningContainers`)."""
            return states.could_have_running_containers(uid) or self.claims.holds(uid)

        return cluster.reporters(self.pods, self.statuses, states, may_run)

    def _make_observer(
        self,
        machine: Machine | None,
        settings: NodeSettings,
        host: Callable[[], HostAddresses],
        lookup: Lookup | None,
        changed: Broadcast[None],
    ) -> NodeObserver:
        sources = FactSources(
            runtime_version=lambda: self.runtime_version,
            devices=self.devices.resources,
            shutdown_problem=(lambda: None) if self.shutdown is None else self.shutdown.problem,
            volumes_in_use=lambda: self.volumes.in_use(),  # made later, of what the node's object says
            pressure=self.eviction.pressure,
            host=host,
            lookup=lookup,
            changed=changed,
        )
        return NodeObserver(machine, settings.addresses, self.runtime_state, self.image_client, sources)

    def _make_volumes(
        self, given: PodVolumes | None, states: PodStates, rng: Random
    ) -> tuple[VolumeParts | None, PodVolumes]:
        if given is not None:
            return None, given
        from trikubelet.agent.volumes import VolumeParts, mount_labels  # a simulated node has none

        parts = VolumeParts(
            self.options.root_dir,
            cluster=self.cluster,
            plugins=self.plugins,
            allocatable=self.node.allocatable,
            recorder=self.recorder,
            clock=self.clock,
            rng=rng,
            containers_gone=states.should_pod_runtime_be_removed,
            usage_period=self.options.configuration.volume_stats_agg_period.total_seconds(),
            labels=mount_labels(self.options.configuration, self.runtime_options.machine),
            controller_attaches=self.options.configuration.enable_controller_attach_detach,
            plugin_dir=self.options.configuration.volume_plugin_dir,
        )
        return parts, parts.manager

    async def _run_volumes(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when the volumes that an earlier agent left are known."""
        await (self.volumes if self.volume_parts is None else self.volume_parts).run(task_status=task_status)

    def may_run(self, uid: str) -> bool:
        """Whether the pod is wanted and has not ended, or something of it may run, whoever has started it: then nobody
        else gets what it has."""
        if self.workers.states.could_have_running_containers(uid):
            return True
        seen = self.pleg.cache.last_seen(uid)
        return (seen is not None and bool(seen.running_containers())) or uid in self.desired.active_uids()

    def _active_as_allocated(self) -> list[Pod]:
        return [self.allocation.allocated(pod) for pod in self.desired.active()]


def _log_event(event: AnyEvent) -> None:
    emit = log.warning if event.type is EventType.WARNING else log.info
    match event:
        case PodEvent():
            emit(event.message, pod=f"{event.namespace}/{event.name}", reason=event.reason)
        case NodeEvent():
            emit(event.message, node=True, reason=event.reason)
        case ObjectEvent(about=about):
            name = f"{about.namespace}/{about.name}" if about.namespace else about.name
            emit(event.message, object=f"{about.kind} {name}", reason=event.reason)
