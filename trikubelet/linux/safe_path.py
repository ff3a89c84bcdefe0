"""Paths in a volume, against a pod that changes the volume meanwhile. Blocks for a moment.

The pod's containers own what is in the volume and may swap a folder for a link at any moment. So no path is looked up
twice. Mostly the kernel alone does it (openat2(2)). Where it refuses or something is missing, a walk does: it holds a
descriptor of every folder on its way, opens each next component without following links, reads a link through the
descriptor of the link itself, and goes up by dropping a descriptor, never by `..`. What it makes, it changes through
the descriptor too.

Links are followed while they stay inside. Absolute ones mean a path of the node (kubelet: `subpath_linux.go`): one
below the volume's own path goes on from the volume's descriptor, any other is refused. No message says where a link
leads, since it may be to where the pod's owner must not look.

The answer is a descriptor (`open_in_volume`); a caller that turns it into a path again must expect a swap after that.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Final

from trikubelet.linux.mount_calls import open_beneath

MAX_LINKS: Final = 40
MAX_DEPTH: Final = 128
"""A descriptor is held for each folder on the way."""
MAX_ATTEMPTS: Final = 16
"""How often the kernel is asked while something in the volume is renamed."""

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_in_volume(volume: Path, sub_path: str) -> int:
    """A descriptor (O_PATH) of `sub_path` in `volume`, made as a folder with the volume's mode when it is missing.

    Raises ValueError when it is absolute, has a `..`, or leads out of the volume; OSError when it cannot be made.
    """
    relative = PurePosixPath(sub_path)
    if relative.is_absolute() or ".." in relative.parts or "\0" in sub_path:
        raise ValueError(f"expected a relative path without '..' as subPath, got {sub_path!r}")
    top = os.open(volume, os.O_PATH | os.O_CLOEXEC)  # the volume itself may be behind a link of the node
    try:
        found = _opened_by_kernel(top, sub_path)
        if found is None:
            found = walk(top, sub_path, make=True)
        _check_still_inside(top, found, sub_path)
    finally:
        os.close(top)
    return found


def walk(top: int, path: str, *, make: bool) -> int:
    """A descriptor (O_PATH) of what a path in the volume behind `top` names; no link.

    With `make`, what is missing is made: folders with the volume's mode. Raises ValueError when the path leads
    out, OSError.
    """
    way = [os.open(".", _LOOK | os.O_DIRECTORY, dir_fd=top)]
    try:
        _walk(way, path, make=make)
        return os.dup(way[-1])
    finally:
        for folder in way:
            os.close(folder)


def _opened_by_kernel(top: int, path: str) -> int | None:
    """None where only the walk can tell: something is missing, a link is absolute or leads out, an old kernel."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return open_beneath(top, path or ".", os.O_PATH)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                continue
            if error.errno not in (errno.ENOENT, errno.EXDEV, errno.ELOOP, errno.ENOSYS, errno.EPERM):
                raise
            return None
    return None


def _walk(way: list[int], path: str, *, make: bool) -> None:
    """Extend `way`, the descriptors from the volume on, by the components of a path."""
    mode = stat.S_IMODE(os.fstat(way[0]).st_mode)
    pending = list(reversed(path.split("/")))  # the next one last
    links = 0
    if path.startswith("/"):
        raise ValueError(f"{path!r} leads out of its volume")
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if len(way) == 1:
                raise ValueError(f"{path!r} leads out of its volume")
            os.close(way.pop())
            continue
        if len(way) > MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"more than {MAX_DEPTH} folders deep", path)
        found = _open_or_make(way[-1], part, mode) if make else os.open(part, _LOOK, dir_fd=way[-1])
        if not stat.S_ISLNK(os.fstat(found).st_mode):
            way.append(found)
            continue
        try:
            link = os.readlink("", dir_fd=found)
        finally:
            os.close(found)
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if link.startswith("/"):
            link = _relative_to_volume(way[0], link, path)
            while len(way) > 1:
                os.close(way.pop())
        pending.extend(reversed(link.split("/")))


def _relative_to_volume(top: int, link: str, path: str) -> str:
    """Where an absolute link leads, from the volume on; what has a `..` is still to be walked."""
    base = _path_of(top)
    if not PurePosixPath(link).is_relative_to(base):
        raise ValueError(f"{path!r} leads out of its volume, over a link")
    return str(PurePosixPath(link).relative_to(base))


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


def _check_still_inside(top: int, found: int, sub_path: str) -> None:
    """What was found may have been moved out or removed meanwhile. Closes `found` when it raises."""
    try:
        base, path = _path_of(top), _path_of(found)
        if not os.path.samestat(path.lstat(), os.fstat(found)):
            raise FileNotFoundError(errno.ENOENT, "removed while it was looked up", sub_path)
        if not path.is_relative_to(base):
            raise ValueError(f"subPath {sub_path!r} leads out of its volume: it was moved meanwhile")
    except BaseException:
        os.close(found)
        raise


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()
