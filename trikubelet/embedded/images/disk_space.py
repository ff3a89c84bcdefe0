"""Room on the disk for images. A disk that is full to the last byte stops everything that runs on the machine."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

KEPT_FREE: Final = 64 * 2**20
"""Bytes that images leave free."""


def check_space(folder: Path, wanted: int = 0) -> None:
    """Raises OSError (ENOSPC) where the disk has no room for `wanted` more bytes and what is kept free. Blocking."""
    free = shutil.disk_usage(folder).free
    if free < wanted + KEPT_FREE:
        text = f"{free} bytes are free, {wanted} are needed for the image, and {KEPT_FREE} are kept free"
        raise OSError(errno.ENOSPC, text, os.fspath(folder))
