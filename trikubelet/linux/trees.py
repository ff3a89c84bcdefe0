"""Deleting and measuring a folder with all that is in it, whatever a container left there. Blocks for long.

By descriptors: no link is followed, no path is too long, and nothing recurses, so that folders nested by the thousand
are like any other. Few descriptors are held at a time. `shutil.rmtree` and `os.walk` do none of that.

The standard library alone, and little of it: the keeper of the embedded runtime imports this too.
"""

# ruff: noqa: PTH101, PTH123  (pathlib is large, and knows no descriptors)

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

MAX_OPEN = 64
"""Folders held open at a time, of those on the way from the top down."""
ENTRIES_BETWEEN_CHECKS = 1000
_BLOCK = 512
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StillMountedError(OSError):
    """Something is mounted inside of a folder that is to be deleted. Nothing of the mount was touched."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EBUSY, "still mounted, unmount it first", path)


def go_on() -> None:
    """A checkpoint that never ends the work."""


def remove_tree(
    path: str | os.PathLike[str], parent: int | None = None, checkpoint: Callable[[], None] = go_on
) -> None:
    """Delete a file, a link or a folder with everything in it, crossing no mount. One that is gone is fine.

    With `parent`, a folder's descriptor, it is the entry of that folder with the path's last part as its name.
    `checkpoint` is called for every folder and may raise to end the work; the next call goes on with it. What cannot be
    deleted stops nothing else; the first such error is raised at the end. Raises StillMountedError, OSError.
    """
    path = os.fspath(path)
    name = path if parent is None else path.rpartition("/")[2]
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        checkpoint()
        folder = open_folder(name, parent)
        try:
            if parent is not None and mount_id(folder) != mount_id(parent):
                raise StillMountedError(path)
            empty_folder(folder, path, checkpoint)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return


def empty_folder(folder: int, path: str, checkpoint: Callable[[], None] = go_on) -> None:
    """Delete everything in the folder behind a descriptor; `path` is for messages. As `remove_tree`."""
    removal = _Removal(folder, path, checkpoint)
    removal.run()
    if removal.problem is not None:
        raise removal.problem


def disk_usage(
    folder: str | os.PathLike[str],
    checkpoint: Callable[[], None] = go_on,
    on_error: Callable[[OSError], None] | None = None,
) -> tuple[int, int]:
    """The bytes on disk and the inodes of a folder and all in it: each file once, however many names it has, and
    nothing of other file systems (kubelet: `fs.DiskUsage`).

    What comes and goes meanwhile may be counted or not. `checkpoint` is called often, and may raise to end it. What
    cannot be read is told to `on_error`, if that is given, and left out. Raises OSError.
    """
    walk = _Walk(os.open(folder, _FOLDER), checkpoint, on_error or _raise)
    try:
        walk.run()
    finally:
        walk.close()
    return walk.used, walk.inodes


def bottom_up(path: str, *, one_mount: bool = False) -> Iterator[tuple[int, int, str]]:
    """A folder and all folders in it, each after those inside: its descriptor, that of its parent, its name there.

    A folder that is gone is left out, and with `one_mount` those that something is mounted on. Raises OSError, also
    if a folder is moved elsewhere meanwhile: then `..` does not lead back.
    """
    parent, _, name = path.rpartition("/")
    try:
        here = os.open(parent or "/", _FOLDER)
    except FileNotFoundError:
        return
    way: list[tuple[str, os.stat_result]] = []
    """The folders that it is in, by name and with what they are in, and for each level those still to be entered."""
    pending = [[name]]
    mount = b""
    try:
        while True:
            if pending[-1]:
                name = pending[-1].pop()
                try:
                    below = os.open(name, _FOLDER, dir_fd=here)
                except OSError as error:
                    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        continue  # it is gone, or something else is there
                    raise
                if one_mount:
                    mount = mount or mount_id(below)
                    if mount_id(below) != mount:
                        os.close(below)
                        continue
                way.append((name, os.fstat(here)))
                os.close(here)
                here = below
                pending.append(_folders_in(here))
            elif way:
                above = os.open("..", _FOLDER, dir_fd=here)
                try:
                    name, left = way.pop()
                    if not os.path.samestat(os.fstat(above), left):
                        raise OSError(errno.ESTALE, "its folders are moved about", path)
                    yield here, above, name
                finally:
                    os.close(here)
                    here = above
                pending.pop()
            else:
                return
    finally:
        os.close(here)


def _folders_in(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def open_folder(name: str, parent: int | None = None) -> int:
    """Open a folder, no link, so that its entries can be listed and removed: without root, its mode may be changed."""
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


def names_in(folder: int) -> list[str]:
    return os.listdir(folder)


def mount_id(descriptor: int) -> bytes:
    """Which mount the file is on. The device number would not tell bind mounts of one file system apart."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
        return next(line for line in file if line.startswith(b"mnt_id:"))


def _raise(error: OSError) -> NoReturn:
    raise error


def _allow(name: str, parent: int | None) -> None:
    """Make a folder usable that may not even be opened for reading; not what a link leads to."""
    look = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{look}", 0o700)
    finally:
        os.close(look)


