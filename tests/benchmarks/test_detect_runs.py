"""The benchmark itself, on small numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.detect import crash as crash_module
from benchmarks.detect.__main__ import main
from benchmarks.detect.crash import measure_crashes


def _processes_of(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended since
            continue
        if str(folder) in words:
            found.append(words)
    return found


@pytest.mark.night
@pytest.mark.root
def test_a_crash_on_the_embedded_runtime_is_seen_step_by_step_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_module, "QUIET", 0.1)  # it is not asked how fast anything is
    monkeypatch.setattr(crash_module, "PAUSES", (0.0, 0.1))
    crashes = measure_crashes("embedded", tmp_path / "run", crashes=1)
    (crash,) = crashes.agent
    assert crash.killed < crash.dead < crash.known < crash.created <= crash.running
    assert crash.killed < crash.decided < crash.created
    (floor,) = crashes.floor
    assert floor.killed < floor.dead < floor.known < floor.created < floor.running
    assert _processes_of(tmp_path) == []


@pytest.mark.night
def test_the_command_weighs_an_idle_agent_and_writes_its_aims(tmp_path: Path) -> None:
    aims = tmp_path / "aims.json"
    arguments = ["--only", "idle", "--pods", "100", "--containerd-pods", "0", "--window", "1", "--settle", "0"]
    done = CliRunner().invoke(main, [*arguments, "--json", str(aims)], catch_exceptions=False)
    (aim,) = json.loads(aims.read_text())
    assert aim["aim"] == "100 idle pods on sim, resident memory of the agent"
    assert 20 < aim["value"] < 300
    assert (aim["unit"], aim["goal"], aim["met"]) == ("MiB", 100, aim["value"] <= 100)
    assert done.exit_code == (0 if aim["met"] else 1)
    assert "load of the machine at the start" in done.output
