"""Watches for the machine's shutdown, and ends the pods when it begins (kubelet: `nodeshutdown.managerImpl`).

One task watches logind, as long as the agent runs. The bus and logind may go away and come back, also in the middle of
a shutdown: then the watcher finds logind again and asks it anew how things are. It holds one inhibitor all the time,
and lets go of it only for a newer one, or when the pods have ended. The shutdown itself is another task, which needs
only the pods: what happens to the bus does not concern it.

Logind refuses new inhibitors once a shutdown has begun. An agent that is started in the middle of one has the inhibitor
of the one before it where the service manager has kept that; in any case it ends the pods, in what is left of their
time.

Unlike the kubelet, which has no inhibitor at all when logind cannot be made to wait as long as is asked for, this has
one then, and logs how long the pods have. And a shutdown that is called off while pods end spares those whose turn has
not come.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

import trio

from trikubelet.backoff import Backoff
from trikubelet.formats.values import frozen
from trikubelet.node.shutdown.groups import (
    grace_period,
    group_by_priority,
    late_groups,
    terminated_status,
    time_for_all,
)
from trikubelet.node.shutdown.interface import LogindError
from trikubelet.node.shutdown.record import ShutdownTimes
from trikubelet.pods.workers import KillTimeoutError
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from trio_typing import TaskStatus

    from trikubelet.api import Pod, PodStatus
    from trikubelet.clock import WallClock
    from trikubelet.config.kubelet_configuration import ShutdownGracePeriod
    from trikubelet.node.shutdown.groups import PodGroup
    from trikubelet.node.shutdown.interface import Inhibitor, Logind, LogindSession
    from trikubelet.node.shutdown.record import ShutdownRecord
    from trikubelet.pods.types import PodStatusFn

log = get_logger("node-shutdown")

FIRST_LOOK: Final = 5.0
"""Seconds that the agent's start waits for logind to tell whether the node shuts down just now."""
RECONNECTS: Final = Backoff(first=0.25, longest=10.0)
"""Between attempts to find logind again."""
LOOKS_AT_DELAY: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between checks whether logind waits as long as it is configured to."""
LATE_TIMEOUT: Final = 2.0
"""Seconds for pods that were killed when the last group's time was over."""
A_MOMENT: Final = 0.1
"""Seconds that pass anyhow before pods are ended: groups, which have whole seconds, lose none for them."""
REPORT_AT_LEAST: Final = 2.0
"""Seconds for the statuses to reach the API server when the pods have used all of the time."""
EVENT: Final = "Shutdown"
PROBLEM: Final = "node is shutting down"


class ShutdownNode(Protocol):
    """What is asked of the agent."""

    async def ready(self) -> None:
        """Return when the pods that an earlier agent left are known, or will not be soon."""
        ...

    def active_pods(self) -> Sequence[Pod]:
        """Pods that have not ended."""
        ...

    async def end_pod(self, pod: Pod, grace_period: int, status_fn: PodStatusFn) -> None:
        """Kill a pod, and return when it has released all that it held. Raises KillTimeoutError. Cancelling it stops
        the waiting, not the kill."""
        ...

    async def report_node(self) -> None:
        """Tell the API server how the node is now."""
        ...

    async def reported(self, uids: Collection[str]) -> None:
        """Return when the API server has the newest statuses of these pods."""
        ...


class _Phase(Enum):
    NONE = auto()
    ENDING = auto()
    ENDED = auto()
    """The pods have ended, and the machine goes down."""


@frozen
class _Run:
    """What a manager has while it runs."""

    node: ShutdownNode
    nursery: trio.Nursery


