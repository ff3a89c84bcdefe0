"""What an earlier agent left on disk: found by the folders of pods, in the kubelet's layout.

A volume's folder says that something may be mounted there, not that it is, so everything found is uncertain: it is set
up again when a pod wants it, and taken down when its pod has gone. What even its kind cannot make out is remembered as
well, by what its path says, so that it is taken down with its pod (kubelet: `reconstruct.go`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes import layout
from trikubelet.volumes.desired import is_staged
from trikubelet.volumes.model import VolumeSpec

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.volumes.disk import Disk
    from trikubelet.volumes.kinds.protocol import Kinds, VolumeKind

log = get_logger("volumes")

DEADLINE: Final = 10.0
"""Seconds for one volume: the whole agent waits for this."""


@frozen
class VolumeFolder:
    """A volume of a pod, as far as its path tells."""

    uid: str
    plugin: str
    inner_name: str
    block: bool


@frozen(kw_only=True)
class FoundVolume:
    """A volume that may be there."""

    uid: str
    """Of its pod. Empty for one that was only staged."""
    unique_name: str
    spec: VolumeSpec
    staged: bool = False
    """Perhaps, as everything here."""
    understood: bool = True
    """Its kind could tell which volume it is; otherwise `unique_name` is made up."""


def find_folders(root: Path) -> list[VolumeFolder]:
    """All volumes that have a folder, or a link to a device, below `<root>/pods`. Blocks. Raises OSError."""
    found = []
    for uid in _folders(layout.pods_directory(root)):
        for part, block in (("volumes", False), ("volumeDevices", True)):
            top = layout.pods_directory(root) / uid / part
            for folder in _folders(top):
                plugin = layout.plugin_of_folder(folder)
                names = sorted(name for name in _names(top / folder) if not name.startswith("."))
                found += [VolumeFolder(uid, plugin, name, block) for name in names]
    return found


async def reconstruct(root: Path, kinds: Kinds, disk: Disk) -> list[FoundVolume]:
    """What may be there, of all pods. Raises OSError when the root folder cannot be read."""
    found = []
    for folder in await disk.run(lambda: find_folders(root)):
        kind = kinds.by_plugin.get(folder.plugin)
        if kind is None:
            log.warning("a volume of an unknown kind is left alone", uid=folder.uid, kind=folder.plugin)
            continue
        volume = await _reconstruct_one(folder, kind)
        if volume is not None:
            found.append(volume)
    known = {volume.unique_name for volume in found}
    for kind in kinds.by_plugin.values():
        found += [volume for volume in await _only_staged(kind) if volume.unique_name not in known]
    return found


def made_up_name(folder: VolumeFolder) -> str:
    """For a volume that is known by its folder only."""
    return f"{folder.plugin}/{folder.uid}-{folder.inner_name}"


async def _reconstruct_one(folder: VolumeFolder, kind: VolumeKind) -> FoundVolume | None:
    try:
        with trio.fail_after(DEADLINE):
            spec = await kind.reconstruct(folder.uid, folder.inner_name, block=folder.block)
        if spec is None:
            return None
        name = kind.unique_name(spec, folder.uid)
    except Exception as error:  # noqa: BLE001 - drivers write there too, and nothing on the disk may keep it from starting
        log.warning(
            "cannot tell what an earlier agent set up here: it is taken down with its pod",
            uid=folder.uid,
            kind=folder.plugin,
            volume=folder.inner_name,
            problem=str(error),
        )
        spec = VolumeSpec(folder.inner_name, folder.inner_name, folder.plugin, block=folder.block)
        return FoundVolume(uid=folder.uid, unique_name=made_up_name(folder), spec=spec, understood=False)
    return FoundVolume(uid=folder.uid, unique_name=name, spec=spec, staged=is_staged(spec, kind))


async def _only_staged(kind: VolumeKind) -> list[FoundVolume]:
    """The agent may have ended after the last pod's volume was taken down, and before its staging was undone."""
    try:
        with trio.fail_after(DEADLINE):
            specs = await kind.staged_volumes()
        return [FoundVolume(uid="", unique_name=kind.unique_name(spec, ""), spec=spec, staged=True) for spec in specs]
    except Exception as error:  # noqa: BLE001 - as above
        log.warning("cannot tell what an earlier agent staged", kind=kind.plugin, problem=str(error))
        return []


def _folders(path: Path) -> list[str]:
    """In order. A folder that is not there has none, and links are none."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _names(path: Path) -> list[str]:
    """Without looking at any of them: what is mounted there may not answer."""
    return os.listdir(path)  # noqa: PTH208  (names only)
