"""Deletes the folder of a pod that is gone, whatever its containers left in it. Blocks; call from a worker thread.

Only what was the pod's alone goes with its content: volumes that live in its folder, and what the agent wrote there.
Where a share, a disk of the node or a driver's volume was mounted, only empty folders go: a file there means that the
mount was not where it should have been, or still is, and it may be the only copy of somebody's data.

`shutil.rmtree` recurses, so a pod that nests a few thousand folders could never be removed, and it descends into bind
mounts of the same file system, whose files are not the pod's. Here every folder is opened without following links and
must be of the same mount as the top; what lies deep is moved up first, so the number of open descriptors is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trikubelet.linux.mounter import Mounter

OWN_CONTENT: Final = frozenset(
    f"kubernetes.io~{kind}" for kind in ("empty-dir", "configmap", "secret", "projected", "downward-api")
)
"""The folders of those kinds of volumes whose content is the pod's alone."""
VOLUME_DATA: Final = "vol_data.json"
"""What the agent keeps beside a CSI volume."""
MAX_OPEN: Final = 64
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StillMountedError(OSError):
    """Something is mounted inside of a folder that is to be deleted. Nothing of the mount was touched."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EBUSY, "still mounted, unmount it first", path)


def remove_pod_folder(folder: Path, mounter: Mounter, checkpoint: Callable[[], None]) -> None:
    """Delete a pod's folder once its volumes are taken down. One that is gone is fine.

    `checkpoint` is called for every folder inside and may raise to end the work; the next call goes on with it. Raises
    StillMountedError before anything is touched if something is mounted inside, OSError (ENOTEMPTY) for what may be
    data of a volume, and OSError for what else cannot be deleted. The other volumes and folders are gone then.
    """
    folder = folder.parent.resolve() / folder.name  # as the mount table has it
    mounted = mounter.table().below(folder)
    if mounted:
        raise StillMountedError(str(mounted[0].point))
    try:
        with _opened(folder) as top:
            _try_all(top, lambda name: _remove_part(top, folder / name, checkpoint))
    except FileNotFoundError:
        return
    folder.rmdir()


def remove_folder(folder: Path, checkpoint: Callable[[], None]) -> None:
    """Delete a folder and everything in it, following no link and crossing no mount. One that is gone is fine.

    `checkpoint` is called for every folder inside and may raise to end the work; the next call goes on with it. Raises
    StillMountedError, NotADirectoryError where `folder` is a link or a file, OSError for what cannot be deleted.
    """
    try:
        with _opened(folder) as top:
            _empty(top, folder, checkpoint)
    except FileNotFoundError:
        return
    folder.rmdir()


def _remove_part(top: int, path: Path, checkpoint: Callable[[], None]) -> None:
    """Remove one entry of a pod's folder."""
    match path.name:
        case "volumes":
            with _opened(path, top) as volumes:
                _try_all(volumes, lambda plugin: _remove_volumes(volumes, path / plugin, checkpoint))
            os.rmdir(path.name, dir_fd=top)
        case "volumeDevices":
            _EmptyFolders(checkpoint, _nothing).remove(top, path)
        case "volume-subpaths":
            _EmptyFolders(checkpoint, _empty_file).remove(top, path)
        case _:
            _remove_content(top, path, checkpoint)


def _remove_volumes(volumes: int, plugin: Path, checkpoint: Callable[[], None]) -> None:
    """Remove the folder of one kind of volumes."""
    if plugin.name in OWN_CONTENT:
        _remove_content(volumes, plugin, checkpoint)
    else:
        _EmptyFolders(checkpoint, _volume_data).remove(volumes, plugin)


def _try_all(folder: int, remove: Callable[[str], None]) -> None:
    """Remove all entries, also after one that cannot be removed; then raise what hindered first."""
    problem: OSError | None = None
    for name in _names(folder):
        try:
            remove(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _nothing(parts: tuple[str, ...], info: os.stat_result) -> bool:
    return False


def _volume_data(parts: tuple[str, ...], info: os.stat_result) -> bool:
    """`<volume>/vol_data.json` below a plugin's folder."""
    return len(parts) == 2 and parts[1] == VOLUME_DATA and stat.S_ISREG(info.st_mode)


def _empty_file(parts: tuple[str, ...], info: os.stat_result) -> bool:
    """What a file was bound to."""
    return stat.S_ISREG(info.st_mode) and info.st_size == 0


class _EmptyFolders:
    """Removes folders that hold folders only, and such files as `may_go` says: by its path below the first folder."""

    def __init__(
        self, checkpoint: Callable[[], None], may_go: Callable[[tuple[str, ...], os.stat_result], bool]
    ) -> None:
        self._checkpoint = checkpoint
        self._may_go = may_go

    def remove(self, parent: int, path: Path, parts: tuple[str, ...] = ()) -> None:
        self._checkpoint()
        with _opened(path, parent) as folder:
            entries = [(name, os.stat(name, dir_fd=folder, follow_symlinks=False)) for name in _names(folder)]
            # Folders first: while one of them stays, what shows its volume stays, too.
            for name, info in sorted(entries, key=lambda entry: not stat.S_ISDIR(entry[1].st_mode)):
                if stat.S_ISDIR(info.st_mode) and len(parts) < MAX_OPEN:
                    self.remove(folder, path / name, (*parts, name))
                elif self._may_go((*parts, name), info):
                    os.unlink(name, dir_fd=folder)
                else:
                    raise OSError(
                        errno.ENOTEMPTY,
                        "may be data of a volume, which is never deleted here: look at it and take it away by hand",
                        str(path / name),
                    )
        os.rmdir(path.name, dir_fd=parent)


class _Removal:
    """The removal of one entry of the top folder. Holds the open folders from the top down to the current one."""

    def __init__(self, top: int, path: Path, checkpoint: Callable[[], None]) -> None:
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
                raise StillMountedError(str(self._path.joinpath(*(own for _, own, _ in self._folders), name)))
            if len(self._folders) < MAX_OPEN:
                self._folders.append((folder, name, _names(folder)))
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


@contextmanager
def _opened(path: Path, parent: int | None = None) -> Iterator[int]:
    """A folder, no link: by its path, or by the path's last part in a parent, of whose mount it must be."""
    try:
        folder = _open(str(path) if parent is None else path.name, parent)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise NotADirectoryError(
            errno.ENOTDIR, "expected a folder, got a link or a file: remove it", str(path)
        ) from error
    try:
        if parent is not None and _mount_id(folder) != _mount_id(parent):
            raise StillMountedError(str(path))
        yield folder
    finally:
        os.close(folder)


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def _remove_content(parent: int, path: Path, checkpoint: Callable[[], None]) -> None:
    """Remove an entry of a folder with all that is in it."""
    name = path.name
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    checkpoint()
    with _opened(path, parent) as folder:
        _empty(folder, path, checkpoint)
    os.rmdir(name, dir_fd=parent)


def _empty(top: int, path: Path, checkpoint: Callable[[], None]) -> None:
    while names := _names(top):
        for name in names:
            _Removal(top, path, checkpoint).remove(name)


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
