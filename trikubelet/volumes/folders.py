"""Folders that volumes are mounted on, looked at without touching what is mounted there. All of it blocks."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from trikubelet.linux.trees import StillMountedError

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.linux.mounter import Mounter


def names_in(folder: Path) -> list[str]:
    """In order; none for a folder that is not there. Raises OSError."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  (names only)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_listed(path: Path) -> bool:
    """Whether its folder names it. Raises OSError."""
    try:
        return path.name in os.listdir(path.parent)  # noqa: PTH208  (names only)
    except FileNotFoundError:
        return False


def remove_folder(path: Path) -> None:
    """Nothing but an empty folder; the kernel refuses a mount. Raises OSError."""
    with suppress(FileNotFoundError):
        path.rmdir()


def unmount_all(mounter: Mounter, at: Path) -> None:
    """Unmount what is mounted there, several times perhaps. Raises StillMountedError for a mount inside, OSError."""
    mounts = mounter.table().below(at)
    for mount in mounts:
        if mount.point != at:
            raise StillMountedError(str(mount.point))
    for _ in mounts:
        mounter.unmount(at)
