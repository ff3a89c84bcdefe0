from __future__ import annotations

import gzip
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.node_api import rotated_logs
from trikubelet.node_api.container_logs import copy_log
from trikubelet.node_api.log_file import LogFile
from trikubelet.node_api.log_location import LogTarget
from trikubelet.node_api.log_records import LogOptions
from trikubelet.node_api.rotated_logs import CompressedLog, count_lines, older_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from trio.testing import MockClock

ALL = 10**6


def record(text: str, tag: str = "F") -> str:
    return f"2026-01-01T00:00:00.123456789Z stdout {tag} {text}\n"


def records(*texts: str) -> str:
    return "".join(map(record, texts))


@attrs.define
class Container:
    """A container with a log, and what a reader got of it."""

    path: Path
    running: bool = False
    changes: Broadcast[None] = attrs.field(factory=Broadcast)
    received: bytearray = attrs.field(factory=bytearray)

    def container_running(self, container_id: str) -> bool:
        return self.running

    def subscribe(self) -> Subscription[None]:
        return self.changes.subscribe()

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.received += data

    async def read(self, options: LogOptions) -> str:
        self.received.clear()
        await copy_log(LogTarget(self.path, "c1", self.running), options, self.write, self)
        return self.received.decode()


def older(path: Path, stamp: str, text: str, *, packed: bool) -> None:
    name = f"{path.name}.{stamp}"
    if packed:
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    else:
        path.with_name(name).write_text(text)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    path = tmp_path / "0.log"
    older(path, "20260101-000001", records("a1", "a2"), packed=True)
    older(path, "20260101-000002", records("b1", "b2", "b3"), packed=True)
    older(path, "20260101-000003", records("c1"), packed=False)
    (tmp_path / "0.log.20260101-000000.tmp").write_text(records("unfinished"))
    (tmp_path / "1.log.20260101-000000").write_text(records("of another container"))
    path.write_text(records("d1", "d2"))
    return Container(path)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LogOptions(), "d1 d2"),
        (LogOptions(previous_files=ALL), "a1 a2 b1 b2 b3 c1 d1 d2"),
        (LogOptions(previous_files=1), "c1 d1 d2"),
        (LogOptions(previous_files=2), "b1 b2 b3 c1 d1 d2"),
        (LogOptions(previous_files=ALL, tail_lines=0), ""),
        (LogOptions(previous_files=ALL, tail_lines=1), "d2"),
        (LogOptions(previous_files=ALL, tail_lines=2), "d1 d2"),
        (LogOptions(previous_files=ALL, tail_lines=3), "c1 d1 d2"),
        (LogOptions(previous_files=ALL, tail_lines=5), "b2 b3 c1 d1 d2"),
        (LogOptions(previous_files=ALL, tail_lines=6), "b1 b2 b3 c1 d1 d2"),
        (LogOptions(previous_files=ALL, tail_lines=7), "a2 b1 b2 b3 c1 d1 d2"),
        (LogOptions(previous_files=ALL, tail_lines=100), "a1 a2 b1 b2 b3 c1 d1 d2"),
        (LogOptions(previous_files=1, tail_lines=100), "c1 d1 d2"),
        (LogOptions(previous_files=ALL, limit_bytes=5), "a1 a2"),
    ],
)
async def test_older_files_come_first_and_a_tail_reaches_into_them(
    container: Container, options: LogOptions, expected: str, follow: bool, autojump_clock: MockClock
) -> None:
    text = await container.read(attrs.evolve(options, follow=follow))
    assert text.split() == expected.split()


async def test_an_unfinished_line_at_the_end_is_no_part_of_a_complete_tail(container: Container) -> None:
    with container.path.open("a") as file:
        file.write(record("torn")[:-1])
    assert await container.read(LogOptions(previous_files=ALL, tail_lines=3)) == "c1\nd1\nd2\n"
    assert (await container.read(LogOptions(previous_files=ALL, tail_lines=50))).endswith("d2\ntorn")


async def test_a_line_torn_by_a_rotation_does_not_swallow_the_next(container: Container) -> None:
    older(container.path, "20260101-000004", records("e1") + record("torn")[:-1], packed=False)
    assert await container.read(LogOptions(previous_files=1)) == "e1\ntorn\nd1\nd2\n"


