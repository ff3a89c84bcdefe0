"""The whole benchmark in small: that it measures at all, and leaves nothing. How fast anything is, it is not asked."""

from __future__ import annotations

import json
import sys
import tempfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.termination.__main__ import main
from benchmarks.termination.phases import FLOOR, OURS, Phase
from benchmarks.termination.pods import Behaviour
from benchmarks.termination.rounds import Settings
from benchmarks.termination.sim import EXIT_SECONDS, simulate
from tests.embedded.runtime_node import mounts_with, processes_with

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.root
def test_on_the_embedded_runtime_every_phase_of_ours_and_of_the_floor_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "aims.json"
    with TemporaryDirectory() as folder:  # whose name is short enough for sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)
        _measure_and_look_around(file, folder)


def _measure_and_look_around(file: Path, folder: str) -> None:
    done = CliRunner().invoke(
        main,
        [
            "--runtime=embedded",
            "--pods=2",
            "--rounds=1",
            "--settle=0.1",
            "--idle=0.2",
            f"--json={file}",
            "--behaviour=sidecars",
        ],
    )
    assert done.exit_code == 0, (done.output, done.exception)
    for phase in Phase:
        assert phase.value in done.output
    assert json.loads(file.read_text()) == []
    assert processes_with(folder) == []
    assert mounts_with(folder) == []


@pytest.mark.parametrize("behaviour", Behaviour)
def test_on_the_simulated_runtime_the_agent_adds_next_to_nothing(behaviour: Behaviour) -> None:
    settings = Settings(pods=2, rounds=1, grace=5, behaviours=(behaviour,), settle=1.0)
    measured = simulate(settings, {"StopPodSandbox": 0.5}, lambda step: None)
    [ours], [floor] = (measured.lasts(behaviour, name) for name in (OURS, FLOOR))
    assert floor == pytest.approx(ours, abs=0.1)
    assert floor > 0.5 + (EXIT_SECONDS if behaviour.exits else 2.0)
    assert len(measured.seconds(behaviour, OURS, Phase.WORKER_FINISHED)) == settings.pods


def test_a_latency_without_seconds_is_refused() -> None:
    done = CliRunner().invoke(main, ["--runtime=sim", "--latency=StopPodSandbox"])
    assert done.exit_code == 2
    assert "RPC=SECONDS" in done.output


def test_only_the_simulated_runtime_has_latencies_and_only_others_have_kubelets(tmp_path: Path) -> None:
    kubelet = tmp_path / "kubelet"
    kubelet.touch()
    for wrong in (["--latency=*=1"], ["--runtime=sim", f"--kubelet={kubelet}"]):
        assert CliRunner().invoke(main, wrong).exit_code == 2


def test_a_picture_shows_what_was_measured_as_png_and_as_svg(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    from benchmarks.termination.picture import draw

    behaviours = (Behaviour.EXITS_ON_TERM, Behaviour.GRACE_SHORTENED)
    measured = simulate(Settings(2, 1, 5, behaviours, 1.0), {}, lambda step: None)
    files = draw(measured, "a title", tmp_path / "end.png")
    assert [file.name for file in files] == ["end.png", "end.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()


def test_without_matplotlib_a_picture_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(main, ["--runtime=sim", f"--picture={tmp_path / 'end.png'}"])
    assert done.exit_code == 1
    assert "trikubelet[pictures]" in done.output
