"""`subPath` against a pod that changes its volume meanwhile. Blocks for a moment.

The pod's containers own what is in the volume and may swap a folder for a link at any moment. So no path is looked up
twice: the walk holds a descriptor of every folder on its way, opens each next component without following links, reads
a link through the descriptor of the link itself, and goes up by dropping a descriptor, never by `..`. What it makes, it
changes through the descriptor too.

Links are followed while they stay inside; absolute ones are refused, as they mean the node's root here and the
container's root to whoever made them.

The answer is a name, free of links when it is given, and the runtime looks it up once more to mount it. A pod that
swaps a folder in just that time is not caught. The kubelet closes this by mounting the descriptor itself below the
pod's folder and handing that out (`subpath_linux.go`); it takes the right to mount, a place for each mount of each
container, and its removal.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Final

MAX_LINKS: Final = 40
MAX_DEPTH: Final = 128
"""A descriptor is held for each folder on the way."""

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def resolve_in_volume(volume: Path, sub_path: str) -> Path:
    """The path of `sub_path` in `volume`, made as a folder with the volume's mode when it is missing.

    Raises ValueError when it is absolute, has a `..`, or leads out of the volume; OSError when it cannot be made.
    """
    relative = PurePosixPath(sub_path)
    if relative.is_absolute() or ".." in relative.parts:
        raise ValueError(f"expected a relative path without '..' as subPath, got {sub_path!r}")
    way = [os.open(volume, os.O_PATH | os.O_CLOEXEC)]  # the volume itself may be behind a link of the node
    try:
        _walk(way, list(reversed(relative.parts)), sub_path)
        base, found = (Path(f"/proc/self/fd/{descriptor}").readlink() for descriptor in (way[0], way[-1]))
        if not os.path.samestat(found.lstat(), os.fstat(way[-1])):
            raise FileNotFoundError(errno.ENOENT, "removed while it was looked up", sub_path)
    finally:
        for folder in way:
            os.close(folder)
    if not found.is_relative_to(base):
        raise ValueError(f"subPath {sub_path!r} leads out of its volume: it was moved meanwhile, to {found}")
    return found


def _walk(way: list[int], pending: list[str], sub_path: str) -> None:
    """Extend `way`, the descriptors from the volume on, by the components in `pending` (the next one last)."""
    mode = stat.S_IMODE(os.fstat(way[0]).st_mode)
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if len(way) == 1:
                raise ValueError(f"subPath {sub_path!r} leads out of its volume")
            os.close(way.pop())
            continue
        if len(way) > MAX_DEPTH:
            raise ValueError(f"subPath {sub_path!r} is more than {MAX_DEPTH} folders deep")
        found = _open_or_make(way[-1], part, mode)
        if not stat.S_ISLNK(os.fstat(found).st_mode):
            way.append(found)
            continue
        try:
            link = os.readlink("", dir_fd=found)
        finally:
            os.close(found)
        links += 1
        if link.startswith("/"):
            raise ValueError(f"subPath {sub_path!r} leads out of its volume, over a link to {link!r}")
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), sub_path)
        pending.extend(reversed(link.split("/")))


def _open_or_make(folder: int, part: str, mode: int) -> int:
    try:
        return os.open(part, _LOOK, dir_fd=folder)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(part, 0o700, dir_fd=folder)
    except FileExistsError:  # another container of the pod was faster
        return os.open(part, _LOOK, dir_fd=folder)
    # Whatever is there by now, only a folder that no link leads to gets the mode, and through its descriptor.
    made = os.open(part, _FOLDER, dir_fd=folder)
    try:
        os.fchmod(made, mode)
        return os.open(f"/proc/self/fd/{made}", os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(made)