@pytest.fixture
def file_work_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """With worker threads, a clock that jumps would jump while they work."""

    async def run_sync(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.mark.usefixtures("file_work_in_place")
async def test_a_follow_goes_on_after_the_older_files_over_a_rotation(
    container: Container, autojump_clock: MockClock
) -> None:
    container.running = True
    async with following(container, LogOptions(follow=True, previous_files=ALL, tail_lines=3)):
        await trio.sleep(3)
        container.path.rename(container.path.with_name("0.log.20260101-000005"))
        container.path.write_text(records("e1"))
        await trio.sleep(3)
    assert container.received == b"c1\nd1\nd2\ne1\n"


@pytest.mark.usefixtures("file_work_in_place")
async def test_a_rotation_while_older_files_are_read_makes_no_gap(
    container: Container, autojump_clock: MockClock
) -> None:
    class Rotating(Container):
        async def write(self, data: bytes) -> None:
            if b"a1" in data:
                self.path.rename(self.path.with_name("0.log.20260101-000005"))
                self.path.write_text(records("e1"))
                packed = self.path.with_name("0.log.20260101-000003")
                older(self.path, "20260101-000003", packed.read_text(), packed=True)
                packed.unlink()
            await super().write(data)

    rotating = Rotating(container.path, running=True)
    async with following(rotating, LogOptions(follow=True, previous_files=ALL)):
        await trio.sleep(5)
    assert rotating.received.decode().split() == ["a1", "a2", "b1", "b2", "b3", "c1", "d1", "d2", "e1"]


@asynccontextmanager
async def following(container: Container, options: LogOptions) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.read, options)
        yield
        nursery.cancel_scope.cancel()


async def test_a_file_that_is_removed_at_its_turn_is_left_out(container: Container) -> None:
    class Removing(Container):
        async def write(self, data: bytes) -> None:
            self.path.with_name("0.log.20260101-000002.gz").unlink(missing_ok=True)
            await super().write(data)

    text = await Removing(container.path).read(LogOptions(previous_files=ALL))
    assert text.split() == ["a1", "a2", "c1", "d1", "d2"]


@pytest.mark.parametrize("keep", [-1, 5, 30])
async def test_a_damaged_file_breaks_the_answer_off(container: Container, keep: int) -> None:
    path = container.path.with_name("0.log.20260101-000001.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[:keep] if keep < 30 else whole[:20] + b"\xff" * 10 + whole[30:])
    with pytest.raises(OSError, match="compressed data"):
        await container.read(LogOptions(previous_files=ALL))


def test_a_file_that_was_rotated_since_it_was_opened_is_not_older_than_itself(container: Container) -> None:
    file = LogFile(container.path)
    container.path.rename(container.path.with_name("0.log.20260101-000004"))
    older(container.path, "20260101-000005", "", packed=False)
    container.path.write_text("")
    stamps = [name.rpartition("-")[2] for name in older_files(container.path, file)]
    assert stamps == ["000001", "000002", "000003"]
    file.close()


async def test_a_file_that_blows_up_is_read_in_small_pieces(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\n" * 20_000_000))
    assert path.stat().st_size < 25_000
    file = CompressedLog(path)
    largest = total = 0
    while block := await file.read(100_000):
        largest, total = max(largest, len(block)), total + len(block)
    assert (largest, total) == (100_000, 20_000_000)
    file.close()


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=4), st.integers(1, 500), st.integers(1, 200))
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_members_of_a_compressed_file_are_read_one_after_the_other_in_any_pieces(
    tmp_path: Path, members: list[bytes], most: int, packed_block: int
) -> None:
    path = tmp_path / "members.gz"
    path.write_bytes(b"".join(map(gzip.compress, members)))

    async def read() -> tuple[bytes, int]:
        file, again = CompressedLog(path), CompressedLog(path)
        blocks = []
        while block := await file.read(most):
            assert len(block) <= most
            blocks.append(block)
        try:
            return b"".join(blocks), await count_lines(again)
        finally:
            file.close()
            again.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rotated_logs, "_PACKED_BLOCK", packed_block)
        whole = b"".join(members)
        assert trio.run(read) == (whole, whole.count(b"\n"))


async def test_inflating_is_done_in_a_thread(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []
    run_sync = trio.to_thread.run_sync

    async def noted(job: object, *args: object, **options: object) -> object:
        jobs.append(getattr(job, "__qualname__", ""))
        return await run_sync(job, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(trio.to_thread, "run_sync", noted)
    await container.read(LogOptions(previous_files=ALL))
    assert jobs.count("CompressedLog._next") >= 2
