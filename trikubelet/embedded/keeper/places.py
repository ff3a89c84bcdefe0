"""Places within the current root: folders and files to mount on, made where they are missing.

The root is a container's, and so are its links. A link that leads to nothing says where the place is to be made, as it
does for runc: `/etc/resolv.conf -> ../run/systemd/resolve/stub-resolv.conf` gets a file below `/run`.

Nothing outside of the root is reached, whatever a container of the same pod exchanges meanwhile in a volume that both
have. The kernel resolves each part of a path (openat2): from a descriptor, within the root of this process, which is
the container's, and without the magic links of procfs. What is missing is made by name in the folder behind such a
descriptor, and then resolved as everything else. Whoever goes on exchanging parts gets ELOOP.
"""

from __future__ import annotations

import errno
import os
import stat

from trikubelet.embedded.keeper import linux

_MOST_LINKS = 40
"""As many as the kernel follows."""


def attach(tree: int, target: str, *, follow: bool = True) -> None:
    """Put a detached tree at `target` within the current root, making the mount point if it is missing."""
    is_folder = stat.S_ISDIR(os.fstat(tree).st_mode)
    place = _open_place(target, is_folder=is_folder, follow=follow)
    try:
        if is_folder is not stat.S_ISDIR(os.fstat(place).st_mode):
            ours, theirs = ("a folder", "a file") if is_folder else ("a file", "a folder")
            raise OSError(
                errno.ENOTDIR if is_folder else errno.EISDIR,
                f"cannot mount {ours} at {target}: the container has {theirs} there; "
                f"mount {theirs}, or {ours} at another path",
            )
        linux.move_mount(tree, place, target)
    finally:
        os.close(place)
        os.close(tree)


def open_folder(path: str, *, follow: bool = True) -> int:
    """A descriptor (O_PATH) of a folder within the current root; missing ones are made.

    Links of the image are followed, unless `follow` says otherwise: then one anywhere in the path is an error.
    """
    place = _open_place(path, is_folder=True, follow=follow)
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        os.close(place)
        raise NotADirectoryError(errno.ENOTDIR, f"expected a folder at {path}, the container has a file there")
    return place


def _open_place(path: str, *, is_folder: bool, follow: bool) -> int:
    """A descriptor (O_PATH) of what is there, of either kind, or else of the folder or file that is made there."""
    try:
        return linux.open_without_magic(f"/{path}", os.O_PATH, follow=follow)
    except FileNotFoundError:
        return _make(path, is_folder=is_folder, follow=follow)
    except OSError as error:
        raise _cannot_make(path, error) from None


def _make(path: str, *, is_folder: bool, follow: bool) -> int:
    current = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = _reversed_parts(path)
    detours = 0
    try:
        while parts:
            part = parts.pop()
            try:
                following = linux.open_without_magic(part, os.O_PATH, folder=current, follow=follow)
            except FileNotFoundError:
                link = _link(part, current)
                if link is None and _make_entry(part, current, is_folder=is_folder or bool(parts)):
                    parts.append(part)
                    continue
                detours += 1
                if detours > _MOST_LINKS or not follow:
                    raise OSError(errno.ELOOP, "") from None
                if link is None:
                    parts.append(part)  # something is there by now
                    continue
                parts += _reversed_parts(link)
                if not link.startswith("/"):
                    continue
                following = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            os.close(current)
            current = following
    except OSError as error:
        os.close(current)
        raise _cannot_make(path, error) from None
    return current


def _cannot_make(path: str, error: OSError) -> OSError:
    why = os.strerror(error.errno or 0)
    if error.errno == errno.ENOTDIR:
        why = "a part of this path is a file in the container"
    elif error.errno == errno.EROFS:
        why = "it is missing, and its folder is read-only"
    return OSError(error.errno, f"cannot open or make {path} in the container: {why}")


def _reversed_parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link(name: str, folder: int) -> str | None:
    """Where a link leads; None for anything else, and for nothing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _make_entry(name: str, folder: int, *, is_folder: bool) -> bool:
    """Make an empty folder or file. False if there is something of this name by now."""
    try:
        if is_folder:
            os.mkdir(name, 0o755, dir_fd=folder)
        else:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o644, dir_fd=folder))
    except FileExistsError:
        return False
    return True
