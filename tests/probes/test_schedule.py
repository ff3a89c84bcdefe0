"""When probes are due."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trikubelet.probes.schedule import first_delay, next_tick, tick_from


@pytest.mark.parametrize(
    ("agent_age", "chance", "expected"),
    [(0, 0.25, 2.5), (9.9, 0.25, 2.5), (10, 0.25, 0), (3600, 0.9, 0), (0, 0, 0)],
)
def test_the_first_looks_are_spread_over_a_period_when_the_agent_is_younger(
    agent_age: float, chance: float, expected: float
) -> None:
    assert first_delay(10, agent_age, chance) == expected


@pytest.mark.parametrize(
    ("began", "expected"),
    [(100, 110), (100.5, 110), (109.999, 110), (110, 120), (110.2, 120), (137, 140)],
)
def test_looks_follow_the_grid_and_not_each_other(began: float, expected: float) -> None:
    assert next_tick(100, 10, began) == expected


def test_a_look_that_takes_too_long_is_followed_by_one_at_once_and_then_the_grid() -> None:
    began, took = 0.0, (2.7, 0.1, 0.1)
    looks = []
    for seconds in took:
        looks.append(began)
        began = max(began + seconds, next_tick(0, 1, began))
    assert looks == [0, 2.7, 3]


@example(anchor=19.8, period=1.0, steps=32)  # where the division gives a little less than 32
@given(anchor=st.floats(0, 1e7), period=st.sampled_from([1.0, 3.0, 10.0, 3600.0]), steps=st.integers(0, 100_000))
def test_a_look_on_a_point_of_the_grid_finds_the_next_one(anchor: float, period: float, steps: int) -> None:
    began = anchor + steps * period
    assert next_tick(anchor, period, began) == anchor + (steps + 1) * period


@given(anchor=st.floats(0, 1e7), period=st.sampled_from([1.0, 7.0, 10.0]), after=st.floats(0, 1e6))
def test_the_next_tick_is_ahead_and_no_more_than_a_period_away(anchor: float, period: float, after: float) -> None:
    began = anchor + after
    assert 0 < next_tick(anchor, period, began) - began <= period + 1e-6


@pytest.mark.parametrize(
    ("moment", "expected"),
    [(99, 100), (100, 100), (100.5, 110), (109.9, 110), (110, 110), (110.0000004, 110), (110.1, 120), (-7, 100)],
)
def test_whoever_rested_goes_on_at_the_next_point_of_the_grid(moment: float, expected: float) -> None:
    assert tick_from(100, 10, moment) == expected
