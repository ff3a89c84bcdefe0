"""The floor: the calls of the file system that volumes need, made one after the other without anything around them.

A folder, or a tmpfs on it, and then for what shows content the steps that let readers see all of it or nothing: a
version's folder, its files, a link to it that is renamed into place, and a link for each file.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from benchmarks.volumes.kinds import VALUE, Kind
from trikubelet.linux.mounter import Mounter
from trikubelet.volumes.removal import remove_folder

if TYPE_CHECKING:
    from pathlib import Path


def make_bare(folder: Path, kind: Kind, count: int) -> float:
    """Seconds for `count` volumes in a folder that exists; nothing is left in it."""
    if kind is Kind.HOST_PATH:
        return 0.0
    mounter = Mounter()
    volumes = [folder / f"volume-{number}" for number in range(count)]
    began = time.perf_counter()
    try:
        for volume in volumes:
            _make(str(volume), kind, mounter, volume)
        return time.perf_counter() - began
    finally:
        for volume in volumes:
            if kind.in_memory:
                mounter.unmount(volume)
            remove_folder(volume, lambda: None)


def _make(path: str, kind: Kind, mounter: Mounter, at: Path) -> None:
    os.mkdir(path)  # noqa: PTH102 - here and below: the calls, not what pathlib adds to them
    if kind.in_memory:
        mounter.tmpfs(at, size=2**30, mode=0o1777, group=None, noswap=True)
    else:
        os.chmod(path, 0o777)  # noqa: PTH101
    if not kind.files:
        return
    version = f"{path}/..version"
    os.mkdir(version)  # noqa: PTH102
    for number in range(kind.files):
        descriptor = os.open(f"{version}/key-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, VALUE.encode())
        os.fchmod(descriptor, 0o644)
        os.close(descriptor)
    os.symlink("..version", f"{path}/..data_tmp")  # noqa: PTH211
    os.rename(f"{path}/..data_tmp", f"{path}/..data")  # noqa: PTH104
    for number in range(kind.files):
        os.symlink(f"..data/key-{number}", f"{path}/key-{number}")  # noqa: PTH211
