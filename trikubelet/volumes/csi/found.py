"""Specifications from vol_data.json: what is known of a volume after a restart. Blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api import CSIPersistentVolumeSource, ObjectMeta, PersistentVolume, PersistentVolumeSpec
from trikubelet.api.persistent_volumes import VOLUME_MODE_BLOCK, VOLUME_MODE_FILESYSTEM
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.csi import vol_data
from trikubelet.volumes.csi.paths import PLUGIN, devices_directory, plugin_directory
from trikubelet.volumes.csi.vol_data import VolumeData, VolumeDataError
from trikubelet.volumes.model import VolumeSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = get_logger("csi")


def persistent_spec(data: VolumeData, inner_name: str, *, block: bool = False) -> VolumeSpec:
    """Of a volume with a persistent volume behind it; what only the API server knows is missing."""
    name = data.spec_name or inner_name
    volume = PersistentVolume(
        metadata=ObjectMeta(name=name),
        spec=PersistentVolumeSpec(
            csi=CSIPersistentVolumeSource(driver=data.driver, volume_handle=data.handle),
            volume_mode=VOLUME_MODE_BLOCK if block else VOLUME_MODE_FILESYSTEM,
        ),
    )
    return VolumeSpec(name, inner_name, PLUGIN, persistent=volume, block=block, found_label=data.label)


def staged_volumes(root: Path) -> list[VolumeSpec]:
    """All volumes that are staged, or that were about to be. Raises OSError.

    Before vol_data.json nothing is begun: where an agent was killed before it wrote that, empty folders are removed.
    """
    return [*_file_systems(root), *_devices(root)]


def _file_systems(root: Path) -> Iterator[VolumeSpec]:
    devices = devices_directory(root)
    for folder in sorted(folder for folder in plugin_directory(root).glob("*/*") if folder.parent != devices):
        if (data := _load(folder)) is not None:
            # Nothing tells the persistent volume's name here.
            yield persistent_spec(data, data.handle)


def _devices(root: Path) -> Iterator[VolumeSpec]:
    for folder in sorted(devices_directory(root).glob("*/data")):
        if (data := _load(folder)) is not None:
            yield persistent_spec(data, folder.parent.name, block=True)
        else:
            vol_data.remove_if_empty(folder.parent)


def _load(folder: Path) -> VolumeData | None:
    try:
        data = vol_data.load(folder)
    except VolumeDataError as error:
        log.warning("staged CSI volume is not known any more", error=str(error))
        return None
    if data is None:
        vol_data.clear_unwritten(folder)
    return data
