"""Counts and histograms as parts keep them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.telemetry.metrics import DEFAULT_BOUNDS, Histogram, Histograms, bounded, exponential_bounds


def test_a_value_that_is_a_bound_counts_to_its_bucket() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0, 1, 1.5, 2, 5, 5.1):
        histogram.observe(value)
    assert histogram.cumulated == (2, 4, 5, 6)
    assert histogram.count == 6
    assert histogram.sum == pytest.approx(14.6)


def test_one_histogram_is_added_to_another() -> None:
    one, other = Histogram((1,)), Histogram((1,))
    one.observe(0.5)
    other.observe(2)
    one.add(other)
    assert (one.cumulated, one.sum) == ((1, 2), 2.5)
    assert other.cumulated == (0, 1)


@given(st.lists(st.floats(min_value=0, max_value=20)))
def test_a_histogram_counts_as_prometheus_defines_it(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    expected = tuple(sum(value <= bound for value in values) for bound in DEFAULT_BOUNDS)
    assert histogram.cumulated == (*expected, len(values))


def test_a_histogram_of_labels_begins_with_their_first_value() -> None:
    histograms = Histograms((1,), always=[("always",)])
    histograms.observe(("seen",), 3)
    assert {labels: one.count for labels, one in histograms.items()} == {("always",): 0, ("seen",): 1}


def test_exponential_bounds_are_those_of_the_kubelet_for_runtime_operations() -> None:
    bounds = exponential_bounds(0.005, 2.5, 14)
    assert len(bounds) == 14
    assert bounds[:3] == pytest.approx((0.005, 0.0125, 0.03125))
    assert all(later == pytest.approx(2.5 * earlier) for earlier, later in pairwise(bounds))


def test_what_is_not_known_is_other() -> None:
    assert [bounded(word, {"a", "b"}) for word in ("a", "c")] == ["a", "other"]
