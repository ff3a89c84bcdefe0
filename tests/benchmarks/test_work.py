"""The guard of what an agent does for a pod: calls and bytes, which are the same on every machine."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from benchmarks import work


@pytest.mark.night
def test_a_pod_costs_no_more_than_what_is_recorded() -> None:
    done = CliRunner().invoke(work.main, [])
    assert done.exit_code == 0, f"{done.output}\nif it has to be more: python -m benchmarks.work --record"
    assert set(json.loads(work.RECORDED.read_text())) == {name for name, _ in _rows(done.output)}


def _rows(printed: str) -> list[tuple[str, str]]:
    cells = [[cell.strip() for cell in line.split("│")] for line in printed.splitlines() if line.startswith("│")]
    return [(row[1], row[-2]) for row in cells]


def test_a_sixth_more_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {"start": 100.0, "end": 100.0}
    counted = {"start": ("calls", 114.0), "end": ("calls", 116.0), "new": ("calls", 5.0)}
    assert [result.met for result in work.results(counted, recorded)] == [True, False, True]
    figures = {name: ("calls", 1.16 * value) for name, value in json.loads(work.RECORDED.read_text()).items()}
    monkeypatch.setattr(work, "count", lambda: figures)
    assert CliRunner().invoke(work.main, []).exit_code == 1
