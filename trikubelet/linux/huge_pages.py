"""The machine's huge pages: which sizes there are, and what the kernel calls them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_FOLDER: Final = "sys/kernel/mm/hugepages"
_FOLDER_OF_SIZE: Final = re.compile(r"hugepages-(\d+)kB")
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")


def page_sizes(root: Path = Path("/")) -> tuple[int, ...]:
    """Bytes, the smallest first; empty where there are none. Reads the names of folders below `root`."""
    found = (_FOLDER_OF_SIZE.fullmatch(folder.name) for folder in (root / _FOLDER).glob("*"))
    return tuple(sorted(int(folder[1]) * 1024 for folder in found if folder is not None))


def huge_pages_folder(size: int, root: Path = Path("/")) -> Path:
    """The kernel's folder about pages of a size in bytes."""
    return root / _FOLDER / f"hugepages-{size // 1024}kB"


def page_size_name(size: int) -> str:
    """`2MB`, as cgroups and the CRI name a size in bytes (kubelet: `HugePageUnitSizeFromByteSize`)."""
    unit = 0
    while size % 1024 == 0 and unit < len(_UNITS) - 1:
        size //= 1024
        unit += 1
    return f"{size}{_UNITS[unit]}"
