"""Device nodes of the host, described so that a container can get the same ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEV = Path("/dev")
# A container has its own of these, or they are links.
_OWN = frozenset(
    [
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "console",
        "ptmx",
        "pts",
        "shm",
        "mqueue",
        "fd",
        "stdin",
        "stdout",
        "stderr",
    ]
)


def host_device(host_path: str, container_path: str, permissions: str = "rwm") -> dict[str, Any]:
    """Describe one device. Raises OSError if there is none, ValueError if it is no device."""
    status = os.stat(host_path)  # noqa: PTH116 - a string in, a structure out
    mode = status.st_mode
    if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        raise ValueError("expected a character or block device")
    if not permissions or set(permissions) - set("rwm"):
        raise ValueError(f"expected permissions out of r, w and m, got {permissions!r}")
    kind = "c" if stat.S_ISCHR(mode) else "b"
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    return {
        "path": container_path or host_path,
        "kind": kind,
        "major": major,
        "minor": minor,
        "mode": stat.S_IMODE(mode),
        "rule": f"{kind} {major}:{minor} {permissions}",
    }


def all_host_devices(folder: Path = _DEV) -> Iterator[dict[str, Any]]:
    """Every device of the host: what a privileged container gets."""
    for entry in sorted(folder.iterdir()):
        if folder == _DEV and entry.name in _OWN:
            continue
        if entry.is_symlink():
            continue
        if entry.is_dir():
            yield from all_host_devices(entry)
        elif entry.is_char_device() or entry.is_block_device():
            yield host_device(str(entry), str(entry))
