"""Where other volumes are mounted inside of a volume (kubelet: `getNestedMountpoints`).

A volume that containers see read-only can get no folder from the runtime, so what another volume is to be mounted on
is made before.
"""

from __future__ import annotations

import posixpath
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from trikubelet.volumes.payload.files import PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trikubelet.api import Container, EphemeralContainer, Pod

MODE: Final = 0o755


def nested_mount_points(pod: Pod, volume: str) -> tuple[str, ...]:
    """Paths in the volume, of all containers, without those inside of one another. Raises PayloadError."""
    spec = pod.spec
    found: dict[str, None] = {}
    for container in (*spec.init_containers, *spec.containers, *spec.ephemeral_containers):
        found |= dict.fromkeys(_of_container(container, volume))
    return tuple(found)


def make_mount_points(folder: Path, points: Iterable[str]) -> None:
    """Make the folders that are missing. What the volume itself shows under such a name stays. Raises OSError."""
    for point in points:
        current = folder
        for part in point.split("/"):
            current = current / part
            try:
                current.mkdir(MODE)
            except FileExistsError:
                if current.is_symlink():
                    break
            else:
                current.chmod(MODE)


def _of_container(container: Container | EphemeralContainer, volume: str) -> Iterable[str]:
    places = sorted(_clean(mount.mount_path) for mount in container.volume_mounts)
    for own in {_clean(mount.mount_path): None for mount in container.volume_mounts if mount.name == volume}:
        if own.startswith("../"):
            raise PayloadError(f"invalid container mount point {own}")
        outer: list[str] = []
        for place in places:
            if place.startswith(f"{own}/") and not place.startswith(tuple(outer)):
                outer.append(f"{place}/")
                yield place[len(own) + 1 :]


@lru_cache(maxsize=1024)
def _clean(path: str) -> str:
    """As Go's `filepath.Clean`: two slashes in front mean nothing more than one.

    Remembered, since each volume of a pod asks about the mounts of all others.
    """
    clean = posixpath.normpath(path)
    return clean[1:] if clean.startswith("//") else clean
