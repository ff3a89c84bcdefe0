from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.node_api.auth.expiring import ExpiringCache


def test_a_value_is_there_until_its_time_is_over() -> None:
    cache: ExpiringCache[str] = ExpiringCache(2)
    cache.put(b"a", "x", now=10.0, ttl=5.0)
    assert cache.get(b"a", 14.9) == "x"
    assert cache.get(b"a", 15.0) is None
    assert len(cache) == 0


def test_the_one_used_longest_ago_makes_room() -> None:
    cache: ExpiringCache[str] = ExpiringCache(2)
    for key in (b"a", b"b"):
        cache.put(key, "x", 0.0, 9.0)
    cache.get(b"a", 1.0)
    cache.put(b"c", "x", 1.0, 9.0)
    assert (cache.get(b"a", 1.0), cache.get(b"b", 1.0), cache.get(b"c", 1.0)) == ("x", None, "x")


def test_without_time_nothing_is_kept() -> None:
    cache: ExpiringCache[str] = ExpiringCache(2)
    cache.put(b"a", "x", 0.0, 0.0)
    assert len(cache) == 0
    with pytest.raises(ValueError, match="at least 1"):
        ExpiringCache(0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.floats(0, 5)), max_size=60))
def test_it_never_holds_more_than_it_may_nor_answers_late(steps: list[tuple[int, int, float]]) -> None:
    cache: ExpiringCache[float] = ExpiringCache(4)
    now = 0.0
    for number, ttl, passed in steps:
        now += passed
        key = bytes([number])
        ends = cache.get(key, now)
        assert ends is None or ends > now
        cache.put(key, now + ttl, now, ttl)
        assert len(cache) <= 4
