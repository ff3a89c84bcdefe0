"""The one select loop of the agent, and the handlers that it calls (kubelet: `syncLoopIteration`).

Everything that can make a pod's worker move arrives here as one value on one channel: a change of the desired pods,
lifecycle events, a tick, the time for housekeeping, a probe result (`loop_inputs`). This loop alone decides what it
means, hands it to a pod worker and returns to the channel at once: it never waits for a pod's work.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, assert_never

import trio

from trikubelet import loop_inputs
from trikubelet.allocation.measures import PODS_ADDED
from trikubelet.config.sources.types import PodOperation, PodUpdate
from trikubelet.logs import get_logger
from trikubelet.loop_inputs import (
    CleanUp,
    CompareWorkers,
    HousekeepingRounds,
    LoopEvent,
    LoopInputs,
    PodNews,
    RetryResizes,
    RuntimeBack,
    SyncTick,
)
from trikubelet.pleg.lifecycle import LifecycleEventType, PodLifecycleEvent
from trikubelet.pods.admitting import AdmitAgain
from trikubelet.pods.allocating import DevicesAnswered
from trikubelet.pods.classify import is_terminal
from trikubelet.pods.cleanup import is_inactive
from trikubelet.pods.types import SyncPodType, UpdatePodOptions
from trikubelet.probes.types import ProbeUpdate
from trikubelet.status.conditions import readiness_differs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from collections.abc import Set as AbstractSet

    from trio_typing import TaskStatus

    from trikubelet.api import Pod
    from trikubelet.housekeeping import NodeContents
    from trikubelet.pods.admitting import Admitting
    from trikubelet.pods.manager import PodManager
    from trikubelet.pods.workers import PodWorkers

log = get_logger("sync-loop")

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
FIRST_LOOK_AT_HEALTH: Final = 0.1
LONGEST_LOOK_AT_HEALTH: Final = 5.0
"""Seconds, as the kubelet's constants."""
SETTLE_PATIENCE: Final = 5.0
"""Seconds that the end of all pods waits until those that an earlier agent left are known."""


class Housekeeper(loop_inputs.Housekeeper, Protocol):
    """What the loop hands its rarer duties to (kubelet: `HandlePodCleanups`)."""

    def compare_workers(self) -> None:
        """End the workers of pods that nobody wants, forget those that have finished."""
        ...

    def clean_up(self, found: NodeContents) -> None:
        """Compare what was found, after the workers were compared, with what is wanted and known now."""
        ...

    def container_died(self, uid: str, container_id: str) -> None:
        """Remove dead containers beyond those that are kept."""
        ...


class Doorkeeper(Protocol):
    """What the loop knows of a pod's right to run here, and of what is reported of it."""

    def make_admitting(
        self,
        others: Callable[[], Sequence[Pod]],
        on_admitted: Callable[[Pod], None],
        send: Callable[[AdmitAgain | DevicesAnswered], Awaitable[None]],
    ) -> Admitting: ...

    def has_begun(self, pod: Pod) -> bool:
        """Whether something of the pod has run on this node already."""
        ...

    def is_rejected(self, uid: str) -> bool:
        """Whether the pod was refused."""
        ...

    def reported_phase(self, uid: str) -> str | None: ...

    def updated(self, old: Pod, new: Pod) -> None:
        """A pod that was admitted has changed."""
        ...


class Probes(Protocol):
    """What the loop knows of probes."""

    async def receive(self) -> ProbeUpdate:
        """The next result that may matter."""
        ...

    def report(self, update: ProbeUpdate) -> bool:
        """Have a result of a pod that is wanted be in its status at once. Returns whether the pod has to be synced."""
        ...


class Allocation(Protocol):
    """What the loop knows of the resources that pods are given (`trikubelet.allocation.manager`)."""

    def admitted(self, pod: Pod) -> None: ...

    def changed(self, old: Pod | None, new: Pod) -> None:
        """The spec of an admitted pod is another one."""
        ...

    def removed(self, uid: str) -> None: ...

    def keep_only(self, uids: Collection[str]) -> None:
        """These are all pods that there are."""
        ...

    def room_appeared(self, why: str) -> None: ...

    def retry(self) -> list[Pod]:
        """Pods to be synced, since they were given other resources or are told why not."""
        ...


