from __future__ import annotations

import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.linux.inotify import Inotify
from trikubelet.node_api.container_logs import copy_log
from trikubelet.node_api.log_location import LogNotAvailableError, LogTarget
from trikubelet.node_api.log_records import LogOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock


def record(text: str, *, second: int = 0, tag: str = "F", stream: str = "stdout") -> str:
    return f"2020-09-27T11:18:{second:02}.00000000Z {stream} {tag} {text}\n"


THREE = "".join(record(f"line{n}", second=n) for n in (1, 2, 3))
SECOND_2 = datetime(2020, 9, 27, 11, 18, 2, tzinfo=UTC)


@attrs.define
class Node:
    """One container and what a reader got of its log."""

    path: Path
    running: bool = True
    changes: Broadcast[None] = attrs.field(factory=Broadcast)
    received: bytearray = attrs.field(factory=bytearray)
    writes: int = 0
    ended: trio.Event = attrs.field(factory=trio.Event)

    def container_running(self, container_id: str) -> bool:
        assert container_id == "c1"
        return self.running

    def subscribe(self) -> Subscription[None]:
        return self.changes.subscribe()

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.received += data
        self.writes += 1

    async def copy(self, options: LogOptions) -> None:
        await copy_log(LogTarget(self.path, "c1", self.running), options, self.write, self)
        self.ended.set()

    def append(self, text: str, path: Path | None = None) -> None:
        with (path or self.path).open("a") as file:
            file.write(text)

    def rotate(self, suffix: str) -> Path:
        rotated = self.path.with_name(f"{self.path.name}.{suffix}")
        self.path.rename(rotated)
        return rotated

    def end(self) -> None:
        self.running = False
        self.changes.send(None)

    async def until(self, text: str) -> None:
        """Real time: inotify's events come when the kernel sends them. Trio's clock stands still meanwhile."""
        for _ in range(2000):
            if self.received.decode() == text:
                return
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert self.received.decode() == text


@pytest.fixture
def node(tmp_path: Path) -> Node:
    path = tmp_path / "0.log"
    path.write_text(THREE)
    return Node(path)


@asynccontextmanager
async def following(node: Node, **options: int | bool) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.copy, LogOptions(follow=True, **options))  # type: ignore[arg-type]
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LogOptions(), "line1\nline2\nline3\n"),
        (LogOptions(tail_lines=2), "line2\nline3\n"),
        (LogOptions(tail_lines=4), "line1\nline2\nline3\n"),
        (LogOptions(tail_lines=0), ""),
        (LogOptions(limit_bytes=9), "line1\nlin"),
        (LogOptions(limit_bytes=100), "line1\nline2\nline3\n"),
        (LogOptions(since=SECOND_2), "line2\nline3\n"),
        (LogOptions(tail_lines=1, timestamps=True), "2020-09-27T11:18:03.000000000Z line3\n"),
    ],
)
async def test_a_log_of_an_ended_container_is_read_once(
    node: Node, options: LogOptions, expected: str, follow: bool
) -> None:
    node.running = False
    await node.copy(attrs.evolve(options, follow=follow))
    assert node.received.decode() == expected


async def test_an_unfinished_last_line_is_shown_but_is_no_line_of_a_tail(node: Node) -> None:
    node.append(record("torn")[:-1])
    await node.copy(LogOptions(tail_lines=1))
    assert node.received == b"line3\n"
    node.received.clear()
    await node.copy(LogOptions(tail_lines=4))
    assert node.received == b"line1\nline2\nline3\ntorn"


async def test_without_following_nothing_is_read_that_was_written_later(node: Node) -> None:
    node.path.write_text(THREE * 10_000)

    class Writing(Node):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            self.append(record("later"))

    writing = Writing(node.path)
    await writing.copy(LogOptions(tail_lines=1))
    assert writing.received.decode() == "line3\n"
    node.path.write_text(THREE * 10_000)
    writing.received.clear()
    await writing.copy(LogOptions())
    assert writing.writes > 3
    assert writing.received.decode() == "line1\nline2\nline3\n" * 10_000


