"""Writes pods' statuses to the API server, and lets ended pods' objects go (kubelet: the status manager's `syncBatch`).

The story of a status: the status manager offers a change, which wakes this writer. What to do about it is decided by
`write_decisions`, from the newest copies of everything, at the moment when it is done; so changes that come while a
write is in flight add up. Each pod has at most one task, for as long as there is something to do for it: no pod waits
for another one's write, as they do in the kubelet. A copy of the server comes from the watch or from the reply to the
last write, whichever is newer; nothing is fetched unless a write failed in a way that leaves doubts.

An ordinary change waits a moment for the next one, and in the client for its rate limit; when it becomes urgent, the
waiting write is given up. Every ten seconds all pods are looked at, for what was missed and what others overwrote.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, assert_never

import attrs
import trio

from trikubelet.api import Pod, to_dict
from trikubelet.api.pod_kinds import is_mirror_pod
from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import define, frozen
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.recovery import until_recovery
from trikubelet.kube_client.types import PODS, PatchType, Urgency, version_number
from trikubelet.status.write_decisions import (
    DeletePod,
    Failures,
    Fetch,
    LastAction,
    Later,
    NothingThere,
    ObjectGone,
    PatchStatus,
    Record,
    Retry,
    UpToDate,
    WriteAction,
    accepted,
    after_failure,
    missing_fields,
    newest,
    record_for,
    up_to_date,
)
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.clock import WallClock
    from trikubelet.kube_client.store import Store
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.status.manager import PodLookup, StatusChange, StatusManager, StatusSubscription

log = get_logger("status-writer")

LOOK_PERIOD: Final = 10.0
"""Seconds, as the kubelet's `syncPeriod`."""
GATHERING: Final = 0.05
"""Seconds that an ordinary change waits for more."""
GATHERING_WHEN_MORE_FOLLOWS: Final = 1.0
"""The same for what mostly comes just before something that others wait for, and can be written with it."""
DURATION_BOUNDS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60)
"""Seconds, as of the kubelet's `pod_status_sync_duration_seconds`."""
URGENT_TIMEOUT: Final = 0.1
"""Seconds that an ordinary write may take on when an urgent change waits behind it: more than a round trip."""
RECOVERY_SPREAD: Final = 1.0
RECOVERIES_PER_SECOND: Final = 100
"""When the API server is back, the pods that waited for it come one after the other, within a second."""


@frozen
class WriterStatistics:
    """Counts for debugging."""

    pods: int
    working: int
    pausing: int
    """Waiting to try again."""
    writes: int
    deletions: int
    fetches: int
    failures: int
    """Since the start."""


@define(eq=False)
class _Work:
    """The writer's state of one pod."""

    uid: str
    name: str
    """The full name."""
    record: Record = attrs.field(factory=Record)
    reply: Pod | None = None
    """The server's last answer."""
    action: LastAction = attrs.field(factory=LastAction)
    failures: Failures = attrs.field(factory=Failures)
    running: bool = False
    """A task is at it."""
    waiting_since: float | None = None
    """Trio time of the first change that is not written."""
    news: Broadcast[None] = attrs.field(factory=Broadcast)
    """Something has changed."""
    ordinary: trio.CancelScope | None = None
    """Around an ordinary write in flight."""
    pause: trio.CancelScope | None = None
    """Around the wait before another try; cancelling it ends the wait."""
    refused: StatusChange | None = None
    """The refused change that it pauses for; another change ends the pause."""