class ShutdownManager:
    """One for each agent; `run` it once."""

    def __init__(
        self,
        logind: Logind,
        periods: Sequence[ShutdownGracePeriod],
        *,
        record: ShutdownRecord,
        recorder: EventRecorder,
        clock: WallClock,
    ) -> None:
        """`periods`: by priority, the lowest first (`shutdown_periods`)."""
        self._logind = logind
        self._periods = periods
        self._seconds = time_for_all(periods)
        self.record = record
        self._recorder = recorder
        self._clock = clock
        self._phase = _Phase.NONE
        self._inhibitor: Inhibitor | None = None
        self._shutdown = trio.CancelScope()
        """Of the task that ends the pods."""
        self.found_at_start = False
        """The node shuts down, and did so before this agent began: what has ended of pods is not started again."""

    @property
    def shutting_down(self) -> bool:
        """From the beginning of a shutdown on, unless it is called off."""
        return self._phase is not _Phase.NONE

    def problem(self) -> str | None:
        """Why the node is not ready (kubelet: `ShutdownStatus`)."""
        return PROBLEM if self.shutting_down else None

    async def run(self, node: ShutdownNode, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled, which lets a shutdown go on unless the inhibitor is kept. Started when it is known
        whether the node shuts down just now, or logind has not told soon."""
        self._inhibitor = self._logind.inherited()
        await self.record.load()
        looked = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervise, self._watch, _Run(node, nursery), looked)
                with trio.move_on_after(FIRST_LOOK):
                    await looked.wait()
                task_status.started()
        finally:
            if self._inhibitor is not None:
                self._inhibitor.leave()

    # --- Logind ------------------------------------------------------------------------------------------------------

    async def _watch(self, run: _Run, looked: trio.Event) -> None:
        pause, logged = RECONNECTS.first, ""
        while True:
            try:
                async with self._logind.session() as session:
                    await self._arrange(run, session, looked)
                    pause, logged = RECONNECTS.first, ""
                    while True:
                        await self._handle(run, session, shutting_down=await session.next_change())
            except LogindError as error:
                looked.set()
                if str(error) != logged:
                    log.warning("cannot watch for shutdowns of the machine, will try again", error=str(error))
                logged = str(error)
            await trio.sleep(pause)
            pause = RECONNECTS.after(pause)

    async def _arrange(self, run: _Run, session: LogindSession, looked: trio.Event) -> None:
        """Find out how things are, and see to it that the next shutdown waits. Raises LogindError."""
        now = await session.is_shutting_down()
        if now:
            self.found_at_start = self.found_at_start or not looked.is_set()
            self._begin(run)
        elif self._phase is _Phase.ENDING:
            self._call_off(run)
        looked.set()
        if self._phase is _Phase.ENDED:
            return  # what follows is not for logind to tell any more, unless it is called off
        try:
            await self._inhibit(session)
        except LogindError as error:
            if not self.shutting_down:
                raise
            log.warning("a shutdown that has begun cannot be delayed anew, pods end all the same", error=str(error))
            return
        if not now and await session.is_shutting_down():  # it has begun after the first look
            self._begin(run)
        run.nursery.start_soon(contain, self._lengthen_delay, session)

    async def _handle(self, run: _Run, session: LogindSession, *, shutting_down: bool) -> None:
        if shutting_down:
            self._begin(run)
        elif self.shutting_down:
            self._call_off(run)
            if self._inhibitor is None:
                await self._inhibit(session)

    async def _inhibit(self, session: LogindSession) -> None:
        newer = await session.inhibit()
        self._release()
        self._inhibitor = newer
        newer.keep()

    def _release(self) -> None:
        inhibitor, self._inhibitor = self._inhibitor, None
        if inhibitor is not None:
            inhibitor.release()

    async def _lengthen_delay(self, session: LogindSession) -> None:
        """Where logind would not wait as long as pods may need."""
        try:
            longest = await session.longest_delay()
            if longest >= self._seconds:
                return
            log.info("telling logind to wait longer", waits=longest, wanted=self._seconds)
            await session.allow_delay(self._seconds)
            for pause in LOOKS_AT_DELAY:
                longest = await session.longest_delay()
                if longest >= self._seconds:
                    return
                await trio.sleep(pause)
        except LogindError as error:
            log.error("logind cannot be told to wait longer for pods", wanted=self._seconds, error=str(error))
            return
        log.error(
            "logind does not wait as long as it was told to: pods will have less time in a shutdown",
            waits=longest,
            wanted=self._seconds,
        )

    # --- The shutdown ------------------------------------------------------------------------------------------------

    def _begin(self, run: _Run) -> None:
        if self.shutting_down:
            return
        self._phase = _Phase.ENDING
        self._shutdown = trio.CancelScope()
        log.info("the machine shuts down: pods are ended", within=self._seconds)
        self._recorder.node_event(EventType.NORMAL, EVENT, "Shutdown manager detected shutdown event")
        run.nursery.start_soon(contain, run.node.report_node)
        run.nursery.start_soon(contain, self._shut_down, run.node, self._shutdown)

    def _call_off(self, run: _Run) -> None:
        self._phase = _Phase.NONE
        self.found_at_start = False
        self._shutdown.cancel()
        log.info("the shutdown of the machine was called off")
        self._recorder.node_event(EventType.NORMAL, EVENT, "Shutdown manager detected shutdown cancellation")
        run.nursery.start_soon(contain, run.node.report_node)

    async def _shut_down(self, node: ShutdownNode, scope: trio.CancelScope) -> None:
        now = self._clock.now()
        late = self._lateness(now)
        before = self.record.times.began
        began = before if late > 0 and before is not None else now
        deadline = trio.current_time() + self._seconds - late
        with scope:
            await self.record.store(ShutdownTimes(began))
            await supervise(self._end_pods, node, deadline)
        if scope is not self._shutdown:
            return  # another one has begun meanwhile
        await self.record.store(ShutdownTimes(began, self._clock.now()))
        if not scope.cancelled_caught:
            self._phase = _Phase.ENDED
            self._release()
            log.info("the pods have ended, the machine may go down")

    def _lateness(self, now: datetime) -> float:
        """Seconds since an earlier agent began with this shutdown; 0 where none did."""
        began, ended = self.record.times.began, self.record.times.ended
        if began is None or ended is not None:
            return 0.0
        seconds = (now - began).total_seconds()
        return seconds if 0 < seconds <= self._seconds else 0.0

    async def _end_pods(self, node: ShutdownNode, deadline: float) -> None:
        await node.ready()
        late = max(0.0, self._seconds - (deadline - trio.current_time()) - A_MOMENT)
        ends: dict[str, trio.Event] = {}
        async with trio.open_nursery() as nursery:
            for group in late_groups(group_by_priority(self._periods, node.active_pods()), late):
                if group.pods:
                    ends |= await self._end_group(node, group, nursery)
            with trio.move_on_after(LATE_TIMEOUT):
                await _all(ends)
            with trio.move_on_at(max(deadline, trio.current_time() + REPORT_AT_LEAST)) as reporting:
                await node.reported(ends.keys())
            if reporting.cancelled_caught:
                log.error("the machine goes down before the API server knows how all pods have ended")
            nursery.cancel_scope.cancel()

    async def _end_group(self, node: ShutdownNode, group: PodGroup, nursery: trio.Nursery) -> dict[str, trio.Event]:
        """Returns when its pods have ended or their time is over, with the end of each by UID. Those that are late go
        on ending."""
        log.info("ending pods", priority=group.priority, seconds=group.seconds, pods=[p.full_name for p in group.pods])
        ends = {pod.metadata.uid: trio.Event() for pod in group.pods}
        for pod in group.pods:
            seconds = grace_period(pod, group.seconds)
            nursery.start_soon(contain, self._end_pod, node, pod, seconds, ends[pod.metadata.uid])
        with trio.move_on_after(group.seconds) as waiting:
            await _all(ends)
        if waiting.cancelled_caught:
            late = [pod.full_name for pod in group.pods if not ends[pod.metadata.uid].is_set()]
            log.warning("pods have not ended in their time", priority=group.priority, seconds=group.seconds, pods=late)
        return ends

    async def _end_pod(self, node: ShutdownNode, pod: Pod, seconds: int, ended: trio.Event) -> None:
        def terminated(status: PodStatus) -> PodStatus:
            return terminated_status(status, pod.metadata.generation)

        try:
            await node.end_pod(pod, seconds, terminated)
        except KillTimeoutError as error:
            log.warning("a pod has not ended in time", pod=pod.full_name, error=str(error))
        finally:
            ended.set()


async def _all(ends: Mapping[str, trio.Event]) -> None:
    for ended in ends.values():
        await ended.wait()