@pytest.mark.parametrize("follow", [False, True])
async def test_a_log_that_is_not_there_is_refused_before_anything_is_written(node: Node, follow: bool) -> None:
    node.path.unlink()
    node.running = not follow
    with pytest.raises(LogNotAvailableError, match=r'failed to open log file ".*0\.log": no such file'):
        await node.copy(LogOptions(follow=follow))
    assert node.writes == 0


async def test_a_fifo_in_a_logs_place_is_refused(node: Node) -> None:
    node.path.unlink()
    os.mkfifo(node.path)
    with pytest.raises(LogNotAvailableError, match="is no regular file"):
        await node.copy(LogOptions(follow=True))


async def test_new_lines_follow_at_once_and_torn_ones_when_they_are_whole(node: Node, mock_clock: MockClock) -> None:
    async with following(node, tail_lines=1):
        await node.until("line3\n")
        node.append(record("more"))
        await node.until("line3\nmore\n")
        text = record("torn")
        node.append(text[:10])
        await trio.testing.wait_all_tasks_blocked(0.01)
        node.append(text[10:-1])
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert node.received == b"line3\nmore\n"
        node.append("\n")
        await node.until("line3\nmore\ntorn\n")


async def test_a_follow_begins_before_there_is_anything_to_show(node: Node, mock_clock: MockClock) -> None:
    async with following(node, tail_lines=0):
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (node.writes, bytes(node.received)) == (1, b"")


async def test_a_follow_waits_for_the_log_of_a_container_that_has_just_started(
    node: Node, mock_clock: MockClock
) -> None:
    node.path.unlink()
    async with following(node):
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert node.writes == 1
        node.path.write_text(THREE)
        await node.until("line1\nline2\nline3\n")


async def test_a_follow_of_a_container_that_ends_without_a_log_ends(node: Node, mock_clock: MockClock) -> None:
    node.path.unlink()
    async with following(node):
        await trio.testing.wait_all_tasks_blocked(0.01)
        node.end()
        await node.ended.wait()
    assert node.received == b""


async def test_a_follow_ends_at_once_with_its_container_after_the_last_line(node: Node, mock_clock: MockClock) -> None:
    async with following(node):
        await node.until("line1\nline2\nline3\n")
        node.append(record("last words") + record("torn")[:-1])
        node.end()
        await node.ended.wait()
    assert node.received.endswith(b"line3\nlast words\ntorn")


async def test_a_follow_ends_with_its_byte_limit(node: Node, mock_clock: MockClock) -> None:
    async with following(node, limit_bytes=20):
        await node.until("line1\nline2\nline3\n")
        node.append(record("line4"))
        await node.ended.wait()
    assert node.received == b"line1\nline2\nline3\nli"


async def test_no_line_is_lost_or_doubled_by_a_rotation(node: Node, autojump_clock: MockClock) -> None:
    async with following(node):
        await trio.sleep(3)
        rotated = node.rotate("20260101-000000")
        node.append(record("before reopening"), rotated)
        await trio.sleep(3)
        node.path.write_text(record("in the new file"))
        node.append(record("late in the old file"), rotated)
        await trio.sleep(3)
        node.append(record("and more"))
        await trio.sleep(3)
    assert node.received.decode() == (
        "line1\nline2\nline3\nbefore reopening\nlate in the old file\nin the new file\nand more\n"
    )


async def test_what_a_runtime_still_writes_while_the_new_file_is_there_is_read(
    node: Node, autojump_clock: MockClock
) -> None:
    async with following(node):
        await trio.sleep(3)
        rotated = node.rotate("20260101-000000")
        node.path.write_text(record("new"))
        await trio.sleep(0.02)
        node.append(record("late"), rotated)
        await trio.sleep(3)
    assert node.received.endswith(b"line3\nlate\nnew\n")


