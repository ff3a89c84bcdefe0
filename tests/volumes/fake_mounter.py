"""A mounter that only remembers: for tests that run without root, and for failures that the kernel does not give."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from trikubelet.linux.mount_table import Mount, MountTable
from trikubelet.linux.mounter import Mounter

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.define
class FakeMounter(Mounter):
    """`mounts` is what is mounted, the newest last; a test may add its own."""

    mounts: list[Mount] = attrs.field(factory=list)
    calls: list[str] = attrs.field(factory=list)
    """The name of each call that was made, with the path: `bind /pods/uid/…`."""
    failures: dict[str, OSError] = attrs.field(factory=dict)
    """By the name of a call: what it raises, until the test takes it away."""
    has_noswap: bool = True

    def tmpfs(self, at: Path, *, size: int | None, mode: int, group: int | None, noswap: bool) -> None:
        options = ["rw", f"mode={mode:o}"]
        options += [f"size={size}"] if size is not None else []
        options += [f"gid={group}"] if group is not None else []
        options += ["noswap"] if noswap and self.has_noswap else []
        self._add("tmpfs", at, kind="tmpfs", source="tmpfs", options=("rw", "nosuid", "nodev"), super_options=options)

    def hugetlbfs(self, at: Path, page_size: int, *, mode: int, group: int | None) -> None:
        options = ["rw", f"pagesize={page_size >> 20}M", f"mode={mode:o}"]
        options += [f"gid={group}"] if group is not None else []
        self._add("hugetlbfs", at, kind="hugetlbfs", source="hugetlbfs", options=("rw",), super_options=options)

    def bind(self, source: int | Path, at: Path, *, options: Sequence[str] = ()) -> None:
        shown = Path(f"/proc/self/fd/{source}").readlink() if isinstance(source, int) else source.resolve(strict=True)
        device = shown.stat().st_dev
        self._add(
            "bind",
            at,
            kind="fake",
            source=str(shown),
            root=str(shown),
            options=tuple(options),
            device=(os.major(device), os.minor(device)),
        )

    def unmount(self, at: Path, *, force: bool = False) -> None:
        self._call("force unmount" if force else "unmount", at)
        found = self.table().at(at)
        gone = set() if found is None else {found.id}
        for mount in self.mounts:  # in the order they were made
            if mount.parent in gone:
                gone.add(mount.id)
        self.mounts = [mount for mount in self.mounts if mount.id not in gone]

    def is_mount(self, at: Path) -> bool:
        return any(mount.point == at for mount in self.mounts)

    def table(self) -> MountTable:
        return MountTable(tuple(self.mounts))

    def mount_at(self, at: Path) -> Mount:
        """For tests: what is mounted there, of several the newest. Raises AssertionError when nothing is."""
        found = self.table().at(at)
        assert found is not None, f"nothing is mounted at {at}"
        return found

    def _add(
        self,
        call: str,
        at: Path,
        *,
        kind: str,
        source: str,
        root: str = "/",
        options: tuple[str, ...],
        super_options: Sequence[str] = (),
        device: tuple[int, int] | None = None,
    ) -> None:
        self._call(call, at)
        if not os.path.lexists(at):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(at))
        number = 1 + max((mount.id for mount in self.mounts), default=0)
        below = self.table()
        on = next((found for folder in (at, *at.parents) if (found := below.at(folder)) is not None), None)
        self.mounts.append(
            Mount(
                point=at,
                root=root,
                source=source,
                kind=kind,
                options=options,
                super_options=tuple(super_options),
                device=(0, number) if device is None else device,
                id=number,
                parent=-1 if on is None else on.id,
            )
        )

    def _call(self, name: str, at: Path) -> None:
        self.calls.append(f"{name} {at}")
        if (failure := self.failures.get(name)) is not None:
            raise failure
