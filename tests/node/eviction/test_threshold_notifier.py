"""When alarms are set and heard, with alarms that a test rings."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from tests.node.eviction.situations import left, size, threshold
from trikubelet.broadcast import Broadcast
from trikubelet.config.eviction_values import Signal, Threshold
from trikubelet.node.eviction.model import Observation
from trikubelet.node.eviction.threshold_notifier import (
    NOTIFICATION_PAUSE,
    VAIN_PAUSE,
    NotifierPlaces,
    ThresholdNotifier,
    usage_at_threshold,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

S = Signal
ROOT, PODS, PRESSURE = Path("/memory"), Path("/memory/kubepods"), Path("/proc/pressure/memory")
GIB = 2**30


@attrs.define(eq=False)
class FakeNotifier:
    """Rings as often as it was rung."""

    where: Path
    usage: int = 0
    measured: int = 0
    closed: bool = False
    _send: trio.MemorySendChannel[None] = attrs.field(init=False)
    _receive: trio.MemoryReceiveChannel[None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[None](10)

    def ring(self) -> None:
        self._send.send_nowait(None)

    async def wait(self) -> None:
        try:
            await self._receive.receive()
        except trio.EndOfChannel:
            raise trio.ClosedResourceError from None

    def close(self) -> None:
        self.closed = True
        self._send.close()


@attrs.define
class Kernel:
    """Hands out notifiers, or refuses."""

    set: list[FakeNotifier] = attrs.field(factory=list)
    refuses: bool = False

    def usage_notifier(self, group: Path, usage: int, measured: int) -> FakeNotifier:
        return self.stall_notifier(group, usage, measured)

    def stall_notifier(self, path: Path, usage: int = 0, measured: int = 0) -> FakeNotifier:
        if self.refuses:
            raise OSError(errno.ENOENT, "no such file")
        self.set.append(FakeNotifier(path, usage, measured))
        return self.set[-1]

    def alarms(self, places: NotifierPlaces, *thresholds: Threshold) -> ThresholdNotifier:
        return ThresholdNotifier(
            places, thresholds, usage_notifier=self.usage_notifier, stall_notifier=self.stall_notifier
        )


class Bell(Broadcast[None]):
    """Notes when it was rung."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.began = trio.current_time()
        self.in_need = False

    def send(self, value: None) -> None:
        self.times.append(trio.current_time() - self.began)

    def is_in_need(self) -> bool:
        return self.in_need


def of_memory(available: str, working_set: str, usage: str | None) -> Observation:
    return Observation(
        available=size(available),
        capacity=size(available) + size(working_set),
        used=None if usage is None else size(usage),
    )


@pytest.mark.parametrize(
    ("observed", "value", "expected"),
    [
        (of_memory("3Gi", "1Gi", "2Gi"), "1Gi", 4 * GIB),
        (of_memory("4Gi", "1Gi", "3Gi"), "1Gi", 6 * GIB),
        (of_memory("3Gi", "1Gi", "1Gi"), 0.25, 3 * GIB),
        (of_memory("3Gi", "1Gi", None), "1Gi", None),
    ],
    ids=["with file pages", "with more", "a part of all", "usage not known"],
)
def test_the_alarm_is_where_the_working_set_crosses_the_threshold(
    observed: Observation, value: str | float, expected: int | None
) -> None:
    assert usage_at_threshold(threshold(S.MEMORY, value), observed) == expected


EVERYWHERE = NotifierPlaces(groups={S.MEMORY: ROOT, S.ALLOCATABLE_MEMORY: PODS}, pressure=PRESSURE)


