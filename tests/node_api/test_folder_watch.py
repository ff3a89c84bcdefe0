from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import trio
import trio.testing

from trikubelet.linux.inotify import Inotify
from trikubelet.node_api.folder_watch import FolderWatch

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock


def inotify_descriptors() -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += "inotify" in str(descriptor.readlink())
        except OSError:
            continue
    return found


async def woken(watch: FolderWatch) -> bool:
    """Real time: events come when the kernel sends them."""
    with trio.move_on_after(2):
        await watch.wait()
        return True
    return False


async def test_two_hundred_readers_share_one_descriptor_and_all_are_woken(tmp_path: Path) -> None:
    folders = [tmp_path / str(n) for n in range(4)]
    for folder in folders:
        folder.mkdir()
    before = inotify_descriptors()
    heard: list[int] = []

    async def reader(number: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with FolderWatch(folders[number % 4]) as watch:
            task_status.started()
            await watch.wait()
            heard.append(number)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for number in range(200):
                await nursery.start(reader, number)
            assert inotify_descriptors() == before + 1
            for folder in folders:
                (folder / "0.log").write_text("x")
    assert sorted(heard) == list(range(200))
    assert inotify_descriptors() == before


async def test_a_reader_is_told_of_its_own_folder_only(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with FolderWatch(tmp_path / "a") as one, FolderWatch(tmp_path / "b") as other:
        (tmp_path / "a" / "0.log").write_text("x")
        assert await woken(one)
        with trio.move_on_after(0.05) as scope:
            await other.wait()
        assert scope.cancelled_caught


async def test_the_last_reader_of_a_folder_ends_its_watch_and_others_go_on(tmp_path: Path) -> None:
    with FolderWatch(tmp_path) as one:
        with FolderWatch(tmp_path):
            pass
        (tmp_path / "0.log").write_text("x")
        assert await woken(one)


async def test_a_folder_that_was_deleted_is_watched_again_when_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    with FolderWatch(folder) as watch, FolderWatch(tmp_path):
        folder.rmdir()
        assert await woken(watch), "of its end"
        folder.mkdir()
        assert await woken(watch), "of the new watch"
        (folder / "0.log").write_text("x")
        assert await woken(watch)


async def test_readers_are_told_when_events_were_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trikubelet.linux.inotify import FileEvent, Mask

    events = [[FileEvent(-1, Mask.Q_OVERFLOW, "")]]

    async def lost(_: Inotify) -> list[FileEvent]:
        await trio.lowlevel.checkpoint()
        if not events:
            await trio.sleep_forever()
        return events.pop()

    monkeypatch.setattr(Inotify, "wait", lost)
    with FolderWatch(tmp_path) as watch:
        assert await woken(watch)


async def test_a_descriptor_that_cannot_be_read_costs_the_watch_and_not_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = inotify_descriptors()

    async def broken(_: Inotify) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Inotify, "wait", broken)
        with FolderWatch(tmp_path) as watch:
            assert await woken(watch), "of the end"
    with FolderWatch(tmp_path) as watch:
        (tmp_path / "0.log").write_text("x")
        assert await woken(watch)
    assert inotify_descriptors() == before


async def test_where_inotify_is_not_to_be_had_nobody_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    def limited(_: Inotify) -> None:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(Inotify, "__init__", limited)
    with FolderWatch(tmp_path) as watch:
        assert not await woken(watch)


def test_each_run_has_its_own(tmp_path: Path) -> None:
    async def main() -> bool:
        with FolderWatch(tmp_path) as watch:
            (tmp_path / "0.log").write_text("x")
            return await woken(watch)

    assert trio.run(main)
    assert trio.run(main)
