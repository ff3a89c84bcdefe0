"""An agent's traces: what is wrapped so that it tells of itself. Imported only when `tracing` is configured.

A pod has one trace, whose id is its UID. `podStart` is its first span, from when the pod is first seen to when it is
ready; `podEnd` lasts from when its end is asked for until it is gone. Between them a pod may live for months: what is
done for it then has traces of its own, with links to the pod's. Spans of the kubelet's (`syncPod`,
`syncTerminatingPod`, `syncTerminatedPod`) and calls of the runtime lie in these as the scopes of the pod's life do.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from trikubelet.api import CONDITION_TRUE, POD_FAILED, POD_READY, POD_SUCCEEDED
from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.config.tracing_endpoint import DEFAULT_ENDPOINT, parse_endpoint
from trikubelet.formats.values import frozen
from trikubelet.pods import phases
from trikubelet.supervision import contain
from trikubelet.tracing.calls import TracedChannel
from trikubelet.tracing.context import pod_context
from trikubelet.tracing.exporter import Exporter, open_channel
from trikubelet.tracing.requests import traced
from trikubelet.tracing.spans import CURRENT, Tracer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import trio

    from trikubelet.agent.options import AgentOptions
    from trikubelet.api import Pod, PodStatus
    from trikubelet.clock import WallClock
    from trikubelet.container.model import PodRuntimeStatus, RunningPod
    from trikubelet.http.messages import Handler
    from trikubelet.http.routing import Router
    from trikubelet.kube_client.exchange import Sends
    from trikubelet.pods.manager import PodManager
    from trikubelet.pods.registry import PodStates
    from trikubelet.pods.types import Kill, OpenPod, PodSyncer, PodSyncReport, SyncPodType
    from trikubelet.rpc.cri.caller import CallChannel
    from trikubelet.rpc.grpc import Channel
    from trikubelet.status.manager import StatusChange, StatusManager
    from trikubelet.tracing.context import SpanContext
    from trikubelet.tracing.spans import Attributes, Span

SCOPE: Final = "trikubelet/pods"
KUBELET: Final = "k8s.io/kubernetes/pkg/kubelet"
"""The kubelet's scope, for spans that are its own."""
SERVICE: Final = "kubelet"


@frozen
class Tracing:
    """What an agent with traces has."""

    tracer: Tracer
    exporter: Exporter

    @classmethod
    def make(cls, channel: Channel, *, node: str, per_million: int, clock: WallClock) -> Tracing:
        """`channel`: to the collector, not entered yet. `per_million`: how many traces are recorded."""
        exporter = Exporter(channel, {"service.name": SERVICE, "host.name": node})
        # Ids need no secrecy.
        tracer = Tracer(per_million, clock=clock, rng=random.Random(), finish=exporter.offer)
        return cls(tracer, exporter)

    def channel(self, channel: CallChannel, endpoint: str) -> TracedChannel:
        """A channel to the runtime whose calls are spans."""
        return TracedChannel(channel, self.tracer, endpoint.removeprefix("unix://"))

    def transport(self, transport: Sends) -> Sends:
        """A way to the API server whose requests are spans."""
        from trikubelet.agent.traced_cluster import TracedTransport

        return TracedTransport(transport, self.tracer)

    def routes(self, routes: Router, *, public: bool = False) -> Handler:
        """Routes whose requests are spans. `public`: they are served to anybody."""
        return traced(routes, self.tracer, public=public)


@asynccontextmanager
async def open_tracing(options: AgentOptions, clock: WallClock) -> AsyncIterator[Tracing]:
    """For as long as the agent runs. At the end, spans that are left are sent if that takes no long time."""
    configured = options.configuration.tracing
    assert configured is not None
    channel = open_channel(parse_endpoint(configured.endpoint or DEFAULT_ENDPOINT))
    per_million = configured.sampling_rate_per_million or 0
    tracing = Tracing.make(channel, node=options.node_name, per_million=per_million, clock=clock)
    async with tracing.exporter.running():
        yield tracing


class PodTrace:
    """The trace of one pod: what its life's tasks are in. Implements `Enclosing`."""

    def __init__(self, uid: str, tracer: Tracer) -> None:
        self.context = pod_context(uid, tracer.per_million)
        self._tracer = tracer
        self._start: Span | None = None
        self.end: Span | None = None
        self._ending: Span | None = None
        """The work that ends the pod. It is done in tasks that are older than it too: in the containers'."""

    def open_span(self) -> SpanContext | None:
        for span in (self._ending, self.end, self._start):
            if span is not None and span.ended_at is None:
                return span.context
        return None

    def begin(self, facts: Attributes, since: float | None) -> None:
        """The pod is to start; it was first seen at `since` (Trio time, as all here)."""
        self._start = self._tracer.start(
            "podStart", scope=SCOPE, attributes=facts, since=since, context=self.context, alone=True
        )

    def started(self, at: float | None = None) -> None:
        """The pod is ready, or will not be any more."""
        if self._start is not None:
            self._start.end(at)

    @contextmanager
    def ending(self, name: str, facts: Attributes, since: float | None) -> Iterator[None]:
        """A work that ends the pod, which was asked for at `since`."""
        if self.end is None:
            self.started(since)
            self.end = self._tracer.start("podEnd", scope=SCOPE, attributes=facts, since=since, parent=self.context)
        with self._tracer.span(name, scope=KUBELET, attributes=facts) as self._ending:
            yield

    def break_off(self, error: BaseException) -> None:
        """Nothing more will be heard of the pod."""
        for span in (self._start, self.end):
            if span is not None and span.ended_at is None:
                span.fail(error)
                span.end()


