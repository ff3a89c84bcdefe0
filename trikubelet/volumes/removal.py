"""Deletes the folder of a pod that is gone, whatever its containers left in it. Blocks; call from a worker thread.

Only what was the pod's alone goes with its content: volumes that live in its folder, and what the agent wrote there.
Where a share, a disk of the node or a driver's volume was mounted, only empty folders go: a file there means that the
mount was not where it should have been, or still is, and it may be the only copy of somebody's data.

How a tree of any depth is deleted without following a link or entering a mount, `linux/trees.py` says.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trikubelet.linux.trees import (
    MAX_OPEN,
    StillMountedError,
    empty_folder,
    mount_id,
    names_in,
    open_folder,
    remove_tree,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trikubelet.linux.mounter import Mounter

OWN_CONTENT: Final = frozenset(
    f"kubernetes.io~{kind}" for kind in ("empty-dir", "configmap", "secret", "projected", "downward-api")
)
"""The folders of those kinds of volumes whose content is the pod's alone."""
VOLUME_DATA: Final = "vol_data.json"
"""What the agent keeps beside a CSI volume."""


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
            empty_folder(top, str(folder), checkpoint)
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
            remove_tree(str(path), top, checkpoint)


def _remove_volumes(volumes: int, plugin: Path, checkpoint: Callable[[], None]) -> None:
    """Remove the folder of one kind of volumes."""
    if plugin.name in OWN_CONTENT:
        remove_tree(str(plugin), volumes, checkpoint)
    else:
        _EmptyFolders(checkpoint, _volume_data).remove(volumes, plugin)


def _try_all(folder: int, remove: Callable[[str], None]) -> None:
    """Remove all entries, also after one that cannot be removed; then raise what hindered first."""
    problem: OSError | None = None
    for name in names_in(folder):
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
            entries = [(name, os.stat(name, dir_fd=folder, follow_symlinks=False)) for name in names_in(folder)]
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


@contextmanager
def _opened(path: Path, parent: int | None = None) -> Iterator[int]:
    """A folder, no link: by its path, or by the path's last part in a parent, of whose mount it must be."""
    try:
        folder = open_folder(str(path) if parent is None else path.name, parent)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise NotADirectoryError(
            errno.ENOTDIR, "expected a folder, got a link or a file: remove it", str(path)
        ) from error
    try:
        if parent is not None and mount_id(folder) != mount_id(parent):
            raise StillMountedError(str(path))
        yield folder
    finally:
        os.close(folder)
