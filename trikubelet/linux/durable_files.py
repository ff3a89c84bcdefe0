"""Files that are replaced as a whole, and survive a crash.

A file is written beside its place, brought to the disk, and renamed into place. A reader finds the old content or
the new one, whole, wherever the writer was killed, and after a crash of the machine too: the rename comes after the
content, and the folder is brought to the disk before the write counts as done.

All of it blocks on the disk, for milliseconds on a good one: not for the event loop.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file by one with this content, which is on the disk when this returns.

    The folder has to be there. Raises OSError: then the old file is there, or the new one if its folder could not be
    brought to the disk. One writer at a time for each path: the unfinished file, `.NAME.tmp`, has one name, so that
    what a killed writer leaves is replaced by the next.
    """
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.unlink(missing_ok=True)
    try:
        _write_out(unfinished, content, mode)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _write_out(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, _NEW_FILE, mode)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """A rename is on the disk once its folder is. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
