"""The parts of an agent that belong to a cluster. An agent without one has none of them.

Nothing here is waited for: an agent whose API server does not answer starts, runs its static pods, keeps those that
ran before, and reports when it can. Writers take what the rest of the agent decides; nothing here decides about pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.kube_client.event_sender import EventSender
from trikubelet.kube_client.informers import Cluster
from trikubelet.kube_client.pod_certificates import PodCertificates
from trikubelet.kube_client.rate_limit import configured_limit
from trikubelet.node.status_manager import NodeStatusManager, ReportedMachine
from trikubelet.pods.mirrors import MirrorPods
from trikubelet.pods.start_latency import PodStartLatency
from trikubelet.sources.apiserver import ApiServerSource
from trikubelet.status.writer import StatusWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.agent.options import AgentOptions
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.node.facts import NodeSettings
    from trikubelet.node.observer import NodeObserver
    from trikubelet.pods.manager import PodManager
    from trikubelet.pods.registry import PodStates
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.status.manager import StatusManager
    from trikubelet.telemetry.events import EventRecorder


class ClusterParts:
    """Copies of the cluster's objects, the node object and the events: what the rest of the agent is built on."""

    def __init__(
        self,
        client: ApiClient,
        options: AgentOptions,
        settings: NodeSettings,
        observer: NodeObserver,
        runtime: RuntimeClient,
        *,
        recorder: EventRecorder,
        clock: WallClock,
        rng: Random,
        reset_extended: Callable[[], bool],
    ) -> None:
        """`reset_extended`: see `ReportedMachine`. Each argument goes to another part: a context would join nothing."""
        configuration = options.configuration
        self._clock, self._rng = clock, rng
        self.client = client
        self.node_name = options.node_name
        self._requests_certificates = configuration.enabled("PodCertificateRequest")
        self.certificates = PodCertificates(
            client,
            node_name=options.node_name,
            node_uid=lambda: self.node.uid,
            recorder=recorder,
            clock=clock,
            rng=rng,
        )
        self.cluster = Cluster(
            client,
            options.node_name,
            change_detection=configuration.config_map_and_secret_change_detection_strategy,
            sync_frequency=configuration.sync_frequency.total_seconds(),
            boot_id=observer.boot_id,
            certificates=self.certificates if self._requests_certificates else None,
            projects_trust_bundles=configuration.enabled("ClusterTrustBundleProjection"),
            event_limit=configured_limit(configuration.event_record_qps, configuration.event_burst),
            heartbeat_timeout=min(settings.update_period, settings.lease_duration),
            clock=clock,
            rng=rng,
        )
        self.node = NodeStatusManager(
            client,
            self.cluster.heartbeat_client,
            self.cluster.node,
            ReportedMachine(
                facts=observer.facts,
                facts_changed=observer.changed,
                update_pod_cidr=runtime.update_runtime_config,
                reset_extended=reset_extended,
            ),
            settings,
            recorder=recorder,
            clock=clock,
            rng=rng,
        )
        self.source = ApiServerSource(self.cluster.pods, recorder)
        self.events = EventSender(self.cluster.events_client, options.node_name, rng=rng)
        recorder.add_listener(self.events.offer)
        self.pod_starts = PodStartLatency(clock)
        self.cluster.pods.subscribe(self.pod_starts.served)
        recorder.add_listener(self.pod_starts.heard)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started at once."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.events.run)
            if self._requests_certificates:
                nursery.start_soon(self.certificates.run)
            await nursery.start(self.cluster.run)
            await nursery.start(self.node.run)
            task_status.started()

    def reporters(
        self, pods: PodManager, statuses: StatusManager, states: PodStates, may_run: Callable[[str], bool]
    ) -> PodReporters:
        return PodReporters(self, pods, statuses, states, may_run, clock=self._clock, rng=self._rng)


class PodReporters:
    """What reports pods to the API server: the writer of statuses, and the mirror pods of static ones."""

    def __init__(
        self,
        parts: ClusterParts,
        pods: PodManager,
        statuses: StatusManager,
        states: PodStates,
        may_run: Callable[[str], bool],
        *,
        clock: WallClock,
        rng: Random,
    ) -> None:
        """`may_run`: whether containers of a pod may run, or it may hold what others give out, by its UID."""
        served = parts.cluster.pods
        self.mirrors = MirrorPods(
            parts.client,
            parts.node,
            pods,
            served,
            terminating=states.is_pod_for_mirror_pod_terminating_by_full_name,
            rng=rng,
        )
        self.writer = StatusWriter(
            parts.client,
            statuses,
            pods,
            served,
            may_run=may_run,
            clock=clock,
            rng=rng,
        )

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started at once."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.mirrors.run)
            await nursery.start(self.writer.run)
            task_status.started()
