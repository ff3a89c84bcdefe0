"""Mounting tmpfs and unmounting, and which mounts there are. All of it blocks for a moment."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_UMOUNT_NOFOLLOW: Final = 8
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def mount_tmpfs(path: Path, *, size: int | None, mode: int, group: int | None) -> None:
    """Mount a tmpfs of `size` bytes (None: the kernel's default) on a folder. Raises OSError.

    Its root has the mode and the group from the beginning, so a mount that is there is complete.
    """
    from trikubelet.embedded.keeper import linux

    options = [f"mode={mode:o}"]
    if size is not None:
        options.append(f"size={size}")
    if group is not None:
        options.append(f"gid={group}")
    linux.mount("tmpfs", str(path), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, ",".join(options))


def unmount(path: Path) -> None:
    """Detach the mount at a path; the last user's end frees it. Raises OSError."""
    from trikubelet.embedded.keeper import linux

    linux.unmount(str(path), linux.MNT_DETACH | _UMOUNT_NOFOLLOW)


def mounts_below(folder: Path, table: Path = Path("/proc/self/mountinfo")) -> list[tuple[Path, str]]:
    """Mount points at or below a folder with their file system types, the newest first: the order to unmount in."""
    found = []
    # Only what would break the table itself is escaped in it: other separators and any bytes may be in a name.
    for line in os.fsdecode(table.read_bytes()).split("\n"):
        fields, separator, source = line.partition(" - ")
        if not separator:
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields.split(" ")[4]))
        if point.is_relative_to(folder):
            found.append((point, source.split(" ")[0]))
    return found[::-1]
