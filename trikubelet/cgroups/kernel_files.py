"""The cgroup file system as few blocking calls, so that tests can put a kernel of their own in its place.

Files are written with one `write(2)`: the kernel takes each write as a whole, and errors that come at close would be
lost. Errors name the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import Final

_CHUNK: Final = 65536
_MARKS: Final = ("trusted.trikubelet", "user.trikubelet")
"""Extended attributes with the mark of a group's owner: root sets the first. The kernel lets no container change it."""
_NO_MARK: Final = frozenset({errno.ENODATA, errno.ENOTSUP, errno.EPERM, errno.EACCES})
"""Errors that say: there is no such attribute, or this process or file system can have none."""


class KernelFiles:
    """Every method raises OSError with the path in `filename`."""

    def read(self, path: str) -> str:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts: list[bytes] = []
            while part := os.read(descriptor, _CHUNK):
                parts.append(part)
        except OSError as error:
            raise _named(error, path) from None
        finally:
            os.close(descriptor)
        return b"".join(parts).decode("ascii", "replace")

    def write(self, path: str, text: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        except OSError as error:
            raise _named(error, path) from None
        finally:
            os.close(descriptor)

    def make(self, path: str) -> bool:
        """Make one group. False: it was there."""
        try:
            Path(path).mkdir(mode=0o755)
        except FileExistsError:
            return False
        return True

    def delete(self, path: str) -> None:
        """Delete one group, which has to be empty."""
        Path(path).rmdir()

    def exists(self, path: str) -> bool:
        return Path(path).is_dir()

    def folders(self, path: str) -> list[str]:
        """The names of the groups directly below; none where the group itself is not there."""
        try:
            with os.scandir(path) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def kill(self, pid: int) -> None:
        """SIGKILL; a process that is gone is no error."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def below(self, path: str) -> list[str]:
        """A group and all below it, the deepest first; none where it is not there."""
        if not self.exists(path):
            return []
        found: list[str] = []
        waiting = [path]
        while waiting:
            folder = waiting.pop()
            found.append(folder)
            waiting += [f"{folder}/{name}" for name in self.folders(folder)]
        return found[::-1]

    def processes(self, path: str) -> list[int]:
        """Pids of a group alone. 0 stands for each process of another pid namespace."""
        try:
            return [int(line) for line in self.read(f"{path}/cgroup.procs").split()]
        except OSError:
            # Gone meanwhile; or a threaded group of v2, whose processes the group above lists.
            return []

    def mark(self, path: str, owner: str) -> bool:
        """Write the owner's mark on a group. False: this process, or the file system, can set no attribute."""
        for attribute in _MARKS:
            try:
                os.setxattr(path, attribute, os.fsencode(owner))
            except OSError as error:
                if error.errno not in _NO_MARK:
                    raise
            else:
                return True
        return False

    def marks(self, path: str) -> set[str]:
        """Owners' marks on a group. Raises FileNotFoundError where it is not there."""
        found: set[str] = set()
        for attribute in _MARKS:
            try:
                found.add(os.fsdecode(os.getxattr(path, attribute)))
            except OSError as error:
                if error.errno not in _NO_MARK:
                    raise
        return found

    def number(self, path: str) -> int | None:
        """A file with one number; None for `max`."""
        text = self.read(path).strip()
        return None if text == "max" else int(text)


def _named(error: OSError, path: str) -> OSError:
    return OSError(error.errno, error.strerror, path)
