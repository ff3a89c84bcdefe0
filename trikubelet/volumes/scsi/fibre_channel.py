"""`fc`: a disk of a Fibre Channel fabric, by the names of its ports and its unit, or by its own (kubelet: `fc.go`).

The fabric's switches decide which disks the node sees; all that is done here is to look, and to let go of them.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from trikubelet.api import FCVolumeSource, from_dict, to_dict
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.kinds.node_kind import as_volume_error
from trikubelet.volumes.kinds.programs import run_program
from trikubelet.volumes.scsi.kind import HOST_DEADLINE, ScsiKind
from trikubelet.volumes.scsi.records import ScsiDisk
from trikubelet.volumes.sources import FC

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.volumes.model import SetUpRequest, VolumeSpec

log = get_logger("volumes")

BLOCKDEV: Final = "blockdev"


class FibreChannelKind(ScsiKind):
    plugin = FC
    source_field = "fc"

    def disk_of(self, spec: VolumeSpec) -> ScsiDisk:
        source = _source(spec)
        if _is_by_port(source):
            name = f"[{' '.join(source.target_wwns)}]:{source.lun}"
            folder = f"{'-'.join(source.target_wwns)}-lun-{source.lun}"
        elif source.wwids:
            name = f"[{' '.join(source.wwids)}]"
            folder = "-".join(map(_in_links, source.wwids))
        else:
            raise VolumeError(spec.name, "fc: no fc disk information found")
        if "/" in folder:
            raise VolumeError(spec.name, f"expected names of a disk without slashes, got {folder}")
        return ScsiDisk(name=name, folder=folder, volume=spec.inner_name, block=spec.block, source=to_dict(source))

    async def appear(self, request: SetUpRequest, disk: ScsiDisk) -> Path:
        """A disk with a multipath device on top is found without asking the fabric."""
        volume = request.spec.name
        found, multipath = await self._search(volume, disk)
        if multipath is None:
            await self.ask_host(volume, "looking for disks on all SCSI hosts", self._host.scan_all)
            found, multipath = await self._search(volume, disk)
        device = multipath or found
        if device is None:
            raise VolumeError(volume, "no fc disk found")
        return device

    async def disappear(self, volume: str, disk: ScsiDisk) -> None:
        found, multipath = await self._search(volume, disk)
        if found is None:
            return
        for other in await self.others(volume, disk):
            if (multipath or found) in await self._search(volume, other):
                log.info("a Fibre Channel disk is used by another volume", disk=disk.name, other=other.name)
                return
        devices = [found]
        if multipath is not None:
            with as_volume_error(volume, f"cannot look for the disks of {multipath}"):
                devices = await self._disk.run(partial(self._host.members_of, multipath))
            await self.flush_multipath(volume, multipath)
        for device in devices:
            await self._flush(volume, device)
            await self.delete_device(volume, device)

    async def _search(self, volume: str, disk: ScsiDisk) -> tuple[Path | None, Path | None]:
        """The disk and the multipath device on top of it."""
        source = from_dict(FCVolumeSource, dict(disk.source))
        by_port = _is_by_port(source)
        with as_volume_error(volume, "cannot look for disks"):
            links = await self._disk.run(partial(self._host.links, "by-path" if by_port else "by-id"))
        last = None
        for name in source.target_wwns if by_port else source.wwids:
            if by_port:
                pattern = rf"(pci-.*-fc|fc)-0x{re.escape(name)}-lun-{source.lun}"
            else:
                pattern = re.escape(f"scsi-{_in_links(name)}")
            device = next((found for link, found in links.items() if re.fullmatch(pattern, link)), None)
            if device is None:
                continue
            with as_volume_error(volume, f"cannot look for a multipath device of {device}"):
                multipath = await self._disk.run(partial(self._host.multipath_of, device))
            if multipath is not None:
                return device, multipath
            last = device
        return last, None

    async def _flush(self, volume: str, device: Path) -> None:
        """What is not written yet. There is no second attempt at this, so its failure ends nothing."""
        try:
            ended = await run_program(
                volume, BLOCKDEV, ["--flushbufs", str(device)], package="util-linux", deadline=HOST_DEADLINE
            )
            problem = f"{ended.output} ({ended.code})" if ended.code else ""
        except VolumeError as error:
            problem = error.problem
        if problem:
            log.warning("a disk cannot be flushed", device=str(device), problem=problem)


def _source(spec: VolumeSpec) -> FCVolumeSource:
    source = None if spec.volume is None else spec.volume.fc
    if spec.persistent is not None:
        source = spec.persistent.spec.fc
    if source is None:
        raise VolumeError(spec.name, "Spec does not reference a FibreChannel volume type")
    return source


def _is_by_port(source: FCVolumeSource) -> bool:
    return bool(source.target_wwns) and source.lun is not None


def _in_links(wwid: str) -> str:
    """As udev writes it."""
    return wwid.replace(" ", "_")
