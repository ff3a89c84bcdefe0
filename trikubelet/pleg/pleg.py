"""Inspections: at most one of a pod in flight, a bounded number in all, each published and compared.

`inspect_soon` is the one entry for every source of a change: event sources, relists, the pod
workers after they acted, and readers of the cache. Requests for a pod that is being inspected make one more
inspection afterwards, since the one in flight may have read too early; unless it is known when the thing happened, and
that was before.

While a worker acts on a pod (`acting`), each of its steps makes the sources speak. No reader could use what an
inspection then sees: the worker is busy, and asks for a fresh one when it is done. So what the sources say of that pod
meanwhile becomes one inspection at the end. A reader of the cache that needs news does not wait for that.

What an inspection costs most is to list: the runtime goes through all that the node holds. So a pod is *followed* whose
containers all were made by this agent, and whose every action told what it made. Its contents are known, and it is
inspected by their ids. It is listed all the same when a source tells of an id that is not known, or of none; when
something of it is gone; and by the relists, as ever. An action that failed or was cancelled may have made something
that nobody knows of, perhaps later: that pod is not followed any more.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.container.model import ContainerState, contents
from trikubelet.formats.values import define, frozen
from trikubelet.pleg.cache import PodStatusCache
from trikubelet.pleg.exits import poll_until
from trikubelet.pleg.lifecycle import LifecycleEventType, PodLifecycleEvent, compare, states_of_status
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trio_typing import TaskStatus

    from trikubelet.container.model import PodRuntimeStatus, RunningPod

log = get_logger("pleg")

MAX_INSPECTIONS: Final = 16
_EVENT_BATCHES: Final = 64
PERIOD_WITHOUT_DEMAND: Final = 1.0
"""Seconds."""


class RuntimeView(Protocol):
    """The part of the runtime manager that PLEG looks through."""

    async def get_pods(self, *, all: bool = False) -> list[RunningPod]:  # noqa: A002 - the kubelet's word
        ...

    async def get_pod_status(
        self, uid: str, name: str, namespace: str, contents: Mapping[str, str] | None = None
    ) -> PodRuntimeStatus: ...


@frozen
class PlegStatistics:
    queued: int
    in_flight: int
    inspections: int
    failures: int
    events: int


@define
class Action:
    """What came of an action on a pod."""

    changed: bool = True
    """It may have changed something in the runtime."""
    made: Mapping[str, str] | None = None
    """All that it made, as `container.model.contents` has it. None: it may have made what is not known."""


class Pleg:
    """Owns the cache and sends lifecycle events, in order per pod, on `events`.

    The channel blocks inspections when its reader is slow: no event is lost, and none is sent before the cache holds
    what it tells of.
    """

    def __init__(
        self,
        runtime: RuntimeView,
        *,
        on_demand: bool = True,
        on_observed: Callable[[PodRuntimeStatus], None] = lambda status: None,
    ) -> None:
        """`on_demand`: what a worker has done, and who waits for news, makes an inspection at once. Else only sources
        do, and once a second all pods are inspected of which that is wanted, as by a kubelet's relist. `on_observed` is
        called with every status that is published; it must neither wait nor raise."""
        self.cache = PodStatusCache(self._inspect_on_demand)
        self._put_off: set[str] | None = None if on_demand else set()
        self._runtime = runtime
        self._send, self.events = trio.open_memory_channel[list[PodLifecycleEvent]](_EVENT_BATCHES)
        self.observed: Broadcast[PodRuntimeStatus] = Broadcast()
        """Every status that was published."""
        self._on_observed = on_observed
        self._queue_send, self._queue = trio.open_memory_channel[str](math.inf)
        self._queued: set[str] = set()
        self._in_flight: dict[str, float] = {}
        """When the inspection of a pod began."""
        self._again: set[str] = set()
        self._relied_on: set[str] = set()
        """Pods of which something was said that the inspection in flight will have seen, if it succeeds."""
        self._ends_in_flight: dict[str, set[str]] = {}
        """Containers by pod whose end was reported while the pod was inspected."""
        self._failed: set[str] = set()
        self._acting: dict[str, trio.Event] = {}
        """Pods that a worker acts on, with what is set when it is done."""
        self._reported: dict[str, set[str]] = {}
        """Those of them that a source has reported meanwhile, with the ids of what it told of; empty: not known."""
        self._followed: set[str] = set()
        """Pods whose contents are known: what was last observed, and"""
        self._made: dict[str, Mapping[str, str]] = {}
        """what was made since."""
        self._to_list: set[str] = set()
        """Pods whose next inspection has to list them nevertheless."""
        self.durations = Histogram()
        """Seconds that inspections took, failed ones too."""
        self._inspections = 0
        self._failures = 0
        self._events = 0

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Inspect what is asked for until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_INSPECTIONS):
                nursery.start_soon(self._work)
            if self._put_off is not None:
                nursery.start_soon(supervise, self._inspect_each_second, self._put_off)
            task_status.started()

    def inspect_soon(self, uid: str, happened_at: float = math.inf, container_id: str = "") -> None:
        """Something may have happened to this pod: look now. Never blocks, coalesces.

        `happened_at`: the Trio time of it, where that is known. What was observed since needs no second look.
        `container_id`: of the container or sandbox that it happened to, where that is known.
        """
        # What is not known is not among what is looked at by ids.
        if uid not in self._followed or self._knows(uid, container_id):
            if self._in_flight.get(uid, -math.inf) >= happened_at:
                self._relied_on.add(uid)
                return
            if self.cache.observed_at(uid) >= happened_at:
                return
        self._inspect_when_idle(uid, container_id)

    def container_ended(self, uid: str, container_id: str) -> None:
        """A source reports this end: inspect, unless an inspection has seen it or the one in flight will.

        No time is given, since no death may be missed because two clocks differ. Never blocks, coalesces.
        """
        if uid in self._in_flight:
            self._ends_in_flight.setdefault(uid, set()).add(container_id)
        elif not self.has_seen_end(uid, container_id):
            self._inspect_when_idle(uid, container_id)

    def container_removed(self, uid: str, container_id: str, happened_at: float) -> None:
        """The runtime said that it has removed a container or sandbox. Nothing is asked if it was known to have ended.

        Never blocks.
        """
        status = self.cache.last_seen(uid)
        state = None if status is None else states_of_status(status).get(container_id)
        has_room = self._send.statistics().current_buffer_used < _EVENT_BATCHES
        if state is ContainerState.EXITED and has_room and uid not in self._in_flight:
            self.cache.publish_removal(uid, container_id)
            self._forget_if_empty(uid)
            self._events += 1
            self._send.send_nowait([PodLifecycleEvent(uid, LifecycleEventType.CONTAINER_REMOVED, container_id)])
        else:
            self.inspect_soon(uid, happened_at)

    def removed_by_agent(self, container_id: str) -> None:
        """The agent has removed a container or sandbox."""
        uid = self.cache.pod_of(container_id)
        if uid is not None:
            self.container_removed(uid, container_id, trio.current_time())

    async def until_runtime_knows_end(self, uid: str, container_id: str) -> None:
        """Look again and again until the runtime does not say any more that this container or sandbox runs.

        For ends that are known before the runtime knows them. Raises the inspection's error. May be cancelled freely.
        """
        await self.until_nobody_acts(uid)

        async def runs_no_more() -> bool:
            status = await self.cache.get_newer_than(uid, self._in_flight.get(uid, trio.current_time()))
            return states_of_status(status).get(container_id) is not ContainerState.RUNNING

        await poll_until(runs_no_more)

    @contextmanager
    def acting(self, uid: str) -> Iterator[Action]:
        """Within, the caller acts on the pod, alone. One inspection follows, also when it failed or was cancelled, for
        what it did and for what sources said of the pod meanwhile; none when there was neither."""
        done, action = trio.Event(), Action()
        self._acting[uid] = done
        if not self.cache.has_begun(uid):
            self._followed.add(uid)
        try:
            yield action
        finally:
            del self._acting[uid]
            done.set()
            if action.made is None:
                self._unfollow(uid)
            elif uid in self._followed:
                self._made[uid] = {**self._made.get(uid, {}), **action.made}
            reported = self._reported.pop(uid, set())
            if not all(self._knows(uid, container_id) for container_id in reported):
                self._to_list.add(uid)
            if action.changed or reported:
                self._inspect_on_demand(uid)

    async def until_nobody_acts(self, uid: str) -> None:
        """Return when no worker acts on the pod, at once when none does now."""
        done = self._acting.get(uid)
        if done is not None:
            await done.wait()

    def has_seen_end(self, uid: str, container_id: str) -> bool:
        """Whether the newest observation has this container or sandbox as ended."""
        status = self.cache.last_seen(uid)
        return status is not None and states_of_status(status).get(container_id) is ContainerState.EXITED

    async def until_looked(self, uid: str) -> None:
        """Return when no inspection of the pod is under way or asked for. Raises the inspection's error."""
        if self._is_inspected(uid):
            await self.cache.get_newer_than(uid, self._in_flight.get(uid, trio.current_time()))

    def _knows(self, uid: str, container_id: str) -> bool:
        return container_id in self._contents(uid)

    def _contents(self, uid: str) -> Mapping[str, str]:
        """All that the pod holds, as far as is known."""
        seen = self.cache.last_seen(uid)
        return {**({} if seen is None else contents(seen)), **self._made.get(uid, {})}

    def _unfollow(self, uid: str) -> None:
        self._followed.discard(uid)
        self._made.pop(uid, None)

    def _forget_if_empty(self, uid: str) -> None:
        """A pod of which nothing is left is not remembered."""
        if not self.cache.has_begun(uid) and uid not in self._acting:
            self._unfollow(uid)

    def _inspect_when_idle(self, uid: str, container_id: str = "") -> None:
        """A source told of the pod, and of which of its containers; empty: of none."""
        if uid in self._acting:
            self._reported.setdefault(uid, set()).add(container_id)
        else:
            if not self._knows(uid, container_id):
                self._to_list.add(uid)
            self._inspect_now(uid)

    def _inspect_on_demand(self, uid: str, begun_since: float = math.inf) -> None:
        if self._put_off is None:
            self._inspect_now(uid, begun_since)
        else:
            self._put_off.add(uid)

    async def _inspect_each_second(self, wanted: set[str]) -> None:
        while True:
            await trio.sleep(PERIOD_WITHOUT_DEMAND)
            while wanted:
                self._inspect_now(wanted.pop())

    def _inspect_now(self, uid: str, begun_since: float = math.inf) -> None:
        """`begun_since`: from when on an inspection will do that is in flight."""
        if uid in self._in_flight:
            if self._in_flight[uid] < begun_since:
                self._again.add(uid)
        elif uid not in self._queued:
            self._queued.add(uid)
            self._queue_send.send_nowait(uid)

    def is_busy_with(self, uid: str) -> bool:
        """Whether the pod is being looked at, or will be, or a worker acts on it."""
        return uid in self._acting or self._is_inspected(uid)

    def _is_inspected(self, uid: str) -> bool:
        """Now or soon."""
        return uid in self._queued or uid in self._in_flight or uid in (self._put_off or ())

    def failed_inspections(self) -> set[str]:
        """Pods whose last inspection failed; the next relist asks again."""
        return set(self._failed)

    def statistics(self) -> PlegStatistics:
        return PlegStatistics(
            queued=len(self._queued),
            in_flight=len(self._in_flight),
            inspections=self._inspections,
            failures=self._failures,
            events=self._events,
        )

    async def _work(self) -> None:
        unsent: list[list[PodLifecycleEvent]] = []
        await supervise(self._inspect_queued, unsent)

    async def _inspect_queued(self, unsent: list[list[PodLifecycleEvent]]) -> None:
        """`unsent`: at most one batch of events, of an inspection that was broken off."""
        await self._send_all(unsent)
        async for uid in self._queue:
            self._queued.discard(uid)
            self._in_flight[uid] = trio.current_time()
            try:
                await self._inspect(uid, unsent)
                await self._send_all(unsent)
            except Exception:
                self._failed.add(uid)  # the next relist asks again
                raise
            finally:
                del self._in_flight[uid]
            relied_on_a_failure = uid in self._relied_on and uid in self._failed
            self._relied_on.discard(uid)
            ends = self._ends_in_flight.pop(uid, ())
            if uid in self._again:
                self._again.discard(uid)
                self._inspect_now(uid)
            elif relied_on_a_failure:
                self._inspect_when_idle(uid)
            for container_id in ends:
                if not self.has_seen_end(uid, container_id):
                    self._inspect_when_idle(uid, container_id)

    async def _send_all(self, unsent: list[list[PodLifecycleEvent]]) -> None:
        while unsent:
            await self._send.send(unsent[0])
            del unsent[0]

    async def _inspect(self, uid: str, unsent: list[list[PodLifecycleEvent]]) -> None:
        began = trio.current_time()
        before = self.cache.last_seen(uid)
        name, namespace = ("", "") if before is None else (before.name, before.namespace)
        self._inspections += 1
        made = self._made.get(uid)
        # What is made by an action is known when that is over.
        by_ids = uid in self._followed and uid not in self._to_list and uid not in self._acting
        self._to_list.discard(uid)
        try:
            status = await self._runtime.get_pod_status(uid, name, namespace, self._contents(uid) if by_ids else None)
        except Exception as error:  # noqa: BLE001 - published to the readers, and asked again at the next relist
            self._failures += 1
            self._failed.add(uid)
            self._unfollow(uid)
            self.durations.observe(trio.current_time() - began)
            log.warning("cannot inspect pod", uid=uid, error=str(error))
            self.cache.publish_error(uid, error, began)
            return
        self._failed.discard(uid)
        if before is not None:
            status = _with_known_addresses(status, before)
        after = states_of_status(status)
        self.cache.publish(uid, status, began)
        if made is not None and self._made.get(uid) is made:
            del self._made[uid]
        self._forget_if_empty(uid)
        self.durations.observe(trio.current_time() - began)
        self._on_observed(status)
        self.observed.send(status)
        events = compare(uid, {} if before is None else states_of_status(before), after)
        if events:
            self._events += len(events)
            unsent.append(events)


def _with_known_addresses(status: PodRuntimeStatus, before: PodRuntimeStatus) -> PodRuntimeStatus:
    """A stopped sandbox has no addresses, but its pod is still shown with those that it had (kubelet: `getPodIPs`)."""
    if status.ips or any(sandbox.ready for sandbox in status.sandbox_statuses):
        return status
    return attrs.evolve(status, ips=before.ips)
