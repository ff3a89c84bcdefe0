"""One agent for each tree of pods' cgroups.

Two agents on one tree would both write the limits of its classes, and in a cluster each would delete the groups of pods
that it does not know. So an agent that works on a tree holds a lock on a file named after it; the kernel releases it
when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.cgroups.errors import CgroupError
from trikubelet.formats.digests import sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = Path("/run/trikubelet")


class RootInUseError(CgroupError):
    """Another agent keeps its pods below this cgroup root. `pid` is its process, None where that is unknown."""

    def __init__(self, root: str, pid: int | None) -> None:
        holder = "an unknown process" if pid is None else f"process {pid}"
        super().__init__(
            root,
            f"another agent keeps its pods there ({holder}), and each would end the other's: "
            "stop it, or give this one a cgroupRoot of its own",
        )
        self.pid = pid


@contextlib.contextmanager
def hold_root(root: str, folder: Path = FOLDER) -> Iterator[None]:
    """Be the only agent with pods below the group `root` (its literal name) while the block lasts.

    Small file work, not awaited. Raises RootInUseError, and OSError where the lock file cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = sha256(root.encode()).hexdigest()[:16]
    descriptor = os.open(folder / f"cgroup-{digest}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RootInUseError(root, _holder(descriptor)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{root}\n".encode(), 0)
        # The file stays: deleting it could delete one that a third process has locked meanwhile.
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 64, 0).decode("ascii", "replace").partition("\n")[0]
    return int(text) if text.isdigit() else None
