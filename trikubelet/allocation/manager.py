"""One resize after the other: it waits, is asked about, and granted or not (kubelet: `allocation.Manager`).

    admitted   a pod arrives: its allocation is stored; after a restart of the agent the stored one is what it has
    changed    its spec asks for other resources: it waits
    retry      pending resizes are checked, in order, each beside all others as allocated: granted ones are stored and
               synced, refused ones say so in a condition and wait for room, infeasible ones wait no more
    durable    the pod's worker waits until what was granted is on the disk, then makes the runtime follow
    synced     the runtime's progress is reported: the condition of a resize in progress comes, gets an error, goes

All of it is called by the sync loop and the pods' workers, and none of it waits but `durable`. The kubelet has a timer;
here whatever may make room tells `room_appeared`, and the sync loop comes back with `retry`.

The kubelet ends other pods for a critical pod's resize while it asks. Here they are asked to end by a task, the resize
waits meanwhile, and is asked about again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

import trio

from trikubelet.admission.admit import NodeAdmission
from trikubelet.admission.types import (
    Admitted,
    InfeasibleResize,
    NeedsFreshNode,
    Preempt,
    Rejected,
    Verdict,
    Wait,
)
from trikubelet.allocation import messages
from trikubelet.allocation.conditions import ERROR, NONE, ResizeConditions, granted, is_news, reported
from trikubelet.allocation.decisions import PendingResize, in_order, makes_room
from trikubelet.allocation.metrics import (
    NODE_CHANGED,
    POD_TERMINATED,
    POD_UPDATED,
    PODS_ADDED,
    PODS_REMOVED,
    TRIGGERS,
    ResizeCounts,
    ResizeStatistics,
    requested,
)
from trikubelet.allocation.model import ALL_RESIZES, PodAllocation, ResizeGates, allocation_of, with_allocation
from trikubelet.api import Node, Pod
from trikubelet.api.pod_kinds import is_terminal
from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.supervision import contain, follow, supervise
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Counts, bounded

if TYPE_CHECKING:
    from collections.abc import Collection

    from trio_typing import TaskStatus

    from trikubelet.allocation.store import AllocationStore
    from trikubelet.api import PodCondition
    from trikubelet.clock import WallClock
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("allocation")

WRITE_AFTER: Final = 0.5
"""Seconds from an allocation that no caller waits for to its write: a hundred pods that arrive are one write."""
WRITES: Final = Backoff(first=1.0, longest=30.0)
"""After a write that failed."""
MAKE_ROOM_AGAIN_AFTER: Final = 1.0
"""Seconds after which more pods are asked to end, when those that were asked did not in time."""
LAST_WRITE: Final = 5.0
"""Seconds for what is not written yet when the agent ends."""


MakeRoom = Callable[[Pod, Sequence[Pod], str], Awaitable[None]]
"""Ends pods for a critical one, for want of a resource; returns when they have ended or had their time."""


@frozen
class AllocationContext:
    """What the manager asks of the agent's other parts."""

    admission: NodeAdmission
    node: Callable[[], Node]
    """The newest copy at hand."""
    active: Callable[[], Sequence[Pod]]
    """The pods that take something of the node, by their specs."""
    pod_by_uid: Callable[[str], Pod | None]
    """A wanted pod, by its spec."""
    sources_ready: Callable[[], bool]
    """Whether all pods of the node are known: before that there seems to be more room than there is."""
    node_changes: Sequence[Broadcast[Any]] = ()
    """Each is sent when the node may have got more room."""