async def test_rotations_in_quick_succession_lose_nothing(node: Node, autojump_clock: MockClock) -> None:
    """While an old file is still read, its successor gets another name, and so does the next."""
    async with following(node):
        await trio.sleep(3)
        for n in range(3):
            node.rotate(f"20260101-00000{n}")
            node.path.write_text(record(f"file {n}"))
            await trio.sleep(0.02)
        await trio.sleep(3)
    assert node.received.endswith(b"line3\nfile 0\nfile 1\nfile 2\n")


async def test_a_container_that_ends_between_two_files_has_everything_shown(
    node: Node, autojump_clock: MockClock
) -> None:
    class Slow(Node):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            if data:
                await trio.sleep(10)

    slow = Slow(node.path)
    async with following(slow):
        await trio.sleep(1)
        for n in range(3):
            slow.rotate(f"20260101-00000{n}")
            if n < 2:
                slow.path.write_text(record(f"file {n}"))
        slow.end()
        await slow.ended.wait()
    assert slow.received.endswith(b"line3\nfile 0\nfile 1\n")


async def test_several_rotations_behind_a_slow_reader_are_caught_up_with(node: Node, autojump_clock: MockClock) -> None:
    class Slow(Node):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            if data:
                await trio.sleep(100)

    slow = Slow(node.path)
    async with following(slow):
        await trio.sleep(1)
        for n in range(3):
            slow.rotate(f"20260101-00000{n}")
            slow.path.write_text(record(f"file {n}"))
        await trio.sleep(1000)
    assert slow.received.decode() == "line1\nline2\nline3\nfile 0\nfile 1\nfile 2\n"


async def test_a_record_torn_by_a_rotation_does_not_swallow_the_next(node: Node, autojump_clock: MockClock) -> None:
    async with following(node):
        await trio.sleep(3)
        node.append(record("torn")[:-1])
        await trio.sleep(3)
        node.rotate("20260101-000000")
        node.path.write_text(record("new"))
        await trio.sleep(3)
    assert node.received.endswith(b"line3\ntorn\nnew\n")


async def test_a_truncated_log_is_read_from_its_beginning(node: Node, autojump_clock: MockClock) -> None:
    async with following(node):
        await trio.sleep(3)
        node.path.write_text(record("after"))
        await trio.sleep(3)
    assert node.received.endswith(b"line3\nafter\n")


async def test_a_folder_that_is_deleted_and_made_anew_is_watched_again(node: Node, autojump_clock: MockClock) -> None:
    async with following(node):
        await trio.sleep(3)
        node.path.unlink()
        node.path.parent.rmdir()
        await trio.sleep(3)
        node.path.parent.mkdir()
        node.path.write_text(record("new"))
        await trio.sleep(3)
        node.append(record("more"))
        await trio.sleep(3)
    assert node.received.endswith(b"line3\nnew\nmore\n")


async def test_without_inotify_a_second_is_the_longest_wait(
    node: Node, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(_: Inotify) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Inotify, "__init__", limited)
    monkeypatch.setattr(Inotify, "close", lambda _: None)
    async with following(node):
        await trio.sleep(3)
        node.append(record("more"))
        await trio.sleep(1.1)
        assert node.received.endswith(b"line3\nmore\n")


async def test_a_link_is_followed_to_where_the_log_is(node: Node, tmp_path: Path, mock_clock: MockClock) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "0.log"
    link.symlink_to(node.path)
    linked = Node(link)
    async with following(linked):
        await linked.until("line1\nline2\nline3\n")
        node.append(record("more"))
        await linked.until("line1\nline2\nline3\nmore\n")


async def test_a_cancelled_follow_leaves_nothing_open(node: Node, mock_clock: MockClock) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    async with following(node):
        await node.until("line1\nline2\nline3\n")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert node.changes.statistics().subscriptions == 0
