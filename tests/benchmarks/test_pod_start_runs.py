"""The whole benchmark in small: that it measures at all, and leaves nothing. How fast anything is, it is not asked."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

from benchmarks import pod_start
from tests import leftovers


@pytest.mark.night
@pytest.mark.parametrize(
    ("kind", "aims"),
    [
        pytest.param("embedded", 0, marks=pytest.mark.root),
        pytest.param("containerd", 2, marks=pytest.mark.containerd),
    ],
)
def test_the_agent_and_the_bare_client_start_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, aims: int
) -> None:
    for name in ("IDLE", "QUIET"):
        monkeypatch.setattr(pod_start, name, 0.3)
    file = tmp_path / "aims.json"
    with TemporaryDirectory() as folder:  # whose name is short enough for sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)
        flags = [f"--runtime={kind}", "--runs=1", "--pods=2", f"--json={file}"]
        done = CliRunner().invoke(pod_start.main, flags, catch_exceptions=False)
        assert done.exit_code in (0, 1), done.output
        assert "RunPodSandbox" in done.output
        measured = json.loads(file.read_text())
        assert len(measured) == aims
        assert all(each["value"] > 0 for each in measured)
        assert leftovers.below(Path(folder)) == set()
