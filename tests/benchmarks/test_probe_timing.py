"""What a server's visits say of the pace of probes."""

from __future__ import annotations

import pytest

from benchmarks.probes.timing import grid_of, timing


def test_visits_on_the_grid_are_neither_late_nor_do_they_drift() -> None:
    drift, late, missed = grid_of([5.0, 6.0, 7.0, 8.0], 1.0)
    assert [drift, *late] == pytest.approx([0, 0, 0, 0, 0])
    assert missed == 0


def test_a_first_visit_that_was_late_does_not_make_the_others_early() -> None:
    _, late, _ = grid_of([5.02, 6.0, 7.0, 8.0], 1.0)
    assert late == pytest.approx([0.02, 0, 0, 0])


def test_periods_that_are_too_long_add_up_to_a_drift() -> None:
    visits = [1.01 * number for number in range(10)]
    drift, late, _ = grid_of(visits, 1.0)
    assert drift == pytest.approx(0.01)
    assert late[-1] == pytest.approx(0.09)
    assert timing([visits], 1.0).drift == pytest.approx(1.0)


def test_a_point_at_which_nobody_came_is_missed() -> None:
    assert grid_of([0.0, 1.0, 3.0, 4.0], 1.0)[2] == 1


def test_the_worst_of_all_probes_counts_in_percent_of_the_period() -> None:
    measured = timing([[0.0, 2.0, 4.0], [1.0, 3.04, 5.0], [7.0]], 2.0)
    assert measured.late_max == pytest.approx(2.0)
    assert (measured.seen, measured.missed) == (6, 1)
    assert measured.late_median == 0
