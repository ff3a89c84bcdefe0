"""Sub paths of volumes, each bound to a place of its own in the pod's folder (kubelet: `subpath_linux.go`).

A runtime looks up the path that it is given once more, and by then a container of the pod may have put a link where a
folder was. So it is not given a path in the volume: the file or folder is opened here, safely (`safe_path`), and what
is behind the descriptor is bound to a place that no container sees: `volume-subpaths/<volume>/<container>/<index>`.
What is bound there stays until the container starts anew or the pod has ended. All of it blocks.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from trikubelet.linux.safe_path import open_in_volume
from trikubelet.linux.trees import StillMountedError
from trikubelet.volumes.layout import DIRECTORY_MODE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trikubelet.linux.mounter import Mounter

FILE_MODE: Final = 0o640
TARGET_DEPTH: Final = 3
"""How deep below the folder of sub paths the places to bind to are."""
MAX_STACKED: Final = 16


def bind_subpath(mounter: Mounter, volume: Path, sub_path: str, target: Path) -> Path:
    """Bind `sub_path` of a volume to `target` (`layout.subpath_target`), and return that for the runtime to mount.

    What is bound there already is kept if it is the same file or folder, else it gives way. What is missing in the
    volume is made as a folder. Raises ValueError when the sub path leads out of the volume, OSError.
    """
    found = open_in_volume(volume, sub_path)
    try:
        info = os.fstat(found)
        if _is_bound(mounter, target, info):
            return target
        _unmount_all(mounter, target)
        _make_target(target, is_folder=stat.S_ISDIR(info.st_mode))
        mounter.bind(found, target)
    finally:
        os.close(found)
    return target


def clean_subpaths(mounter: Mounter, folder: Path, volume: str | None = None) -> None:
    """Unmount and remove what was bound in a pod's folder of sub paths (`layout.subpaths_directory`): of one volume, by
    its inner name, or of all. Fine when there is nothing.

    Nothing but mounts, empty files and folders is ever touched, and no link followed. Raises StillMountedError, and
    OSError for what is there and must not be.
    """
    folder = folder.parent.resolve() / folder.name  # as the mount table has it
    top = folder if volume is None else folder / volume
    for mount in mounter.table().below(top):
        # What is mounted inside of one came with it, and goes with it.
        if len(mount.point.relative_to(folder).parts) == TARGET_DEPTH:
            _unmount_all(mounter, mount.point)
    for volume_folder in _entries(folder) if volume is None else [top]:
        for container in _entries(volume_folder):
            for target in _entries(container):
                _remove_entry(target)
            _remove_entry(container)
        _remove_entry(volume_folder)
    if volume is None or not _entries(folder):
        _remove_entry(folder)


def _is_bound(mounter: Mounter, target: Path, info: os.stat_result) -> bool:
    """Whether the file or folder is what can be seen at `target`."""
    if not mounter.is_mount(target):
        return False
    with suppress(OSError):  # a mount whose server is gone
        return os.path.samestat(target.lstat(), info)
    return False


def _unmount_all(mounter: Mounter, target: Path) -> None:
    for _ in range(MAX_STACKED):
        if not mounter.is_mount(target):
            return
        mounter.unmount(target)
    raise StillMountedError(str(target))


def _make_target(target: Path, *, is_folder: bool) -> None:
    """An empty file or folder to bind to, in folders of the agent's own."""
    for folder in reversed(target.parents[:TARGET_DEPTH]):
        with suppress(FileExistsError):
            folder.mkdir(mode=DIRECTORY_MODE)
    try:
        there = target.lstat().st_mode
    except FileNotFoundError:
        pass
    else:
        if (stat.S_ISDIR(there) and is_folder) or (stat.S_ISREG(there) and not is_folder):
            return
        _remove_entry(target)
    if is_folder:
        target.mkdir(mode=DIRECTORY_MODE)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE))


def _remove_entry(path: Path) -> None:
    """Raises StillMountedError, OSError (ENOTEMPTY) for what is no empty file or folder."""
    try:
        info = path.lstat()
        if stat.S_ISDIR(info.st_mode):
            path.rmdir()
        elif stat.S_ISREG(info.st_mode) and info.st_size:
            raise OSError(errno.ENOTEMPTY, "expected an empty file that a sub path is bound to: look at it", str(path))
        else:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise StillMountedError(str(path)) from error
        raise


def _entries(folder: Path) -> Sequence[Path]:
    """What is in a folder; nothing if it is gone. Raises NotADirectoryError for a link, too."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ()
    try:
        return [folder / name for name in os.listdir(descriptor)]  # noqa: PTH208  (by descriptor)
    finally:
        os.close(descriptor)
