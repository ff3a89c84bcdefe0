"""A small file that is kept as something in memory is."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import trio

from tests.patience import PATIENCE
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.linux.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class State:
    """What a file is to say, and how often it was looked at."""

    def __init__(self, content: bytes = b"one") -> None:
        self.content = content
        self.looks = 0

    def snapshot(self) -> Callable[[], bytes]:
        self.looks += 1
        content = self.content
        return lambda: content


async def test_a_change_is_on_the_disk_when_it_counts(tmp_path: Path) -> None:
    state, path = State(), tmp_path / "state"
    file = StateFile(path, state.snapshot)
    async with trio.open_nursery() as nursery:
        await nursery.start(file.run)
        await file.durable()
        assert not path.exists(), "nothing has changed"
        file.changed()
        await file.durable()
        assert path.read_bytes() == file.written == b"one"
        state.content = b"two"
        file.changed()
        file.changed()
        await file.durable()
        assert path.read_bytes() == b"two"
        assert state.looks == 2, "changes that come together share a write"
        nursery.cancel_scope.cancel()


async def test_what_it_says_already_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"one")
    before = path.stat().st_ino
    file = StateFile(path, State().snapshot, written=b"one")
    async with trio.open_nursery() as nursery:
        await nursery.start(file.run)
        file.changed()
        await file.durable()
        nursery.cancel_scope.cancel()
    assert path.stat().st_ino == before


async def test_what_cannot_be_written_is_said_and_written_with_the_next_change(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    file = StateFile(folder / "state", State().snapshot)
    async with trio.open_nursery() as nursery:
        await nursery.start(file.run)
        file.changed()
        for _ in range(2):
            with pytest.raises(CheckpointError, match="No such file or directory"):
                await file.durable()
        assert file.written is None
        folder.mkdir()
        file.changed()
        await file.durable()
        assert (folder / "state").read_bytes() == b"one"
        nursery.cancel_scope.cancel()


async def test_changes_before_it_runs_are_written_when_it_does(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state", State().snapshot)
    file.changed()
    async with trio.open_nursery() as nursery:
        await nursery.start(file.run)
        await file.durable()
        nursery.cancel_scope.cancel()
    assert (tmp_path / "state").read_bytes() == b"one"


async def test_who_waits_for_the_disk_can_be_cancelled(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state", State().snapshot)
    file.changed()
    with trio.move_on_after(0) as scope:
        await file.durable()
    assert scope.cancelled_caught, "nobody writes"


async def test_the_next_agent_would_know_before_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, slow = tmp_path / "state", threading.Event()
    path.write_bytes(b"old")
    monkeypatch.setattr("trikubelet.linux.durable_files.os.fsync", lambda _: slow.wait())
    file = StateFile(path, State().snapshot)
    async with trio.open_nursery() as nursery:
        await nursery.start(file.run)
        file.changed()
        with trio.fail_after(PATIENCE):
            await file.kept()
        assert path.read_bytes() == b"old"
        assert (tmp_path / ".state.tmp").read_bytes() == b"one"
        with trio.move_on_after(0.01) as waiting:
            await file.durable()
        assert waiting.cancelled_caught
        slow.set()
        await file.durable()
        await file.kept()
        assert path.read_bytes() == b"one"
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "none" / "state", State().snapshot)
    async with trio.open_nursery() as nursery:
        await nursery.start(file.run)
        file.changed()
        with pytest.raises(CheckpointError, match="No such file"):
            await file.kept()
        nursery.cancel_scope.cancel()
