"""The sync loop: what the agent does about each thing that happens (kubelet: `syncLoopIteration`).

Everything that can make a pod's life go on arrives here: a change of the desired pods, lifecycle events, results of
probes, what admission waited for, a tick, the time for housekeeping. In Go this is one loop that selects over channels.
Here each channel has a task that takes its values and handles them one after the other. A handler never waits: it
decides what a value means, hands it to a pod's life and is done, so no two handlers ever run at the same moment.

Nothing is handled while the runtime cannot be relied on, as in the kubelet. A handler that raises concerns the pod that
it handled, and no other: that is told by the log and an event, and the same version of the pod is handled again after a
while, unless a newer one comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

import attrs
import trio

from trikubelet.admission.declared_features import FAILED_CHECK, update_problem
from trikubelet.admission.types import Admitted, Rejected
from trikubelet.allocation.manager import AllocationManager
from trikubelet.allocation.metrics import PODS_ADDED
from trikubelet.api import Pod
from trikubelet.api.pod_kinds import is_terminal
from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast, Inbox
from trikubelet.pleg.cache import PodStatusCache
from trikubelet.pleg.lifecycle import LifecycleEventType, PodLifecycleEvent
from trikubelet.pods.admitting import Admitting
from trikubelet.pods.housekeeping import Housekeeping
from trikubelet.pods.manager import DesiredPods, PodManager
from trikubelet.pods.retry import FAULTS
from trikubelet.pods.types import KillPod, SyncPodType, UpdatePod, UpdateType
from trikubelet.pods.workers import PodWorkers
from trikubelet.probes.manager import ProbeManager
from trikubelet.sources.mux import PodOperation, PodUpdate
from trikubelet.status.conditions import readiness_differs
from trikubelet.status.manager import StatusManager
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Sequence

    from trio_typing import TaskStatus

    from trikubelet.admission.types import Verdict
    from trikubelet.pods.admitting import AdmittingEvent
    from trikubelet.probes.types import ProbeUpdate

log = get_logger("sync-loop")

T = TypeVar("T")

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
HEALTH_CHECKS: Final = Backoff(first=0.1, longest=5.0)
"""Between two checks of a runtime that is not well, as the kubelet's constants."""
SETTLE_TIMEOUT: Final = 5.0
"""Seconds that the end of all pods waits until those that an earlier agent left are known."""
SYNC_TICK: Final = 1.0
HOUSEKEEPING_PERIOD: Final = 2.0
QUIET_HOUSEKEEPING_PERIOD: Final = 30.0
"""Seconds between rounds while nothing changes that the agent knows of: only the disk can hold a surprise."""
HOUSEKEEPING_PAUSE_PER_POD: Final = 50e-6
"""Seconds: of a hundred pods, the end of one waits 5 ms for others."""
HOUSEKEEPING_WARNING: Final = 1.0


@attrs.frozen(kw_only=True)
class SyncLoopParts:
    """What the loop hands events to, and asks. It is where all of these meet."""

    pods: PodManager
    desired: DesiredPods
    workers: PodWorkers
    housekeeping: Housekeeping
    admitting: Admitting
    statuses: StatusManager
    probes: ProbeManager
    allocation: AllocationManager
    cache: PodStatusCache
    recorder: EventRecorder
    past_deadline: Callable[[Pod], bool]
    """Whether a pod has run for longer than it may."""
    sources_ready: Callable[[AbstractSet[str]], bool]
    """Whether these are all configured sources of pods."""
    features: AbstractSet[str]
    """What the node has of what updates may need."""
    runtime_errors: Callable[[], str | None] = lambda: None
    """Why nothing can be synced now."""
    pods_changed: Callable[[], None] = lambda: None
    """Told that wanted pods came, went or became others."""


@attrs.frozen(eq=False)
class _Fault:
    """A version of a pod that could not be handled."""

    handle: Callable[[Pod], None]
    pod: Pod
    backoff: float


