"""The shutdown manager with a logind and a node that are made up, on a mock clock."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.node.shutdown.fake_logind import FakeLogind
from tests.node.shutdown.test_groups import CRITICAL, periods, pod
from trikubelet.api import Pod
from trikubelet.node.shutdown.manager import ShutdownManager
from trikubelet.node.shutdown.record import ShutdownRecord, ShutdownTimes
from trikubelet.pods.workers import KillTimeoutError
from trikubelet.telemetry.events import EventRecorder, NodeEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from trio.testing import MockClock

    from trikubelet.pods.types import PodStatusFn
    from trikubelet.telemetry.events import AnyEvent

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
SOON = 0.5


class TrioWallClock:
    def now(self) -> datetime:
        return BEGINNING + timedelta(seconds=trio.current_time())


@attrs.define(eq=False)
class FakeNode:
    """Implements `ShutdownNode`: pods end after the seconds in `takes`."""

    pods: list[Pod]
    takes: dict[str, float] = attrs.field(factory=dict)
    reporting: float = 0.0
    """Seconds until the API server has statuses."""
    getting_ready: float = 0.0
    """Seconds until the pods are known."""
    asked: list[tuple[float, str, int]] = attrs.field(factory=list)
    """When which pod was asked to end, within how many seconds."""
    ended: list[str] = attrs.field(factory=list)
    statuses: tuple[str, ...] = ()
    """UIDs of the pods whose statuses the API server has."""
    node_reports: int = 0

    async def ready(self) -> None:
        await trio.sleep(self.getting_ready)

    def active_pods(self) -> Sequence[Pod]:
        return [pod for pod in self.pods if pod.metadata.name not in self.ended]

    async def end_pod(self, pod: Pod, grace_period: int, status_fn: PodStatusFn) -> None:
        name = pod.metadata.name
        self.asked.append((trio.current_time(), name, grace_period))
        takes = self.takes.get(name, 1.0)
        if takes < 0:
            raise KillTimeoutError(name, name, 10)
        await trio.sleep(takes)
        self.ended.append(name)

    async def report_node(self) -> None:
        await trio.lowlevel.checkpoint()
        self.node_reports += 1

    async def reported(self, uids: Collection[str]) -> None:
        await trio.sleep(self.reporting)
        self.statuses = tuple(uids)


@attrs.define
class Watched:
    manager: ShutdownManager
    events: list[str]


@asynccontextmanager
async def watching(
    logind: FakeLogind, node: FakeNode, *, record: ShutdownRecord | None = None, seconds: tuple[int, int] = (20, 10)
) -> AsyncIterator[Watched]:
    recorder = EventRecorder(TrioWallClock())
    events: list[str] = []

    def heard(event: AnyEvent) -> None:
        assert isinstance(event, NodeEvent)
        assert event.reason == "Shutdown"
        events.append(event.message)

    recorder.add_listener(heard)
    manager = ShutdownManager(
        logind,
        periods((0, seconds[0]), (CRITICAL, seconds[1])),
        record=record or ShutdownRecord(None),
        recorder=recorder,
        clock=TrioWallClock(),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run, node)
        await trio.sleep(SOON)
        yield Watched(manager, events)
        nursery.cancel_scope.cancel()


def normal_and_critical() -> FakeNode:
    return FakeNode([pod("critical", CRITICAL, 30), pod("normal", 0, 30)])


async def test_pods_end_by_priority_then_statuses_are_written_then_the_machine_goes_down(
    autojump_clock: MockClock,
) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    node.takes = {"normal": 3.0, "critical": 2.0}
    node.reporting = 4.0
    async with watching(logind, node) as watched:
        assert len(logind.inhibitors) == 1
        assert watched.manager.problem() is None
        began = trio.current_time()
        logind.shut_down()
        await trio.sleep(SOON)
        assert watched.manager.shutting_down
        assert watched.manager.problem() == "node is shutting down"
        assert node.node_reports == 1
        await trio.sleep(7)
        assert node.asked == [(began, "normal", 20), (began + 3, "critical", 10)]
        assert logind.inhibitors, "the API server does not know yet how the pods ended"
        await trio.sleep(2)
        assert node.statuses == ("normal", "critical")
        assert not logind.inhibitors
        assert watched.manager.shutting_down, "no pods until the machine is down"
        assert watched.events == ["Shutdown manager detected shutdown event"]
        times = watched.manager.record.times
        assert times.began is not None
        assert times.ended is not None
        assert (times.ended - times.began).total_seconds() == pytest.approx(9)


async def test_a_group_without_pods_takes_no_time_and_one_that_does_not_end_only_its_own(
    autojump_clock: MockClock,
) -> None:
    logind = FakeLogind()
    node = FakeNode([pod("stubborn", 0), pod("failing", 0), pod("critical", CRITICAL)])
    node.takes = {"stubborn": 1000.0, "failing": -1}
    async with watching(logind, node):
        began = trio.current_time()
        logind.shut_down()
        await trio.sleep(25)
        assert node.asked[-1] == (began + 20, "critical", 10)
        assert not logind.inhibitors
    logind, node = FakeLogind(), FakeNode([pod("critical", CRITICAL)])
    async with watching(logind, node):
        began = trio.current_time()
        logind.shut_down()
        await trio.sleep(SOON)
        assert node.asked == [(began, "critical", 10)]


async def test_what_it_takes_to_know_the_pods_is_taken_from_their_time(autojump_clock: MockClock) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    node.getting_ready = 5.0
    node.takes = {"normal": 1000.0, "critical": 1000.0}
    async with watching(logind, node):
        began = trio.current_time()
        logind.shut_down()
        await trio.sleep(60)
        assert [(name, grace) for _, name, grace in node.asked] == [("normal", 15), ("critical", 10)]
        assert [at - began for at, *_ in node.asked] == pytest.approx([5, 20])


async def test_pods_without_any_time_are_asked_to_end_all_the_same(autojump_clock: MockClock) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    async with watching(logind, node, seconds=(5, 0)):
        logind.shut_down()
        await trio.sleep(SOON + 1)
        assert [asked[1:] for asked in node.asked] == [("normal", 5), ("critical", 0)]


async def test_an_api_server_that_does_not_answer_delays_the_shutdown_no_longer_than_pods_may(
    autojump_clock: MockClock,
) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    node.reporting = 1000.0
    async with watching(logind, node):
        logind.shut_down()
        await trio.sleep(29.9)
        assert logind.inhibitors
        await trio.sleep(0.2)
        assert not logind.inhibitors


async def test_a_shutdown_that_is_called_off_spares_those_whose_turn_has_not_come(autojump_clock: MockClock) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    node.takes = {"normal": 5.0}
    async with watching(logind, node) as watched:
        logind.shut_down()
        await trio.sleep(2)
        logind.call_off()
        await trio.sleep(60)
        assert [name for _, name, _ in node.asked] == ["normal"]
        assert not watched.manager.shutting_down
        assert node.node_reports == 2
        assert len(logind.inhibitors) == 1
        assert watched.events[-1] == "Shutdown manager detected shutdown cancellation"
        logind.shut_down()
        await trio.sleep(10)
        assert [name for _, name, _ in node.asked] == ["normal", "normal", "critical"]
        assert not logind.inhibitors
        logind.call_off()
        await trio.sleep(SOON)
        assert len(logind.inhibitors) == 1, "for the next one"
        assert watched.manager.problem() is None


async def test_the_bus_goes_in_the_middle_of_a_shutdown(autojump_clock: MockClock) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    node.takes = {"normal": 15.0, "critical": 5.0}
    async with watching(logind, node) as watched:
        began = trio.current_time()
        logind.shut_down()
        await trio.sleep(1)
        logind.there = False
        logind.lose_connections()
        await trio.sleep(5)
        logind.there = True
        await trio.sleep(9.5)
        assert node.asked == [(began, "normal", 20), (began + 15, "critical", 10)]
        assert logind.inhibitors, "the one from before"
        assert logind.sessions == 2
        await trio.sleep(5)
        assert not logind.inhibitors
        logind.preparing = False  # it is done with preparing, and about to end itself
        logind.lose_connections()
        await trio.sleep(5)
        assert watched.manager.shutting_down
        assert not logind.inhibitors


async def test_a_shutdown_that_begins_while_the_bus_is_away_is_found(autojump_clock: MockClock) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    async with watching(logind, node):
        logind.there = False
        logind.lose_connections()
        await trio.sleep(100)
        assert len(logind.inhibitors) == 1
        logind.shut_down()
        logind.there = True
        await trio.sleep(15)
        assert node.ended == ["normal", "critical"]
        assert not logind.inhibitors


async def test_each_new_logind_gets_an_inhibitor(autojump_clock: MockClock) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    async with watching(logind, node):
        for lives in range(2, 5):
            logind.lose_connections()
            await trio.sleep(1)
            assert (logind.taken, len(logind.inhibitors)) == (lives, 1)


async def test_a_logind_that_forgot_the_shutdown_has_called_it_off(autojump_clock: MockClock) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    node.takes = {"normal": 5.0}
    async with watching(logind, node) as watched:
        logind.shut_down()
        await trio.sleep(1)
        logind.preparing = False
        logind.lose_connections()
        await trio.sleep(30)
        assert not watched.manager.shutting_down
        assert [name for _, name, _ in node.asked] == ["normal"]


async def test_an_agent_that_starts_in_the_middle_goes_on_in_what_is_left_of_the_time(
    autojump_clock: MockClock,
) -> None:
    logind, node = FakeLogind(), normal_and_critical()
    node.takes = {"normal": 100.0, "critical": 100.0}
    record = ShutdownRecord(None)
    async with watching(logind, node, record=record):
        logind.shut_down()
        await trio.sleep(12)
    assert not logind.inhibitors, "it died with the agent"
    await trio.sleep(3)
    node.asked.clear()
    restarted = trio.current_time()
    later = ShutdownRecord(None)
    later.times = ShutdownTimes(record.times.began)
    async with watching(logind, node, record=later) as watched:
        assert watched.manager.shutting_down
        await trio.sleep(30)
        assert later.times.began == record.times.began
        assert node.asked == [(restarted, "normal", 5), (restarted + 5, "critical", 10)]
        assert later.times.ended is not None


async def test_what_the_service_manager_keeps_delays_the_machine_while_no_agent_does(
    autojump_clock: MockClock,
) -> None:
    logind, node = FakeLogind(keeps=True), normal_and_critical()
    node.takes = {"normal": 100.0, "critical": 1.0}
    async with watching(logind, node):
        logind.lose_connections()
        await trio.sleep(1)
        assert logind.inhibitors == {logind.kept}, "the newest"
        logind.shut_down()
        await trio.sleep(1)
    assert len(logind.inhibitors) == 1
    async with watching(logind, node):
        await trio.sleep(15)
        assert len(logind.inhibitors) == 1
        await trio.sleep(20)
        assert not logind.inhibitors
        assert logind.kept is None
    async with watching(FakeLogind(keeps=True), node):
        pass


@pytest.mark.parametrize(
    "times", [ShutdownTimes(BEGINNING), ShutdownTimes(BEGINNING, BEGINNING + timedelta(seconds=1))]
)
async def test_what_is_known_of_an_older_shutdown_costs_the_pods_no_time(
    autojump_clock: MockClock, times: ShutdownTimes
) -> None:
    await trio.sleep(1 if times.ended else 1000)
    logind, node = FakeLogind(preparing=True), normal_and_critical()
    record = ShutdownRecord(None)
    record.times = times
    async with watching(logind, node, record=record):
        await trio.sleep(5)
        assert [asked[1:] for asked in node.asked] == [("normal", 20), ("critical", 10)]


async def test_logind_is_told_to_wait_long_enough(autojump_clock: MockClock) -> None:
    logind = FakeLogind(longest_delay=5)
    async with watching(logind, FakeNode([])):
        assert logind.overrides == [30]
        assert len(logind.inhibitors) == 1
    logind = FakeLogind(longest_delay=40)
    async with watching(logind, FakeNode([])):
        assert logind.overrides == []


async def test_a_logind_that_does_not_wait_longer_is_inhibited_all_the_same(autojump_clock: MockClock) -> None:
    logind, node = FakeLogind(longest_delay=5, obeys=False), normal_and_critical()
    async with watching(logind, node):
        await trio.sleep(10)
        assert logind.overrides == [30]
        assert len(logind.inhibitors) == 1
        logind.shut_down()
        await trio.sleep(5)
        assert node.ended == ["normal", "critical"]


async def test_a_machine_without_logind_costs_nothing_but_looks_for_it(autojump_clock: MockClock) -> None:
    logind = FakeLogind(there=False)
    began = trio.current_time()
    async with watching(logind, FakeNode([])) as watched:
        assert trio.current_time() - began < 1
        await trio.sleep(3600)
        assert not watched.manager.shutting_down
        logind.there = True
        await trio.sleep(10)
        assert len(logind.inhibitors) == 1
