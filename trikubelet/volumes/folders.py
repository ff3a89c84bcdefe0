"""Folders that volumes are mounted on, looked at without touching what is mounted there. All of it blocks."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from trikubelet.linux.trees import StillMountedError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.linux.mounter import Mounter

log = get_logger("volumes")


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


def unmount_inside(mounter: Mounter, folder: Path) -> None:
    """Unmount what is mounted inside of a folder that is a pod's alone, not the folder itself. Raises OSError.

    For pods whose containers have ended. A runtime mounts inside of volumes too: a termination message's file, another
    volume. Through a volume that is mounted with Bidirectional propagation that comes back as a mount of the node, and
    stays when the container is gone. What is in there is kept, wherever it comes from.
    """
    for mount in mounter.table().below(folder):
        if mount.point != folder:
            log.info("unmounting what was mounted inside of a volume", path=str(mount.point), kind=mount.kind)
            mounter.unmount(mount.point)


def unmount_all(mounter: Mounter, at: Path) -> None:
    """Unmount what is mounted there, several times perhaps. Raises StillMountedError for a mount inside only, OSError.

    What is mounted inside of it goes along, but only here. In a volume that is mounted with Bidirectional propagation
    that may be the runtime's own, or another pod's that has the volume too.
    """
    points = [mount.point for mount in mounter.table().below(at)]
    if points and at not in points:
        raise StillMountedError(str(points[0]))
    for _ in range(points.count(at)):
        mounter.unmount(at)
