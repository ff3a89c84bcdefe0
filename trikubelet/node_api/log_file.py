"""A log file as it lies on the disk: reading it without blocking the agent, finding a tail, noticing a rotation.

The kubelet rotates by renaming `0.log` to `0.log.20260131-120000`; then it tells the runtime, which creates a new
`0.log` and goes on there. It compresses all rotated files but the newest, which a reader may still hold.

Reads first ask the kernel for what is in memory (`RWF_NOWAIT`); only a page that must come from the disk, or a file
system that does not know the question, costs a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from pathlib import Path

BLOCK: Final = 128 * 2**10
_COMPRESSED: Final = (".gz", ".tmp")
_NOT_NOW: Final = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("log_reads")


def reads_at_once() -> trio.CapacityLimiter:
    """The threads that read logs, for all readers together."""
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(8)
        _limiter.set(limiter)
        return limiter


@frozen
class _Identity:
    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Identity:
        return cls(status.st_dev, status.st_ino)


class LogFile:
    """An open log, read from `position` on. Close it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, also for what is no regular file."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        self._identity = _Identity.of(status)
        self.position = 0

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    async def read(self, most: int) -> bytes:
        """The next bytes, at most `most`; none at the file's end. Raises OSError. A cancelled read is made again."""
        data = await self._read_at(self.position, most)
        self.position += len(data)
        return data

    def read_at_once(self, most: int) -> bytes | None:
        """The same for what is in memory; None: it must come from the disk. Raises OSError."""
        data = _read_at_once(self._descriptor, self.position, most)
        self.position += len(data or b"")
        return data

    async def seek_tail(self, lines: int, end: int) -> bool:
        """Go to where the last `lines` lines before `end` begin, reading backwards; False when there are fewer.

        An unfinished last line is not counted, but comes after the others.
        """
        right, newlines = end, 0
        while right > 0:
            left = max(0, right - BLOCK)
            block = await self._read_exactly(left, right - left)
            newlines += block.count(b"\n")
            if newlines > lines:
                self.position = left + after_newlines(block, newlines - lines)
                return True
            right = left
        self.position = 0
        return newlines == lines

    async def end_of_lines(self, end: int) -> int:
        """The offset behind the last newline before `end`."""
        right = end
        while right > 0:
            left = max(0, right - BLOCK)
            newline = (await self._read_exactly(left, right - left)).rfind(b"\n")
            if newline >= 0:
                return left + newline + 1
            right = left
        return 0

    def is_at(self, path: Path) -> bool:
        """Whether a path (itself, no link) names this file now."""
        try:
            return _Identity.of(path.lstat()) == self._identity
        except OSError:
            return False

    def was_truncated(self) -> bool:
        """The file is shorter than what was read of it (`copytruncate`)."""
        return self.size < self.position

    def open_successor(self, path: Path) -> LogFile | None:
        """The file that the log goes on in, None while that is this one, or the next is not there yet.

        It is the one at `path`, unless that has been rotated more than once since. Rotated files that were compressed
        or removed in the meantime are passed over. Ask for it before anything is awaited: a name may soon be another
        file's, an open file remains. Raises OSError.
        """
        while (found := self.successor(path)) is not None:
            try:
                following = LogFile(found)
            except FileNotFoundError:
                continue
            if _identity_at(self.successor(path)) == following._identity:
                return following
            following.close()  # it was rotated between the two looks, and what was opened is the one after it
        return None

    def successor(self, path: Path) -> Path | None:
        """The path of that file now."""
        present = _identity_at(path)
        if present == self._identity:
            return None
        rotated = _rotated(path)
        ours = next((name for name, status in rotated if _Identity.of(status) == self._identity), None)
        if ours is not None:
            later = [name for name, _ in rotated if name > ours]
        else:
            written = os.fstat(self._descriptor).st_mtime_ns
            later = [name for name, status in rotated if status.st_mtime_ns > written]
        if later:
            return path.parent / later[0]
        return None if present is None else path

    async def _read_exactly(self, offset: int, count: int) -> bytes:
        parts = []
        while count > 0 and (part := await self._read_at(offset, count)):
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return b"".join(parts)

    async def _read_at(self, offset: int, most: int) -> bytes:
        return await read_at(self._descriptor, offset, most)


async def read_at(descriptor: int, offset: int, most: int) -> bytes:
    """Read of an open file without blocking the agent; fewer than `most` bytes before its end. Raises OSError.

    A cancelled read may be made again.
    """
    await trio.lowlevel.checkpoint()
    data = _read_at_once(descriptor, offset, most)
    if data is not None:
        return data
    # Not abandoned when cancelled: the descriptor must stay open until the thread is done with it.
    return await trio.to_thread.run_sync(os.pread, descriptor, most, offset, limiter=reads_at_once())


def _read_at_once(descriptor: int, offset: int, most: int) -> bytes | None:
    buffer = bytearray(most)
    try:
        count = os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in _NOT_NOW:
            return None
        raise
    return bytes(memoryview(buffer)[:count])


def _identity_at(path: Path | None) -> _Identity | None:
    try:
        return None if path is None else _Identity.of(path.stat())
    except FileNotFoundError:
        return None


def after_newlines(block: bytes, count: int) -> int:
    """The offset behind the newline of that number. Raises ValueError when there are fewer."""
    index = 0
    for _ in range(count):
        index = block.index(b"\n", index) + 1
    return index


def _rotated(path: Path) -> list[tuple[str, os.stat_result]]:
    """Rotated files that can be read as they are, oldest first, by the times in their names."""
    found = []
    with suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name.startswith(f"{path.name}.") and not entry.name.endswith(_COMPRESSED):
                with suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat()))
    return sorted(found, key=lambda item: item[0])