class _Removal:
    """Empties one folder. Holds the open folders from the top down to the current one."""

    def __init__(self, top: int, path: str, checkpoint: Callable[[], None]) -> None:
        self._top = top
        self._mount = mount_id(top)
        self._path = path
        self._checkpoint = checkpoint
        self._folders: list[tuple[int, str, Iterator[os.DirEntry[str]]]] = []
        """Descriptor, name in its parent, and entries still to be removed, which are read bit by bit: a folder may have
        millions."""
        self._moved = 0
        self._left: set[str] = set()
        """Entries of the top that cannot be removed."""
        self.problem: OSError | None = None
        """The first one."""

    def run(self) -> None:
        try:
            moved = -1
            while moved != self._moved:  # what lies too deep became an entry of the top
                moved = self._moved
                with os.scandir(self._top) as entries:
                    for entry in entries:
                        if entry.name not in self._left and not self._remove(entry.name):
                            self._left.add(entry.name)
        finally:
            while self._folders:
                self._close_last()

    def _remove(self, name: str) -> bool:
        """One entry of the top. False if it is still there."""
        gone = self._try(self._remove_entry, name)
        while self._folders:
            _, own_name, entries = self._folders[-1]
            if (found := self._next_name(entries)) is not None:
                self._try(self._remove_entry, found)
                continue
            self._close_last()
            gone = self._try(self._remove_empty, own_name)
        return gone

    def _next_name(self, entries: Iterator[os.DirEntry[str]]) -> str | None:
        try:
            entry = next(entries, None)
        except OSError as error:  # the folder stays, which is then the problem of its parent
            self.problem = self.problem or self._about(error, "")
            return None
        return entry and entry.name

    def _close_last(self) -> None:
        folder, _, entries = self._folders.pop()
        entries.close()  # type: ignore[attr-defined]
        os.close(folder)

    def _try(self, act: Callable[[str], None], name: str) -> bool:
        try:
            act(name)
        except FileNotFoundError:
            return True
        except OSError as error:
            # That a folder is not empty follows from an earlier one.
            if self.problem is None:
                self.problem = error if isinstance(error, StillMountedError) else self._about(error, name)
            return False
        return True

    def _about(self, error: OSError, name: str) -> OSError:
        return OSError(error.errno, error.strerror, self._path_of(name))

    def _path_of(self, name: str) -> str:
        return "/".join([self._path, *(own for _, own, _ in self._folders), name])

    @property
    def _current(self) -> int:
        return self._folders[-1][0] if self._folders else self._top

    def _remove_empty(self, name: str) -> None:
        os.rmdir(name, dir_fd=self._current)

    def _remove_entry(self, name: str) -> None:
        current = self._current
        if not stat.S_ISDIR(os.stat(name, dir_fd=current, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=current)
            return
        self._checkpoint()
        folder = open_folder(name, current)
        try:
            if mount_id(folder) != self._mount:
                raise StillMountedError(self._path_of(name))
            if len(self._folders) < MAX_OPEN // 2:  # each has two descriptors
                self._folders.append((folder, name, os.scandir(folder)))
                return
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


class _Level:
    """A folder on the way to where a walk is."""

    __slots__ = ("descriptor", "identity", "pending")

    def __init__(self, descriptor: int, identity: tuple[int, int], pending: list[str]) -> None:
        self.descriptor = descriptor
        """-1 when it was closed, since it is far up."""
        self.identity = identity
        self.pending = pending
        """Names of folders in it that are still to be walked."""


class _Walk:
    """Measures one folder."""

    def __init__(self, top: int, checkpoint: Callable[[], None], on_error: Callable[[OSError], None]) -> None:
        info = os.fstat(top)
        self.used = info.st_blocks * _BLOCK
        self.inodes = 1
        self._checkpoint = checkpoint
        self._on_error = on_error
        self._seen = 0
        self._device = info.st_dev
        self._counted: set[int] = set()
        """Inodes that have more names."""
        self._way = [_Level(top, (info.st_dev, info.st_ino), [])]

    def run(self) -> None:
        self._way[0].pending = self._count(self._way[0].descriptor)
        while True:
            level = self._way[-1]
            if level.pending:
                try:
                    self._descend(level, level.pending.pop())
                except OSError as error:
                    self._on_error(error)
            elif len(self._way) > 1:
                try:
                    self._ascend()
                except OSError as error:
                    self._on_error(error)
                    self._back_to_top()
            else:
                return

    def close(self) -> None:
        for level in self._way:
            if level.descriptor >= 0:
                os.close(level.descriptor)
        self._way.clear()

    def _descend(self, level: _Level, name: str) -> None:
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=level.descriptor)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return  # it is gone, or something else is there: it was counted as it was
            raise
        info = os.fstat(descriptor)
        self._way.append(_Level(descriptor, (info.st_dev, info.st_ino), []))
        if info.st_dev == self._device:
            self._way[-1].pending = self._count(descriptor)
        far = len(self._way) - MAX_OPEN - 1
        if far > 0 and self._way[far].descriptor >= 0:  # the top stays open
            os.close(self._way[far].descriptor)
            self._way[far].descriptor = -1

    def _ascend(self) -> None:
        left, parent = self._way[-1], self._way[-2]
        if parent.descriptor < 0:
            parent.descriptor = os.open("..", _FOLDER, dir_fd=left.descriptor)
            info = os.fstat(parent.descriptor)
            if (info.st_dev, info.st_ino) != parent.identity:
                raise OSError(errno.EAGAIN, "a folder was moved while it was measured")
        self._way.pop()
        os.close(left.descriptor)

    def _back_to_top(self) -> None:
        for level in self._way[1:]:
            if level.descriptor >= 0:
                os.close(level.descriptor)
        del self._way[1:]

    def _count(self, folder: int) -> list[str]:
        """Add what is in a folder, and tell which folders are."""
        folders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self._seen += 1
                if self._seen % ENTRIES_BETWEEN_CHECKS == 0:
                    self._checkpoint()
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if info.st_dev != self._device:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif info.st_nlink > 1:
                    if info.st_ino in self._counted:
                        continue
                    self._counted.add(info.st_ino)
                self.used += info.st_blocks * _BLOCK
                self.inodes += 1
        return folders