class StatusWriter:
    """See the module's text. One per agent; `run` it once."""

    def __init__(
        self,
        client: ApiClient,
        statuses: StatusManager,
        pods: PodLookup,
        served: Store[Pod],
        *,
        may_run: Callable[[str], bool],
        clock: WallClock,
        rng: Random,
        limit: int = 32,
    ) -> None:
        """`served` holds the server's pods of this node. `may_run` tells by UID whether a pod could have running
        containers. At most `limit` urgent and as many ordinary requests are in flight."""
        self._client = client
        self._statuses = statuses
        self._pods = pods
        self._served = served
        self._may_run = may_run
        self._clock = clock
        self._rng = rng
        self._slots = {urgency: trio.CapacityLimiter(limit) for urgency in Urgency}
        self._work: dict[str, _Work] = {}
        self._start, self._begun = trio.open_memory_channel[_Work](math.inf)
        self._progress: Broadcast[None] = Broadcast()
        """A pod's task has ended."""
        self._writes = self._deletions = self._fetches = self._failures = 0
        self.durations = Histogram(DURATION_BOUNDS)
        """Seconds from the first change that was not written yet to the write that holds it."""
        self._known_missing: set[str] = set()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled. What is cancelled half-way is found again by the next agent."""
        self._served.subscribe(self._served_changed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._look_periodically)
            nursery.start_soon(self._follow, self._statuses.subscribe())
            task_status.started()
            await supervise(self._begin_to_write, nursery)

    async def _begin_to_write(self, nursery: trio.Nursery) -> None:
        async for work in self._begun:
            nursery.start_soon(contain, self._write, work)

    async def _follow(self, changes: StatusSubscription) -> None:
        with changes:
            await supervise(self._notice_each, changes)

    async def _notice_each(self, changes: StatusSubscription) -> None:
        async for change in changes:
            self._notice(change.pod.metadata.uid)
            self._hasten(change.pod.metadata.uid)

    async def until_written(self, uids: Collection[str]) -> None:
        """Return once the API server has the newest status of each of these pods, as far as it has the pod."""
        while any(self._is_unwritten(uid) for uid in uids):
            await self._progress.wait()

    def _is_unwritten(self, uid: str) -> bool:
        change = self._statuses.change(uid)
        if change is None:
            return False
        work = self._work_on(change.pod)
        return work.running or self._is_left_to_do(work)

    def _work_on(self, pod: Pod) -> _Work:
        uid = pod.metadata.uid
        work = self._work.get(uid)
        if work is None:
            work = self._work[uid] = _Work(uid, pod.full_name)
        return work

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(
            pods=len(self._work),
            working=sum(work.running for work in self._work.values()),
            pausing=sum(work.pause is not None for work in self._work.values()),
            writes=self._writes,
            deletions=self._deletions,
            fetches=self._fetches,
            failures=self._failures,
        )

    # --- What happens ------------------------------------------------------------------------------------------------

    def _served_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        # The pod manager hears of a mirror pod later than the store.
        shown = self._pods.pod_by_full_name(pod.full_name) if is_mirror_pod(pod) else pod
        if shown is not None:
            self._notice(shown.metadata.uid)

    async def _look_periodically(self) -> None:
        while True:
            await trio.sleep(LOOK_PERIOD)
            for change in self._statuses.changes():
                self._notice(change.pod.metadata.uid)
            for uid in [uid for uid, work in self._work.items() if not work.running]:
                if self._statuses.change(uid) is None:
                    del self._work[uid]
            self._progress.send(None)

    def _notice(self, uid: str) -> None:
        """Something about the pod has changed: see to it that it is looked at."""
        change = self._statuses.change(uid)
        if change is None:
            return
        work = self._work_on(change.pod)
        if work.waiting_since is None and change is not work.record.change:
            work.waiting_since = trio.current_time()
        work.news.send(None)
        if not work.running:
            if self._is_likely_to_be_written(work, change) or self._is_left_to_do(work):
                work.running = True
                self._start.send_nowait(work)
        elif work.pause is not None and work.refused is not None and work.refused is not change:
            work.pause.cancel()

    def _hasten(self, uid: str) -> None:
        """An ordinary write in flight is given up when the newest change is urgent."""
        work = self._work.get(uid)
        if work is not None and work.ordinary is not None:
            action = self._next(work)
            if isinstance(action, PatchStatus) and action.urgency is Urgency.URGENT:
                work.ordinary.deadline = min(work.ordinary.deadline, trio.current_time() + URGENT_TIMEOUT)

    def _is_likely_to_be_written(self, work: _Work, change: StatusChange) -> bool:
        """Then its task finds out, since a pod's changes often come by twos."""
        new = change is not work.record.change and not work.record.gone
        return new and self._copy(change.pod, work) is not None

    def _is_left_to_do(self, work: _Work) -> bool:
        """Notes that the server has the newest status when there is nothing to do."""
        action = self._next(work)
        if isinstance(action, UpToDate):
            self._written(work, up_to_date(work.record, action))
        return not isinstance(action, NothingThere | UpToDate | Later)

    # --- One pod -----------------------------------------------------------------------------------------------------

    async def _write(self, work: _Work) -> None:
        try:
            while True:
                if not self._is_left_to_do(work):
                    return
                action = self._next(work)
                urgency = action.urgency if isinstance(action, PatchStatus) else Urgency.URGENT
                if isinstance(action, PatchStatus) and urgency is Urgency.ORDINARY and await self._gather(work, action):
                    continue
                async with self._slots[urgency]:
                    # Waiting for the slot may have taken long.
                    action = self._next(work)
                    if isinstance(action, PatchStatus) and action.urgency is not urgency:
                        continue
                    pause = await self._try(work, action)
                if pause is not None:
                    await self._pause(work, *pause)
        except Exception as error:  # one pod's oddity must not end the agent; the next look is in a while
            log.error("a pod's status cannot be written", pod=work.name, uid=work.uid, exc_info=error)
        finally:
            work.running = False
            self._progress.send(None)

    async def _gather(self, work: _Work, patch: PatchStatus) -> bool:
        """Wait for more, if the first change is very new. Returns whether there was a wait."""
        since = work.waiting_since if work.waiting_since is not None else -float("inf")
        left = since + (GATHERING_WHEN_MORE_FOLLOWS if patch.more_follows else GATHERING) - trio.current_time()
        if left <= 0:
            return False
        with trio.move_on_after(left):
            await work.news.wait()
        return True

    async def _try(self, work: _Work, action: WriteAction) -> tuple[Retry, int] | None:
        """Carry it out. Returns how to go on when it failed, with the recoveries of the API server before."""
        recoveries = self._client.health.recoveries
        try:
            await self._carry_out(work, action)
        except ApiError as error:
            self._failures += 1
            before = work.failures
            work.failures, remedy = after_failure(error, before)
            if isinstance(remedy, ObjectGone):
                log.debug("pod does not exist on the server", pod=work.name, uid=work.uid)
                work.record = attrs.evolve(work.record, gone=True)
                return None
            self._log_failure(work, error, first=before.count == 0)
            if remedy.fetch:
                work.record = attrs.evolve(work.record, unsure=True)
            return remedy, recoveries
        if not isinstance(action, Fetch):
            work.failures = Failures()
        return None

    async def _carry_out(self, work: _Work, action: WriteAction) -> None:
        match action:
            case PatchStatus():
                await self._patch(work, action)
            case DeletePod(copy=pod):
                metadata = pod.metadata
                await self._client.delete(
                    PODS, metadata.name, metadata.namespace, grace_period=0, uid=metadata.uid, urgency=Urgency.URGENT
                )
                self._deletions += 1
                work.record = attrs.evolve(work.record, gone=True)
                log.debug("pod fully terminated and removed", pod=pod.full_name, uid=work.uid)
            case Fetch(pod=pod):
                metadata = pod.metadata
                work.reply = await self._client.get(PODS, metadata.name, metadata.namespace)
                self._fetches += 1
                work.record = attrs.evolve(record_for(work.record, work.reply), unsure=False)
            case NothingThere() | UpToDate() | Later():
                pass
            case _:
                assert_never(action)

    async def _patch(self, work: _Work, patch: PatchStatus) -> None:
        metadata = patch.copy.metadata
        with trio.CancelScope() as scope:
            if patch.urgency is Urgency.ORDINARY:
                work.ordinary = scope
            try:
                reply = await self._client.patch(
                    PODS,
                    metadata.name,
                    metadata.namespace,
                    PatchType.STRATEGIC,
                    patch.body,
                    subresource="status",
                    urgency=patch.urgency,
                )
            finally:
                work.ordinary = None
        if scope.cancelled_caught:
            # Mostly it was waiting for the rate limit, but the request may have been sent.
            work.record = attrs.evolve(work.record, unsure=True)
            return
        self._writes += 1
        if work.waiting_since is not None:
            self.durations.observe(trio.current_time() - work.waiting_since)
        work.reply = reply
        self._written(work, accepted(work.record, patch, reply, trio.current_time()))
        self._record_missing(patch, reply)

    async def _pause(self, work: _Work, retry: Retry, recoveries: int) -> None:
        """Until the time has come, or the API server is back, or a change comes that may fare better."""
        pause = retry.pause * self._rng.uniform(0.75, 1.25)
        if pause <= 0:
            await trio.lowlevel.checkpoint()
            return
        work.pause = trio.CancelScope()
        work.refused = self._statuses.change(work.uid) if retry.sooner_for_change else None
        try:
            await until_recovery(
                self._client.health, recoveries, pause, sooner=work.pause, spread=self._spread_of_recoveries
            )
        finally:
            work.pause = None

    def _spread_of_recoveries(self) -> float:
        pausing = sum(work.pause is not None for work in self._work.values())
        return self._rng.uniform(0, min(RECOVERY_SPREAD, pausing / RECOVERIES_PER_SECOND))

    # --- What is known -----------------------------------------------------------------------------------------------

    def _next(self, work: _Work) -> WriteAction:
        change = self._statuses.change(work.uid)
        if change is None:
            return NothingThere()
        copy = self._copy(change.pod, work)
        work.record = record_for(work.record, copy)
        return work.action.next(
            change,
            work.record,
            copy,
            may_fetch=not self._served.synced and self._pods.pod_by_uid(work.uid) is not None,
            may_run=self._may_run(work.uid),
            now=self._clock.now(),
            time=trio.current_time(),
        )

    def _copy(self, pod: Pod, work: _Work) -> Pod | None:
        """The newest copy of the object with the pod's name, None when there is none."""
        watched = self._served.get(pod.metadata.name, pod.metadata.namespace)
        if watched is None and work.reply is not None and self._served.synced:
            answered = version_number(work.reply.metadata.resource_version)
            if version_number(self._served.resource_version) >= answered:
                work.reply = None  # the watch has told of more, and of its deletion
        return newest(watched, work.reply)

    def _written(self, work: _Work, record: Record) -> None:
        work.record = record
        if self._statuses.change(work.uid) is record.change:
            work.waiting_since = None

    def _log_failure(self, work: _Work, error: ApiError, *, first: bool) -> None:
        causes = []
        if isinstance(error, ApiStatusError) and error.invalid and error.details is not None:
            causes = [f"{cause.field}: {cause.message}" for cause in error.details.causes]
        about = {"pod": work.name, "uid": work.uid, "error": str(error)}
        if causes:
            log.error("the API server finds the status invalid", **about, causes=causes)
        elif first:
            log.warning("failed to update the status", **about)
        else:
            log.debug("failed to update the status again", **about)

    def _record_missing(self, patch: PatchStatus, reply: Pod) -> None:
        """Say once of each field that the server does not keep it."""
        if reply.status == patch.merged:
            return
        missing = missing_fields(patch.fields, to_dict(reply.status)) - self._known_missing
        if missing:
            self._known_missing |= missing
            log.info("the API server does not keep some fields of statuses", fields=sorted(missing))
