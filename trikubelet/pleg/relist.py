"""The safety net: list everything once in a while and inspect what differs from what was last observed.

Alone it is the kubelet's generic PLEG with its one-second period. While an event source is healthy it only guards
against what that one misses: each list that finds nothing doubles the period, up to a minute; one that finds something,
a failure, or a source that breaks brings it back to a second. A relist that fails or hangs makes the agent unhealthy
after three minutes, as in the kubelet, and the sync loop waits.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast
from trikubelet.pleg.lifecycle import ContainerStates, states_of_pod, states_of_status
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trio_typing import TaskStatus

    from trikubelet.container.model import RunningPod
    from trikubelet.pleg.pleg import Pleg, RuntimeView

log = get_logger("pleg")

PERIOD_ALONE: Final = 1.0
LONGEST_PERIOD: Final = 60.0
"""Seconds between lists, without and with a healthy event source."""
_PERIODS: Final = Backoff(first=PERIOD_ALONE, longest=LONGEST_PERIOD)
RELIST_TIMEOUT: Final = 120.0
UNHEALTHY_AFTER: Final = 180.0
"""Seconds, as the kubelet's `relistThreshold`."""


class Relist:
    """Lists on a period, and at once when asked."""

    def __init__(
        self,
        pleg: Pleg,
        runtime: RuntimeView,
        events_healthy: Callable[[], bool],
        recovered: Broadcast[None] | None = None,
        *,
        periodic: bool = True,
    ) -> None:
        """`recovered` is told when a list succeeds after one that failed.

        Not `periodic`: only at the start, after gaps in events, and again after a list that failed.
        """
        self._pleg = pleg
        self._runtime = runtime
        self._events_healthy = events_healthy
        self._recovered = Broadcast() if recovered is None else recovered
        self._periodic = periodic
        self._failed = False
        self._pods: list[RunningPod] = []
        self._active_at: float | None = None
        """When the last successful list began, or the first one that failed since when there is no period."""
        self._period = PERIOD_ALONE
        self._ask, self._asked = trio.open_memory_channel[None](1)
        self.lists = 0
        """How many there were, failed ones too."""
        self.durations = Histogram()
        self.intervals = Histogram()
        """Seconds that lists took, failed ones too, and between the beginnings of two."""
        self._began: float | None = None

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Relist until cancelled. Started when the first attempt is over, successful or not."""
        await self._try_relist()
        task_status.started()
        while True:
            with trio.move_on_after(self._pause()):
                await self._asked.receive()
            await self._try_relist()

    def _pause(self) -> float:
        if self._failed:
            return PERIOD_ALONE
        if not self._periodic:
            return math.inf
        return self._period if self._events_healthy() else PERIOD_ALONE

    def relist_soon(self) -> None:
        """Events may have been lost: list now. Also wakes a source that has just failed out of its long period."""
        with suppress(trio.WouldBlock):  # it was asked for already
            self._ask.send_nowait(None)

    def unhealthy_reason(self) -> str | None:
        """None while relists succeed, else the kubelet's words for it."""
        if self._active_at is None:
            return "pleg has yet to be successful"
        if not self._periodic and not self._failed:
            return None
        elapsed = trio.current_time() - self._active_at
        if elapsed > UNHEALTHY_AFTER:
            return f"pleg was last seen active {elapsed:.0f}s ago; threshold is {UNHEALTHY_AFTER:.0f}s"
        return None

    @property
    def active_at(self) -> float | None:
        """When the last successful list began, in Trio time; None before the first."""
        return self._active_at

    @property
    def pods(self) -> list[RunningPod]:
        """What the last successful list held, ended containers included."""
        return self._pods

    async def _try_relist(self) -> None:
        self.lists += 1
        began = trio.current_time()
        if self._began is not None:
            self.intervals.observe(began - self._began)
        self._began = began
        if self._active_at is not None and not self._periodic and not self._failed:
            self._active_at = trio.current_time()
        try:
            with trio.fail_after(RELIST_TIMEOUT):
                try:
                    missed = await self._relist()
                finally:
                    self.durations.observe(trio.current_time() - began)
        except Exception as error:  # noqa: BLE001 - the next period tries again, and health tells
            self._failed = True
            self._period = PERIOD_ALONE
            log.warning("relist failed", error=str(error) or f"no answer within {RELIST_TIMEOUT:.0f}s")
        else:
            quiet = self._events_healthy() and not missed
            self._period = _PERIODS.after(self._period) if quiet else PERIOD_ALONE
            if self._failed:
                self._failed = False
                self._recovered.send(None)

    async def _relist(self) -> set[str]:
        """The pods that had changed, by UID, and that no inspection was pending for."""
        began = trio.current_time()
        pods = await self._runtime.get_pods(all=True)
        listed = {pod.uid: states_of_pod(pod) for pod in pods}
        changed = {uid for uid, states in listed.items() if self._observed(uid) != states}
        changed |= self._pleg.failed_inspections()
        changed |= self._gone(listed)
        self._pods, self._active_at = pods, began
        missed = {uid for uid in changed if not self._pleg.is_busy_with(uid)}
        for uid in sorted(changed):
            self._pleg.inspect_soon(uid)
        # Pods in the list that were never inspected must not be taken for absent, so they are waited for.
        for uid in sorted(changed):
            if self._pleg.cache.last_seen(uid) is None and uid in listed:
                await self._inspected(uid)
        self._pleg.cache.record_complete_list(began)
        return missed

    def _observed(self, uid: str) -> ContainerStates | None:
        status = self._pleg.cache.last_seen(uid)
        return None if status is None else states_of_status(status)

    def _gone(self, listed: Collection[str]) -> set[str]:
        """Cached pods that the list does not hold: to be inspected, or forgotten when that has found nothing left."""
        gone = set()
        for uid in self._pleg.cache.uids():
            status = self._pleg.cache.last_seen(uid)
            if uid in listed or status is None:
                continue
            if states_of_status(status):
                gone.add(uid)
            else:
                self._pleg.cache.forget(uid)
        return gone

    async def _inspected(self, uid: str) -> None:
        try:
            await self._pleg.cache.get_newer_than(uid, float("-inf"))
        except Exception as error:  # noqa: BLE001 - the cache keeps it for its readers
            log.debug("first inspection failed", uid=uid, error=str(error))
