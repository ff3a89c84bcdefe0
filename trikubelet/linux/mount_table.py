"""The mounts of the agent's mount namespace, as the kernel lists them.

The kernel's list says nothing of order that could be relied on: which of two mounts at one place hides the other, and
which of two must go first, follows from which mount each is mounted on. Nothing here looks at the mounted file systems,
so a share that does not answer cannot hold it up. A mount that is there during the whole read is in it.

Paths are the kernel's: without links.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

MOUNTINFO: Final = Path("/proc/self/mountinfo")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@frozen(kw_only=True)
class Mount:
    """One line of the list (proc_pid_mountinfo(5))."""

    point: Path
    root: str = "/"
    """Which folder or file of the file system is mounted."""
    source: str = ""
    """What the file system is on: a device, `server:path`, or only a name."""
    kind: str
    """The file system's type: `tmpfs`, `nfs4`."""
    options: tuple[str, ...] = ()
    """Of this mount: `ro`, `nosuid`."""
    super_options: tuple[str, ...] = ()
    """Of the file system, for all its mounts: `size=1024k`, `noswap`, `pagesize=2M`."""
    device: tuple[int, int] = (0, 0)
    """Major and minor number of the file system; for most of them those of `st_dev`."""
    id: int = 0
    parent: int = -1
    """The mount that it is mounted on."""
    shared: bool = False
    """Whether what is mounted on it appears on its copies in other mount namespaces."""


@attrs.frozen(slots=False)
class MountTable:
    """All mounts at one moment."""

    mounts: tuple[Mount, ...]

    @classmethod
    def read(cls, table: Path = MOUNTINFO) -> MountTable:
        """Raises OSError."""
        # Only what would break the table itself is escaped in it: other separators and any bytes may be in a name.
        lines = os.fsdecode(table.read_bytes()).split("\n")
        return cls(tuple(_parse(line) for line in lines if line))

    def at(self, path: Path) -> Mount | None:
        """What is mounted exactly there, of several the one that can be seen; None for nothing."""
        return max(self._by_point.get(path, ()), key=self._depth, default=None)

    def below(self, folder: Path) -> list[Mount]:
        """What is mounted at or below a folder, also where something else hides it: in the order to unmount it."""
        # By text: a full node has thousands of mounts, and `is_relative_to` takes ten times as long.
        prefix = f"{folder}/".replace("//", "/")
        found = [mount for mount in reversed(self.mounts) if f"{mount.point}/".startswith(prefix)]
        return sorted(found, key=self._depth, reverse=True)

    def holder(self, path: Path) -> Mount | None:
        """The mount that a path is on."""
        for folder in (path, *path.parents):
            mount = self.at(folder)
            if mount is not None:
                return mount
        return None

    def references(self, path: Path) -> list[Mount]:
        """The mounts that show the same folder or file of the same file system as `path` does, but for the one at
        `path` itself (mount-utils: `SearchMountPoints`)."""
        holder = self.holder(path)
        if holder is None:
            return []
        inside = path.relative_to(holder.point)
        root = str(Path(holder.root, inside))
        return [
            mount
            for mount in self.mounts
            if (mount.device, mount.root) == (holder.device, root) and mount.point != path
        ]

    @cached_property
    def _by_point(self) -> Mapping[Path, list[Mount]]:
        found: dict[Path, list[Mount]] = {}
        for mount in self.mounts:
            found.setdefault(mount.point, []).append(mount)
        return found

    @cached_property
    def _parents(self) -> Mapping[int, int]:
        return {mount.id: mount.parent for mount in self.mounts}

    def _depth(self, mount: Mount) -> int:
        """How many mounts it is mounted on."""
        depth, identifier = 0, mount.parent
        seen = {mount.id}
        while identifier in self._parents and identifier not in seen:
            seen.add(identifier)
            identifier = self._parents[identifier]
            depth += 1
        return depth


def _parse(line: str) -> Mount:
    identifier, parent, device, root, point, options, *rest = line.split(" ")
    end = rest.index("-")  # after any number of fields on propagation
    kind, source, super_options = rest[end + 1 : end + 4]
    major, _, minor = device.partition(":")
    return Mount(
        point=Path(_unescape(point)),
        root=_unescape(root),
        source=_unescape(source),
        kind=kind,
        options=tuple(options.split(",")),
        super_options=tuple(_unescape(super_options).split(",")),
        device=(int(major), int(minor)),
        id=int(identifier),
        parent=int(parent),
        shared=any(field.startswith("shared:") for field in rest[:end]),
    )


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
