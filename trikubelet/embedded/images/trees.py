"""Measuring and deleting directories of unpacked images. Blocking: call from a worker thread."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import attrs


@attrs.frozen
class DiskUsage:
    """What a directory takes on its file system."""

    disk_bytes: int
    inodes: int


def measure(top: Path) -> DiskUsage:
    """What the tree takes on disk, itself included. Hard links count once."""
    seen: set[int] = set()
    total = 0
    pending = [os.fspath(top)]
    seen.add(os.lstat(top).st_ino)
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                if info.st_ino in seen:
                    continue
                seen.add(info.st_ino)
                total += info.st_blocks * 512
                if stat.S_ISDIR(info.st_mode):
                    pending.append(entry.path)
    return DiskUsage(total, len(seen))


def remove_tree(top: Path) -> None:
    """Delete a tree that this program unpacked; one that is gone already is fine. Follows no symlink.

    Without root an image's own directory modes (0555, 0000) would keep the owner from deleting: they are lifted first.
    """
    if not top.is_dir() or top.is_symlink():
        top.unlink(missing_ok=True)
        return
    if os.geteuid() != 0:
        _lift_modes(top)
    try:
        shutil.rmtree(top)
    except FileNotFoundError:
        # Somebody else deletes the same leftovers. What they have not reached yet is theirs to finish.
        if top.exists():
            shutil.rmtree(top, ignore_errors=True)


def _lift_modes(top: Path) -> None:
    top.chmod(0o700)
    for parent, directories, _ in os.walk(top):
        for name in directories:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)
