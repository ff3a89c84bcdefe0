"""What the sync loop is told, and by whom: each way in is a task that sends values into the loop's one channel.

The channel holds nothing. Whoever has to tell something waits until the loop takes it, or, where waiting is no option,
leaves word here (`sync_soon`, `runtime_is_back`, `retry_resizes_soon`, `housekeeping_soon`): the same word left twice
is told once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from trikubelet.config.sources.types import PodUpdate
from trikubelet.housekeeping import NodeContents
from trikubelet.logs import get_logger
from trikubelet.pleg.lifecycle import PodLifecycleEvent
from trikubelet.pods.admitting import AdmitAgain
from trikubelet.pods.allocating import DevicesAnswered
from trikubelet.probes.types import ProbeUpdate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = get_logger("sync-loop")

SYNC_TICK: Final = 1.0
HOUSEKEEPING_PERIOD: Final = 2.0
QUIET_HOUSEKEEPING_PERIOD: Final = 30.0
"""Seconds between rounds while nothing changes that the agent knows of: only the disk can hold a surprise."""
HOUSEKEEPING_PAUSE_PER_POD: Final = 50e-6
"""Seconds: of a hundred pods, the end of one waits 5 ms for others."""
HOUSEKEEPING_WARNING: Final = 1.0


@attrs.frozen
class SyncTick:
    """A second has passed: pods with deadlines of their own, and those that wait for the runtime, are looked at."""


@attrs.frozen(eq=False)
class CompareWorkers:
    """Housekeeping begins: workers of pods that nobody wants are ended."""

    done: trio.Event = attrs.field(factory=trio.Event)


@attrs.frozen
class CleanUp:
    """Housekeeping goes on with what was found since on the node."""

    found: NodeContents


@attrs.frozen
class RuntimeBack:
    """A runtime that was away answers again."""


@attrs.frozen
class PodNews:
    """Something that this pod waits for may be there."""

    uid: str


@attrs.frozen
class RetryResizes:
    """Pods that want other resources may be granted them now."""


LoopEvent = (
    PodUpdate
    | list[PodLifecycleEvent]
    | SyncTick
    | CompareWorkers
    | CleanUp
    | ProbeUpdate
    | PodNews
    | RuntimeBack
    | AdmitAgain
    | RetryResizes
    | DevicesAnswered
)


class Housekeeper(Protocol):
    """What rounds of housekeeping are made of, beside the loop's part in them."""

    def has_work(self) -> bool:
        """Whether what a round goes by may have changed since the last one that found nothing to do."""
        ...

    async def look(self) -> NodeContents:
        """What the node holds now. It may take long, so the loop does not wait for it."""
        ...


class LoopInputs:
    """The loop's channel, and the tasks that send into it."""

    def __init__(self) -> None:
        self.send, self.receive = trio.open_memory_channel[LoopEvent](0)
        self._ticking = trio.Event()
        self._runtime_back = trio.Event()
        self._resizes_possible = trio.Event()
        self._news: dict[str, None] = {}
        self._has_news = trio.Event()

    def tick_soon(self) -> None:
        """Some pod waits for a time that only ticks tell of: one comes within a second."""
        self._ticking.set()

    def runtime_is_back(self) -> None:
        """A runtime that was away answers again."""
        self._runtime_back.set()

    def retry_resizes_soon(self) -> None:
        """Pods that want other resources may be granted them now."""
        self._resizes_possible.set()

    def sync_soon(self, uid: str) -> None:
        """Something that the pod waits for may be there."""
        if not self._news:
            self._has_news.set()
        self._news[uid] = None

    async def run(
        self,
        config: trio.MemoryReceiveChannel[PodUpdate],
        lifecycle: trio.MemoryReceiveChannel[list[PodLifecycleEvent]],
        probed: Callable[[], Awaitable[ProbeUpdate]],
    ) -> None:
        """Until cancelled. `probed` waits for the next result of a probe."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forward_config, config)
            nursery.start_soon(self._forward_lifecycle, lifecycle)
            nursery.start_soon(self._forward_probes, probed)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._forward_recovery)
            nursery.start_soon(self._forward_resizes)
            nursery.start_soon(self._forward_news)

    async def _forward_config(self, config: trio.MemoryReceiveChannel[PodUpdate]) -> None:
        async for update in config:
            await self.send.send(update)

    async def _forward_lifecycle(self, lifecycle: trio.MemoryReceiveChannel[list[PodLifecycleEvent]]) -> None:
        async for events in lifecycle:
            await self.send.send(events)

    async def _forward_probes(self, probed: Callable[[], Awaitable[ProbeUpdate]]) -> None:
        while True:
            await self.send.send(await probed())

    async def _tick(self) -> None:
        while True:
            await self._ticking.wait()
            self._ticking = trio.Event()
            await trio.sleep(SYNC_TICK)
            await self.send.send(SyncTick())

    async def _forward_recovery(self) -> None:
        while True:
            await self._runtime_back.wait()
            self._runtime_back = trio.Event()
            await self.send.send(RuntimeBack())

    async def _forward_resizes(self) -> None:
        while True:
            await self._resizes_possible.wait()
            self._resizes_possible = trio.Event()
            await self.send.send(RetryResizes())

    async def _forward_news(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news = trio.Event()
            news, self._news = self._news, {}
            for uid in news:
                await self.send.send(PodNews(uid))


class HousekeepingRounds:
    """Says when it is time for housekeeping, and leads each round."""

    def __init__(
        self,
        housekeeper: Housekeeper,
        send: trio.MemorySendChannel[LoopEvent],
        *,
        may_begin: Callable[[], bool],
        pod_count: Callable[[], int],
    ) -> None:
        self._housekeeper = housekeeper
        self._send = send
        self._may_begin = may_begin
        self._pod_count = pod_count
        self._wanted = trio.Event()
        self._kept_house_at = -float("inf")

    def soon(self) -> None:
        """Do not wait for the period."""
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with trio.move_on_after(HOUSEKEEPING_PERIOD):
                await self._wanted.wait()
                # A round looks at every pod. When many end one after the other, one round is for several of them.
                await trio.sleep(self._pod_count() * HOUSEKEEPING_PAUSE_PER_POD)
            self._wanted = trio.Event()
            if self._may_begin() and self._may_find_something():
                await self._keep_house()

    def _may_find_something(self) -> bool:
        now = trio.current_time()
        if self._housekeeper.has_work() or now - self._kept_house_at >= QUIET_HOUSEKEEPING_PERIOD:
            self._kept_house_at = now
            return True
        return False

    async def _keep_house(self) -> None:
        """One round. A runtime that hangs delays this, never the loop."""
        compare = CompareWorkers()
        await self._send.send(compare)
        await compare.done.wait()
        began = trio.current_time()
        try:
            found = await self._housekeeper.look()
        except Exception as error:  # noqa: BLE001 - housekeeping comes again in two seconds
            log.warning("housekeeping cannot look at the node", error=str(error))
            return
        elapsed = trio.current_time() - began
        if elapsed > HOUSEKEEPING_WARNING:
            took = round(elapsed, 3)
            log.warning("housekeeping took longer than expected", expected=HOUSEKEEPING_WARNING, actual=took)
        await self._send.send(CleanUp(found))
