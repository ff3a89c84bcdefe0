"""Waits between attempts."""

from itertools import pairwise

from trikubelet.backoff import Backoff


def test_it_grows_to_the_longest_and_stays_there() -> None:
    backoff = Backoff(first=1, longest=5)
    assert [backoff.delay(failures) for failures in (1, 2, 3, 4, 10_000)] == [1, 2, 4, 5, 5]


def test_the_next_wait_follows_from_the_last_one() -> None:
    backoff = Backoff(first=0.5, longest=122, factor=2)
    delays = [backoff.delay(failures) for failures in range(1, 12)]
    assert all(backoff.after(one) == following for one, following in pairwise(delays))
    assert delays[-1] == 122


def test_a_wait_that_was_longer_for_another_reason_stays() -> None:
    assert Backoff(first=1, longest=60).after(600) == 600


def test_jitter_goes_both_ways() -> None:
    backoff = Backoff(first=10, longest=10, jitter=0.2)
    assert (backoff.delay(1, 0.0), backoff.delay(1), round(backoff.delay(1, 0.999), 2)) == (8, 10, 12)
