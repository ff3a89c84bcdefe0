"""Where the driver keeps volumes, and how they get to the paths that the agent names.

    volumes/<id>/       a file system
    images/<id>.img     a block device's content

`BindMounts` needs root and does what a real driver does. `NoMounts` lets everybody run the tests: a published folder is
a folder with a file `volume`, a published device is a link to its image.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

import attrs

from trikubelet.linux.mounter import Mounter

if TYPE_CHECKING:
    from collections.abc import Sequence

IMAGE_SIZE: Final = 16 * 2**20
MARK: Final = "volume"


class Mounts(Protocol):
    """How something gets to a path, and away."""

    def folder(self, source: Path, at: Path, options: Sequence[str]) -> None: ...

    def device(self, image: Path, at: Path) -> None: ...

    def away(self, at: Path) -> None:
        """Fine when nothing is there."""
        ...

    def release(self, image: Path) -> None:
        """The image is no device any more."""
        ...


class NoMounts:
    def folder(self, source: Path, at: Path, options: Sequence[str]) -> None:
        at.mkdir(exist_ok=True)
        (at / MARK).write_text(source.name)

    def device(self, image: Path, at: Path) -> None:
        if not at.is_symlink():
            at.symlink_to(image)

    def away(self, at: Path) -> None:
        if at.is_symlink():
            at.unlink()
        else:
            (at / MARK).unlink(missing_ok=True)

    def release(self, image: Path) -> None:
        pass


@attrs.frozen
class BindMounts:
    """With `loop`, block volumes are loop devices; otherwise the image itself is bound."""

    loop: bool = False
    _mounter: Mounter = attrs.field(factory=Mounter)

    def folder(self, source: Path, at: Path, options: Sequence[str]) -> None:
        at.mkdir(exist_ok=True)
        self._bind(source, at, options)

    def device(self, image: Path, at: Path) -> None:
        at.touch(exist_ok=True)
        self._bind(self._device_of(image) if self.loop else image, at, ())

    def away(self, at: Path) -> None:
        self._mounter.unmount(at)

    def release(self, image: Path) -> None:
        for device in self._loops(image):
            _run("losetup", "-d", device)

    def _bind(self, source: Path, at: Path, options: Sequence[str]) -> None:
        if not self._mounter.is_mount(at):
            self._mounter.bind(source, at, options=options)

    def _device_of(self, image: Path) -> Path:
        found = self._loops(image)
        return Path(found[0] if found else _run("losetup", "--show", "-f", str(image)).strip())

    def _loops(self, image: Path) -> list[str]:
        return [line.partition(":")[0] for line in _run("losetup", "-j", str(image)).splitlines()]


@attrs.frozen
class Storage:
    """Volumes by their id, which may be any text."""

    root: Path
    mounts: Mounts = attrs.field(factory=NoMounts)

    def folder(self, volume_id: str) -> Path:
        """Its content, made when missing."""
        path = self.root / "volumes" / quote(volume_id, safe="")
        path.mkdir(parents=True, exist_ok=True)
        return path

    def image(self, volume_id: str) -> Path:
        path = self._image(volume_id)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.truncate(path, IMAGE_SIZE)
        return path

    def release(self, volume_id: str) -> None:
        """No pod uses it any more."""
        if self._image(volume_id).exists():
            self.mounts.release(self._image(volume_id))

    def remove(self, volume_id: str) -> None:
        """An inline volume goes with its pod."""
        shutil.rmtree(self.root / "volumes" / quote(volume_id, safe=""), ignore_errors=True)

    def give_to(self, volume_id: str, group: int) -> None:
        """What VOLUME_MOUNT_GROUP promises."""
        folder = self.folder(volume_id)
        os.chown(folder, -1, group)
        folder.chmod(0o2770)

    def _image(self, volume_id: str) -> Path:
        return self.root / "images" / f"{quote(volume_id, safe='')}.img"


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
