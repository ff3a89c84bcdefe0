"""What writing a file as a whole says when it fails."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from trikubelet.linux.durable_files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trikubelet.linux.durable_files.os.fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(tmp_path / "record.json", b"{}")
    assert caught.value.filename == str(tmp_path / "record.json")
    assert list(tmp_path.iterdir()) == []