class SyncLoop:
    """Owns the event channel; `sources_ready` guards everything that removes."""

    def __init__(
        self,
        pods: PodManager,
        workers: PodWorkers,
        housekeeper: Housekeeper,
        doorkeeper: Doorkeeper,
        probes: Probes,
        allocation: Allocation,
        past_deadline: Callable[[Pod], bool],
        sources_ready: Callable[[AbstractSet[str]], bool],
        runtime_errors: Callable[[], str | None] = lambda: None,
        pods_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`pods_changed` is told that wanted pods came, went or became others. `runtime_errors` tells
        why nothing can be synced now; until it is None again events wait."""
        self._doorkeeper = doorkeeper
        self._pods = pods
        self._workers = workers
        self._housekeeper = housekeeper
        self._probes = probes
        self._allocation = allocation
        self._past_deadline = past_deadline
        self._configured_sources_ready = sources_ready
        self._runtime_errors = runtime_errors
        self._pods_changed = pods_changed
        self._active: list[Pod] | None = None
        """The active pods while many arrive at once."""
        self._handled_sources: set[str] = set()
        self._inputs = LoopInputs()
        self._admitting = doorkeeper.make_admitting(self._active_pods, self._start, self._inputs.send.send)
        self._rounds = HousekeepingRounds(
            housekeeper,
            self._inputs.send,
            may_begin=lambda: self.sources_ready and not self._draining,
            pod_count=lambda: len(pods.pods()),
        )
        self._healthy_perhaps = trio.Event()
        self._draining = False
        self.settled = trio.Event()
        """Every source was heard of, and what the node held before is known to the pod workers."""
        self.entered_at = -float("inf")
        """Trio time at which the loop last began to handle an event: the health check wants it recent."""

    @property
    def sources_ready(self) -> bool:
        """Whether the first pods of every source have been handled."""
        return self._configured_sources_ready(self._handled_sources)

    @property
    def held(self) -> Collection[str]:
        """UIDs of pods that nobody may start yet: whether they may run is not decided."""
        return self._admitting.held

    async def until_settled(self) -> None:
        """For who is about to end all pods: `settled`, or what is known by then."""
        with trio.move_on_after(SETTLE_PATIENCE):
            await self.settled.wait()

    def stop_starting(self) -> None:
        """From now on lifecycle events are taken in, and nothing else: the pods are being drained."""
        self._draining = True
        self._healthy_perhaps.set()

    def housekeeping_soon(self) -> None:
        """A worker has finished: do not wait for the period."""
        self._rounds.soon()

    def runtime_is_back(self) -> None:
        """A runtime that was away answers again: pods that wait for their next attempt need not wait."""
        self._inputs.runtime_is_back()
        self._healthy_perhaps.set()

    def retry_resizes_soon(self) -> None:
        """Pods that want other resources may be granted them now."""
        self._inputs.retry_resizes_soon()

    async def run(
        self,
        config: trio.MemoryReceiveChannel[PodUpdate],
        lifecycle: trio.MemoryReceiveChannel[list[PodLifecycleEvent]],
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Handle events until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._inputs.run, config, lifecycle, self._probes.receive)
            nursery.start_soon(self._rounds.run)
            nursery.start_soon(self._admitting.run)
            task_status.started()
            async for event in self._inputs.receive:
                await self._until_healthy()
                self.entered_at = trio.current_time()
                try:
                    self._handle(event)
                except Exception as error:
                    log.error("an event could not be handled", kind=type(event).__name__, exc_info=error)
                if self._pods.limited_in_time or self._admitting.held:
                    self._inputs.tick_soon()

    async def _until_healthy(self) -> None:
        """Nothing is synced while the runtime cannot be relied on, as in the kubelet; but pods are drained."""
        told, pause = "", FIRST_LOOK_AT_HEALTH
        while not self._draining and (problem := self._runtime_errors()) is not None:
            kind = re.sub(r"\d+", "", problem)  # it tells for how long, too
            if kind != told:
                log.error("skipping pod synchronization", error=problem)
                told = kind
            self._healthy_perhaps = trio.Event()
            with trio.move_on_after(pause):
                await self._healthy_perhaps.wait()
            pause = min(2 * pause, LONGEST_LOOK_AT_HEALTH)

    def sync_soon(self, uid: str) -> None:
        """Something that the pod waits for may be there: do not wait for its next attempt."""
        self._inputs.sync_soon(uid)

    def _handle(self, event: LoopEvent) -> None:
        match event:
            case PodUpdate():
                if not self._draining:
                    self._handle_config(event)
            case list():
                self._handle_lifecycle(event)
            case SyncTick():
                self._admitting.ask_those_that_wait_for_the_runtime()
                self._sync_pods([pod for pod in self._pods.limited_in_time if self._past_deadline(pod)])
            case CompareWorkers():
                try:
                    if not self._draining:
                        self._housekeeper.compare_workers()
                finally:
                    event.done.set()
            case CleanUp():
                if not self._draining:
                    self._housekeeper.clean_up(event.found)
                    self.settled.set()
            case RuntimeBack():
                self._admitting.ask_those_that_wait_for_the_runtime()
                self._sync_pods(self._pods.pods())
            case AdmitAgain():
                if not self._draining:
                    self._admitting.again(event)
            case RetryResizes():
                if not self._draining:
                    self._sync_pods(self._allocation.retry())
            case DevicesAnswered():
                if not self._draining:
                    self._admitting.devices_answered(event)
            case ProbeUpdate():
                pod = self._pods.pod_by_uid(event.pod_uid)
                if pod is not None and self._probes.report(event):
                    self._sync_pods([pod])
            case PodNews():
                pod = self._pods.pod_by_uid(event.uid)
                if pod is not None:
                    self._sync_pods([pod])
            case _:
                assert_never(event)

    # Config

    def _handle_config(self, update: PodUpdate) -> None:
        if update.pods:
            names = [pod.full_name for pod in update.pods]
            log.info(f"pods {update.op.value}", source=update.source, pods=names)
        match update.op:
            case PodOperation.ADD:
                self._add_pods(update.pods)
            case PodOperation.UPDATE | PodOperation.DELETE:
                # A deletion is an update: the pod ends gracefully, and REMOVE follows.
                self._update_pods(update.pods)
            case PodOperation.REMOVE:
                self._remove_pods(update.pods)
            case PodOperation.RECONCILE:
                self._reconcile_pods(update.pods)
            case PodOperation.SET:
                raise ValueError(f"expected a merged update from source {update.source!r}, got SET")
            case _:
                assert_never(update.op)
        knew_all = self.sources_ready
        if update.op is not PodOperation.RECONCILE:
            self._pods_changed()
        self._handled_sources.add(update.source)
        if self.sources_ready and not knew_all:
            self._allocation.keep_only({pod.metadata.uid for pod in self._pods.pods()})
            self._allocation.room_appeared(PODS_ADDED)
        if self.sources_ready and not self.settled.is_set():
            self.housekeeping_soon()

    def _add_pods(self, pods: Sequence[Pod]) -> None:
        """Oldest first; after a restart of the agent those that had begun come before all others."""

        def rank(pod: Pod) -> tuple[bool, datetime]:
            return not self._doorkeeper.has_begun(pod), pod.metadata.creation_timestamp or _LONG_AGO

        active = self._active = self.active_pods()
        try:
            for pod in sorted(pods, key=rank):
                try:
                    self._add_pod(pod, active)
                except Exception as error:
                    log.error("a pod could not be added", pod=pod.full_name, exc_info=error)
        finally:
            self._active = None

    def _add_pod(self, pod: Pod, active: list[Pod]) -> None:
        self._pods.add_pod(pod)
        pair = self._pods.pair(pod)
        ended = self._workers.states.is_pod_termination_requested(pod.metadata.uid) or is_terminal(pod)
        if pair.was_mirror or ended:
            self._dispatch(pod, SyncPodType.CREATE)
            return
        self._admitting.ask(pod)  # one after the other: each counts those before it
        if not self._doorkeeper.is_rejected(pod.metadata.uid):
            active.append(pod)

    def _start(self, pod: Pod) -> None:
        """Admission's word on the pod is that it may run."""
        self._allocation.admitted(pod)
        self._dispatch(pod, SyncPodType.CREATE)

    def _update_pods(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            uid, ends = pod.metadata.uid, pod.metadata.deletion_timestamp is not None
            old = self._pods.pod_by_uid(uid)
            self._pods.update_pod(pod)
            if uid in self._admitting.held:
                if not ends:
                    self._admitting.update(pod)
                    continue
                self._admitting.forget(uid)  # its worker only ends it
            elif self._doorkeeper.is_rejected(uid) and not ends:
                continue
            elif old is not None and not ends:
                self._doorkeeper.updated(old, pod)
                self._allocation.changed(old, pod)
            self._dispatch(pod, SyncPodType.UPDATE)

    def _remove_pods(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            self._admitting.forget(pod.metadata.uid)
            self._pods.remove_pod(pod)
            self._allocation.removed(pod.metadata.uid)
            pair = self._pods.pair(pod)
            if pair.was_mirror:
                if pair.pod is not None:
                    # The one that has gone shows nothing any more; perhaps there is another already.
                    self._update_worker(pair.pod, self._pods.mirror_pod_of(pair.pod), SyncPodType.UPDATE)
            elif self.sources_ready:
                # Before that it may be a source's first, incomplete view; housekeeping comes back to it.
                self._update_worker(pod, None, SyncPodType.KILL)

    def _active_pods(self) -> list[Pod]:
        """Pods that take something of the node: all but those that have ended and those that were refused."""
        return self.active_pods() if self._active is None else self._active

    def active_pods(self) -> list[Pod]:
        """The wanted pods that have not ended (kubelet: `GetActivePods`)."""
        pods = self._pods.pods()
        workers = self._workers.summaries(pods)
        return [
            pod
            for pod in pods
            if not is_inactive(pod, workers.get(pod.metadata.uid), self._doorkeeper.reported_phase(pod.metadata.uid))
        ]

    def _reconcile_pods(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            self._pods.update_pod(pod)
            pair = self._pods.pair(pod)
            if pair.pod is not None and not pair.was_mirror and readiness_differs(pair.pod):
                self._update_worker(pair.pod, pair.mirror_pod, SyncPodType.SYNC)

    def _dispatch(self, pod: Pod, update_type: SyncPodType) -> None:
        pair = self._pods.pair(pod)
        if pair.pod is None:
            log.debug("mirror pod without its static pod", pod=pod.full_name)
            return
        self._update_worker(pair.pod, pair.mirror_pod, SyncPodType.UPDATE if pair.was_mirror else update_type)

    # Lifecycle, ticks, housekeeping

    def _handle_lifecycle(self, events: list[PodLifecycleEvent]) -> None:
        worthy = {event.uid for event in events if event.type is not LifecycleEventType.CONTAINER_REMOVED}
        pods = [pod for uid in sorted(worthy) if (pod := self._pods.pod_by_uid(uid)) is not None]
        self._sync_pods(pods)
        for event in events:
            if event.type is LifecycleEventType.CONTAINER_DIED:
                self._housekeeper.container_died(event.uid, event.container_id)

    def _sync_pods(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            uid = pod.metadata.uid
            if uid in self._admitting.held or self._doorkeeper.is_rejected(uid):
                continue
            self._update_worker(pod, self._pods.mirror_pod_of(pod), SyncPodType.SYNC)

    def _update_worker(self, pod: Pod, mirror_pod: Pod | None, update_type: SyncPodType) -> None:
        self._workers.update_pod(
            UpdatePodOptions(update_type=update_type, start_time=trio.current_time(), pod=pod, mirror_pod=mirror_pod)
        )
