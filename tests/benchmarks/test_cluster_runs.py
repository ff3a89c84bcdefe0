"""The whole benchmark in small: that it measures at all, and leaves nothing. How fast anything is, it is not asked."""

from __future__ import annotations

import json
import tempfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.cluster.__main__ import main
from benchmarks.cluster.steps import Step
from tests.embedded.runtime_node import mounts_with, processes_with

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.night
@pytest.mark.root
def test_on_the_embedded_runtime_pods_come_and_go_by_the_api_server_and_by_bare_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "aims.json"
    with TemporaryDirectory() as folder:  # whose name is short enough for sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)
        arguments = ["--pods=2", "--rounds=1", "--settle=0.1", "--floor-at-once=2", "--rest=0.5", f"--json={file}"]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        assert json.loads(file.read_text()) == []
        assert "CPU of trikubelet" in done.output
        for pods in (0, 2):
            assert f"at rest with {pods} pods" in done.output
        for step in Step:
            assert f"to {step.value}" in done.output
        assert processes_with(folder) == []
        assert mounts_with(folder) == []
