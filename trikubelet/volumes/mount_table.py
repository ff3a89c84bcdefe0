"""Mounting tmpfs and unmounting, and which mounts there are. All of it blocks for a moment.

The system calls are made through the C library that is loaded anyway; `mount(8)` would be a process for each.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Final

_MS_NOSUID: Final = 0x2
_MS_NODEV: Final = 0x4
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def mount_tmpfs(path: Path, *, size: int | None, mode: int, group: int | None) -> None:
    """Mount a tmpfs of `size` bytes (None: the kernel's default) on a folder. Raises OSError.

    Its root has the mode and the group from the beginning, so a mount that is there is complete.
    """
    options = [f"mode={mode:o}"]
    if size is not None:
        options.append(f"size={size}")
    if group is not None:
        options.append(f"gid={group}")
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    _call("mount", path, b"tmpfs", os.fsencode(path), b"tmpfs", flags, ",".join(options).encode())


def unmount(path: Path) -> None:
    """Detach the mount at a path; the last user's end frees it. Raises OSError."""
    _call("umount2", path, os.fsencode(path), ctypes.c_int(_MNT_DETACH | _UMOUNT_NOFOLLOW))


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


def _call(name: str, path: Path, *arguments: object) -> None:
    if ctypes.CDLL(None, use_errno=True)[name](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
