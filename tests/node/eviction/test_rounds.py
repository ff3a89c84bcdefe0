"""The parts of a round."""

from __future__ import annotations

import pytest

from tests.node.eviction.situations import MINUTE, Node, left, threshold
from trikubelet.config.eviction_values import EvictionConfig, Layout, Signal, Threshold
from trikubelet.node.eviction.model import Measurement, Observation
from trikubelet.node.eviction.rounds import (
    Reclaim,
    RoundState,
    after_reclaim,
    begin_round,
    conditions_of,
    conditions_since,
    grace_passed,
    in_order_of_urgency,
    reclaims,
    thresholds_met,
    with_news,
)

S = Signal
HARD = threshold(S.MEMORY, "1Gi", reclaim="500Mi")
SOFT = threshold(S.MEMORY, "2Gi", grace=MINUTE)


@pytest.mark.parametrize(
    ("available", "until_reclaimed", "met"),
    [
        ("500Mi", False, True),
        ("2Gi", False, False),
        ("1Gi", False, False),
        ("1.05Gi", False, False),
        ("1.05Gi", True, True),
        ("1524Mi", True, False),
        ("2Gi", True, False),
    ],
)
def test_a_threshold_is_met_while_less_is_left(available: str, until_reclaimed: bool, met: bool) -> None:
    found = thresholds_met([HARD], {S.MEMORY: left(available)}, until_reclaimed=until_reclaimed)
    assert found == ((HARD,) if met else ())


def test_what_is_not_observed_is_not_met() -> None:
    assert thresholds_met([HARD], {}) == ()


PERCENT = (threshold(S.MEMORY, 0.2, reclaim=0.05), threshold(S.NODE_FS, 0.3))


@pytest.mark.parametrize(
    ("memory", "disk", "until_reclaimed", "met"),
    [
        ("100Mi", "100Gi", False, PERCENT),
        ("300Mi", "400Gi", False, ()),
        ("300Mi", "100Gi", False, PERCENT[1:]),
        ("100Mi", "400Gi", False, PERCENT[:1]),
        ("225Mi", "", True, PERCENT[:1]),
        ("300Mi", "", True, ()),
    ],
)
def test_percentages_are_of_what_there_is(
    memory: str, disk: str, until_reclaimed: bool, met: tuple[Threshold, ...]
) -> None:
    observed = {S.MEMORY: left(memory, "1000Mi")}
    if disk:
        observed[S.NODE_FS] = left(disk, "1000Gi")
    assert thresholds_met(PERCENT, observed, until_reclaimed=until_reclaimed) == met


@pytest.mark.parametrize(
    ("at", "last", "news"),
    [
        (None, None, True),
        (100.0, None, True),
        (100.0, left("1Gi", at=160.0), False),
        (100.0, left("1Gi", at=100.0), False),
        (160.0, left("1Gi", at=100.0), True),
        (None, left("1Gi", at=100.0), True),
    ],
    ids=["no time", "never before", "back in time", "the same", "newer", "no time, but one before"],
)
def test_one_measurement_is_acted_on_once(at: float | None, last: Observation | None, news: bool) -> None:
    before = {} if last is None else {S.MEMORY: last}
    assert with_news([HARD], {S.MEMORY: left("1Gi", at=at)}, before) == ((HARD,) if news else ())


def test_of_what_is_not_observed_there_is_no_news() -> None:
    assert with_news([HARD], {}, {}) == ()


def test_it_counts_since_when_a_threshold_was_met_without_a_break() -> None:
    config = EvictionConfig(thresholds=(SOFT,))
    low = Measurement(observations={S.MEMORY: left("1Gi")})
    enough = Measurement(observations={S.MEMORY: left("3Gi")})
    state = begin_round(config, RoundState(), low, (), 100.0).state
    assert state.first_met == {SOFT: 100.0}
    state = begin_round(config, state, low, (), 160.0).state
    assert state.first_met == {SOFT: 100.0}
    state = begin_round(config, state, enough, (), 170.0).state
    assert state.first_met == {}
    assert begin_round(config, state, low, (), 180.0).state.first_met == {SOFT: 180.0}


@pytest.mark.parametrize(
    ("first_met", "passed"),
    [
        ({}, ()),
        ({HARD: 1000.0}, (HARD,)),
        ({SOFT: 1000.0}, ()),
        ({SOFT: 1000.0 - MINUTE + 0.1}, ()),
        ({SOFT: 1000.0 - MINUTE}, (SOFT,)),
        ({SOFT: 1000.0 - 2 * MINUTE}, (SOFT,)),
    ],
)
def test_a_grace_period_passes(first_met: dict[Threshold, float], passed: tuple[Threshold, ...]) -> None:
    assert grace_passed(first_met, 1000.0) == passed


@pytest.mark.parametrize(
    ("signals", "conditions"),
    [
        ([], ()),
        ([S.MEMORY], ("MemoryPressure",)),
        ([S.ALLOCATABLE_MEMORY], ("MemoryPressure",)),
        ([S.PIDS, S.IMAGE_FS, S.NODE_FS_INODES, S.MEMORY], ("MemoryPressure", "DiskPressure", "PIDPressure")),
        ([S.CONTAINER_FS_INODES], ("DiskPressure",)),
    ],
)
def test_each_signal_has_a_condition(signals: list[Signal], conditions: tuple[str, ...]) -> None:
    assert conditions_of([threshold(signal) for signal in signals]) == conditions


