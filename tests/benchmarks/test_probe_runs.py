"""The benchmark of probes itself, on small numbers: it is not asked how fast anything is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.probes import restart
from benchmarks.probes.__main__ import main
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path


def _aims(tmp_path: Path, *arguments: str) -> dict[str, float]:
    done = CliRunner().invoke(main, [*arguments, f"--json={tmp_path / 'aims.json'}"], catch_exceptions=False)
    assert (tmp_path / "aims.json").exists(), done.output
    return {aim["aim"]: aim["value"] for aim in json.loads((tmp_path / "aims.json").read_text())}


@pytest.mark.night
def test_probes_of_an_agent_are_seen_to_come_in_time_and_pods_to_end_beside_them(tmp_path: Path) -> None:
    aims = _aims(tmp_path, "--only=load", "--probes=20", "--window=3", "--settle=0", "--deletions=1")
    assert len(aims) == 4
    assert 0 <= aims["20 probes a second, drift of the worst"] < 100


@pytest.mark.night
@pytest.mark.root
def test_a_failing_endpoint_on_the_embedded_runtime_is_seen_to_have_its_container_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "QUIET", 0.1)
    aims = _aims(tmp_path, "--only=kill", "--runtime=embedded", "--kills=1")
    beyond, answered = aims.values()
    assert -1000 * restart.PERIOD * restart.THRESHOLD < beyond < 1000 * PATIENCE, "killed after it began to fail"
    assert answered > 0


@pytest.mark.root
def test_every_kind_of_probe_is_weighed(tmp_path: Path) -> None:
    aims = _aims(tmp_path, "--only=cost", "--count=20")
    assert len(aims) == 5
    assert min(aims.values()) > 0
