"""What kinds of volumes that the node has by itself have in common.

They are not attached, most need no staging, and what they show changes only by what is done with it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from trikubelet.volumes import layout
from trikubelet.volumes.errors import VolumeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trikubelet.api import Quantity
    from trikubelet.volumes.model import MountedVolume, SetUpRequest, VolumeSpec, VolumeUsage


class NodeKind:
    """The parts of `VolumeKind` that such kinds answer alike."""

    plugin = ""
    staged = False
    takes_mount_options = False
    grows_on_node = True

    def __init__(self, *, root: Path) -> None:
        """`root`: the agent's root folder."""
        self._root = root.resolve()  # the mount table knows no links

    def refreshes(self, spec: VolumeSpec) -> bool:
        return False

    def unique_name(self, spec: VolumeSpec, uid: str) -> str:
        return f"{self.plugin}/{uid}-{spec.inner_name}"

    def path(self, uid: str, inner_name: str, *, block: bool = False) -> Path:
        place = layout.device_link if block else layout.volume_directory
        return place(self._root, uid, self.plugin, inner_name)

    def attachable(self, spec: VolumeSpec) -> bool:
        return False

    def takes_mount_label(self, spec: VolumeSpec) -> bool:
        return False

    async def stage(self, request: SetUpRequest) -> Path | None:
        await trio.lowlevel.checkpoint()
        return None

    async def unstage(self, unique_name: str, spec: VolumeSpec) -> None:
        await trio.lowlevel.checkpoint()

    async def staged_volumes(self) -> list[VolumeSpec]:
        await trio.lowlevel.checkpoint()
        return []

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        await trio.lowlevel.checkpoint()
        return None

    async def expand(self, request: SetUpRequest, new_size: Quantity) -> None:
        await trio.lowlevel.checkpoint()


@contextmanager
def as_volume_error(volume: str, failed: str) -> Iterator[None]:
    """Turn OSError into the VolumeError `<failed>: <what the system said>`."""
    try:
        yield
    except OSError as error:
        where = f": {error.filename}" if error.filename and str(error.filename) not in failed else ""
        raise VolumeError(volume, f"{failed}: {error.strerror or error}{where}") from error


def is_there(path: Path) -> bool:
    """For paths on the agent's own disk, which are not mounts: links are not followed."""
    return os.path.lexists(path)
