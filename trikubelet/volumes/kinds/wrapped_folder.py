"""The folder, or the tmpfs, that content of the agent's own is written into (kubelet: an emptyDir as wrapper).

It is made in several steps, and a file elsewhere in the pod's folder shows that all are done. So an agent that is
killed in between does them again, and a volume in memory whose mount is gone after a restart of the node is mounted
again. All of it blocks.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from trikubelet.formats.values import frozen
from trikubelet.linux.mounter import Mounter
from trikubelet.linux.trees import StillMountedError
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes import layout
from trikubelet.volumes.folders import unmount_inside
from trikubelet.volumes.removal import remove_folder
from trikubelet.volumes.sources import EMPTY_DIR

log = get_logger("volumes")

_DISK_MODE: Final = 0o777
_MEMORY_MODE: Final = 0o1777
_SET_GROUP_ID: Final = 0o2000
_MAX_STACKED: Final = 16
_INSTEAD: Final = b"on disk, since mounting a tmpfs is not permitted\n"
"""The mark of a folder that should have been a tmpfs."""


@frozen
class WrappedFolder:
    """One volume's folder. All methods raise OSError."""

    path: Path
    ready: Path
    """Exists when the folder is complete."""
    in_memory: bool
    mounter: Mounter

    @classmethod
    def of(
        cls, root: Path, uid: str, plugin: str, inner_name: str, *, in_memory: bool, mounter: Mounter
    ) -> WrappedFolder:
        """Raises ValueError for a UID or a name that names no folder."""
        path = layout.volume_directory(root, uid, plugin, inner_name)
        ready = layout.readiness_directory(root, uid, EMPTY_DIR, f"wrapped_{inner_name}") / "ready"
        return cls(path, ready, in_memory, mounter)

    def make(self, *, group: int | None, size: int | None) -> None:
        """Make what is missing. `size`: bytes, of one in memory; None: the kernel's default."""
        if self._is_ready():
            return
        self._clear_readiness()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(exist_ok=True)
        mode = 0 if group is None else _SET_GROUP_ID
        mounted = self.in_memory and self._mount(group, mode | _MEMORY_MODE, size)
        if not mounted:
            if group is not None:
                self._give(group)
            self.path.chmod(mode | _DISK_MODE)
        self.ready.parent.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        self.ready.write_bytes(_INSTEAD if self.in_memory and not mounted else b"")

    def remove(self) -> None:
        """Unmount and remove it with what is mounted inside, and its marks. Fine when there is nothing.

        Raises StillMountedError when more and more is mounted there.
        """
        self._clear_readiness()
        for _ in range(_MAX_STACKED):
            if not self.mounter.is_mount(self.path):
                break
            self.mounter.unmount(self.path)
        else:
            raise StillMountedError(str(self.path))
        try:
            remove_folder(self.path, lambda: None)
        except StillMountedError:
            unmount_inside(self.mounter, self.path)
            remove_folder(self.path, lambda: None)

    def _is_ready(self) -> bool:
        try:
            is_mounted = self.in_memory and self.ready.read_bytes() != _INSTEAD
            is_there = stat.S_ISREG(self.ready.lstat().st_mode) and self.path.is_dir()
        except (FileNotFoundError, IsADirectoryError):
            return False
        return is_there and (not is_mounted or self.mounter.is_mount(self.path))

    def _clear_readiness(self) -> None:
        remove_folder(self.ready.parent, lambda: None)

    def _mount(self, group: int | None, mode: int, size: int | None) -> bool:
        """Returns whether a tmpfs is there."""
        if self.mounter.is_mount(self.path):
            return True
        try:
            self.mounter.tmpfs(self.path, size=size, mode=mode, group=group, noswap=True)
        except PermissionError:
            # Without root a pod still runs; `trikubelet check` says too where its data are then.
            log.warning("no permission to mount a tmpfs: the volume is kept on disk", path=str(self.path))
            return False
        return True

    def _give(self, group: int) -> None:
        try:
            os.chown(self.path, -1, group)
        except PermissionError:
            if os.geteuid() == 0:
                raise
            log.warning("no permission to give a volume to the fsGroup", path=str(self.path), group=group)
