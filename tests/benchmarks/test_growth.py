"""What many pods cost beside few: its aims, and the whole benchmark in small."""

from __future__ import annotations

import json
import tempfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import pytest
from click.testing import CliRunner

from benchmarks.growth import EMBEDDED, SIMULATED, Cost, growth, main, rounds_of
from tests.embedded.runtime_node import mounts_with, processes_with

if TYPE_CHECKING:
    from pathlib import Path

FEW = Cost(SIMULATED, 10, start=10.0, end=5.0, idle=2.0, memory=100.0)


def test_each_figure_is_beside_that_of_the_smallest_number() -> None:
    many = attrs.evolve(FEW, pods=500, start=11.0, end=6.0, idle=1.0)
    results = growth([many, FEW])
    assert [result.value for result in results] == pytest.approx([1.1, 1.2, 0.5, 1.0])
    assert [result.met for result in results] == [True, False, True, True]
    assert results[1].aim == "simulated, 500 pods beside 10: end"


def test_kinds_are_not_compared_with_each_other() -> None:
    assert growth([FEW, attrs.evolve(FEW, kind=EMBEDDED, pods=100)]) == []


def test_a_figure_that_is_nothing_but_noise_is_nothing_to_compare_with() -> None:
    results = growth([attrs.evolve(FEW, idle=-0.1), attrs.evolve(FEW, pods=100)])
    assert len(results) == 3


def test_few_pods_are_started_several_times() -> None:
    assert [rounds_of(pods) for pods in (1, 10, 60, 100, 10_000)] == [10, 10, 2, 1, 1]


@pytest.mark.night
def test_simulated_pods_of_each_number_are_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "growth.json"
    arguments = ["--only=simulated", "--simulated=2", "--simulated=1", f"--json={file}"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (0, 1), (done.output, done.exception)
    found = json.loads(file.read_text())
    assert [(cost["kind"], cost["pods"]) for cost in found["costs"]] == [(SIMULATED, 1), (SIMULATED, 2)]
    assert all(cost[figure] > 0 for cost in found["costs"] for figure in ("start", "end"))
    assert "simulated, 2 pods beside 1: start" in {aim["aim"] for aim in found["aims"]}


@pytest.mark.night
@pytest.mark.root
def test_pods_on_the_embedded_runtime_are_measured_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "growth.json"
    with TemporaryDirectory() as folder:  # whose name is short enough for sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        arguments = ["--only=embedded", "--embedded=40", "--settle=0.1", "--window=0.5", f"--json={file}"]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        (cost,) = json.loads(file.read_text())["costs"]
        assert cost["pods"] == 40
        assert all(cost[figure] > 0 for figure in ("start", "end", "memory"))
        assert processes_with(folder) == []
        assert mounts_with(folder) == []
