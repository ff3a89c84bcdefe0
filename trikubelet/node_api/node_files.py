"""Opening files of the node's log folder for remote clients, which must not get at anything else with it.

Pods with a hostPath in /var/log can put links there, and fifos. So a path is walked component by component, each
opened through the descriptor of its folder, never by name again (`linux.safe_path`). Links are followed while they
stay in the folder, as /var/log/containers needs it; the kubelet follows them anywhere. Only regular files and folders
are opened at all, by way of a descriptor that only looks: opening a device or fifo may do something, or wait.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.node_api.log_file import read_at

if TYPE_CHECKING:
    from pathlib import Path

MAX_ENTRIES: Final = 10_000
"""Of a folder that is listed; what is beyond is left out."""
_LAST_YEAR: Final = 9000 * 31_556_952 - 1970 * 31_556_952


class NoSuchFileError(Exception):
    """There is nothing at the path, or nothing that may be seen."""


@frozen
class Entry:
    """Something in a folder."""

    name: str
    is_folder: bool


@frozen
class NodeFolder:
    """Entries by name."""

    entries: tuple[Entry, ...]


class NodeFile:
    """An open regular file. Close it."""

    def __init__(self, descriptor: int) -> None:
        """Owns the descriptor from now on."""
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        status = os.fstat(descriptor)
        self.size = status.st_size
        """When it was opened."""
        self.modified = min(max(int(status.st_mtime), 0), _LAST_YEAR)
        """Seconds since 1970. The file's owner may set it to any time."""

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    async def read(self, offset: int, most: int) -> bytes:
        """Fewer bytes than `most` at the end only. Raises OSError."""
        return await read_at(self._file.fileno(), offset, most)


_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("node_files")


def _limit() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(4)
        _limiter.set(limiter)
        return limiter


async def open_in(top: Path, path: str) -> NodeFile | NodeFolder:
    """What is at a relative path below a folder of the node. Raises NoSuchFileError, OSError.

    When it is cancelled, nothing stays open.
    """
    return await trio.to_thread.run_sync(_open_in, top, path, limiter=_limit())


def _open_in(top: Path, path: str) -> NodeFile | NodeFolder:
    from trikubelet.linux.safe_path import walk

    if "\0" in path or ".." in path.split("/"):
        raise NoSuchFileError(path)
    try:
        folder = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFileError(path) from None
    try:
        found = walk(folder, path.strip("/"), make=False)
    except (ValueError, FileNotFoundError, NotADirectoryError):
        raise NoSuchFileError(path) from None
    finally:
        os.close(folder)
    try:
        return _opened(found, path)
    finally:
        os.close(found)


def _opened(found: int, path: str) -> NodeFile | NodeFolder:
    mode = os.fstat(found).st_mode
    if stat.S_ISDIR(mode):
        return _listed(_for_reading(found, os.O_DIRECTORY))
    if not stat.S_ISREG(mode):
        raise NoSuchFileError(path)
    return NodeFile(_for_reading(found, os.O_NOCTTY | os.O_NONBLOCK))


def _for_reading(found: int, flags: int) -> int:
    """Another descriptor of what a descriptor that only looks has found."""
    return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | flags)


def _listed(descriptor: int) -> NodeFolder:
    entries = []
    try:
        with os.scandir(descriptor) as found:
            for entry in found:
                with suppress(OSError):
                    entries.append(Entry(entry.name, entry.is_dir(follow_symlinks=False)))
                if len(entries) >= MAX_ENTRIES:
                    break
    finally:
        os.close(descriptor)
    return NodeFolder(tuple(sorted(entries, key=lambda entry: entry.name)))
