"""`fsGroup`: a volume's files get a group that may use them (kubelet: `VolumeOwnership`).

Every file of the volume is visited, its root last: so a root that is right shows that all below it is right, and
`OnRootMismatch` may leave the rest alone. Containers of other pods may work in a shared volume meanwhile, so no path is
looked up twice: the walk opens folders one inside of the other without following links, and what it changes, it changes
through descriptors. It holds no more than two of them: on its way up it opens `..` and makes sure that it came back to
where it was.

A file that is right already is only looked at.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRIES: Final = 5
_READ_WRITE: Final = 0o660
_READ: Final = 0o440
_FOLDER: Final = 0o2110
"""Beside the mode of files: what is made inside belongs to the group too."""
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_PARENT: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""Of the volume itself: nothing there is listed or changed."""
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@define
class Progress:
    """How far the work is. Others may read it meanwhile."""

    files: int = 0
    failures: int = 0
    """Files that could not be changed."""
    first_failure: OSError | None = None


def folder_mode(*, read_only: bool) -> int:
    """The bits that a folder with an fsGroup has at least."""
    return (_READ if read_only else _READ_WRITE) | _FOLDER


def has_owner(folder: Path, group: int, *, read_only: bool) -> bool:
    """Whether the root of a volume is as an earlier walk left it (kubelet: `requiresPermissionChange`)."""
    try:
        info = folder.stat()
    except OSError:
        return False
    needed = folder_mode(read_only=read_only)
    return stat.S_ISDIR(info.st_mode) and info.st_gid == group and info.st_mode & needed == needed


def set_owner(
    folder: Path,
    group: int,
    *,
    read_only: bool,
    progress: Progress | None = None,
    checkpoint: Callable[[], None] = lambda: None,
) -> Progress:
    """Give everything in a volume to a group, which may read it, and write it unless it is `read_only`. Blocks.

    `checkpoint` is called for each folder and may raise to end the work. What cannot be changed is counted and left;
    raises OSError for folders that cannot be listed, and when others keep moving folders about.
    """
    progress = progress or Progress()
    mode = _READ if read_only else _READ_WRITE
    for _ in range(TRIES):
        folder.lstat()
        parent = os.open(folder.parent, _PARENT)
        walk = _Walk(parent, group, mode, progress, checkpoint)
        try:
            walk.run(folder.name)
        except _LostError:
            continue
        finally:
            os.close(walk.current)
        return progress
    raise OSError(errno.ESTALE, "its folders are moved about while its group is set", str(folder))


class _LostError(Exception):
    """The way back up leads elsewhere than the way down came from."""


@define
class _Walk:
    current: int
    """The folder whose entries are visited. Exactly one descriptor is kept between two steps."""
    _group: int
    _mode: int
    _progress: Progress
    _checkpoint: Callable[[], None]
    _way: list[tuple[tuple[int, int], list[str]]] = attrs.field(factory=list)
    """From the volume's parent down: which folder it is, and the names in it still to be visited."""

    def run(self, name: str) -> None:
        """Raises OSError and _LostError."""
        self._way.append((_identity(self.current), [name]))
        while True:
            names = self._way[-1][1]
            if names:
                self._visit(names.pop())
            elif len(self._way) == 1:
                return
            else:
                self._leave()

    def _visit(self, name: str) -> None:
        try:
            info = os.stat(name, dir_fd=self.current, follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                self._enter(name)
            elif stat.S_ISLNK(info.st_mode):
                self._progress.files += 1
                if info.st_gid != self._group:
                    with self._counted():
                        os.chown(name, -1, self._group, dir_fd=self.current, follow_symlinks=False)
            else:
                self._progress.files += 1
                if not self._is_right(info, self._mode):
                    self._change_file(name)
        except (FileNotFoundError, NotADirectoryError):
            return  # another pod took it away just now
        except OSError as error:
            if error.errno != errno.ELOOP:  # likewise, and put a link there
                raise

    def _enter(self, name: str) -> None:
        self._checkpoint()
        folder = os.open(name, _LIST, dir_fd=self.current)
        try:
            self._way.append((_identity(folder), os.listdir(folder)))  # noqa: PTH208  (by descriptor)
        except BaseException:
            os.close(folder)
            raise
        os.close(self.current)
        self.current = folder

    def _leave(self) -> None:
        """Change the folder whose entries are done, and go up."""
        self._progress.files += 1
        info = os.fstat(self.current)
        if not self._is_right(info, self._mode | _FOLDER):
            with self._counted():
                os.fchown(self.current, -1, self._group)
            with self._counted():
                os.fchmod(self.current, stat.S_IMODE(info.st_mode) | self._mode | _FOLDER)
        self._way.pop()
        try:
            parent = os.open("..", _LIST if len(self._way) > 1 else _PARENT, dir_fd=self.current)
        except FileNotFoundError:  # another pod removed the folder that this one was in
            raise _LostError from None
        os.close(self.current)
        self.current = parent
        if _identity(parent) != self._way[-1][0]:
            raise _LostError

    def _change_file(self, name: str) -> None:
        """By a descriptor that cannot be used to read or write: opening may have effects for other kinds of files."""
        file = os.open(name, _LOOK, dir_fd=self.current)
        try:
            info = os.fstat(file)
            if stat.S_ISLNK(info.st_mode) or stat.S_ISDIR(info.st_mode):
                return  # another pod put it in the file's place just now
            same = Path(f"/proc/self/fd/{file}")
            with self._counted():
                os.chown(same, -1, self._group)
            with self._counted():  # also for bits that the new owner took away
                same.chmod(stat.S_IMODE(info.st_mode) | self._mode)
        finally:
            os.close(file)

    def _is_right(self, info: os.stat_result, mode: int) -> bool:
        return info.st_gid == self._group and info.st_mode & mode == mode

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """What cannot be changed stops nothing: without root, or on a file system that has no owners."""
        try:
            yield
        except OSError as error:
            self._progress.failures += 1
            self._progress.first_failure = self._progress.first_failure or error


def _identity(folder: int) -> tuple[int, int]:
    info = os.fstat(folder)
    return info.st_dev, info.st_ino
