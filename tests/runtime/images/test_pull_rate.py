"""How often images may be pulled."""

from __future__ import annotations

import pytest

from trikubelet.runtime.images.pull_rate import PullRate


def test_a_burst_may_begin_at_once_and_then_so_many_a_second() -> None:
    rate = PullRate(per_second=5, burst=3)
    assert [rate.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert [rate.take(100.1), rate.take(100.2), rate.take(100.2)] == [False, True, False]


def test_a_quiet_time_earns_no_more_than_a_burst() -> None:
    rate = PullRate(per_second=5, burst=2)
    rate.take(0.0)
    assert [rate.take(1000.0) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(("per_second", "burst", "allowed"), [(0, 0, True), (5, 0, False)])
def test_no_rate_is_no_limit_but_no_burst_is_no_pull(per_second: int, burst: int, allowed: bool) -> None:
    rate = PullRate(per_second, burst)
    assert [rate.take(float(second)) for second in range(20)] == [allowed] * 20
