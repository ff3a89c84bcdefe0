"""The sync loop: where all events arrive that make the agent act on pods (kubelet: `syncLoopIteration`).

Everything that can make a pod's life go on arrives here: a change of the desired pods, lifecycle events, results of
probes, what admission waited for, a tick, the time for housekeeping. In Go this is one loop that selects over channels.
Here each channel has a task that takes its values and handles them one after the other. Handling an event never waits:
it decides what a value means for which pods, and `sync_handler` hands it to their workers. So no two events are ever
handled at the same moment. Only a batch of many pods is handled in slices, between which the rest of the agent gets its
turn; all other events wait until the batch is over.

Nothing is handled while the runtime cannot be relied on, as in the kubelet. An exception concerns the pod that was
handled, and no other: it is logged and recorded as an event, and the same version of the pod is handled again after a
while, unless a newer one comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

import attrs
import trio

from trikubelet.allocation.metrics import PODS_ADDED
from trikubelet.api import Pod
from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.formats.values import frozen
from trikubelet.pleg.lifecycle import LifecycleEventType, PodLifecycleEvent
from trikubelet.pods.reporting import is_past_active_deadline
from trikubelet.pods.sync_handler import SyncHandler
from trikubelet.pods.workers import record_fault
from trikubelet.runtime.results import CREATE_CONTAINER_CONFIG_ERROR
from trikubelet.sources.mux import PodOperation, PodUpdate
from trikubelet.supervision import FAULTS, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trio_typing import TaskStatus

    from trikubelet.pods.admitting import AdmittingEvent
    from trikubelet.pods.sync_handler import SyncParts
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
HOUSEKEEPING_PAUSE_PER_POD: Final = 1e-6
"""Seconds for each pod there is, times the number of pods within `_PAUSE_GROWTH`: the end of one of fifty pods waits
2.5 ms for others, of a hundred 10 ms, of five thousand a second. A round takes 8 us for each pod."""
_PAUSE_GROWTH: Final = (50, 200)
FEW_ENDING_PODS: Final = 100
"""A round of housekeeping for them costs too little to wait for the next end."""
HOUSEKEEPING_WARNING: Final = 1.0


def _pause_before_round(pods: int) -> float:
    few, many = _PAUSE_GROWTH
    return pods * min(max(pods, few), many) * HOUSEKEEPING_PAUSE_PER_POD


@frozen(eq=False)
class _Fault:
    """A version of a pod that could not be handled."""

    handle: Callable[[Pod], None]
    pod: Pod
    backoff: float


SLICE: Final = 100
"""Pods of a batch that are handled before the event loop turns: about 20 ms, of which the others' snapshot is a half
where there are thousands."""
MOST_NAMED: Final = 100
"""Pods of a batch that its line in the log names."""


class SyncLoop:
    """Handles events. Nothing that removes pods is done before every source has sent its first pods."""

    def __init__(self, parts: SyncParts) -> None:
        self._parts = parts
        self._handler = SyncHandler(parts)
        self._pods = parts.pods
        self._admitting = parts.admitting
        self._handled_sources: set[str] = set()
        self._draining = False
        self._skipping = ""
        """The problem for which nothing is handled at the moment."""
        self._batch: trio.Event | None = None
        """Set when the batch is over that is being handled now; None: none is."""
        self._faults: dict[str, _Fault] = {}
        """By UID, those that are to be handled again."""
        self._send_fault, self._new_faults = trio.open_memory_channel[_Fault](float("inf"))
        self._drain_began: Broadcast[None] = Broadcast()
        self._tick_wanted: Broadcast[None] = Broadcast()
        self._round_wanted = parts.workers.finished.subscribe(key=lambda _: None)
        """A pod's life is over, or a source has sent pods: housekeeping shall not wait for its period."""
        self._round_at = -float("inf")
        self.settled = trio.Event()
        """Every source has sent its first pods, and the pod workers know what ran on the node before."""
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
        parts, admitting = self._parts, self._admitting
        news = Subscription[str]()
        for changes in parts.news:
            news.also(changes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_batches, config.receive, self._handle_config)
            nursery.start_soon(self._follow, lifecycle.receive, self._handle_lifecycle)
            nursery.start_soon(self._follow, parts.probes.receive, self._handle_probe)
            nursery.start_soon(self._follow, news.receive, self._handle_news)
            nursery.start_soon(self._follow, parts.objects.changes.subscribe().receive, self._handle_object)
            nursery.start_soon(self._follow, parts.runtime_state.recovered.subscribe().receive, self._handle_recovery)
            nursery.start_soon(self._follow, parts.allocation.retry_wanted.subscribe().receive, self._handle_resizes)
            finished = parts.workers.finished.subscribe(key=lambda _: None)
            nursery.start_soon(self._follow_batches, partial(self._some_end, finished), self._handle_finished)
            nursery.start_soon(self._follow, admitting.done.receive, self._handle_admitting)
            nursery.start_soon(admitting.run)
            nursery.start_soon(supervise, self._tick)
            nursery.start_soon(supervise, self._keep_house)
            nursery.start_soon(self._handle_faults)
            task_status.started()

    # --- For other parts ---------------------------------------------------------------------------------------------

    @property
    def sources_ready(self) -> bool:
        """Whether the first pods of every source have been handled."""
        return self._parts.sources_ready(self._handled_sources)

    async def until_settled(self) -> None:
        """Wait for `settled`, SETTLE_TIMEOUT at most: before all pods are ended."""
        with trio.move_on_after(SETTLE_TIMEOUT):
            await self.settled.wait()

    def stop_starting(self) -> None:
        """From now on lifecycle events are taken in, and nothing else: the pods are being drained."""
        self._draining = True
        self._drain_began.send(None)

    # --- Taking events in --------------------------------------------------------------------------------------------

    async def _follow(self, receive: Callable[[], Awaitable[T]], handle: Callable[[T], None]) -> None:
        """Handle what comes out of one channel, until cancelled."""
        taken: list[T] = []

        async def handle_each() -> None:
            while True:
                if not taken:
                    taken.append(await receive())
                await self._until_healthy()
                self._handle(handle, taken.pop())

        await supervise(handle_each)

    async def _follow_batches(
        self, receive: Callable[[], Awaitable[T]], handle: Callable[[T], Awaitable[None]]
    ) -> None:
        """The same of events that may concern very many pods."""
        taken: list[T] = []

        async def handle_each() -> None:
            while True:
                if not taken:
                    taken.append(await receive())
                await self._until_healthy()
                self.entered_at = trio.current_time()
                self._batch = trio.Event()
                try:
                    await handle(taken.pop())
                except Exception as error:
                    log.error("an event could not be handled", kind=handle.__name__, exc_info=error)
                finally:
                    self._batch.set()
                    self._batch = None
                self._see_to_ticks()

        await supervise(handle_each)

    async def _in_slices(self, pods: Sequence[Pod], handle: Callable[[Sequence[Pod]], None]) -> None:
        """Handle the pods of a batch, a few at a time."""
        for begin in range(0, len(pods), SLICE):
            if begin:
                await trio.lowlevel.checkpoint()
                self.entered_at = trio.current_time()
            if self._draining:
                return
            handle(pods[begin : begin + SLICE])

    def _handle(self, handle: Callable[[T], None], event: T) -> None:
        self.entered_at = trio.current_time()
        try:
            handle(event)
        except Exception as error:
            log.error("an event could not be handled", kind=type(event).__name__, exc_info=error)
        self._see_to_ticks()

    def _see_to_ticks(self) -> None:
        if self._needs_ticks:
            self._tick_wanted.send(None)

    async def _until_healthy(self) -> None:
        """Nothing is synced while the runtime cannot be relied on (but pods are drained), or a batch is handled."""
        await self._until_batch_is_over()
        state, pause = self._parts.runtime_state, HEALTH_CHECKS.first
        while not self._draining and (problem := state.errors()) is not None:
            kind = re.sub(r"\d+", "", problem)  # it also says for how long
            if kind != self._skipping:
                log.error("skipping pod synchronization", error=problem)
                self._skipping = kind
            with state.recovered.subscribe().also(self._drain_began) as changes, trio.move_on_after(pause):
                await changes.receive()
            await self._until_batch_is_over()
            pause = HEALTH_CHECKS.after(pause)
        self._skipping = ""

    async def _until_batch_is_over(self) -> None:
        while self._batch is not None:
            await self._batch.wait()

    @property
    def _needs_ticks(self) -> bool:
        """Whether some pod waits for a time at which no event comes."""
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
                # A round looks at every pod, also at those that are not wanted any more. When many end one after the
                # other, one round is for several of them.
                ending = len(self._parts.workers.states.phases()) - FEW_ENDING_PODS
                await trio.sleep(_pause_before_round(max(len(self._pods.pods()), ending)))
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
        await trio.lowlevel.checkpoint()  # each of the three takes its time where there are thousands of pods
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

    def _each(self, handle: Callable[[Pod], None], pods: Sequence[Pod]) -> None:
        """Handle a version of each pod of a batch; an exception concerns that pod only."""
        for pod in pods:
            self._take_in(pod, handle, _Fault(handle, pod, FAULTS.first))

    def _take_in(self, pod: Pod, handle: Callable[[Pod], None], again: _Fault) -> None:
        try:
            handle(pod)
        except Exception as error:  # noqa: BLE001 - recorded, and tried again
            record_fault(self._parts.recorder, pod, error)
            self._faults[pod.metadata.uid] = again
            self._send_fault.send_nowait(again)
        else:
            self._faults.pop(pod.metadata.uid, None)

    async def _handle_faults(self) -> None:
        async with trio.open_nursery() as nursery:
            await supervise(self._begin_again, nursery)

    async def _begin_again(self, nursery: trio.Nursery) -> None:
        async for fault in self._new_faults:
            nursery.start_soon(supervise, self._handle_again, fault)

    async def _handle_again(self, fault: _Fault) -> None:
        await trio.sleep(fault.backoff)
        await self._until_batch_is_over()
        if self._faults.get(fault.pod.metadata.uid) is fault and not self._draining:  # nothing newer came
            later = attrs.evolve(fault, backoff=FAULTS.after(fault.backoff))
            self._handle(lambda pod: self._take_in(pod, fault.handle, later), fault.pod)

    # --- Config ------------------------------------------------------------------------------------------------------

    async def _handle_config(self, update: PodUpdate) -> None:
        if update.pods and not self._draining:
            names = [pod.full_name for pod in update.pods[:MOST_NAMED]]
            more = {"more": len(update.pods) - MOST_NAMED} if len(update.pods) > MOST_NAMED else {}
            log.info(f"pods {update.op.value}", source=update.source, pods=names, **more)
        match update.op:
            case PodOperation.ADD:
                await self._in_slices(self._by_rank(update.pods), self._add_pods)
            case PodOperation.UPDATE | PodOperation.DELETE:
                # A deletion is an update: the pod ends gracefully, and REMOVE follows.
                await self._in_slices(update.pods, partial(self._each, self._handler.update_pod))
            case PodOperation.REMOVE:
                await self._in_slices(update.pods, partial(self._each, self._handler.remove_pod))
            case PodOperation.RECONCILE:
                await self._in_slices(update.pods, partial(self._each, self._handler.reconcile_pod))
            case _:
                assert_never(update.op)
        if self._draining:
            return
        knew_all = self.sources_ready
        if update.op is not PodOperation.RECONCILE:
            self._parts.cgroups.pods_changed()
        self._handled_sources.add(update.source)
        if self.sources_ready and not knew_all:
            self._parts.allocation.keep_only({pod.metadata.uid for pod in self._pods.pods()})
            self._parts.allocation.room_appeared(PODS_ADDED)
        if self.sources_ready and not self.settled.is_set():
            self._round_wanted.put(update.source)

    def _by_rank(self, pods: Sequence[Pod]) -> list[Pod]:
        """Oldest first; after a restart of the agent those that had begun come before all others."""

        def rank(pod: Pod) -> tuple[bool, datetime]:
            begun = self._parts.cache.has_begun(pod.metadata.uid)
            return not begun, pod.metadata.creation_timestamp or _LONG_AGO

        return sorted(pods, key=rank)

    def _add_pods(self, pods: Sequence[Pod]) -> None:
        add, beside = self._handler.add_pod, self._handler.beside()
        for pod in pods:  # one after the other: each counts those before it
            self._take_in(pod, lambda pod: add(pod, beside), _Fault(add, pod, FAULTS.first))

    # --- All other events --------------------------------------------------------------------------------------------

    def _handle_lifecycle(self, events: list[PodLifecycleEvent]) -> None:
        worthy = {event.uid for event in events if event.type is not LifecycleEventType.CONTAINER_REMOVED}
        self._handler.sync_pods([pod for uid in sorted(worthy) if (pod := self._pods.pod_by_uid(uid)) is not None])
        for event in events:
            if event.type is LifecycleEventType.CONTAINER_DIED:
                self._parts.housekeeping.container_died(event.uid, event.container_id)

    def _handle_admitting(self, event: AdmittingEvent) -> None:
        if not self._draining:
            self._handler.admit_again(event)

    async def _some_end(self, finished: Subscription[str]) -> str:
        """Wait for the end of a pod's life. Where there are many pods, several ends are one."""
        uid = await finished.receive()
        if rejected := len(self._handler.rejected_static_pods()):
            await trio.sleep(_pause_before_round(rejected))
            finished.drop(None)
        return uid

    async def _handle_finished(self, _: str) -> None:
        await self._in_slices(self._handler.rejected_static_pods(), self._handler.admit_rejected_again)

    def _handle_probe(self, update: ProbeUpdate) -> None:
        pod = self._pods.pod_by_uid(update.key.pod_uid)
        if pod is not None and self._parts.probes.report(update):
            self._handler.sync_pods([pod])

    def _handle_news(self, uid: str) -> None:
        pod = self._pods.pod_by_uid(uid)
        if pod is not None:
            self._handler.sync_pods([pod])

    def _handle_object(self, key: tuple[str, str, str]) -> None:
        # A ConfigMap or Secret came or changed: pods whose containers' environment lacked it need not wait.
        for uid in self._parts.objects.referring(*key):
            reasons = self._parts.runtime.waiting_reasons(uid).values()
            if any(reason == CREATE_CONTAINER_CONFIG_ERROR for reason, _ in reasons):
                self._handle_news(uid)

    def _handle_recovery(self, _: None) -> None:
        self._handler.admit_what_waited_for_runtime()
        self._handler.sync_pods(self._pods.pods())

    def _handle_resizes(self, _: None) -> None:
        if not self._draining:
            self._handler.sync_pods(self._parts.allocation.retry())

    def _handle_tick(self, _: None) -> None:
        self._handler.admit_what_waited_for_runtime()
        self._handler.sync_pods([pod for pod in self._pods.limited_in_time if self._is_past_deadline(pod)])

    def _is_past_deadline(self, pod: Pod) -> bool:
        reported = self._parts.statuses.get_pod_status(pod.metadata.uid)
        start_time = None if reported is None else reported.start_time
        return is_past_active_deadline(pod, start_time, self._parts.clock.now())
