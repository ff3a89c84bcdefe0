"""The agent's own OOM score."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.node.oom.score import set_own_score

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "proc/self/oom_score_adj"
    file.parent.mkdir(parents=True)
    file.write_text("0\n")
    return file


def test_the_score_is_written(file: Path, tmp_path: Path) -> None:
    assert set_own_score(-999, tmp_path) is None
    assert file.read_text() == "-999"


def test_a_score_that_is_right_is_not_written_again(file: Path, tmp_path: Path) -> None:
    assert set_own_score(0, tmp_path) is None
    assert file.read_text() == "0\n"


def test_a_score_that_cannot_be_set_is_told(tmp_path: Path) -> None:
    problem = set_own_score(-999, tmp_path)
    assert problem is not None
    assert problem.startswith("the agent's OOM score cannot be set to -999: ")
    assert "CAP_SYS_RESOURCE" in problem
