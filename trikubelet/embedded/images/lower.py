# ruff: noqa: PTH115
"""What the layers below show at a path, read from their directories as overlayfs would merge them.

Layers are unpacked one by one, but an entry may lie in a directory, or behind a link, that only a layer below has: the
new layer's directory must then look as the merged one does. Paths here are relative to the image's root, and each of
their components but the last is a directory in the merged view. They are strings, as thousands are built per layer.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_LINKS_ON_A_WAY = 40
OPAQUE_XATTR = "trusted.overlay.opaque"


def is_whiteout(info: os.stat_result) -> bool:
    """Whether the file is overlayfs' mark for a deleted one: a character device with number 0/0."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(directory: str) -> bool:
    """Whether overlayfs shows nothing of lower layers in this directory."""
    try:
        return os.getxattr(directory, OPAQUE_XATTR, follow_symlinks=False) == b"y"
    except OSError:
        return False


class LowerLayers:
    """The merged view of unpacked OVERLAY layers, lowest first. Blocking."""

    def __init__(self, layers: Sequence[str]) -> None:
        self._layers = tuple(reversed(layers))

    def find(self, path: str) -> str | None:
        """Where the file that the merged view shows at `path` lies, None when it shows none."""
        parts = path.split("/")
        for layer in self._layers:
            here = layer
            opaque = False
            for index, part in enumerate(parts):
                here = f"{here}/{part}"
                try:
                    info = os.lstat(here)
                except FileNotFoundError:
                    break
                if is_whiteout(info):
                    return None
                if index == len(parts) - 1:
                    return here
                if not stat.S_ISDIR(info.st_mode):
                    return None
                opaque = opaque or is_opaque(here)
            if opaque:
                return None
        return None

    def has_folder(self, path: str) -> bool:
        """Whether the merged view has a folder at `path`. Links are followed within the image, as a container would."""
        here: list[str] = []
        pending = path.split("/")[::-1]
        links = 0
        while pending:
            part = pending.pop()
            if part == "..":
                del here[-1:]
            elif part not in ("", "."):
                found = self.find("/".join([*here, part]))
                mode = os.lstat(found).st_mode if found is not None else 0
                if found is not None and stat.S_ISLNK(mode) and links < MAX_LINKS_ON_A_WAY:
                    target = os.readlink(found)
                    here, links = [] if target.startswith("/") else here, links + 1
                    pending += target.split("/")[::-1]
                elif stat.S_ISDIR(mode):
                    here.append(part)
                else:
                    return False
        return True

    def names_in_root(self) -> Iterator[str]:
        """Every name that the merged root may show; some twice, and deleted ones may be among them."""
        for layer in self._layers:
            with os.scandir(layer) as entries:
                yield from (entry.name for entry in entries)
