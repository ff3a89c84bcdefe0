"""Rates from looks at counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.node.stats.rates import FORGET, SECOND, RateBook


def test_the_first_look_gives_no_rate() -> None:
    assert RateBook().rate("c", 0, 5 * SECOND) is None


def test_two_looks_give_the_cores_used_between_them() -> None:
    book = RateBook()
    book.rate("c", 0, 0)
    assert book.rate("c", 10 * SECOND, 5 * SECOND) == SECOND // 2


@pytest.mark.parametrize(("new", "why"), [(1, "restarted"), (0, "emptied")])
def test_a_counter_that_starts_anew_gives_no_rate_until_the_look_after(new: int, why: str) -> None:
    book = RateBook()
    book.rate("c", 0, 100 * SECOND)
    assert book.rate("c", 10 * SECOND, new) is None, why
    assert book.rate("c", 20 * SECOND, new + 10 * SECOND) == SECOND


def test_looks_at_nearly_the_same_time_give_no_rate() -> None:
    book = RateBook()
    book.rate("c", 0, 0)
    assert book.rate("c", 0, 10) is None
    assert book.rate("c", SECOND // 100, SECOND) is None


def test_whoever_asks_every_second_gets_the_mean_of_ten_seconds() -> None:
    book = RateBook()
    usages = [0, *([SECOND] * 30), *([10 * SECOND] * 1)]
    usage, rates = 0, []
    for second, used in enumerate(usages):
        usage += used
        rates.append(book.rate("c", second * SECOND, usage))
    assert rates[2] == rates[29] == SECOND
    last = rates[-1]
    assert last is not None
    assert 1.6 * SECOND < last < 2 * SECOND, "one jump among ten or eleven seconds"


def test_a_rate_does_not_go_back_over_a_long_silence() -> None:
    book = RateBook()
    book.rate("c", 0, 0)
    assert book.rate("c", FORGET + SECOND, SECOND) is None
    assert book.rate("c", FORGET + 11 * SECOND, 11 * SECOND) == SECOND


def test_what_is_not_looked_at_any_more_is_forgotten() -> None:
    book = RateBook()
    book.rate("gone", 0, 0)
    book.rate("here", FORGET, 0)
    book.forget_before(1)
    assert len(book) == 1
    assert book.rate("here", FORGET + 10 * SECOND, 10 * SECOND) == SECOND


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 80)), min_size=1, max_size=60))
def test_a_rate_lies_between_the_least_and_the_greatest_use(steps: list[tuple[int, int]]) -> None:
    book, at, usage = RateBook(), 0, 0
    book.rate("c", 0, 0)
    for seconds, used in steps:
        at, usage = at + seconds * SECOND, usage + used * SECOND
        rate = book.rate("c", at, usage)
        assert rate is not None
        rates = [used / seconds for seconds, used in steps]
        assert min(rates) * SECOND - 1 <= rate <= max(rates) * SECOND + 1
        assert len(book._samples["c"]) <= 8