class TracedPods:
    """Opens pods so that their lives are told of. `open_pod` implements `OpenPod`, by another one."""

    def __init__(
        self, tracer: Tracer, open_pod: OpenPod, pods: PodManager, states: PodStates, statuses: StatusManager
    ) -> None:
        self.tracer = tracer
        self.pods = pods
        self.states = states
        self.statuses = statuses
        self._open_pod = open_pod
        self._going: dict[str, Span] = {}
        """By UID, the last span of pods of which only their objects are left."""

    @contextmanager
    def open_pod(self, uid: str, nursery: trio.Nursery) -> Iterator[PodSyncer]:
        trace = PodTrace(uid, self.tracer)
        token = CURRENT.set(trace)
        try:
            with self._open_pod(uid, nursery) as syncer:
                yield TracedPodSyncer(self, uid, trace, syncer, nursery)
        except BaseException as error:
            trace.break_off(error)
            raise
        finally:
            CURRENT.reset(token)
        self._over(uid, trace)

    def served(self, old: Pod | None, new: Pod | None) -> None:
        """The API server has another version of a pod, or (None) has it no more: then it is gone."""
        if new is None and old is not None:
            last = self._going.pop(old.metadata.uid, None)
            if last is not None:
                last.end()

    def _over(self, uid: str, trace: PodTrace) -> None:
        """Nothing of the pod is left on the node."""
        trace.started()
        if trace.end is None:
            return
        pod = self.pods.pod_by_uid(uid)
        if pod is None or is_static_pod(pod) or pod.metadata.deletion_timestamp is None:
            trace.end.end()
        else:
            self._going[uid] = trace.end


class TracedPodSyncer:
    """Implements `PodSyncer` by another one, with a span for each work."""

    def __init__(self, traced: TracedPods, uid: str, trace: PodTrace, syncer: PodSyncer, nursery: trio.Nursery) -> None:
        self._traced = traced
        self._uid = uid
        self._trace = trace
        self._syncer = syncer
        self._nursery = nursery
        self._is_first = True
        """The pod was not synced yet."""

    async def sync_pod(
        self, update_type: SyncPodType, pod: Pod, mirror_pod: Pod | None, status: PodRuntimeStatus
    ) -> PodSyncReport:
        facts = pod_facts(pod)
        if self._is_first:
            self._is_first = False
            if not status.sandbox_statuses:  # else an earlier agent has begun with it
                self._trace.begin(facts, self._first_seen())
                self._nursery.start_soon(contain, self._until_ready, name="trace of the start")
        self._notice(self._traced.statuses.change(self._uid))  # this sync may be for what made it ready
        facts = {**facts, "k8s.pod.update_type": update_type.value}
        with self._traced.tracer.span("syncPod", scope=KUBELET, attributes=facts):
            return await self._syncer.sync_pod(update_type, pod, mirror_pod, status)

    async def sync_terminating_pod(self, pod: Pod, status: PodRuntimeStatus, kill: Callable[[], Kill]) -> PodSyncReport:
        with self._trace.ending("syncTerminatingPod", pod_facts(pod), self._asked_at()):
            return await self._syncer.sync_terminating_pod(pod, status, kill)

    async def sync_terminating_runtime_pod(self, running_pod: RunningPod, kill: Kill) -> None:
        facts = _facts(running_pod.namespace, running_pod.name, running_pod.uid)
        with self._trace.ending("syncTerminatingPod", facts, self._asked_at()):
            await self._syncer.sync_terminating_runtime_pod(running_pod, kill)

    def shorten_grace(self, deadline: float) -> None:
        self._syncer.shorten_grace(deadline)

    async def sync_terminated_pod(self, pod: Pod, status: PodRuntimeStatus) -> None:
        with self._trace.ending("syncTerminatedPod", pod_facts(pod), self._asked_at()):
            await self._syncer.sync_terminated_pod(pod, status)

    def _first_seen(self) -> float | None:
        wanted_since = self._traced.pods.wanted_since(self._uid)
        phase = self._traced.states.phase(self._uid)
        return wanted_since if wanted_since is not None or phase is None else phase.identity.first_seen

    def _asked_at(self) -> float | None:
        phase = self._traced.states.phase(self._uid)
        if isinstance(phase, phases.TerminationRequested | phases.Terminating | phases.Terminated):
            return phase.ending.asked_at
        return None

    async def _until_ready(self) -> None:
        with self._traced.statuses.subscribe(self._uid) as changes:
            async for change in changes:
                if self._notice(change):
                    return

    def _notice(self, change: StatusChange | None) -> bool:
        """Whether the pod has started by now, which is the end of its first span."""
        if change is None or not has_started(change.status):
            return False
        self._trace.started(change.first_changed_at)
        return True


def has_started(status: PodStatus) -> bool:
    """Ready, or past it."""
    ready = any(one.type == POD_READY and one.status == CONDITION_TRUE for one in status.conditions)
    return ready or status.phase in (POD_SUCCEEDED, POD_FAILED)


def pod_facts(pod: Pod) -> Attributes:
    """What spans say of a pod, by the kubelet's names."""
    return _facts(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)


def _facts(namespace: str, name: str, uid: str) -> Attributes:
    return {
        "k8s.pod.uid": uid,
        "k8s.pod": f"{namespace}/{name}",
        "k8s.pod.name": name,
        "k8s.namespace.name": namespace,
    }
