"""The whole benchmark in small: that it measures at all, and leaves nothing. How fast anything is, it is not asked."""

from __future__ import annotations

import json
import tempfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
import trio
from click.testing import CliRunner

from benchmarks.volumes import __main__ as command
from benchmarks.volumes.bare import make_bare
from benchmarks.volumes.kinds import Kind
from benchmarks.volumes.prepare import manager_on, time_prepare
from tests.embedded.runtime_node import mounts_with, processes_with

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.night
@pytest.mark.root
def test_pods_with_volumes_are_timed_on_the_embedded_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "aims.json"
    monkeypatch.setattr(command, "TURNS_OF_FEW", 1)
    with TemporaryDirectory() as folder:  # whose name is short enough for sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)
        arguments = ["--kind=secret", "--kind=projected", "--volumes=2", "--rounds=1", "--settle=0", f"--json={file}"]
        done = CliRunner().invoke(command.main, arguments)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            print(done.output)
            raise done.exception  # with all that the agent logged
        (result,) = json.loads(file.read_text())
        assert result["aim"] == "embedded: each of 2 secret volumes adds to a pod's start"
        assert "2 projected" in done.output
        assert processes_with(folder) == []
        assert mounts_with(folder) == []


@pytest.mark.root
@pytest.mark.parametrize("kind", list(Kind))
def test_both_floors_leave_nothing(kind: Kind, tmp_path: Path) -> None:
    async def run() -> None:
        async with manager_on(tmp_path / "root") as manager:
            prepared = await time_prepare(manager, "pod", kind, 3)
            assert prepared.prepare > 0
        assert not (tmp_path / "root" / "pods" / "pod").exists()

    trio.run(run)
    assert (make_bare(tmp_path, kind, 3) > 0) is (kind is not Kind.HOST_PATH)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert mounts_with(str(tmp_path)) == []
