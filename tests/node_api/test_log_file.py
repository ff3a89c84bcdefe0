from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from trikubelet.node_api.log_file import BLOCK, LogFile

if TYPE_CHECKING:
    from pathlib import Path


async def tail(path: Path, lines: int) -> tuple[int, bool]:
    file = LogFile(path)
    try:
        enough = await file.seek_tail(lines, file.size)
        return file.position, enough
    finally:
        file.close()


LINE = b"a" * BLOCK
KUBELETS = LINE + b"\n" + LINE + b"\n" + LINE + b"\n" + LINE + b"\n" + LINE[BLOCK // 2 :]


@pytest.mark.parametrize(
    ("data", "lines", "start", "enough"),
    [
        (KUBELETS, 0, (BLOCK + 1) * 4, True),
        (KUBELETS, 1, (BLOCK + 1) * 3, True),
        (KUBELETS, 4, 0, True),
        (KUBELETS, 9999, 0, False),
        (b"", 0, 0, True),
        (b"", 1, 0, False),
        (b"1\n22\n333\n", 2, 2, True),
        (b"rest", 0, 0, True),
        (b"rest", 1, 0, False),
        (b"\n" * (BLOCK + 3), BLOCK + 1, 2, True),
    ],
)
async def test_a_tail_begins_where_so_many_whole_lines_begin(
    tmp_path: Path, data: bytes, lines: int, start: int, enough: bool
) -> None:
    (tmp_path / "0.log").write_bytes(data)
    assert await tail(tmp_path / "0.log", lines) == (start, enough)


@given(st.lists(st.integers(0, 2 * BLOCK), max_size=5), st.integers(0, 6), st.booleans())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_tail_is_what_splitting_the_whole_file_gives(
    tmp_path: Path, lengths: list[int], lines: int, torn: bool
) -> None:
    whole = [b"x" * length + b"\n" for length in lengths]
    data = b"".join(whole) + (b"torn" if torn else b"")
    (tmp_path / "0.log").write_bytes(data)
    start, enough = trio.run(tail, tmp_path / "0.log", lines)
    assert data[start:] == b"".join(whole[len(whole) - min(lines, len(whole)) :]) + (b"torn" if torn else b"")
    assert enough == (len(whole) >= lines)


async def test_reading_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"0123456789")
    file = LogFile(path)
    assert [await file.read(4), await file.read(4), await file.read(4), await file.read(4)] == [
        b"0123",
        b"4567",
        b"89",
        b"",
    ]
    with path.open("ab") as more:
        more.write(b"x")
    assert await file.read(4) == b"x"
    assert not file.was_truncated()
    os.truncate(path, 3)
    assert file.was_truncated()
    file.close()
    file.close()


async def test_a_page_that_is_not_in_memory_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_now(*_: object) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "preadv", not_now)
    (tmp_path / "0.log").write_bytes(b"abc")
    file = LogFile(tmp_path / "0.log")
    assert await file.read(10) == b"abc"
    file.close()


@pytest.mark.parametrize("kind", ["fifo", "folder", "missing"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "0.log"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(OSError, match=r"no regular file|No such file|Is a directory"):
        LogFile(path)


def rotate(path: Path, suffix: str) -> Path:
    rotated = path.with_name(f"{path.name}.{suffix}")
    path.rename(rotated)
    return rotated


def test_a_file_that_was_not_rotated_has_no_successor(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text("old\n")
    file = LogFile(path)
    assert file.successor(path) is None
    rotate(path, "20260101-000000")
    assert file.successor(path) is None, "the new file is not there yet"
    path.write_text("new\n")
    assert file.successor(path) == path
    file.close()


def test_files_rotated_one_after_the_other_are_caught_up_with_in_order(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    files = []
    for n in range(4):
        path.write_text(f"{n}\n")
        files.append(LogFile(path))
        if n < 3:
            rotate(path, f"20260101-00000{n}")
    names = [successor.name if successor else None for successor in (file.successor(path) for file in files)]
    assert names == ["0.log.20260101-000001", "0.log.20260101-000002", "0.log", None]
    for file in files:
        file.close()


def test_a_successor_that_is_rotated_while_it_is_opened_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.log"
    path.write_text("old\n")
    file = LogFile(path)
    rotate(path, "20260101-000000")
    path.write_text("next\n")
    opened = os.open

    def rotate_first(*arguments: object) -> int:
        if not (tmp_path / "0.log.20260101-000001").exists():
            rotate(path, "20260101-000001")
            path.write_text("the one after it\n")
        return opened(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", rotate_first)
    successor = file.open_successor(path)
    assert successor is not None
    assert successor.read_at_once(100) == b"next\n"
    successor.close()
    file.close()


def test_a_rotated_file_that_was_compressed_leads_to_a_newer_one_never_to_an_older(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    (tmp_path / "0.log.20250101-000000").write_text("older\n")
    os.utime(tmp_path / "0.log.20250101-000000", (1, 1))
    path.write_text("ours\n")
    file = LogFile(path)
    ours = rotate(path, "20260101-000000")
    (tmp_path / f"{ours.name}.gz").write_bytes(gzip.compress(ours.read_bytes()))
    ours.unlink()
    path.write_text("new\n")
    assert file.successor(path) == path
    file.close()
