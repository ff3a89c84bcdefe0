"""What this process may do with files in the store, found out by doing it on the store's own file system."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from trikubelet.embedded.images.lower import OPAQUE_XATTR
from trikubelet.embedded.images.model import LayerFormat
from trikubelet.formats.values import frozen
from trikubelet.linux.trees import remove_tree

if TYPE_CHECKING:
    from pathlib import Path


@frozen
class Capabilities:
    """What this process may do with files in the store."""

    layer_format: LayerFormat
    privileged: bool
    """May give files to other users."""


def probe_capabilities(directory: Path) -> Capabilities:
    """Try out on the store's own file system what unpacking needs."""
    probe = directory / f"probe-{os.getpid()}-{os.urandom(4).hex()}"
    probe.mkdir()
    try:
        return Capabilities(
            LayerFormat.OVERLAY if _can_mark_deletions(probe) else LayerFormat.FLAT, privileged=_can_give_away(probe)
        )
    finally:
        remove_tree(probe)


def _can_mark_deletions(probe: Path) -> bool:
    try:
        os.setxattr(probe, OPAQUE_XATTR, b"y")
        os.mknod(probe / "whiteout", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    except OSError:
        return False
    return os.geteuid() == 0


def _can_give_away(probe: Path) -> bool:
    somebody_else = 1 if os.geteuid() != 1 else 2
    try:
        os.chown(probe, somebody_else, somebody_else)
    except OSError:
        return False
    return True