class AllocationManager:
    """Owns the allocated resources of pods and both of their resize conditions. `run` has to run."""

    def __init__(
        self,
        store: AllocationStore,
        context: AllocationContext,
        events: EventRecorder,
        clock: WallClock,
        gates: ResizeGates = ALL_RESIZES,
    ) -> None:
        self._store = store
        self._context = context
        self._events = events
        self._clock = clock
        self._gates = gates
        self.counts = ResizeCounts()
        self._conditions: dict[str, ResizeConditions] = {}
        self._waiting: dict[str, None] = {}
        """UIDs of pods that want other resources than they have, in the order in which they came."""
        self._making_room: set[str] = set()
        """Those of them that others are ending for."""
        self.retry_wanted: Broadcast[None] = Broadcast()
        """`retry` is to be called, and the pods that it returns are to be synced."""
        self._why: str | None = None
        """What the sync loop was woken for; None while it need not come."""
        self._seen: dict[str, tuple[Pod, PodAllocation, Pod]] = {}
        """For each pod the spec and the allocation that were put together last, and what came of it."""
        self._unwritten: Broadcast[None] = Broadcast()
        self._to_write = self._unwritten.subscribe()
        self._want_room, self._rooms = trio.open_memory_channel[tuple[Pod, Preempt]](math.inf)

    # What pods have

    def allocated(self, pod: Pod) -> Pod:
        """The pod with the resources that it was given; as it is when it was given none yet.

        The same object while neither the pod nor its allocation changes, and the pod itself when they agree.
        """
        uid = pod.metadata.uid
        allocation = self._store.get(uid)
        if allocation is None:
            return pod
        seen = self._seen.get(uid)
        if seen is not None and seen[0] is pod and seen[1] is allocation:
            return seen[2]
        together = with_allocation(pod, allocation, self._gates)
        self._seen[uid] = pod, allocation, together
        return together

    def conditions(self, uid: str) -> tuple[PodCondition, ...]:
        """The resize conditions of a pod, pending first; the same object until they change."""
        return self._conditions.get(uid, NONE).listed

    @property
    def waiting(self) -> Collection[str]:
        """UIDs of pods whose resize will be asked about again."""
        return self._waiting.keys()

    def statistics(self) -> ResizeStatistics:
        known = self._conditions.values()
        pending: Counts = Counter((one.pending.reason.lower(),) for one in known if one.pending is not None)
        return ResizeStatistics(pending, sum(one.in_progress is not None for one in known), len(self._waiting))

    # What becomes of pods

    def admitted(self, pod: Pod) -> None:
        """A pod may run, with the resources of `allocated(pod)`. `pod`: as its spec says.

        It need not be on the disk before the pod starts: what is lost is admitted anew.
        """
        uid, has = pod.metadata.uid, self.allocated(pod)
        self._set(uid, allocation_of(has, self._gates))
        if uid not in self._conditions:
            self._put(uid, reported(pod.status.conditions))
        if has is pod:
            self._put(uid, self._conditions.get(uid, NONE).without_pending())
        else:
            self._wait(uid, PODS_ADDED)

    def changed(self, old: Pod | None, new: Pod) -> None:
        """The spec of an admitted pod has changed, perhaps what it asks for. `old`: None if it is not known."""
        uid = new.metadata.uid
        if old is not None:
            before, after = allocation_of(old, self._gates), allocation_of(new, self._gates)
            if before == after:
                return
            self.counts.requested.update(requested(before, after))
        if self.allocated(new) is new:
            self._waiting.pop(uid, None)
            self._put(uid, self._conditions.get(uid, NONE).without_pending())
        else:
            self._wait(uid, POD_UPDATED)

    async def release(self, uid: str) -> None:
        """The pod will run no more: nothing of it is resized, and its room is free."""
        self._waiting.pop(uid, None)
        self._put(uid, NONE)
        self.room_appeared(POD_TERMINATED)

    def removed(self, uid: str) -> None:
        """The pod was removed from all sources."""
        self._forget(uid)
        self._store.forget(uid)
        self.room_appeared(PODS_REMOVED)

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all other pods: they went while the agent was away."""
        self._store.keep_only(uids)
        for uid in (self._conditions.keys() | self._seen.keys() | self._waiting.keys()) - set(uids):
            self._forget(uid)

    def synced(self, pod: Pod, *, in_progress: bool, error: str | None = None) -> bool:
        """How far the runtime is with a pod. Returns whether that changed the pod's conditions.

        `pod`: as allocated, when the runtime was compared with it; if it has got another allocation since, nothing is
        known of that one yet. `in_progress`: the runtime does not do what was allocated. `error`: why it failed to.
        """
        uid, now = pod.metadata.uid, self._clock.now()
        before = self._conditions.get(uid, NONE)
        if error is not None:
            after = before.with_in_progress(pod.metadata.generation, now, reason=ERROR, message=error)
        elif in_progress:
            after = before.with_in_progress(pod.metadata.generation, now)
        else:
            after = before.without_in_progress()
        if after is before or self._store.get(uid) != allocation_of(pod, self._gates):
            return False
        self._put(uid, after)
        if error is not None and after.in_progress is not None:
            text = messages.resize_error(pod, after.in_progress.observed_generation, error)
            self._events.pod_event(pod, EventType.WARNING, messages.RESIZE_ERROR, text)
        elif not in_progress and before.in_progress is not None:
            text = messages.resize_completed(pod, before.in_progress.observed_generation)
            self._events.pod_event(pod, EventType.NORMAL, messages.RESIZE_COMPLETED, text)
        return True

    # Those that wait

    def room_appeared(self, why: str) -> None:
        """Something may be possible now: have the sync loop retry, if anybody waits. `why`: one of TRIGGERS."""
        if self._waiting and self._why is None:
            self._why = why
            self.retry_wanted.send(None)

    def retry(self) -> list[Pod]:
        """Ask about all that wait. Returns the pods, by their specs, that have to be synced: for new resources, or to
        report other conditions.

        Until all sources are ready no resize is checked; then call `room_appeared`.
        """
        why, self._why = self._why or POD_UPDATED, None
        if not self._context.sources_ready():
            return []
        active = self._context.active()
        to_sync: dict[str, Pod] = {}
        again = True
        while again:
            again = refused = False
            for resize in self._in_order():
                pod, uid = resize.wanted, resize.wanted.metadata.uid
                if self._ask(resize, active, why):
                    to_sync[uid] = pod
                if self.allocated(pod) is not pod:
                    refused = True
                elif refused and makes_room(resize.allocated, pod):
                    again = True  # for those before it
        return list(to_sync.values())

    def _in_order(self) -> list[PendingResize]:
        resizes = []
        for uid in list(self._waiting):
            pod = self._context.pod_by_uid(uid)
            if pod is None or pod.metadata.deletion_timestamp is not None or is_terminal(pod):
                del self._waiting[uid]
            elif uid not in self._making_room:
                resizes.append(PendingResize(pod, self.allocated(pod), self._conditions.get(uid, NONE)))
        return in_order(resizes)

    def _ask(self, resize: PendingResize, active: Sequence[Pod], why: str) -> bool:
        """Returns whether the pod has to be synced (kubelet: `handlePodResourcesResize`)."""
        pod, uid = resize.wanted, resize.wanted.metadata.uid
        if resize.allocated is pod:
            del self._waiting[uid]
            return self._put(uid, resize.conditions.without_pending())
        others = [self.allocated(other) for other in active if other.metadata.uid != uid]
        verdict = self._context.admission.admit_resize(pod, resize.allocated, others, node=self._context.node())
        log.debug("resize asked about", pod=pod.full_name, uid=uid, verdict=type(verdict).__name__)
        return self._follow(resize, verdict, why)

    def _follow(self, resize: PendingResize, verdict: Verdict, why: str) -> bool:
        pod, uid = resize.wanted, resize.wanted.metadata.uid
        match verdict:
            case Admitted():
                self._grant(resize, why)
                return True
            case InfeasibleResize():
                del self._waiting[uid]
                self.counts.infeasible[(verdict.detail,)] += 1
                return self._refuse(resize, verdict)
            case Rejected():
                return self._refuse(resize, verdict)
            case Preempt():
                self._making_room.add(uid)
                self._want_room.send_nowait((pod, verdict))
                return False
            case Wait() | NeedsFreshNode():
                return False
            case _:
                assert_never(verdict)

    def _grant(self, resize: PendingResize, why: str) -> None:
        pod, uid, generation = resize.wanted, resize.wanted.metadata.uid, resize.wanted.metadata.generation
        del self._waiting[uid]
        self._set(uid, allocation_of(pod, self._gates))
        self._put(uid, granted(generation, self._clock.now()))
        if resize.conditions.deferred:
            self.counts.deferred_accepted[(bounded(why, TRIGGERS),)] += 1
        log.info("resize granted", pod=pod.full_name, uid=uid, generation=generation, trigger=why)
        text = messages.resize_started(pod, generation)
        self._events.pod_event(pod, EventType.NORMAL, messages.RESIZE_STARTED, text)

    def _refuse(self, resize: PendingResize, refusal: Rejected) -> bool:
        pod, generation = resize.wanted, resize.wanted.metadata.generation
        before = resize.conditions
        after = before.with_pending(refusal.reason, refusal.message, generation, self._clock.now())
        if is_news(before, after):
            reason = messages.RESIZE_INFEASIBLE if after.infeasible else messages.RESIZE_DEFERRED
            text = messages.resize_pending(pod, refusal.reason, refusal.message, generation)
            self._events.pod_event(pod, EventType.WARNING, reason, text)
            log.info("resize refused", pod=pod.full_name, reason=refusal.reason, problem=refusal.message)
        return self._put(pod.metadata.uid, after)

    def _wait(self, uid: str, why: str) -> None:
        self._waiting.setdefault(uid)
        self.room_appeared(why)

    def _put(self, uid: str, conditions: ResizeConditions) -> bool:
        """Returns whether they are others than before."""
        before = self._conditions.get(uid, NONE)
        if conditions == before:
            return False
        if conditions == NONE:
            del self._conditions[uid]
        else:
            self._conditions[uid] = conditions
        return True

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._conditions.pop(uid, None)
        self._seen.pop(uid, None)

    # What waits for others

    def _set(self, uid: str, allocation: PodAllocation) -> None:
        self._store.set(uid, allocation)
        if not self._store.is_durable:
            self._unwritten.send(None)

    async def durable(self) -> None:
        """Return when what was granted is on the disk: before the runtime is made to follow. At once if it is already.

        Raises CheckpointError: then nothing may follow; it is tried again by `run`. Cancellable but for a write that
        has begun.
        """
        await self._store.flush()

    async def run(self, make_room: MakeRoom, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what was allocated, and make room for critical pods, until cancelled; then the last write."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervise, self._keep_writing)
                for changes in self._context.node_changes:
                    nursery.start_soon(follow, changes.subscribe(lambda _: None), self._node_changed)
                task_status.started()
                await supervise(self._begin_to_make_room, nursery, make_room)
        finally:
            with trio.move_on_after(LAST_WRITE, shield=True):
                await self._write()

    def _node_changed(self, _: object) -> None:
        self.room_appeared(NODE_CHANGED)

    async def _begin_to_make_room(self, nursery: trio.Nursery, make_room: MakeRoom) -> None:
        async for pod, verdict in self._rooms:
            nursery.start_soon(contain, self._make_room, make_room, pod, verdict)

    async def _keep_writing(self) -> None:
        while True:
            if self._store.is_durable:
                await self._to_write.receive()
            await trio.sleep(WRITE_AFTER)
            self._to_write.drop(None)  # this write holds it
            pause = WRITES.first
            while not await self._write():
                await trio.sleep(pause)
                pause = WRITES.after(pause)

    async def _write(self) -> bool:
        try:
            await self._store.flush()
        except CheckpointError as error:
            log.error("allocated resources cannot be kept", problem=str(error))
            return False
        return True

    async def _make_room(self, make_room: MakeRoom, pod: Pod, verdict: Preempt) -> None:
        # They were judged as allocated, and end as what they are.
        victims = [self._context.pod_by_uid(victim.metadata.uid) or victim for victim in verdict.victims]
        try:
            await make_room(pod, victims, verdict.resource)
            active = {one.metadata.uid for one in self._context.active()}
            if any(victim.metadata.uid in active for victim in victims):
                await trio.sleep(MAKE_ROOM_AGAIN_AFTER)
        finally:
            self._making_room.discard(pod.metadata.uid)
        self.room_appeared(PODS_REMOVED)
