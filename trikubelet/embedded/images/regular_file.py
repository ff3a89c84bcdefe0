"""Opening what somebody named as an archive, and reading it so that the reader can be stopped.

A named pipe would hold the thread that opens it until a writer comes, a device might never end.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import IO, TYPE_CHECKING

from trikubelet.embedded.images.errors import ArchiveError

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.embedded.images.tar_stream import Checkpoint

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular_file(path: Path) -> IO[bytes]:
    """Open a file for reading; never waits for another process. Raises ArchiveError for anything else, OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise _no_file(path, path.stat().st_mode) from None
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _no_file(path, mode)
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _no_file(path: Path, mode: int) -> ArchiveError:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return ArchiveError(f"{str(path)!r} is {kind}: expected a regular file")


class WatchedFile:
    """A file whose every read asks first whether it is still wanted. One read may take long: headers that go on block
    after block, compressed input without any content."""

    def __init__(self, file: IO[bytes], checkpoint: Checkpoint) -> None:
        self._file = file
        self._checkpoint = checkpoint
        self.tell = file.tell
        self.seek = file.seek
        self.seekable = file.seekable

    def read(self, size: int = -1, /) -> bytes:
        self._checkpoint()
        return self._file.read(size)