async def test_each_threshold_of_memory_has_an_alarm_in_its_group() -> None:
    kernel = Kernel()
    notifier = kernel.alarms(
        EVERYWHERE,
        threshold(S.MEMORY, "1Gi"),
        threshold(S.MEMORY, "2Gi", grace=60),
        threshold(S.ALLOCATABLE_MEMORY, "1Gi"),
        threshold(S.NODE_FS, "1Gi"),
    )
    observed = of_memory("3Gi", "1Gi", "1Gi")
    await notifier.follow(
        {S.MEMORY: observed, S.ALLOCATABLE_MEMORY: of_memory("1Gi", "1Gi", "1Gi"), S.NODE_FS: observed}
    )
    assert [(alarm.where, alarm.usage // GIB) for alarm in kernel.set] == [(ROOT, 3), (ROOT, 2), (PODS, 1)]


async def test_alarms_follow_what_is_measured() -> None:
    kernel = Kernel()
    notifier = kernel.alarms(EVERYWHERE, threshold(S.MEMORY, "1Gi"))
    await notifier.follow({S.MEMORY: of_memory("3Gi", "1Gi", "1Gi")})
    await notifier.follow({S.MEMORY: of_memory("2Gi", "2Gi", "2Gi")})
    assert [(alarm.usage // GIB, alarm.closed) for alarm in kernel.set] == [(3, False)]
    await notifier.follow({S.MEMORY: of_memory("2Gi", "2Gi", "3Gi")})
    await notifier.follow({S.MEMORY: of_memory("2Gi", "2Gi", None)})
    await notifier.follow({})
    assert [(alarm.usage // GIB, alarm.closed) for alarm in kernel.set] == [(3, True), (4, False)]
    assert [alarm.measured // GIB for alarm in kernel.set] == [1, 3], "it can tell what was crossed meanwhile"


async def test_an_alarm_is_heard_also_after_it_was_moved(autojump_clock: MockClock) -> None:
    kernel, bell = Kernel(), Bell()
    notifier = kernel.alarms(NotifierPlaces(groups={S.MEMORY: ROOT}), threshold(S.MEMORY, "1Gi"))
    async with trio.open_nursery() as nursery:
        await nursery.start(notifier.run, bell, bell.is_in_need)
        await notifier.follow({S.MEMORY: of_memory("3Gi", "1Gi", "1Gi")})
        await notifier.follow({S.MEMORY: of_memory("3Gi", "1Gi", "2Gi")})
        await trio.testing.wait_all_tasks_blocked()
        kernel.set[-1].ring()
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert bell.times == [0]
    assert all(alarm.closed for alarm in kernel.set)


async def test_one_threshold_rings_once_a_second(autojump_clock: MockClock) -> None:
    kernel, bell = Kernel(), Bell()
    notifier = kernel.alarms(NotifierPlaces(groups={S.MEMORY: ROOT}), threshold(S.MEMORY, "1Gi"))
    await notifier.follow({S.MEMORY: of_memory("3Gi", "1Gi", "1Gi")})
    for _ in range(3):
        kernel.set[0].ring()
    async with trio.open_nursery() as nursery:
        await nursery.start(notifier.run, bell, bell.is_in_need)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert bell.times == [0, NOTIFICATION_PAUSE, 2 * NOTIFICATION_PAUSE]


async def test_stalls_on_a_node_that_is_well_ring_seldom(autojump_clock: MockClock) -> None:
    kernel, bell = Kernel(), Bell()
    notifier = kernel.alarms(NotifierPlaces(pressure=PRESSURE))
    async with trio.open_nursery() as nursery:
        await nursery.start(notifier.run, bell, bell.is_in_need)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(5):
            kernel.set[0].ring()
        await trio.sleep(VAIN_PAUSE + 0.5)
        bell.in_need = True
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert bell.times == [0, 10, 11, 12, 13]
    assert kernel.set[0].closed


async def test_without_alarms_nothing_rings_and_nothing_fails() -> None:
    kernel, bell = Kernel(refuses=True), Bell()
    notifier = kernel.alarms(EVERYWHERE, threshold(S.MEMORY, "1Gi"))
    async with trio.open_nursery() as nursery:
        await nursery.start(notifier.run, bell, bell.is_in_need)
        await notifier.follow({S.MEMORY: of_memory("3Gi", "1Gi", "1Gi")})
        kernel.refuses = False
        await notifier.follow({S.MEMORY: of_memory("3Gi", "1Gi", "1Gi")})
        assert [alarm.where for alarm in kernel.set] == [ROOT]  # It is tried again.
        nursery.cancel_scope.cancel()
    assert bell.times == []


async def test_nowhere_to_set_alarms() -> None:
    kernel, bell = Kernel(), Bell()
    notifier = kernel.alarms(NotifierPlaces(), threshold(S.MEMORY, "1Gi"))
    await notifier.follow({S.MEMORY: left("1Gi")})
    await notifier.run(bell, bell.is_in_need)
    assert kernel.set == []


async def test_an_alarm_that_is_set_too_late_is_closed_at_once() -> None:
    kernel, bell = Kernel(), Bell()
    notifier = kernel.alarms(NotifierPlaces(groups={S.MEMORY: ROOT}), threshold(S.MEMORY, "1Gi"))
    async with trio.open_nursery() as nursery:
        await nursery.start(notifier.run, bell, bell.is_in_need)
        nursery.cancel_scope.cancel()
    await notifier.follow({S.MEMORY: of_memory("3Gi", "1Gi", "1Gi")})
    assert [alarm.closed for alarm in kernel.set] == [True]
