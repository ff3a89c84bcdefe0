"""Deletes the folder of a pod that is gone, whatever its containers left in it. Blocks; call from a worker thread.

`shutil.rmtree` recurses, so a pod that nests a few thousand folders could never be removed, and it descends into bind
mounts of the same file system, whose files are not the pod's. Here every folder is opened without following links and
must be of the same mount as the top; what lies deep is moved up first, so the number of open descriptors is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_OPEN: Final = 64
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StillMountedError(OSError):
    """Something is mounted inside of a folder that is to be deleted. Nothing of the mount was touched."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EBUSY, "still mounted, unmount it first", path)


def remove_folder(folder: Path, checkpoint: Callable[[], None]) -> None:
    """Delete a folder and everything in it, following no link and crossing no mount. One that is gone is fine.

    `checkpoint` is called for every folder inside and may raise to end the work; the next call goes on with it. Raises
    StillMountedError, NotADirectoryError where `folder` is a link or a file, OSError for what cannot be deleted.
    """
    try:
        top = _open(os.fspath(folder), None)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
        raise
    try:
        while names := os.listdir(top):  # noqa: PTH208  (by descriptor)
            for name in names:
                _Removal(top, str(folder), checkpoint).remove(name)
    finally:
        os.close(top)
    folder.rmdir()


class _Removal:
    """The removal of one entry of the top folder. Holds the open folders from the top down to the current one."""

    def __init__(self, top: int, path: str, checkpoint: Callable[[], None]) -> None:
        self._top = top
        self._mount = _mount_id(top)
        self._path = path
        self._checkpoint = checkpoint
        self._folders: list[tuple[int, str, list[str]]] = []
        """Descriptor, name in its parent, and names still to be removed."""
        self._moved = 0

    def remove(self, name: str) -> None:
        try:
            self._remove_entry(name)
            while self._folders:
                folder, own_name, names = self._folders[-1]
                if names:
                    self._remove_entry(names.pop())
                    continue
                self._folders.pop()
                os.close(folder)
                os.rmdir(own_name, dir_fd=self._current)
        finally:
            for folder, _, _ in self._folders:
                os.close(folder)

    @property
    def _current(self) -> int:
        return self._folders[-1][0] if self._folders else self._top

    def _remove_entry(self, name: str) -> None:
        current = self._current
        try:
            info = os.stat(name, dir_fd=current, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(name, dir_fd=current)
                return
            self._checkpoint()
            folder = _open(name, current)
        except FileNotFoundError:
            return
        try:
            if _mount_id(folder) != self._mount:
                raise StillMountedError("/".join([self._path, *(own for _, own, _ in self._folders), name]))
            if len(self._folders) < MAX_OPEN:
                self._folders.append((folder, name, os.listdir(folder)))  # noqa: PTH208  (by descriptor)
                return
            # Too deep to hold every folder open: it becomes an entry of the top, which the caller lists again.
            self._move_up(name, current)
        except BaseException:
            os.close(folder)
            raise
        os.close(folder)

    def _move_up(self, name: str, current: int) -> None:
        while True:
            new_name = f".removed-{os.getpid()}-{self._moved}"
            self._moved += 1
            try:
                os.rename(name, new_name, src_dir_fd=current, dst_dir_fd=self._top)
            except (FileExistsError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                continue
            return


def _open(name: str, parent: int | None) -> int:
    """Open a folder so that its entries can be listed and removed."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        _allow(name, parent)  # without root, a folder of our own may forbid it
        folder = os.open(name, _FOLDER, dir_fd=parent)
    info = os.fstat(folder)
    if info.st_uid == os.geteuid() != 0 and info.st_mode & 0o700 != 0o700:
        os.fchmod(folder, 0o700)
    return folder


def _allow(name: str, parent: int | None) -> None:
    """Make a folder usable that may not even be opened for reading; not what a link leads to."""
    look = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        Path(f"/proc/self/fd/{look}").chmod(0o700)
    finally:
        os.close(look)


def _mount_id(descriptor: int) -> str:
    """Which mount the file is on. The device number would not tell bind mounts of one file system apart."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))
