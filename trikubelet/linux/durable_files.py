"""Files that are replaced as a whole, and survive a crash.

A file is written beside its place, brought to the disk, and renamed into place. A reader finds the old content or
the new one, whole, wherever the writer was killed, and after a crash of the machine too: the rename comes after the
content, and the folder is brought to the disk before the write counts as done.

All of it blocks on the disk, for milliseconds on a good one: not for the event loop.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_atomically(
    path: Path, content: bytes, *, mode: int = 0o600, complete: Callable[[], object] | None = None
) -> None:
    """Replace a file by one with this content, which is on the disk when this returns.

    `complete` is called when the content is there for `finish_write`, though not on the disk yet.

    The folder has to be there. Raises OSError: then the old file is there, or the new one if its folder could not be
    brought to the disk. One writer at a time for each path: the unfinished file, `.NAME.tmp`, has one name, so that
    what a killed writer leaves is replaced by the next.
    """
    unfinished = _unfinished(path)
    unfinished.unlink(missing_ok=True)
    try:
        with naming(path):
            _write_out(unfinished, content, mode, complete)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_new(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Make a file with this content, which is on the disk when this returns. Raises OSError, and leaves no file then.

    Never writes over a file: raises FileExistsError. A reader may see the file while it is written.
    """
    with naming(path):
        try:
            _write_out(path, content, mode, None)
        except FileExistsError:
            raise
        except OSError:
            path.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError that names no file, as that of a write to a full disk, names this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def finish_write(path: Path, is_whole: Callable[[bytes], bool]) -> None:
    """A writer may have been killed after `complete`: then the file becomes what it was to be. Raises OSError.

    `is_whole`: whether the content is all of it. For those whose content says so; with others it stays unfinished.
    """
    unfinished = _unfinished(path)
    try:
        whole = is_whole(unfinished.read_bytes())
    except FileNotFoundError:
        return
    if whole:
        descriptor = os.open(unfinished, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        unfinished.rename(path)
        sync_folder(path.parent)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _write_out(path: Path, content: bytes, mode: int, complete: Callable[[], object] | None) -> None:
    descriptor = os.open(path, _NEW_FILE, mode)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        if complete is not None:
            complete()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Rename a file that is not what was written to `NAME.broken`, in the place of an earlier one. Raises OSError."""
    aside = path.with_name(f"{path.name}.broken")
    path.replace(aside)
    sync_folder(path.parent)
    return aside


def sync_folder(folder: Path) -> None:
    """A rename is on the disk once its folder is. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
