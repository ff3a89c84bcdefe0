"""The folders that drivers stage and publish to, with their vol_data.json, on threads.

What is in such a folder is somebody's data, or a mount that may not answer: it is never looked into, only removed when
nothing is mounted there and nothing is in it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from trikubelet.formats.values import frozen
from trikubelet.linux.mounter import Mounter
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.csi import rules, vol_data
from trikubelet.volumes.csi.vol_data import VolumeData, VolumeDataError
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import VolumeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trikubelet.linux.mount_table import Mount

T = TypeVar("T")

log = get_logger("csi")


@frozen
class Folders:
    """`volume`: its name, for errors."""

    disk: Disk
    mounter: Mounter

    async def do(self, volume: str, work: Callable[[], T]) -> T:
        """Raises VolumeError for an OSError or VolumeDataError of `work`."""
        try:
            return await self.disk.run(work)
        except (OSError, VolumeDataError) as error:
            raise VolumeError(volume, str(error)) from error

    async def write_down(self, volume: str, at: Path, data: VolumeData, *, inside: bool = False) -> None:
        """Before a driver gets the place. `inside`: the place is made too, not only the folder that it is in."""

        def work() -> None:
            vol_data.make_folder(at.parent)
            vol_data.save(at.parent, data)
            if inside:
                vol_data.make_folder(at)

        await self.do(volume, work)

    def holder(self, at: Path) -> Mount | None:
        """The mount that a place is on, be it mounted there or not. Blocks. Raises OSError."""
        return self.mounter.table().holder(vol_data.real(at))

    async def give_up(self, at: Path) -> None:
        """The driver refused for good: what was made for it goes, if the driver left nothing there. Never fails."""

        def work() -> None:
            if not vol_data.is_mounted(self.mounter, at):
                vol_data.remove_target(at)
                vol_data.forget(at.parent)

        try:
            await self.disk.run(work)
        except OSError as error:
            log.warning("what a CSI driver refused could not be removed", path=str(at), error=str(error))

    async def load_or_clear(self, volume: str, target: Path) -> VolumeData | None:
        """About a published volume. None when its driver need not be asked: it was never told of the volume, or
        which volume it is is unknown. Then what there is has been removed."""
        return await self.do(volume, partial(self._load_or_clear, volume, target))

    async def may_be_unstaged(self, volume: str, at: Path) -> bool:
        """False when it is not staged. Raises VolumeError while somebody uses it."""
        return await self.do(volume, partial(self._may_be_unstaged, volume, at))

    async def forget(self, volume: str, driver: str, at: Path) -> None:
        """The driver has undone what it did there. Raises VolumeError when it has not."""

        def work() -> None:
            if vol_data.is_mounted(self.mounter, at):
                raise VolumeError(volume, f"driver {driver} says that it is unmounted, but {at} still is a mount")
            vol_data.remove_target(at)
            vol_data.forget(at.parent)

        await self.do(volume, work)

    def _load_or_clear(self, volume: str, target: Path) -> VolumeData | None:
        try:
            data = vol_data.load(target.parent)
        except VolumeDataError as error:
            log.error("CSI volume is unmounted without its driver", volume=volume, error=str(error))
            data = None
        if data is None:
            self.mounter.unmount(target)
            vol_data.remove_target(target)
            vol_data.forget(target.parent)
        return data

    def _may_be_unstaged(self, volume: str, at: Path) -> bool:
        if not at.parent.exists():
            return False
        found = [str(mount.point) for mount in self.mounter.table().references(vol_data.real(at))]
        others = rules.other_references(str(at), found)
        if others:
            what = f'the device mount path "{at}" is still mounted by other references [{" ".join(others)}]'
            raise VolumeError(volume, what)
        return True
