"""The whole benchmark in small: that it measures at all, and leaves nothing. How fast anything is, it is not asked."""

from __future__ import annotations

import json
import tempfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.runtimes import main
from tests.embedded.runtime_node import mounts_with, processes_with

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.night
@pytest.mark.containerd
def test_both_runtimes_start_and_stop_pods_and_take_memory_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "aims.json"
    with TemporaryDirectory() as folder:  # whose name is short enough for sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)
        done = CliRunner().invoke(main, ["--runs=1", "--pods=1", f"--json={file}"])
        assert done.exit_code in (0, 1), (done.output, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert json.loads(file.read_text())[0]["value"] > 0
        for name in ("embedded, the", "containerd, a"):
            assert name in done.output
        assert processes_with(folder) == []
        assert mounts_with(folder) == []