def test_a_condition_remembers_when_there_was_last_reason_for_it() -> None:
    config = EvictionConfig(thresholds=(HARD,))
    low = Measurement(observations={S.MEMORY: left("1Mi")})
    enough = Measurement(observations={S.MEMORY: left("9Gi")})
    state = begin_round(config, RoundState(), low, (), 100.0).state
    assert state.last_pressure == {"MemoryPressure": 100.0}
    state = begin_round(config, state, low, (), 160.0).state
    assert state.last_pressure == {"MemoryPressure": 160.0}
    state = begin_round(config, state, enough, (), 220.0).state
    assert state.last_pressure == {"MemoryPressure": 160.0}


@pytest.mark.parametrize(("period", "still"), [(2 * MINUTE, True), (MINUTE, False), (30.0, False)])
def test_a_condition_outlives_its_reason(period: float, still: bool) -> None:
    found = conditions_since({"MemoryPressure": 1000.0 - MINUTE}, period, 1000.0)
    assert found == (("MemoryPressure",) if still else ())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        ([S.NODE_FS, S.PIDS, S.MEMORY], [S.MEMORY, S.NODE_FS, S.PIDS]),
        ([S.NODE_FS, S.PIDS, S.ALLOCATABLE_MEMORY], [S.ALLOCATABLE_MEMORY, S.NODE_FS, S.PIDS]),
        ([S.ALLOCATABLE_MEMORY, S.MEMORY, S.IMAGE_FS], [S.ALLOCATABLE_MEMORY, S.MEMORY, S.IMAGE_FS]),
    ],
)
def test_memory_is_most_urgent(given: list[Signal], expected: list[Signal]) -> None:
    found = in_order_of_urgency(threshold(signal) for signal in given)
    assert [each.signal for each in found] == expected


def test_hard_ones_are_more_urgent_than_soft_ones_of_the_same_kind() -> None:
    soft_disk, hard_pids = threshold(S.NODE_FS, grace=1), threshold(S.PIDS)
    assert in_order_of_urgency([soft_disk, SOFT, hard_pids, HARD]) == (HARD, SOFT, hard_pids, soft_disk)


def test_the_most_urgent_one_is_acted_on() -> None:
    node = Node((threshold(S.NODE_FS, "1Gi"), threshold(S.MEMORY, "1Gi")))
    found = node.look({S.NODE_FS: left("1Mi"), S.MEMORY: left("1Mi")})
    assert found.target == threshold(S.MEMORY, "1Gi")
    assert node.look({S.NODE_FS: left("9Gi"), S.MEMORY: left("9Gi")}).target is None


def test_a_threshold_of_one_layout_is_forgotten_with_it() -> None:
    node = Node((threshold(S.NODE_FS, "1Gi", reclaim="1Gi"),))
    low = {S.NODE_FS: left("9Gi"), S.CONTAINER_FS: left("1Mi")}
    assert node.look(low).target == threshold(S.CONTAINER_FS, "1Gi", reclaim="1Gi")
    node.layout = Layout.DEDICATED
    assert node.look(low).target is None
    assert node.state.first_met == {}


BOTH, CONTAINERS, IMAGES = tuple(Reclaim), (Reclaim.DEAD_CONTAINERS,), (Reclaim.UNUSED_IMAGES,)


@pytest.mark.parametrize(
    ("layout", "node", "images", "layers"),
    [
        (Layout.SINGLE, BOTH, BOTH, BOTH),
        (Layout.DEDICATED, (), BOTH, BOTH),
        (Layout.SPLIT, CONTAINERS, IMAGES, CONTAINERS),
    ],
)
def test_what_is_reclaimed_depends_on_what_lies_on_the_disk(
    layout: Layout, node: tuple[Reclaim, ...], images: tuple[Reclaim, ...], layers: tuple[Reclaim, ...]
) -> None:
    expected = dict.fromkeys((S.NODE_FS, S.NODE_FS_INODES), node)
    expected |= dict.fromkeys((S.IMAGE_FS, S.IMAGE_FS_INODES), images)
    expected |= dict.fromkeys((S.CONTAINER_FS, S.CONTAINER_FS_INODES), layers)
    expected |= dict.fromkeys((S.MEMORY, S.ALLOCATABLE_MEMORY, S.PIDS), ())
    assert {signal: reclaims(signal, layout) for signal in Signal} == expected


def test_after_reclaiming_every_threshold_counts_whether_it_was_acted_on_or_not() -> None:
    config = EvictionConfig(thresholds=(threshold(S.NODE_FS, "1Gi", reclaim="1Gi"), SOFT))
    for disk, memory, enough in (("2Gi", "9Gi", True), ("1.5Gi", "9Gi", False), ("2Gi", "1Gi", False)):
        found = Measurement(observations={S.NODE_FS: left(disk), S.MEMORY: left(memory)})
        assert after_reclaim(config, found) is enough
