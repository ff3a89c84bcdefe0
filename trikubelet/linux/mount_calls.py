"""System calls that Python 3.11 does not offer, each a function that raises OSError.

They go through the C library that is loaded anyway; `mount(8)` would be a process for each. Each raises
`sys.audit("trikubelet.mount", call, path)` first, beside Python's own audit events for files: so the steps of a mount
can be counted, and the agent be ended between any two of them. Numbers from 424 up are the same on every architecture.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_NOSYMFOLLOW: Final = 0x100
MS_NOATIME: Final = 0x400
MS_NODIRATIME: Final = 0x800
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 1 << 18
MS_SHARED: Final = 1 << 20
MS_RELATIME: Final = 1 << 21
MS_STRICTATIME: Final = 1 << 24
MNT_FORCE: Final = 1
MNT_DETACH: Final = 2
UMOUNT_NOFOLLOW: Final = 8

MOUNT_ATTR_RDONLY: Final = 0x1
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4
MOUNT_ATTR_NOEXEC: Final = 0x8
MOUNT_ATTR_ATIME: Final = 0x70
"""Which bits say when access times are kept; none of them set is `relatime`."""
MOUNT_ATTR_NOATIME: Final = 0x10
MOUNT_ATTR_STRICTATIME: Final = 0x20
MOUNT_ATTR_NODIRATIME: Final = 0x80
MOUNT_ATTR_NOSYMFOLLOW: Final = 0x200000

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_NO_AUTOMOUNT: Final = 0x800
_AT_EMPTY_PATH: Final = 0x1000
_AT_STATX_DONT_SYNC: Final = 0x4000
_AT_RECURSIVE: Final = 0x8000
_OPEN_TREE_CLONE: Final = 1
_MOVE_MOUNT_EMPTY_PATHS: Final = 0x4 | 0x40
_FSOPEN_CLOEXEC: Final = 1
_FSMOUNT_CLOEXEC: Final = 1
_FSCONFIG_SET_STRING: Final = 1
_FSCONFIG_CMD_CREATE: Final = 6
_STATX_ATTR_MOUNT_ROOT: Final = 0x2000
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_BENEATH: Final = 0x08

_SYS_OPEN_TREE: Final = 428
_SYS_MOVE_MOUNT: Final = 429
_SYS_FSOPEN: Final = 430
_SYS_FSCONFIG: Final = 431
_SYS_FSMOUNT: Final = 432
_SYS_OPENAT2: Final = 437
_SYS_MOUNT_SETATTR: Final = 442

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _Statx(ctypes.Structure):
    """The beginning of `struct statx`, and room for the rest."""

    _fields_ = [
        ("mask", ctypes.c_uint32),
        ("blksize", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("_numbers", ctypes.c_uint8 * 40),
        ("attributes_mask", ctypes.c_uint64),
        ("_rest", ctypes.c_uint8 * 192),
    ]


def mount(source: str, at: str, kind: str, flags: int, data: str, *, name: Path) -> None:
    """mount(2); `name` is for the message, where `at` is the descriptor of it."""
    sys.audit("trikubelet.mount", "mount", str(name))
    arguments = (_encoded(source), _encoded(at), _encoded(kind), ctypes.c_ulong(flags), _encoded(data) or None)
    _checked(_libc.mount(*arguments), name)


def umount(at: Path, flags: int) -> None:
    sys.audit("trikubelet.mount", "umount2", str(at))
    _checked(_libc.umount2(_encoded(at), ctypes.c_int(flags)), at)


def open_tree(source: int | Path, *, recursive: bool, name: Path) -> int:
    """A copy of the mount of a file or folder that is nowhere in the tree yet, as a descriptor for `move_mount`."""
    sys.audit("trikubelet.mount", "open_tree", str(name))
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    if isinstance(source, int):
        arguments = (ctypes.c_int(source), b"", ctypes.c_uint(flags | _AT_EMPTY_PATH))
    else:
        arguments = (ctypes.c_int(_AT_FDCWD), _encoded(source), ctypes.c_uint(flags))
    return _checked(_libc.syscall(ctypes.c_long(_SYS_OPEN_TREE), *arguments), name)


def new_mount(kind: str, options: Mapping[str, str], attributes: int, *, name: Path) -> int:
    """A mount of a new file system that is nowhere in the tree yet, as a descriptor for `move_mount`."""
    sys.audit("trikubelet.mount", "fsopen", str(name))
    arguments = (_encoded(kind), ctypes.c_uint(_FSOPEN_CLOEXEC))
    context = _checked(_libc.syscall(ctypes.c_long(_SYS_FSOPEN), *arguments), name)
    try:
        for key, value in options.items():
            _configure(context, _FSCONFIG_SET_STRING, _encoded(key), _encoded(value), name)
        _configure(context, _FSCONFIG_CMD_CREATE, None, None, name)
        flags = (ctypes.c_uint(_FSMOUNT_CLOEXEC), ctypes.c_uint(attributes))
        return _checked(_libc.syscall(ctypes.c_long(_SYS_FSMOUNT), ctypes.c_int(context), *flags), name)
    finally:
        os.close(context)


def mount_setattr(tree: int, to_set: int, to_clear: int, *, recursive: bool, name: Path) -> None:
    """Change the mount behind a descriptor of its root."""
    sys.audit("trikubelet.mount", "mount_setattr", str(name))
    attributes = _MountAttr(to_set, to_clear, 0, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    arguments = (ctypes.c_int(tree), b"", ctypes.c_uint(flags), ctypes.byref(attributes))
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _checked(_libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), *arguments, size), name)


def make_private(at: Path) -> None:
    """Let nothing that happens on a mount and on those inside of it reach its copies elsewhere. Follows no link."""
    sys.audit("trikubelet.mount", "make_private", str(at))
    attributes = _MountAttr(0, 0, MS_PRIVATE, 0)
    flags = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT | _AT_RECURSIVE
    arguments = (ctypes.c_int(_AT_FDCWD), _encoded(at), ctypes.c_uint(flags), ctypes.byref(attributes))
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _checked(_libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), *arguments, size), at)


def move_mount(tree: int, target: int, *, name: Path) -> None:
    """Put what `open_tree` gave onto the file or folder behind a descriptor."""
    sys.audit("trikubelet.mount", "move_mount", str(name))
    arguments = (ctypes.c_int(tree), b"", ctypes.c_int(target), b"", ctypes.c_uint(_MOVE_MOUNT_EMPTY_PATHS))
    _checked(_libc.syscall(ctypes.c_long(_SYS_MOVE_MOUNT), *arguments), name)


def is_mount_root(path: Path) -> bool | None:
    """Whether something is mounted exactly at a path; None when the kernel does not tell (it does since 5.8).

    A share is not asked for anything. `os.path.ismount` would not see a bind within one file system.
    """
    if not hasattr(_libc, "statx"):
        return None
    found = _Statx()
    flags = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
    arguments = (ctypes.c_int(_AT_FDCWD), _encoded(path), ctypes.c_int(flags), ctypes.c_uint(0))
    _checked(_libc.statx(*arguments, ctypes.byref(found)), path)
    if not found.attributes_mask & _STATX_ATTR_MOUNT_ROOT:
        return None
    return bool(found.attributes & _STATX_ATTR_MOUNT_ROOT)


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open a relative path that cannot lead out of a folder, over its links neither (openat2(2)).

    Raises OSError: EXDEV when it leads out, over an absolute link too; ELOOP for a link as in /proc/self/fd; EAGAIN
    when something was renamed just then; ENOSYS before Linux 5.6.
    """
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    arguments = (ctypes.c_int(folder), _encoded(path), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how)))
    return _checked(_libc.syscall(ctypes.c_long(_SYS_OPENAT2), *arguments), path)


def not_offered(error: OSError) -> bool:
    """Whether a call failed because this kernel, or the filter of a container around the agent, does not have it."""
    return error.errno in (errno.ENOSYS, errno.EPERM)


def _configure(context: int, command: int, key: bytes | None, value: bytes | None, name: Path) -> None:
    arguments = (ctypes.c_int(context), ctypes.c_uint(command), key, value, ctypes.c_int(0))
    _checked(_libc.syscall(ctypes.c_long(_SYS_FSCONFIG), *arguments), name)


def _encoded(path: str | Path) -> bytes:
    """C would see only what is before a NUL. Raises ValueError, as Python's own calls do."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


def _checked(result: int, name: str | Path) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(name))
    return int(result)
