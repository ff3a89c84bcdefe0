"""Which files of a log stay, and what a rotated one is called."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.runtime.logs.paths import restart_count_from_log_names
from trikubelet.runtime.logs.rotation_choice import LogRotationPolicy, rotated_name, tidy

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


def stamped(*hours: int, suffix: str = "") -> list[str]:
    return [f"0.log.20260131-{hour:02}0000{suffix}" for hour in hours]


def test_left_over_and_superseded_files_go() -> None:
    names = ["0.log", *stamped(1, 2, suffix=".gz"), *stamped(2), *stamped(3), *stamped(3, suffix=".tmp")]
    tidying = tidy("0.log", names, LogRotationPolicy(max_files=10))
    assert set(tidying.remove) == {*stamped(2), *stamped(3, suffix=".tmp")}
    assert tidying.compress == tuple(stamped(3))


@pytest.mark.parametrize(("max_files", "removed"), [(2, 4), (3, 3), (5, 1), (6, 0), (100, 0)])
def test_the_oldest_go_until_the_log_and_what_it_becomes_have_room(max_files: int, removed: int) -> None:
    rotated = [*stamped(1, 2, 3, suffix=".gz"), *stamped(4)]
    tidying = tidy("0.log", ["0.log", *reversed(rotated)], LogRotationPolicy(max_files=max_files))
    assert tidying.remove == tuple(rotated[:removed])
    assert tidying.compress == (tuple(stamped(4)) if removed < 4 else ())


def test_files_of_others_are_left_alone() -> None:
    names = ["0.log", "0.log.bak", "0.log.gz", "10.log.20260131-010000", "0.log.20260131-010000.gz.old", "1.log"]
    tidying = tidy("0.log", names, LogRotationPolicy(max_files=2))
    assert (tidying.remove, tidying.compress) == ((), ())
    assert rotated_name("0.log", names, NOW) == "0.log.20260131-120000"


def test_the_time_in_a_name_is_utc() -> None:
    berlin = datetime(2026, 1, 31, 13, 0, 0, tzinfo=timezone(timedelta(hours=1)))
    assert rotated_name("0.log", [], berlin) == "0.log.20260131-120000"


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("0.log.20260131-120000", "0.log.20260131-120001"),
        ("0.log.20260131-120000.gz", "0.log.20260131-120001"),
        ("0.log.20260131-235959", "0.log.20260201-000000"),
        ("0.log.20260131-110000", "0.log.20260131-120000"),
        ("0.log.20269999-999999", "0.log.20270000-000000"),
    ],
    ids=["the same second", "the same second, compressed", "the clock went back", "the past", "no date"],
)
def test_a_name_follows_all_that_are_there(there: str, expected: str) -> None:
    assert rotated_name("0.log", [there], NOW) == expected


@given(st.lists(st.integers(-10_000, 10_000), max_size=30))
def test_names_sort_as_the_files_follow_each_other_whatever_the_clock_does(jumps: list[int]) -> None:
    names: list[str] = []
    moment = NOW
    for jump in jumps:
        moment += timedelta(seconds=jump)
        names.append(rotated_name("0.log", names, moment))
    assert names == sorted(set(names))
    assert restart_count_from_log_names(names) == (1 if names else 0)


@pytest.mark.parametrize(("max_size", "due"), [(-1, []), (0, [1, 9, 10, 11]), (10, [10, 11])])
def test_a_log_is_due_at_its_largest_size_and_never_when_empty(max_size: int, due: list[int]) -> None:
    policy = LogRotationPolicy(max_size=max_size)
    assert [size for size in (0, 1, 9, 10, 11) if policy.is_due(size)] == due
