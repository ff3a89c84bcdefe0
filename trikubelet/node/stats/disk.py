"""What is on disks: file systems, logs, and the agent's own files of a pod. Blocking."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import attrs

from trikubelet.node.stats.model import FsStats

_BLOCK: Final = 512


def read_file_system(path: str | Path, at: int) -> FsStats | None:
    """The file system at a path, without what is used of it; None when there is none."""
    figures = _figures(path)
    if figures is None:
        return None
    return FsStats(
        time=at,
        available_bytes=figures.f_bavail * figures.f_frsize,
        capacity_bytes=figures.f_blocks * figures.f_frsize,
        inodes_free=figures.f_ffree,
        inodes=figures.f_files,
    )


def read_node_file_system(path: str | Path, at: int) -> FsStats | None:
    """The same with all that is used of it, by whomever (kubelet: `RootFsStats`)."""
    figures = _figures(path)
    free = read_file_system(path, at)
    if figures is None or free is None:
        return None
    return attrs.evolve(
        free,
        used_bytes=(figures.f_blocks - figures.f_bfree) * figures.f_frsize,
        inodes_used=figures.f_files - figures.f_ffree,
    )


def device_of(path: str | Path) -> str:
    """`major:minor` of the file system at a path; empty when there is none."""
    try:
        number = Path(path).stat().st_dev
    except OSError:
        return ""
    return f"{os.major(number)}:{os.minor(number)}"


def device_name(sys: Path, number: str) -> str:
    """`/dev/…` of a block device's `major:minor`; the numbers where the kernel has no name for them."""
    try:
        return f"/dev/{(sys / 'dev/block' / number).readlink().name}"
    except OSError:
        return number


def usage_of_files(folder: str | Path, on: FsStats) -> FsStats | None:
    """What the files right in a folder take of the file system that they are on; None when there is no such folder.

    None of it used when there are no files (kubelet: `fileMetricsByDir`).
    """
    used = inodes = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    used += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                    inodes += 1
    except FileNotFoundError:
        if not Path(folder).is_dir():
            return None  # else a file went meanwhile
    except OSError:
        return None
    return attrs.evolve(on, used_bytes=used, inodes_used=inodes) if inodes else on


def usage_of_file(path: str | Path, on: FsStats) -> FsStats | None:
    """What one file takes; None when there is none."""
    try:
        blocks = os.lstat(path).st_blocks
    except OSError:
        return None
    return attrs.evolve(on, used_bytes=blocks * _BLOCK, inodes_used=1)


def _figures(path: str | Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(path)
    except OSError:
        return None
