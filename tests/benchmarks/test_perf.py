"""When the comparison with an earlier commit fails: its rule, and what it is compared with."""

from __future__ import annotations

import pytest

from benchmarks import perf
from benchmarks.perf import Figure, base_commit


@pytest.mark.parametrize(
    ("theirs", "ours", "met"),
    [
        ([10, 10, 10], [10, 10, 10], True),
        ([10, 10, 10], [11, 11, 11], True),
        ([10, 10, 10], [12, 12, 12], False),
        ([10, 10, 10], [5, 5, 5], True),
        # What varies from turn to turn says less: here by a tenth, so a third more is not enough.
        ([9, 10, 11], [12, 13, 14], True),
        ([9, 10, 11], [15, 16, 17], False),
        # One turn beside something else does not count.
        ([10, 10, 10], [10, 10, 30], True),
        ([10, 10, 30], [12, 12, 30], False),
        # Both trees are slower in a turn in which the machine is busy.
        ([10, 20, 10], [10, 20, 10], True),
        ([0, 0, 0], [0, 0, 0], True),
    ],
)
def test_a_figure_is_worse_by_more_than_a_seventh_and_the_spread(
    theirs: list[float], ours: list[float], met: bool
) -> None:
    assert Figure("x", "ms", ours, theirs).result.met is met


def test_an_unknown_commit_is_nothing_to_compare_with() -> None:
    assert base_commit("there-is-no-such-commit") is None


def test_the_last_release_is_known_by_its_tag_or_by_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"tag": ["v0.2.0", "v0.1.0"], "rev-parse": ["c0ffee"]}
    monkeypatch.setattr(perf, "_output", lambda *command: answers[command[1]])
    assert base_commit(None) == "c0ffee"
    answers["tag"] = []
    monkeypatch.setattr(perf, "_recorded", lambda: ["abc"])
    assert base_commit(None) == "c0ffee"
    answers["rev-parse"] = []
    assert base_commit(None) is None
