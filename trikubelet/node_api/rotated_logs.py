"""The files that a log was in before its present one: which there are, and reading the compressed ones.

They are read oldest first, each at its turn: compressed meanwhile, it is read so; removed meanwhile, it is left out.
The names say the order (`runtime.logs.rotation_choice`). Compressed files are inflated in a thread, block by block, so
that neither a large file nor a small one that blows up costs the agent more than a block.
"""

from __future__ import annotations

import errno
import os
import zlib
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.node_api.log_file import BLOCK, LogFile, reads_at_once

if TYPE_CHECKING:
    from pathlib import Path

COMPRESSED: Final = ".gz"
_UNFINISHED: Final = ".tmp"
_PACKED_BLOCK: Final = 64 * 2**10
_GZIP: Final = 31
"""For zlib: the largest window, with a gzip header around it."""


class CompressedLog:
    """A gzip file, read like a `LogFile` whose end is known. Close it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._file = LogFile(path)
        self._inflate = zlib.decompressobj(_GZIP)
        self._ended = False

    def close(self) -> None:
        self._file.close()

    async def read(self, most: int) -> bytes:
        """The next bytes, at most `most`; none at the end. Raises OSError, also for a damaged file."""
        while not self._ended:
            packed = self._inflate.unconsumed_tail or self._inflate.unused_data or await self._file.read(_PACKED_BLOCK)
            if not packed:
                raise OSError(errno.EIO, "ends in the middle of its compressed data", str(self._path))
            # Not abandoned when cancelled: no other thread may use the object until the thread is done with it.
            data = await trio.to_thread.run_sync(self._next, packed, most, limiter=reads_at_once())
            if self._inflate.eof and not self._inflate.unused_data and not await self._more():
                self._ended = True
            if data:
                return data
        return b""

    def _next(self, packed: bytes, most: int) -> bytes:
        if self._inflate.eof:  # another member of the file begins
            self._inflate = zlib.decompressobj(_GZIP)
        try:
            return self._inflate.decompress(packed, most)
        except zlib.error as error:
            raise OSError(errno.EIO, f"its compressed data is damaged: {error}", str(self._path)) from error

    async def _more(self) -> bool:
        position = self._file.position
        found = bool(await self._file.read(1))
        self._file.position = position
        return found


def older_files(path: Path, newest: LogFile) -> list[str]:
    """The names of the rotated files of the log at `path` that are older than `newest`, oldest first, without `.gz`.

    `newest` may have been rotated itself meanwhile. Raises OSError.
    """
    names = set()
    current = ""
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if not entry.name.startswith(f"{path.name}.") or entry.name.endswith(_UNFINISHED):
                continue
            if newest.is_at(path.parent / entry.name):
                current = entry.name
            elif not entry.is_symlink():
                names.add(entry.name.removesuffix(COMPRESSED))
    return sorted(name for name in names if not current or name < current)


def open_older(folder: Path, name: str) -> LogFile | CompressedLog | None:
    """A file of `older_files` as it is now; None when it was removed meanwhile. Raises OSError."""
    for _ in range(2):  # it may be compressed between the two looks
        try:
            return LogFile(folder / name)
        except FileNotFoundError:
            pass
        try:
            return CompressedLog(folder / (name + COMPRESSED))
        except FileNotFoundError:
            pass
    return None


async def count_lines(file: LogFile | CompressedLog, end: int | None = None) -> int:
    """How many lines there are in a file that was just opened, before the offset `end` or to its end. Raises OSError.

    The file stands behind them then.
    """
    count = position = 0
    while block := await file.read(BLOCK if end is None else min(BLOCK, end - position)):
        count += block.count(b"\n")
        position += len(block)
        if position == end:
            break
    return count
