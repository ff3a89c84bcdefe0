"""Devices for pods, as the kubelet arranges them (kubelet: `MapBlockVolume`, `UnmapBlockVolume`).

A pod's device is bound to a file named after the pod in the volume's map folder, which shows the users of the volume; a
link in the pod's folder tells it the other way round. A loop device on top of the bound file keeps the device open:
without it another device could get its name meanwhile, and the runtime would hand that to the pod.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.linux.mounter import Mounter
from trikubelet.volumes import layout
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.kinds.node_kind import as_volume_error
from trikubelet.volumes.kinds.programs import run_program

LOSETUP: Final = "losetup"
DEADLINE: Final = 60.0
"""Seconds for losetup."""
LET_GO_WITHIN: Final = 2.0
"""Seconds for who has a loop device open."""
BACKING_FILES: Final = "block/loop*/loop/backing_file"
_FILE_MODE: Final = 0o640


@frozen
class DeviceMap:
    """Where one pod's device of one volume is known from. Paths without links."""

    folder: Path
    """The volume's map folder, of all pods."""
    uid: str
    link: Path
    """In the pod's folder."""

    @property
    def bound(self) -> Path:
        return self.folder / self.uid


@frozen
class DeviceMapper:
    """Arranges them. `sysfs` is where the kernel lists its loop devices."""

    mounter: Mounter
    disk: Disk
    sysfs: Path = Path("/sys")

    async def map(self, volume: str, device: Path, places: DeviceMap) -> str:
        """Returns the device's own path. Idempotent. Raises VolumeError; what was done until then is for `unmap`."""
        with as_volume_error(volume, f"cannot map {device}"):
            real = await self.disk.run_foreign(device, partial(_real_device, volume, device))
            await self.disk.run(partial(self._bind, real, places))
            loop = await self.disk.run(partial(self._loop_of, places.bound))
        if loop is None:
            await self._losetup(volume, "-f", str(places.bound))
        return str(real)

    async def unmap(self, volume: str, places: DeviceMap) -> None:
        """Idempotent. Raises VolumeError."""
        with as_volume_error(volume, f"cannot unmap {places.bound}"):
            while (loop := await self.disk.run(partial(self._loop_of, places.bound))) is not None:
                await self._losetup(volume, "-d", loop)
                # The kernel waits for whoever has it open, which may be a program that looks at all devices.
                with trio.move_on_after(LET_GO_WITHIN) as patience:
                    while await self.disk.run(partial(self._loop_of, places.bound)) == loop:  # noqa: ASYNC110
                        await trio.sleep(LET_GO_WITHIN / 20)
                if patience.cancelled_caught:
                    raise VolumeError(volume, f"loop device {loop} on {places.bound} is still used by somebody")
            await self.disk.run(partial(self._unbind, places))

    async def remove(self, volume: str, folder: Path, *, record: str = "") -> None:
        """Remove a volume's map folder, which no pod uses, and the file `record` in it. Idempotent. Raises
        VolumeError."""
        with as_volume_error(volume, f"cannot remove {folder}"):
            users = await self.disk.run(partial(_remove_unused, folder, record))
        if users:
            raise VolumeError(volume, f'the device "{folder}" is still referenced from other Pods [{" ".join(users)}]')

    async def _losetup(self, volume: str, *arguments: str) -> None:
        ended = await run_program(volume, LOSETUP, arguments, package="util-linux", deadline=DEADLINE)
        if ended.code != 0:
            raise VolumeError(volume, f"{LOSETUP} {' '.join(arguments)} failed: {ended.output}")

    def _bind(self, device: Path, places: DeviceMap) -> None:
        bound, link = places.bound, places.link
        bound.parent.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(bound, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _FILE_MODE))
        there = bound.lstat()
        if not stat.S_ISBLK(there.st_mode) or there.st_rdev != device.stat().st_rdev:
            self.mounter.unmount(bound)
            self.mounter.bind(device, bound)
        link.parent.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(device)

    def _unbind(self, places: DeviceMap) -> None:
        places.link.unlink(missing_ok=True)
        self.mounter.unmount(places.bound)
        places.bound.unlink(missing_ok=True)

    def _loop_of(self, file: Path) -> str | None:
        """The loop device on top of a file; the kernel shows the file's path in this mount namespace."""
        for backing in self.sysfs.glob(BACKING_FILES):
            try:
                shown = backing.read_text(errors="surrogateescape")
            except OSError:  # it is gone, or not set up
                continue
            if shown.rstrip("\n").removesuffix(" (deleted)") == str(file):
                return f"/dev/{backing.parent.parent.name}"
        return None


def _real_device(volume: str, device: Path) -> Path:
    real = device.resolve(strict=True)
    if not stat.S_ISBLK(real.stat().st_mode):
        raise VolumeError(volume, f"expected a block device, got {real}")
    return real


def _remove_unused(folder: Path, record: str) -> list[str]:
    """Remove it unless it has other entries than `record`, which are returned."""
    try:
        users = sorted(str(path) for path in folder.iterdir() if path.name != record)
        if not users:
            if record:
                (folder / record).unlink(missing_ok=True)
            folder.rmdir()
    except FileNotFoundError:
        return []
    return users
