"""What processes have open: descriptors, how many of them are sockets, and how many there may be. Blocking.

Each descriptor is a link that has to be read, so this is done for `/metrics/cadvisor` alone, and not without bound: a
program may hold a million of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.node.stats.kernel_files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MOST_OF_GROUP: Final = 65_536
MOST: Final = 262_144
"""Descriptors that are looked at, of one group and of all. It takes about a second."""
_LIMIT: Final = "Max open files"
UNLIMITED: Final = -1


@frozen
class OpenFiles:
    """Of one group."""

    descriptors: int | None
    """None: there are more than are counted."""
    sockets: int | None
    soft_limit: int | None = None
    """Of the group's first process, -1 without a limit; None when it is gone."""


def read_open_files(
    proc: Path, groups: Mapping[str, Iterable[int]], most: int = MOST, most_of_group: int = MOST_OF_GROUP
) -> dict[str, OpenFiles]:
    """By name of the group, `groups` has their processes."""
    found = {}
    for name, pids in groups.items():
        pids = tuple(pids)
        descriptors, sockets, looked_at = _count(proc, pids, min(most, most_of_group))
        most -= looked_at
        found[name] = OpenFiles(descriptors, sockets, _soft_limit(proc, pids[0]) if pids else None)
    return found


def _count(proc: Path, pids: Iterable[int], most: int) -> tuple[int | None, int | None, int]:
    """Descriptors, sockets, and how many were looked at. Processes that ended meanwhile have none."""
    descriptors = sockets = 0
    for pid in pids:
        folder = f"{proc}/{pid}/fd"
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if descriptors >= most:
                        return None, None, descriptors
                    descriptors += 1
                    sockets += _is_socket(entry.path)
        except OSError:
            continue
    return descriptors, sockets, descriptors


def _is_socket(path: str) -> bool:
    try:
        return os.readlink(path).startswith("socket")  # noqa: PTH115 - four times as fast
    except OSError:
        return False


def _soft_limit(proc: Path, pid: int) -> int | None:
    for line in (read_text(f"{proc}/{pid}/limits") or "").splitlines():
        if line.startswith(_LIMIT):
            fields = line.removeprefix(_LIMIT).split()
            if len(fields) == 3 and fields[0].isdigit():
                return int(fields[0])
            return UNLIMITED if fields[:1] == ["unlimited"] else None
    return None
