"""`hostPath`: a path of the node, checked as its type says (kubelet: `host_path.go`).

Blocks, for as long as the path's file system takes to answer: a network share that is away may never do.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.volumes.errors import VolumeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import HostPathVolumeSource

DIRECTORY_OR_CREATE: Final = "DirectoryOrCreate"
FILE_OR_CREATE: Final = "FileOrCreate"

_CHECKS: Final[dict[str, tuple[Callable[[int], bool], str]]] = {
    DIRECTORY_OR_CREATE: (stat.S_ISDIR, "a directory"),
    "Directory": (stat.S_ISDIR, "a directory"),
    FILE_OR_CREATE: (stat.S_ISREG, "a file"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


def prepare_host_path(volume: str, source: HostPathVolumeSource) -> Path:
    """Check the path, and create it where its type says so. Raises VolumeError."""
    path, kind = Path(source.path), source.type or ""
    if ".." in path.parts:
        raise VolumeError(volume, f"invalid HostPath {source.path!r}: must not contain '..'")
    if "\0" in source.path:
        raise VolumeError(volume, f"invalid HostPath {source.path!r}: must not contain a NUL character")
    if not kind:
        return path
    if kind not in _CHECKS:
        raise VolumeError(volume, f"{kind!r} is an invalid hostPath type, expected one of {', '.join(_CHECKS)}")
    is_kind, what = _CHECKS[kind]
    try:
        if kind == DIRECTORY_OR_CREATE:
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        elif kind == FILE_OR_CREATE and not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        mode = path.stat().st_mode
    except FileExistsError:
        raise VolumeError(volume, f"hostPath type check failed: {path} is not {what}") from None
    except FileNotFoundError:
        raise VolumeError(volume, f"hostPath type check failed: {path} is not {what}: it does not exist") from None
    except OSError as error:
        raise VolumeError(volume, f"hostPath {path}: {error.strerror}") from error
    if not is_kind(mode):
        raise VolumeError(volume, f"hostPath type check failed: {path} is not {what}")
    return path
