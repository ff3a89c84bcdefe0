"""The system calls that change the mount table, as the rest of the package asks for them. All of them block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trikubelet.volumes.mount_table import MountTable


class Mounter(Protocol):
    """Raises OSError. `LinuxMounter` does it; tests have one that only remembers.

    `sys.audit("trikubelet.mount", call, path)` is raised before each step, so that tests can end the agent there.
    """

    def tmpfs(self, at: Path, *, size: int | None, mode: int, group: int | None, noswap: bool) -> None:
        """Mount a tmpfs of `size` bytes (None: the kernel's default). With `noswap`, without swap if the kernel can."""
        ...

    def hugetlbfs(self, at: Path, page_size: int, *, mode: int, group: int | None) -> None: ...

    def bind(self, source: int | Path, at: Path, *, options: Sequence[str] = ()) -> None:
        """Bind a file or folder, given by a path or an open descriptor, to another place.

        `options` are those of mount(8) that a bind may have: `ro`, `nosuid`, `nodev`, `noexec`, `noatime`, ….
        """
        ...

    def unmount(self, at: Path, *, force: bool = False) -> None:
        """Detach what is mounted there, never through a link. Fine when nothing is."""
        ...

    def is_mount(self, at: Path) -> bool:
        """Whether something is mounted exactly there; a bind within one file system counts."""
        ...

    def table(self) -> MountTable:
        """All mounts as they are now: one read."""
        ...
