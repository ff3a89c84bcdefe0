"""Which cgroups there are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def cgroups_with(marker: str) -> list[Path]:
    """Those with `marker` in their name. Others may end meanwhile, or be nested deeper than any path may be long."""
    return [path for path in _below(Path("/sys/fs/cgroup")) if marker in path.name]


def _below(top: Path) -> Iterator[Path]:
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        try:
            found = [path for path in folder.iterdir() if path.is_dir()]
        except OSError:
            continue
        waiting += found
        yield from found