class SyncLoop:
    """Handles events. What removes pods waits until every source was heard of."""

    def __init__(self, parts: SyncLoopParts) -> None:
        self._parts = parts
        self._pods = parts.pods
        self._workers = parts.workers
        self._admitting = parts.admitting
        self._handled_sources: set[str] = set()
        self._draining = False
        self._skipping = ""
        """The problem for which nothing is handled at the moment."""
        self._faults: dict[str, _Fault] = {}
        """By UID, those that are to be handled again."""
        self._send_fault, self._new_faults = trio.open_memory_channel[_Fault](float("inf"))
        self._healthy_perhaps: Broadcast[None] = Broadcast()
        self._tick_wanted: Broadcast[None] = Broadcast()
        self._round_wanted = Inbox[None]()
        self._recovered = Inbox[None]()
        self._resizes_possible = Inbox[None]()
        self._to_sync = Inbox[str]()
        self._round_at = -float("inf")
        self.settled = trio.Event()
        """Every source was heard of, and what the node held before is known to the pod workers."""
        self.entered_at = -float("inf")
        """Trio time at which the loop last began to handle an event: the health check wants it recent."""

    async def run(
        self,
        config: trio.MemoryReceiveChannel[PodUpdate],
        lifecycle: trio.MemoryReceiveChannel[list[PodLifecycleEvent]],
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Handle events until cancelled."""
        admitting = self._admitting
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, config.receive, self._handle_config)
            nursery.start_soon(self._follow, lifecycle.receive, self._handle_lifecycle)
            nursery.start_soon(self._follow, self._parts.probes.receive, self._handle_probe)
            nursery.start_soon(self._follow, self._to_sync.receive, self._handle_news)
            nursery.start_soon(self._follow, self._recovered.receive, self._handle_recovery)
            nursery.start_soon(self._follow, self._resizes_possible.receive, self._handle_resizes)
            nursery.start_soon(self._follow, admitting.done.receive, self._handle_admitting)
            nursery.start_soon(admitting.run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._keep_house)
            nursery.start_soon(self._handle_faults)
            task_status.started()

    # --- What others may ask and say ---------------------------------------------------------------------------------

    @property
    def sources_ready(self) -> bool:
        """Whether the first pods of every source have been handled."""
        return self._parts.sources_ready(self._handled_sources)

    @property
    def held(self) -> Collection[str]:
        """UIDs of pods that nobody may start yet: whether they may run is not decided."""
        return self._admitting.held

    async def until_settled(self) -> None:
        """For who is about to end all pods: `settled`, or what is known by then."""
        with trio.move_on_after(SETTLE_TIMEOUT):
            await self.settled.wait()

    def stop_starting(self) -> None:
        """From now on lifecycle events are taken in, and nothing else: the pods are being drained."""
        self._draining = True
        self._healthy_perhaps.send(None)

    def housekeeping_soon(self) -> None:
        """A pod's life is over: do not wait for the period."""
        self._round_wanted.put(None)

    def runtime_is_back(self) -> None:
        """A runtime that was away answers again: pods that wait for their next attempt need not wait."""
        self._recovered.put(None)
        self._healthy_perhaps.send(None)

    def retry_resizes_soon(self) -> None:
        """Pods that want other resources may be granted them now."""
        self._resizes_possible.put(None)

    def sync_soon(self, uid: str) -> None:
        """Something that the pod waits for may be there: do not wait for its next attempt."""
        self._to_sync.put(uid)

    # --- Taking events in --------------------------------------------------------------------------------------------

    async def _follow(self, receive: Callable[[], Awaitable[T]], handle: Callable[[T], None]) -> None:
        """Handle what comes out of one channel, until cancelled."""
        while True:
            event = await receive()
            await self._until_healthy()
            self._handle(handle, event)

    def _handle(self, handle: Callable[[T], None], event: T) -> None:
        self.entered_at = trio.current_time()
        try:
            handle(event)
        except Exception as error:
            log.error("an event could not be handled", kind=type(event).__name__, exc_info=error)
        if self._needs_ticks:
            self._tick_wanted.send(None)

    async def _until_healthy(self) -> None:
        """Nothing is synced while the runtime cannot be relied on; but pods are drained."""
        pause = HEALTH_CHECKS.first
        while not self._draining and (problem := self._parts.runtime_errors()) is not None:
            kind = re.sub(r"\d+", "", problem)  # it tells for how long, too
            if kind != self._skipping:
                log.error("skipping pod synchronization", error=problem)
                self._skipping = kind
            with trio.move_on_after(pause):
                await self._healthy_perhaps.wait()
            pause = HEALTH_CHECKS.after(pause)
        self._skipping = ""

    @property
    def _needs_ticks(self) -> bool:
        """Whether some pod waits for a time that only ticks tell of."""
        return bool(self._pods.limited_in_time or self._admitting.held)

    async def _tick(self) -> None:
        while True:
            if not self._needs_ticks:
                await self._tick_wanted.wait()
            await trio.sleep(SYNC_TICK)
            await self._until_healthy()
            self._handle(self._handle_tick, None)

    async def _keep_house(self) -> None:
        """Rounds of housekeeping: now and then, and when something has ended."""
        while True:
            with trio.move_on_after(HOUSEKEEPING_PERIOD):
                await self._round_wanted.receive()
                # A round looks at every pod. When many end one after the other, one round is for several of them.
                await trio.sleep(len(self._pods.pods()) * HOUSEKEEPING_PAUSE_PER_POD)
            self._round_wanted.drop(None)
            if self.sources_ready and not self._draining and self._may_find_something():
                await self._round()

    def _may_find_something(self) -> bool:
        now = trio.current_time()
        if self._parts.housekeeping.has_work() or now - self._round_at >= QUIET_HOUSEKEEPING_PERIOD:
            self._round_at = now
            return True
        return False

    async def _round(self) -> None:
        """Compare, inspect, clean up. A runtime that hangs delays this and no event."""
        housekeeping = self._parts.housekeeping
        await self._until_healthy()
        self._handle(lambda _: None if self._draining else housekeeping.compare_workers(), None)
        began = trio.current_time()
        try:
            found = await housekeeping.inspect_node()
        except Exception as error:  # noqa: BLE001 - housekeeping comes again in two seconds
            log.warning("housekeeping cannot inspect the node", error=str(error))
            return
        elapsed = trio.current_time() - began
        if elapsed > HOUSEKEEPING_WARNING:
            took = round(elapsed, 3)
            log.warning("housekeeping took longer than expected", expected=HOUSEKEEPING_WARNING, actual=took)
        await self._until_healthy()
        if not self._draining:
            self._handle(housekeeping.clean_up, found)
            self.settled.set()

    # --- Faults ------------------------------------------------------------------------------------------------------

    def _each(self, pods: Sequence[Pod], handle: Callable[[Pod], None]) -> None:
        """Take in a version of each pod of a batch; what goes wrong with one concerns no other."""
        for pod in pods:
            self._take_in(pod, handle, _Fault(handle, pod, FAULTS.first))

    def _take_in(self, pod: Pod, handle: Callable[[Pod], None], again: _Fault) -> None:
        try:
            handle(pod)
        except Exception as error:  # noqa: BLE001 - told, and tried again
            self._failed(pod, error)
            self._faults[pod.metadata.uid] = again
            self._send_fault.send_nowait(again)
        else:
            self._faults.pop(pod.metadata.uid, None)

    def _failed(self, pod: Pod, error: Exception) -> None:
        log.error("a fault of the agent in handling a pod", pod=pod.full_name, uid=pod.metadata.uid, exc_info=error)
        text = f"The agent failed in the middle of work on the pod, and begins it again: {error!r}"
        self._parts.recorder.pod_event(pod, EventType.WARNING, "FailedSync", text)

    async def _handle_faults(self) -> None:
        async with trio.open_nursery() as nursery:
            async for fault in self._new_faults:
                nursery.start_soon(self._handle_again, fault)

    async def _handle_again(self, fault: _Fault) -> None:
        await trio.sleep(fault.backoff)
        if self._faults.get(fault.pod.metadata.uid) is fault and not self._draining:  # nothing newer came
            later = attrs.evolve(fault, backoff=FAULTS.after(fault.backoff))
            self._handle(lambda pod: self._take_in(pod, fault.handle, later), fault.pod)

    # --- Config ------------------------------------------------------------------------------------------------------

    def _handle_config(self, update: PodUpdate) -> None:
        if self._draining:
            return
        if update.pods:
            names = [pod.full_name for pod in update.pods]
            log.info(f"pods {update.op.value}", source=update.source, pods=names)
        match update.op:
            case PodOperation.ADD:
                self._add_pods(update.pods)
            case PodOperation.UPDATE | PodOperation.DELETE:
                # A deletion is an update: the pod ends gracefully, and REMOVE follows.
                self._each(update.pods, self._update_pod)
            case PodOperation.REMOVE:
                self._each(update.pods, self._remove_pod)
            case PodOperation.RECONCILE:
                self._each(update.pods, self._reconcile_pod)
            case PodOperation.SET:
                raise ValueError(f"expected a merged update from source {update.source!r}, got SET")
            case _:
                assert_never(update.op)
        knew_all = self.sources_ready
        if update.op is not PodOperation.RECONCILE:
            self._parts.pods_changed()
        self._handled_sources.add(update.source)
        if self.sources_ready and not knew_all:
            self._parts.allocation.keep_only({pod.metadata.uid for pod in self._pods.pods()})
            self._parts.allocation.room_appeared(PODS_ADDED)
        if self.sources_ready and not self.settled.is_set():
            self.housekeeping_soon()

    def _add_pods(self, pods: Sequence[Pod]) -> None:
        """Oldest first; after a restart of the agent those that had begun come before all others."""

        def rank(pod: Pod) -> tuple[bool, datetime]:
            begun = self._parts.cache.has_begun(pod.metadata.uid)
            return not begun, pod.metadata.creation_timestamp or _LONG_AGO

        active = self._parts.desired.active()
        for pod in sorted(pods, key=rank):  # one after the other: each counts those before it
            self._take_in(pod, lambda pod: self._add_pod(pod, active), _Fault(self._add_pod, pod, FAULTS.first))

    def _add_pod(self, pod: Pod, active: list[Pod] | None = None) -> None:
        self._pods.add_pod(pod)
        pair = self._pods.pair(pod)
        ended = self._workers.states.is_pod_termination_requested(pod.metadata.uid) or is_terminal(pod)
        if pair.was_mirror or ended:
            self._dispatch(pod, SyncPodType.CREATE)
            return
        active = self._parts.desired.active() if active is None else active
        verdict = self._admitting.ask(pod, active)
        self._follow_verdict(pod, verdict)
        if not isinstance(verdict, Rejected):
            active.append(pod)

    def _update_pod(self, pod: Pod) -> None:
        uid, ends = pod.metadata.uid, pod.metadata.deletion_timestamp is not None
        old = self._pods.pod_by_uid(uid)
        self._pods.update_pod(pod)
        if uid in self._admitting.held:
            if not ends:
                self._admitting.update(pod)
                return
            self._admitting.forget(uid)  # its life only ends it
        elif self._is_rejected(uid) and not ends:
            return
        elif old is not None and not ends:
            # A change that asks for what this node has not is told of, and done as far as it goes, as in the kubelet.
            if (problem := update_problem(old, pod, self._parts.features)) is not None:
                self._parts.recorder.pod_event(pod, EventType.WARNING, FAILED_CHECK, problem)
            self._parts.allocation.changed(old, pod)
        self._dispatch(pod, SyncPodType.UPDATE)

    def _remove_pod(self, pod: Pod) -> None:
        self._admitting.forget(pod.metadata.uid)
        self._pods.remove_pod(pod)
        self._parts.allocation.removed(pod.metadata.uid)
        pair = self._pods.pair(pod)
        if pair.was_mirror:
            if pair.pod is not None:
                # The one that has gone shows nothing any more; perhaps there is another already.
                self._update_worker(pair.pod, self._pods.mirror_pod_of(pair.pod), SyncPodType.UPDATE)
        elif self.sources_ready:
            # Before that it may be a source's first, incomplete view; housekeeping comes back to it.
            self._workers.update_pod(KillPod(pod=pod, start_time=trio.current_time()))

    def _reconcile_pod(self, pod: Pod) -> None:
        self._pods.update_pod(pod)
        pair = self._pods.pair(pod)
        if pair.pod is not None and not pair.was_mirror and readiness_differs(pair.pod):
            self._update_worker(pair.pod, pair.mirror_pod, SyncPodType.SYNC)

    # --- Admission ---------------------------------------------------------------------------------------------------

    def _handle_admitting(self, event: AdmittingEvent) -> None:
        """What a held pod waited for has been done."""
        if not self._draining:
            self._follow_verdict(event.held.pod, self._admitting.again(event, self._parts.desired.active()))

    def _follow_verdict(self, pod: Pod, verdict: Verdict | None) -> None:
        """Carry out a verdict; None and those that are not final leave the pod held."""
        if isinstance(verdict, Admitted):
            self._parts.allocation.admitted(pod)
            self._dispatch(pod, SyncPodType.CREATE)
        elif isinstance(verdict, Rejected):
            self._parts.recorder.pod_event(pod, EventType.WARNING, verdict.reason, verdict.message)
            self._parts.statuses.reject_pod(pod, verdict.reason, verdict.message)

    def _ask_those_that_wait_for_the_runtime(self) -> None:
        for held in self._admitting.waiting_for_runtime():
            self._follow_verdict(held.pod, self._admitting.judge(held, self._parts.desired.active()))

    def _is_rejected(self, uid: str) -> bool:
        change = self._parts.statuses.change(uid)
        return change is not None and change.rejected

    # --- All other events --------------------------------------------------------------------------------------------

    def _handle_lifecycle(self, events: list[PodLifecycleEvent]) -> None:
        worthy = {event.uid for event in events if event.type is not LifecycleEventType.CONTAINER_REMOVED}
        self._sync_pods([pod for uid in sorted(worthy) if (pod := self._pods.pod_by_uid(uid)) is not None])
        for event in events:
            if event.type is LifecycleEventType.CONTAINER_DIED:
                self._parts.housekeeping.container_died(event.uid, event.container_id)

    def _handle_probe(self, update: ProbeUpdate) -> None:
        pod = self._pods.pod_by_uid(update.pod_uid)
        if pod is not None and self._parts.probes.report(update):
            self._sync_pods([pod])

    def _handle_news(self, uid: str) -> None:
        pod = self._pods.pod_by_uid(uid)
        if pod is not None:
            self._sync_pods([pod])

    def _handle_recovery(self, _: None) -> None:
        self._ask_those_that_wait_for_the_runtime()
        self._sync_pods(self._pods.pods())

    def _handle_resizes(self, _: None) -> None:
        if not self._draining:
            self._sync_pods(self._parts.allocation.retry())

    def _handle_tick(self, _: None) -> None:
        self._ask_those_that_wait_for_the_runtime()
        self._sync_pods([pod for pod in self._pods.limited_in_time if self._parts.past_deadline(pod)])

    def _sync_pods(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            try:
                self._sync_pod(pod)
            except Exception as error:  # noqa: BLE001 - told; the pod is looked at again
                self._failed(pod, error)

    def _sync_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid not in self._admitting.held and not self._is_rejected(uid):
            self._update_worker(pod, self._pods.mirror_pod_of(pod), SyncPodType.SYNC)

    def _dispatch(self, pod: Pod, update_type: UpdateType) -> None:
        pair = self._pods.pair(pod)
        if pair.pod is None:
            log.debug("mirror pod without its static pod", pod=pod.full_name)
            return
        self._update_worker(pair.pod, pair.mirror_pod, SyncPodType.UPDATE if pair.was_mirror else update_type)

    def _update_worker(self, pod: Pod, mirror_pod: Pod | None, update_type: UpdateType) -> None:
        now = trio.current_time()
        self._workers.update_pod(UpdatePod(update_type=update_type, pod=pod, mirror_pod=mirror_pod, start_time=now))
