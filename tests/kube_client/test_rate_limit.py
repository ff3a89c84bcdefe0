from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.kube_client.rate_limit import RateLimiter, TokenBucket, configured_limit
from trikubelet.kube_client.types import RateLimit, Urgency

if TYPE_CHECKING:
    from trio.testing import MockClock


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    bucket = TokenBucket.full(RateLimit(10, 3), 0)
    assert [round(bucket.take(0), 6) for _ in range(6)] == [0, 0, 0, 0.1, 0.2, 0.3]
    assert bucket.take(0.4) == pytest.approx(0)
    assert [bucket.take(1000) for _ in range(3)] == [0, 0, 0]
    assert bucket.take(1000) == pytest.approx(0.1)


def test_a_token_given_back_is_there_for_the_next() -> None:
    bucket = TokenBucket.full(RateLimit(1, 1), 0)
    bucket.take(0)
    assert bucket.take(0) == 1
    bucket.give_back(0)
    assert bucket.take(0) == 1
    for _ in range(9):
        bucket.give_back(5)
    assert (bucket.take(5), bucket.take(5)) == (0, 1)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket.full(RateLimit(1, 1), 10)
    bucket.take(10)
    assert bucket.take(5) == 1
    assert bucket.take(10) == 2


@pytest.mark.parametrize("limit", [RateLimit(0, 5), RateLimit(-1, 5), RateLimit(5, 0)])
def test_a_limit_that_lets_nothing_through_is_refused(limit: RateLimit) -> None:
    with pytest.raises(ValueError, match="expected a positive rate"):
        RateLimiter(limit)


def test_a_configured_rate_of_nothing_is_no_limit() -> None:
    assert configured_limit(50, 100) == RateLimit(50, 100)
    assert configured_limit(50, 0) == RateLimit(50, 1)
    assert configured_limit(0, 100) is None
    assert configured_limit(-1, 100) is None


@given(
    calls=st.lists(st.tuples(st.floats(0, 0.5), st.booleans()), max_size=200),
    qps=st.floats(1, 100),
    burst=st.integers(1, 50),
)
def test_whatever_is_urgent_no_more_calls_are_let_go_than_the_rate_allows_once_debts_are_paid(
    calls: list[tuple[float, bool]], qps: float, burst: int
) -> None:
    bucket = TokenBucket.full(RateLimit(qps, burst), 0)
    now = 0.0
    for taken, (pause, urgent) in enumerate(calls, 1):
        now += pause
        wait = bucket.take(now)
        if not urgent:
            # All that were let go until this one goes, this one included.
            assert taken <= burst + (now + wait) * qps + 1e-6


async def test_urgent_calls_never_wait_and_ordinary_ones_pay(autojump_clock: MockClock) -> None:
    limiter = RateLimiter(RateLimit(10, 5))
    start = trio.current_time()
    for _ in range(25):
        await limiter.admit(Urgency.URGENT, "PATCH /x")
    assert trio.current_time() == start
    await limiter.admit(Urgency.ORDINARY, "PATCH /x")
    assert trio.current_time() - start == pytest.approx(2.1)
    await limiter.admit(Urgency.ORDINARY, "PATCH /x")
    assert trio.current_time() - start == pytest.approx(2.2)


async def test_ordinary_calls_go_in_the_order_they_came(autojump_clock: MockClock) -> None:
    limiter = RateLimiter(RateLimit(10, 1))
    gone: list[tuple[int, float]] = []

    async def call(number: int) -> None:
        await limiter.admit(Urgency.ORDINARY, "GET /x")
        gone.append((number, round(trio.current_time() - start, 6)))

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(call, number)
            await trio.testing.wait_all_tasks_blocked()
        assert limiter.waiting == 3
    assert gone == [(0, 0), (1, 0.1), (2, 0.2), (3, 0.3)]
    assert limiter.waiting == 0


async def test_a_cancelled_wait_takes_nothing(autojump_clock: MockClock) -> None:
    limiter = RateLimiter(RateLimit(1, 1))
    await limiter.admit(Urgency.ORDINARY, "GET /x")
    start = trio.current_time()
    for _ in range(10):
        with trio.move_on_after(0.01):
            await limiter.admit(Urgency.ORDINARY, "GET /x")
    await limiter.admit(Urgency.ORDINARY, "GET /x")
    assert trio.current_time() - start == pytest.approx(1)


async def test_no_limit_is_no_limit(autojump_clock: MockClock) -> None:
    limiter = RateLimiter(None)
    start = trio.current_time()
    for _ in range(10_000):
        await limiter.admit(Urgency.ORDINARY, "GET /x")
    assert trio.current_time() == start
