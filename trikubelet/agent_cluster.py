"""The parts of an agent that belong to a cluster. An agent without one has none of them.

Nothing here is waited for: an agent whose API server does not answer starts, runs its static pods, keeps those that
ran before, and reports when it can. Writers take what the rest of the agent decides; nobody here decides about pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.cluster.event_sender import EventSender
from trikubelet.cluster.informers import Cluster
from trikubelet.cluster.pod_certificates import PodCertificates
from trikubelet.cluster.rate_limit import configured_limit
from trikubelet.config.sources.apiserver import ApiServerSource
from trikubelet.node.keeper import NodeKeeper
from trikubelet.pods.mirrors import MirrorPods
from trikubelet.pods.start_latency import PodStartLatency
from trikubelet.status.writer import StatusWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.agent_options import AgentOptions
    from trikubelet.clock import WallClock
    from trikubelet.cluster.types import ApiClient
    from trikubelet.cri.client import RuntimeClient
    from trikubelet.events import EventRecorder
    from trikubelet.node.facts import NodeSettings
    from trikubelet.node.observer import NodeObserver
    from trikubelet.pods.manager import PodManager
    from trikubelet.pods.workers import PodWorkers
    from trikubelet.status.manager import StatusManager


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
        """`reset_extended`: see `NodeKeeper`."""
        configuration = options.configuration
        self._clock, self._rng = clock, rng
        self.client = client
        self.node_name = options.node_name
        self._volume_listeners: list[Callable[[tuple[str, ...]], object]] = []
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
            certificates=self.certificates,
            event_limit=configured_limit(configuration.event_record_qps, configuration.event_burst),
            heartbeat_timeout=min(settings.update_period, settings.lease_duration),
            clock=clock,
            rng=rng,
        )
        self.node = NodeKeeper(
            client,
            self.cluster.heartbeat_client,
            self.cluster.node,
            observer.facts,
            settings,
            recorder=recorder,
            clock=clock,
            rng=rng,
            tell_pod_cidr=runtime.update_runtime_config,
            on_reported=self._volumes_reported,
            reset_extended=reset_extended,
        )
        observer.on_change(self.node.changed_soon)
        self.source = ApiServerSource(self.cluster.pods, recorder)
        self.events = EventSender(self.cluster.events_client, options.node_name, rng=rng)
        recorder.add_listener(self.events.offer)
        self.pod_starts = PodStartLatency(clock)
        self.cluster.pods.subscribe(self.pod_starts.served)
        recorder.add_listener(self.pod_starts.heard)

    def on_volumes_reported(self, listener: Callable[[tuple[str, ...]], object]) -> None:
        """`listener` is called synchronously with the volumes in use that the node's status tells."""
        self._volume_listeners.append(listener)

    def _volumes_reported(self, names: tuple[str, ...]) -> None:
        for listener in self._volume_listeners:
            listener(names)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started at once."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.events.run)
            nursery.start_soon(self.certificates.run)
            await nursery.start(self.cluster.run)
            await nursery.start(self.node.run)
            task_status.started()

    def reporters(self, pods: PodManager, statuses: StatusManager, workers: Callable[[], PodWorkers]) -> PodReporters:
        """`workers` are asked for once pods run."""
        return PodReporters(self, pods, statuses, workers, clock=self._clock, rng=self._rng)


class PodReporters:
    """Those who tell the API server of pods: the writer of statuses, and the mirror pods of static ones."""

    def __init__(
        self,
        parts: ClusterParts,
        pods: PodManager,
        statuses: StatusManager,
        workers: Callable[[], PodWorkers],
        *,
        clock: WallClock,
        rng: Random,
    ) -> None:
        served = parts.cluster.pods
        self.mirrors = MirrorPods(
            parts.client,
            parts.node,
            pods,
            served,
            terminating=lambda name: workers().states.is_pod_for_mirror_pod_terminating_by_full_name(name),
            rng=rng,
        )
        self.writer = StatusWriter(
            parts.client,
            statuses,
            pods,
            served,
            may_run=lambda uid: workers().states.could_have_running_containers(uid),
            clock=clock,
            rng=rng,
        )

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started at once."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.mirrors.run)
            await nursery.start(self.writer.run)
            task_status.started()
