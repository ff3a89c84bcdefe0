"""The rhythm of rounds and what they do to pods, on a clock that jumps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.captured_logs import capture_logs
from tests.node.eviction.situations import amounts, disk, left, make_pod, memory, threshold
from tests.node.eviction.stage import Stage
from trikubelet.api import DISRUPTION_TARGET
from trikubelet.api.pod_kinds import FILE_SOURCE
from trikubelet.broadcast import Broadcast
from trikubelet.config.eviction_values import Layout, Signal
from trikubelet.node.conditions import Pressure
from trikubelet.node.eviction.model import Observation, PodUsage
from trikubelet.node.eviction.threshold_notifier import NotifierPlaces, ThresholdNotifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock
    from trio_typing import TaskStatus

S = Signal
LOW_MEMORY = {S.MEMORY: left("100Mi")}
ENOUGH = {S.MEMORY: left("9Gi")}
NEEDS_MEMORY = (threshold(S.MEMORY, "1Gi"),)
NEEDS_DISK = (threshold(S.NODE_FS, "1Gi"),)
LOW_DISK = {S.NODE_FS: left("100Mi")}
LOW = "The node was low on resource: memory. Threshold quantity: 1Gi, available: 100Mi. "


async def test_a_node_is_measured_every_ten_seconds(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, observations=ENOUGH)
    await stage.run_for(35)
    assert stage.measured == [0, 10, 20, 30]
    assert (stage.changes, stage.kills, stage.events) == ([], [], [])


async def test_what_a_measurement_takes_is_part_of_the_period(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, observations=ENOUGH, measuring_takes=4)
    await stage.run_for(25)
    assert stage.measured == [0, 10, 20]


async def test_after_a_slow_measurement_there_is_a_pause(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, observations=ENOUGH, measuring_takes=15)
    await stage.run_for(40)
    assert stage.measured == [0, 16, 32]


async def test_a_node_that_watches_for_nothing_is_not_measured(autojump_clock: MockClock) -> None:
    stage = Stage(local_limits=False)
    await stage.run_for(35)
    assert stage.measured == []


@pytest.mark.parametrize(
    ("layout", "split_disks", "evicts"),
    [(Layout.SPLIT, False, False), (Layout.SPLIT, True, True), (Layout.DEDICATED, False, True)],
)
async def test_where_split_disks_are_switched_off_no_pod_of_such_a_node_goes(
    autojump_clock: MockClock, layout: Layout, split_disks: bool, evicts: bool
) -> None:
    pods = [make_pod("p", requests=amounts(memory="1Mi"))]
    stage = Stage(NEEDS_MEMORY, pods, {"p": memory("5Mi")}, LOW_MEMORY, layout=layout, split_disks=split_disks)
    await stage.run_for(25)
    assert bool(stage.kills) is evicts
    assert stage.measured


async def test_a_pod_goes_and_the_node_says_so(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, [make_pod("p", requests=amounts(memory="1Mi"))], {"p": memory("5Mi")}, LOW_MEMORY)
    stage.killing_takes = 2.0
    await stage.run_for(5)
    (kill,) = stage.kills
    assert (kill.at, kill.name, kill.grace) == (0, "p", 1)
    assert (kill.status.phase, kill.status.reason, kill.status.message) == ("Failed", "Evicted", LOW)
    (condition,) = kill.status.conditions
    assert (condition.type, condition.reason, condition.message) == (DISRUPTION_TARGET, "TerminationByKubelet", LOW)
    assert stage.events[:2] == [("EvictionThresholdMet", "Attempting to reclaim memory"), ("Evicted", LOW)]
    assert stage.annotations[0]["starved_resource"] == "memory"
    assert stage.manager.pressure() == Pressure(memory=True)
    assert stage.changes == [(0, ("MemoryPressure",))]
    assert stage.manager.evictions == {("memory.available",): 1}


async def test_one_pod_goes_in_a_round_and_the_next_round_begins_when_it_has_released_all(
    autojump_clock: MockClock,
) -> None:
    stage = Stage(NEEDS_MEMORY, [make_pod(name) for name in "abc"], observations=LOW_MEMORY)
    stage.killing_takes, stage.cleanup_takes = 1.0, 3.0
    await stage.run_for(10)
    assert [(kill.at, kill.name) for kill in stage.kills] == [(0, "a"), (4, "b"), (8, "c")]
    assert stage.measured == [0, 4, 8]


async def test_a_pod_that_does_not_release_all_is_waited_for_half_a_minute(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, [make_pod(name) for name in "ab"], observations=LOW_MEMORY)
    stage.cleanup_takes = 1000
    await stage.run_for(35)
    assert [(kill.at, kill.name) for kill in stage.kills] == [(0, "a"), (30, "b")]


async def test_a_pod_that_does_not_end_counts_as_evicted(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, [make_pod("a")], observations=LOW_MEMORY)
    stage.killing_takes = math.inf
    await stage.run_for(45)
    assert [kill.at for kill in stage.kills] == [0, 40]
    assert stage.manager.evictions == {("memory.available",): 2}


async def test_pressure_ends_five_minutes_after_its_reason(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, observations=LOW_MEMORY)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_for, 500)
        await trio.sleep(65)
        stage.observations = ENOUGH
    assert stage.changes == [(0, ("MemoryPressure",)), (360, ())]
    assert stage.manager.pressure() == Pressure()
    assert ("EvictionThresholdMet", "Attempting to reclaim memory") in stage.events


async def test_who_goes_for_the_disk_goes_after_what_nobody_uses(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_DISK, [make_pod("p")], {"p": disk("p", "1Mi")}, LOW_DISK, cleanup_takes=9)
    await stage.run_for(5)
    assert stage.freed == ["containers", "images"]
    assert [kill.name for kill in stage.kills] == ["p"]
    assert stage.events[0] == ("EvictionThresholdMet", "Attempting to reclaim ephemeral-storage")


async def test_what_a_pod_leaves_on_the_disk_is_removed_before_the_next_one_goes(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_DISK, [make_pod(name) for name in "ab"], observations=LOW_DISK, cleanup_takes=2)
    await stage.run_for(15)
    assert [(kill.at, kill.name) for kill in stage.kills] == [(0, "a"), (10, "b")]


async def test_nobody_goes_if_that_was_enough(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_DISK, [make_pod("p")], observations=dict(LOW_DISK))
    stage.reclaimed = {S.NODE_FS: left("2Gi")}
    await stage.run_for(15)
    assert stage.freed == ["containers", "images"]
    assert stage.kills == []
    assert stage.measured == [0, 0, 10]
    assert stage.manager.conditions() == ("DiskPressure",)


async def test_where_images_lie_elsewhere_nothing_is_freed_for_the_nodes_disk(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_DISK, [make_pod("p")], observations=LOW_DISK, layout=Layout.DEDICATED)
    await stage.run_for(5)
    assert stage.freed == []
    assert [kill.name for kill in stage.kills] == ["p"]


async def test_what_cannot_be_freed_is_made_up_for_by_a_pod(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_DISK, [make_pod("p")], observations=LOW_DISK, reclaiming_fails=True, cleanup_takes=9)
    await stage.run_for(5)
    assert stage.freed == ["containers", "images"]
    assert [kill.name for kill in stage.kills] == ["p"]


async def test_a_runtime_that_hangs_while_it_frees_does_not_save_the_pods(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_DISK, [make_pod("p")], observations=LOW_DISK, reclaiming_takes=math.inf)
    await stage.run_for(70)
    assert [kill.at for kill in stage.kills] == [60]


async def test_pods_that_came_or_ended_meanwhile_do_not_go(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_DISK, [make_pod("ended"), make_pod("there")], observations=LOW_DISK, reclaiming_takes=5)
    stage.usage = {"ended": disk("ended", "9Gi"), "there": disk("there", "1Mi")}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_for, 6)
        await trio.sleep(2)
        stage.pods = [make_pod("new"), *stage.pods[1:]]
    assert [kill.name for kill in stage.kills] == ["there"]


async def test_a_source_that_hangs_stops_nothing_for_good(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, [make_pod("p")], observations=LOW_MEMORY, measuring_takes=math.inf)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_for, 70)
        await trio.sleep(40)
        assert stage.kills == []
        stage.measuring_takes = 0
    assert stage.measured[:3] == [0, 31, 62]
    assert [kill.at for kill in stage.kills] == [62]


async def test_while_nothing_can_be_measured_conditions_stay(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, observations=LOW_MEMORY)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_for, 800)
        await trio.sleep(5)
        stage.measuring_fails, stage.observations = True, ENOUGH
        await trio.sleep(600)
        assert stage.manager.conditions() == ("MemoryPressure",)
        stage.measuring_fails = False
        await trio.sleep(10)
        assert stage.manager.conditions() == ()


async def test_pods_beyond_their_limits_go_at_the_same_time(autojump_clock: MockClock) -> None:
    limit = amounts(disk="1Gi")
    stage = Stage((), [make_pod(name, limits=limit) for name in ("a", "b", "good")])
    stage.usage = {"a": disk("a", "2Gi"), "b": PodUsage(ephemeral=2**31), "good": disk("good", "1Mi")}
    stage.killing_takes = 4
    await stage.run_for(7)
    kills = sorted(stage.kills, key=lambda kill: kill.name)
    assert [(kill.at, kill.name, kill.grace) for kill in kills] == [(0, "a", 1), (0, "b", 1)]
    assert all(kill.status.conditions == () for kill in kills)
    assert kills[0].status.message == 'Container a exceeded its local ephemeral storage limit "1Gi". '
    assert {reason for reason, _ in stage.events} == {"Evicted"}
    assert stage.measured == [0, 4]
    assert stage.manager.evictions == {("ephemeralcontainerfs.limit",): 1, ("ephemeralpodfs.limit",): 1}


async def test_critical_pods_stay_on_a_node_that_is_short(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, [make_pod("static", source=FILE_SOURCE)], observations=LOW_MEMORY)
    await stage.run_for(25)
    assert stage.kills == []
    assert stage.measured == [0, 10, 20]


async def test_the_age_of_what_led_to_an_eviction_is_kept(autojump_clock: MockClock) -> None:
    stage = Stage(NEEDS_MEMORY, [make_pod("p")], measuring_takes=3)
    epoch = 1_767_225_600.0  # What the clock of tests begins with.
    stage.observations = {S.MEMORY: Observation(available=1, capacity=2, at=epoch)}
    await stage.run_for(5)
    (labels,) = stage.manager.stats_age
    assert labels == ("memory.available",)
    assert stage.manager.stats_age[labels].sum == pytest.approx(3, abs=0.01)


class Bells(ThresholdNotifier):
    """ThresholdNotifier that a test rings."""

    def __init__(self) -> None:
        super().__init__(NotifierPlaces(), ())
        self.rung: Broadcast[None] = Broadcast()
        self.followed: list[float] = []

    async def run(
        self,
        crossed: Broadcast[None],
        in_need: Callable[[], bool],
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        self.rung = crossed
        task_status.started()

    async def follow(self, observations: object) -> None:
        self.followed.append(trio.current_time())


async def ringing(stage: Stage, bells: Bells, *times: float) -> None:
    for at in times:
        await trio.sleep(at - stage.now)
        bells.rung.send(None)


async def test_an_alarm_brings_the_measurement_forward(autojump_clock: MockClock) -> None:
    bells = Bells()
    stage = Stage(NEEDS_MEMORY, observations=ENOUGH, notifier=bells)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_for, 25)
        await ringing(stage, bells, 3, 14.5)
    assert stage.measured == [0, 3, 13, 14.5, 24.5]
    assert len(bells.followed) == 5


async def test_the_log_tells_whether_a_shortage_was_found_before_its_period(autojump_clock: MockClock) -> None:
    bells = Bells()
    stage = Stage(NEEDS_MEMORY, observations=ENOUGH, notifier=bells)

    async def run_low(at: float) -> None:
        await trio.sleep(at - stage.now)
        stage.observations = LOW_MEMORY
        await trio.sleep(10)
        stage.observations = ENOUGH

    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.run_for, 45)
            nursery.start_soon(ringing, stage, bells, 3)
            await run_low(2)
            await run_low(27)
    found = [line["ahead_of_period"] for line in logs if line["event"] == "the node is low on a resource"]
    assert stage.measured == [0, 3, 13, 23, 33, 43]
    assert found == [True, False]


async def test_alarms_bring_one_measurement_a_second(autojump_clock: MockClock) -> None:
    bells = Bells()
    stage = Stage(NEEDS_MEMORY, observations=ENOUGH, notifier=bells)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_for, 12.5)
        await ringing(stage, bells, 0.1, 0.2, 0.5, 1.1, 1.5, 1.9)
    assert stage.measured == [0, 1, 2, 12]


async def test_an_alarm_in_a_round_is_not_lost(autojump_clock: MockClock) -> None:
    bells = Bells()
    stage = Stage(NEEDS_MEMORY, observations=ENOUGH, notifier=bells, measuring_takes=5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_for, 9)
        await ringing(stage, bells, 2)
    assert stage.measured == [0, 5]
