"""When the comparison with an earlier commit fails: its rule, and what it is compared with."""

from __future__ import annotations

import subprocess

import pytest
from click.testing import CliRunner

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


def test_an_unknown_commit_is_an_error_and_a_clone_without_releases_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert base_commit("there-is-no-such-commit") is None
    asked = CliRunner().invoke(perf.main, ["--base=there-is-no-such-commit"])
    assert (asked.exit_code, "no commit there-is-no-such-commit" in asked.output) == (2, True)
    monkeypatch.setattr(perf, "base_commit", lambda _: None)
    assert CliRunner().invoke(perf.main, []).exit_code == 0


def test_the_files_of_an_earlier_commit_are_there_and_the_repository_stays_as_it_is() -> None:
    commit = base_commit("HEAD")
    if commit is None:
        pytest.skip("not a clone")
    before = subprocess.run(["git", "worktree", "list"], cwd=perf.ROOT, check=True, capture_output=True).stdout
    with perf._checkout(commit) as folder:
        assert perf.Tree(folder).run("version") > 0
        assert not (folder / ".git").exists()
        after = subprocess.run(["git", "worktree", "list"], cwd=perf.ROOT, check=True, capture_output=True).stdout
    assert after == before
    assert not folder.exists()


def test_the_last_release_is_known_by_its_tag_or_by_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"tag": ["v0.2.0", "v0.1.0"], "rev-parse": ["c0ffee"]}
    monkeypatch.setattr(perf, "_output", lambda *command: answers[command[1]])
    assert base_commit(None) == "c0ffee"
    answers["tag"] = []
    monkeypatch.setattr(perf, "_recorded", lambda: ["abc"])
    assert base_commit(None) == "c0ffee"
    answers["rev-parse"] = []
    assert base_commit(None) is None
