"""The system calls that change the mount table. All of them block.

A mount that is there is complete: a tmpfs has its mode, size and group from the beginning, and a bind is made aside,
gets its options there, and is put in its place last. So a mount that was interrupted anywhere is either there as it
should be or not at all, and no process sees a read-only bind that can still be written to. Where the calls for that are
missing (before Linux 5.12, or forbidden), it is mount(2) twice, and undone when the second fails.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.linux import mount_calls as calls
from trikubelet.linux.mount_table import MountTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@frozen
class _Option:
    """What an option of mount(8) means, for mount_setattr(2) and for mount(2)."""

    to_set: int = 0
    to_clear: int = 0
    flags: int = 0
    flags_to_clear: int = 0


_ANY_ATIME: Final = calls.MS_NOATIME | calls.MS_RELATIME | calls.MS_STRICTATIME
_OPTIONS: Final = {
    "ro": _Option(calls.MOUNT_ATTR_RDONLY, 0, calls.MS_RDONLY),
    "rw": _Option(0, calls.MOUNT_ATTR_RDONLY, 0, calls.MS_RDONLY),
    "nosuid": _Option(calls.MOUNT_ATTR_NOSUID, 0, calls.MS_NOSUID),
    "suid": _Option(0, calls.MOUNT_ATTR_NOSUID, 0, calls.MS_NOSUID),
    "nodev": _Option(calls.MOUNT_ATTR_NODEV, 0, calls.MS_NODEV),
    "dev": _Option(0, calls.MOUNT_ATTR_NODEV, 0, calls.MS_NODEV),
    "noexec": _Option(calls.MOUNT_ATTR_NOEXEC, 0, calls.MS_NOEXEC),
    "exec": _Option(0, calls.MOUNT_ATTR_NOEXEC, 0, calls.MS_NOEXEC),
    "nodiratime": _Option(calls.MOUNT_ATTR_NODIRATIME, 0, calls.MS_NODIRATIME),
    "diratime": _Option(0, calls.MOUNT_ATTR_NODIRATIME, 0, calls.MS_NODIRATIME),
    "nosymfollow": _Option(calls.MOUNT_ATTR_NOSYMFOLLOW, 0, calls.MS_NOSYMFOLLOW),
    "symfollow": _Option(0, calls.MOUNT_ATTR_NOSYMFOLLOW, 0, calls.MS_NOSYMFOLLOW),
    "noatime": _Option(calls.MOUNT_ATTR_NOATIME, calls.MOUNT_ATTR_ATIME, calls.MS_NOATIME, _ANY_ATIME),
    "relatime": _Option(0, calls.MOUNT_ATTR_ATIME, calls.MS_RELATIME, _ANY_ATIME),
    "strictatime": _Option(calls.MOUNT_ATTR_STRICTATIME, calls.MOUNT_ATTR_ATIME, calls.MS_STRICTATIME, _ANY_ATIME),
}
_IGNORED: Final = frozenset({"bind", "rbind", "defaults", ""})

# statvfs(3) has flags of its own for what mount(2) calls otherwise.
_ST_RELATIME: Final = 4096
_ST_NOSYMFOLLOW: Final = 8192
_SAME_IN_STATVFS: Final = (
    calls.MS_RDONLY | calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC | calls.MS_NOATIME | calls.MS_NODIRATIME
)


class Mounter:
    """The mounts of this process's mount namespace. Keeps nothing; any thread may use it. Its methods raise OSError.

    `sys.audit("trikubelet.mount", call, path)` is raised before each step, so that tests can end the agent there.
    """

    def tmpfs(self, at: Path, *, size: int | None, mode: int, group: int | None, noswap: bool) -> None:
        """Mount a tmpfs, `noswap` where it can be had: since Linux 6.4, and not in a user namespace."""
        options = [f"mode={mode:o}"]
        options += [f"size={size}"] if size is not None else []
        options += [f"gid={group}"] if group is not None else []
        if noswap:
            try:
                _mount_new("tmpfs", at, [*options, "noswap"])
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EPERM):
                    raise
            else:
                return
        _mount_new("tmpfs", at, options)

    def hugetlbfs(self, at: Path, page_size: int, *, mode: int, group: int | None) -> None:
        """`page_size` in bytes. Raises OSError (EINVAL) for a size that the kernel does not have."""
        # The file system's own option takes no set-group-id bit, so its root gets the mode before it is seen.
        options = {"pagesize": str(page_size), "mode": f"{mode & 0o1777:o}"}
        options |= {"gid": str(group)} if group is not None else {}
        with _opened_target(at) as target:
            try:
                tree = calls.new_mount("hugetlbfs", options, calls.MOUNT_ATTR_NOSUID | calls.MOUNT_ATTR_NODEV, name=at)
            except OSError as error:
                if not calls.not_offered(error):
                    raise
            else:
                try:
                    _set_mode(".", mode, tree)
                    calls.move_mount(tree, target, name=at)
                finally:
                    os.close(tree)
                return
        _mount_new("hugetlbfs", at, [f"{key}={value}" for key, value in options.items()])
        _set_mode(str(at), mode)

    def bind(self, source: int | Path, at: Path, *, options: Sequence[str] = ()) -> None:
        """Bind a file or folder to another place, with all mounts below it if `rbind` is among the options."""
        attributes = _attributes(options, at)
        recursive = "rbind" in options
        with _opened_target(at) as target:
            try:
                tree = calls.open_tree(source, recursive=recursive, name=at if isinstance(source, int) else source)
                try:
                    if attributes.to_set or attributes.to_clear:
                        calls.mount_setattr(tree, attributes.to_set, attributes.to_clear, recursive=recursive, name=at)
                    calls.move_mount(tree, target, name=at)
                finally:
                    os.close(tree)
            except OSError as error:
                if not calls.not_offered(error):
                    raise
                _bind_in_two_steps(source, at, target, attributes, recursive=recursive)

    def unmount(self, at: Path, *, force: bool = False) -> None:
        """Detach what is mounted there; processes that use it keep it. With `force`, what waits for a share fails.

        What is mounted inside goes along, but only here: a bind shares that with where it was bound from, which may be
        the node's.
        """
        flags = calls.MNT_DETACH | calls.UMOUNT_NOFOLLOW | (calls.MNT_FORCE if force else 0)
        try:
            _make_private(at)
            calls.umount(at, flags)
        except OSError as error:
            # EINVAL: no mount, or a link.
            if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                raise

    def is_mount(self, at: Path) -> bool:
        """Whether something is mounted exactly there; not for what a link leads to."""
        found: bool | None = None
        try:
            found = calls.is_mount_root(at)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            pass  # a mount whose server is gone does not even say that; the table does
        return self.table().at(at) is not None if found is None else found

    def table(self) -> MountTable:
        return MountTable.read()


def _make_private(at: Path) -> None:
    try:
        calls.make_private(at)
    except OSError as error:
        if not calls.not_offered(error):
            raise
        with _opened_target(at) as target:
            flags = calls.MS_PRIVATE | calls.MS_REC
            calls.mount("", f"/proc/self/fd/{target}", "", flags, "", name=at)


def _mount_new(kind: str, at: Path, options: Sequence[str]) -> None:
    flags = calls.MS_NOSUID | calls.MS_NODEV
    with _opened_target(at) as target:
        calls.mount(kind, f"/proc/self/fd/{target}", kind, flags, ",".join(options), name=at)


def _attributes(options: Sequence[str], at: Path) -> _Option:
    """All options as one; the last of two that exclude each other wins."""
    to_set = to_clear = flags = flags_to_clear = 0
    for name in options:
        if name in _IGNORED:
            continue
        option = _OPTIONS.get(name)
        if option is None:
            known = ", ".join(["bind", "rbind", *_OPTIONS])
            raise OSError(errno.EINVAL, f"expected options that a bind mount may have ({known}), got {name!r}", str(at))
        to_set = to_set & ~option.to_clear | option.to_set
        to_clear = to_clear & ~(option.to_set & ~calls.MOUNT_ATTR_ATIME) | option.to_clear
        flags = flags & ~option.flags_to_clear | option.flags
        flags_to_clear = flags_to_clear & ~option.flags | option.flags_to_clear
    return _Option(to_set, to_clear, flags, flags_to_clear)


def _set_mode(path: str, mode: int, folder: int | None = None) -> None:
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fchmod(root, mode)
    finally:
        os.close(root)


@contextmanager
def _opened_target(at: Path) -> Iterator[int]:
    """A descriptor of the place to mount on, which must be no link."""
    target = os.open(at, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISLNK(os.fstat(target).st_mode):
            raise OSError(errno.EINVAL, "expected a file or folder to mount on, got a link", str(at))
        yield target
    finally:
        os.close(target)


def _bind_in_two_steps(source: int | Path, at: Path, target: int, attributes: _Option, *, recursive: bool) -> None:
    """mount(2) makes a bind first and changes its options then. Mounts below one keep theirs."""
    what = f"/proc/self/fd/{source}" if isinstance(source, int) else str(source)
    flags = calls.MS_BIND | (calls.MS_REC if recursive else 0)
    calls.mount(what, f"/proc/self/fd/{target}", "", flags, "", name=at)
    if not (attributes.flags or attributes.flags_to_clear):
        return
    try:
        # All flags are replaced, and in a user namespace those that are there may not be taken away.
        flags = _mount_flags(at) & ~attributes.flags_to_clear | attributes.flags
        calls.mount("", str(at), "", calls.MS_REMOUNT | calls.MS_BIND | flags, "", name=at)
    except BaseException:
        calls.umount(at, calls.MNT_DETACH | calls.UMOUNT_NOFOLLOW)
        raise


def _mount_flags(at: Path) -> int:
    found = os.statvfs(at).f_flag
    flags = found & _SAME_IN_STATVFS
    if found & _ST_RELATIME:
        flags |= calls.MS_RELATIME
    if found & _ST_NOSYMFOLLOW:
        flags |= calls.MS_NOSYMFOLLOW
    return flags
