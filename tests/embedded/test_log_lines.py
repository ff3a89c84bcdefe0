"""Bytes of a stream into lines of a CRI log, and logs that cannot be written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.embedded.keeper.logfile import LONGEST_LINE, LineFormatter, LogFile, Stamp

if TYPE_CHECKING:
    from pathlib import Path

STAMP = b"2026-01-01T00:00:00.000000000Z"

lines = st.lists(st.sampled_from([b"", b"a", b"words here", b"x" * LONGEST_LINE, b"y" * (2 * LONGEST_LINE + 7)]))


def records(text: bytes) -> list[tuple[bytes, bytes, bytes]]:
    found = []
    for line in text.split(b"\n")[:-1]:
        stamp, stream, tag, content = line.split(b" ", 3)
        assert stamp == STAMP
        found.append((stream, tag, content))
    return found


@given(lines, st.binary(max_size=30).filter(lambda end: b"\n" not in end), st.data())
def test_however_the_bytes_are_cut_the_log_holds_them_all(whole: list[bytes], end: bytes, data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in whole) + end
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    formatter = LineFormatter("stdout")
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    text = b"".join(formatter.feed(piece, STAMP) for piece in pieces) + formatter.finish(STAMP)
    found = records(text)
    logged = b"".join(content + (b"\n" if tag == b"F" else b"") for _, tag, content in found)
    assert logged == stream + (b"\n" if end else b"")
    assert all(len(content) <= LONGEST_LINE for _, _, content in found)
    assert {name for name, _, _ in found} <= {b"stdout"}


def test_a_full_disk_costs_output_but_neither_the_container_nor_the_next_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogFile(Stamp())
    log.open(str(tmp_path / "log"))
    log.write(b"first\n")
    real, room = os.write, [4]

    def full(descriptor: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = real(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", full)
    log.write(b"second\n")
    log.write(b"third\n")
    monkeypatch.setattr(os, "write", real)
    log.write(b"fourth\n")
    written = (tmp_path / "log").read_text().splitlines()
    assert written[0] == "first"
    assert written[1] == "seco"
    assert "9 bytes of this log were dropped: No space left on device" in written[2]
    assert written[3:] == ["fourth"]


def test_a_fifo_in_the_place_of_a_log_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(OSError, match=r"no regular file|No such device"):
        LogFile(Stamp()).open(str(tmp_path / "log"))
