"""File system events by the kernel's inotify, awaited on Trio without a thread.

`watchfiles` was weighed and measured: its watcher is a thread that wakes every `step` milliseconds while idle, and
ending it took 4.7 s, since the thread only looks for its stop flag when its own timeout (5 s) has passed. Reading an
inotify descriptor when Trio says it is readable needs neither thread nor polling: an event is here within a
millisecond, an idle watch costs nothing, and cancelling is immediate. What would change our mind: a second operating
system.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import os
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Mask(enum.IntFlag):
    """The kernel's event bits."""

    MODIFY = 0x2
    ATTRIB = 0x4
    CLOSE_WRITE = 0x8
    OPEN = 0x20
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000
    ISDIR = 0x40000000


ENTRIES: Final = (
    Mask.MODIFY | Mask.ATTRIB | Mask.CLOSE_WRITE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.CREATE | Mask.DELETE
)
ITSELF: Final = Mask.DELETE_SELF | Mask.MOVE_SELF

_HEADER: Final = struct.Struct("iIII")


@frozen
class FileEvent:
    """One event; `name` is the entry of a watched folder, empty when the watched path itself is meant."""

    watch: int
    mask: Mask
    name: str


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


class Inotify:
    """One inotify descriptor. Close it (or use it in a `with` block) to end every watch."""

    def __init__(self) -> None:
        """Raises OSError (EMFILE: the limit fs.inotify.max_user_instances is reached)."""
        self._fd = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _os_error("inotify_init1")

    def __enter__(self) -> Inotify:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every watch. A task that waits is woken with `trio.ClosedResourceError`. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(RuntimeError):  # outside trio.run nobody can be waiting
                trio.lowlevel.notify_closing(fd)
            os.close(fd)

    def watch(self, path: Path, mask: Mask) -> int:
        """Watch a path, or change what is watched of it. Raises OSError (ENOSPC: fs.inotify.max_user_watches)."""
        name = os.fsencode(path)
        if b"\0" in name:  # the kernel would watch what is named before it
            raise OSError(errno.EINVAL, "null byte in the path", str(path))
        descriptor: int = _libc().inotify_add_watch(self._fd, name, ctypes.c_uint32(mask))
        if descriptor < 0:
            raise _os_error(str(path))
        return descriptor

    def unwatch(self, descriptor: int) -> None:
        """End one watch; one that the kernel ended already is no error."""
        _libc().inotify_rm_watch(self._fd, descriptor)

    async def wait(self) -> list[FileEvent]:
        """Wait for events and return all that there are. Cancelling it loses none."""
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return list(_parse(os.read(self._fd, 65536)))
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fd)


def _parse(data: bytes) -> Iterator[FileEvent]:
    position = 0
    while position < len(data):
        watch, mask, _, length = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        name = data[position : position + length].rstrip(b"\0")
        position += length
        yield FileEvent(watch, Mask(mask), os.fsdecode(name))


def _os_error(what: str) -> OSError:
    number = ctypes.get_errno()
    hints = {
        errno.EMFILE: "; raise the sysctl fs.inotify.max_user_instances, or the limit of open files",
        errno.ENOSPC: "; raise the sysctl fs.inotify.max_user_watches",
    }
    return OSError(number, os.strerror(number) + hints.get(number, ""), what)
