# ruff: noqa: PTH101, PTH116
"""Owner, mode, times and extended attributes of unpacked files.

Root sets them as the archive says. Without root every file belongs to the user who unpacks, so owners are left out and
setuid and setgid bits are dropped: they would lend that user's identity to anybody. Of the extended attributes only
`user.*` and file capabilities are taken; overlayfs' own (`trusted.overlay.redirect` and others) would let a layer
reach into files that it must not see.

Attributes are set as soon as a file or a directory is there, and kept nowhere else.

Paths are strings here: there is a call or more for every unpacked file.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    import tarfile

_MAX_ID = 2**32 - 2
_MAX_TIME = 2**34
_PAX_XATTR = "SCHILY.xattr."
_CAPABILITY = "security.capability"
_NOT_SUPPORTED = (errno.ENOTSUP, errno.EPERM, errno.EACCES)
_TOO_LARGE = (errno.ENOSPC, errno.E2BIG, errno.ERANGE)
_MOST_XATTR_BYTES = 2**16
"""Of all names and values of a file together: what Linux takes for one value. Few file systems take as much."""
_LONGEST_XATTR_NAME = 255


@frozen
class Attributes:
    """A file's metadata. The defaults are those of a directory that a layer implies but does not bring."""

    uid: int = 0
    gid: int = 0
    mode: int = 0o755
    mtime: float = 0.0
    """Seconds since the epoch."""
    xattrs: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of_entry(cls, member: tarfile.TarInfo) -> Attributes:
        """Raises ValueError for an owner or extended attributes that no file can have."""
        if not (0 <= member.uid <= _MAX_ID and 0 <= member.gid <= _MAX_ID):
            raise ValueError(f"owner {member.uid}:{member.gid} is out of range")
        # A time that is no number compares as false.
        mtime = float(member.mtime) if 0 <= member.mtime <= _MAX_TIME else 0.0
        return cls(member.uid, member.gid, member.mode & 0o7777, mtime, _xattrs_of(member))

    @classmethod
    def of_file(cls, path: str, info: os.stat_result) -> Attributes:
        """Of a file or directory that was unpacked before."""
        names = [name for name in os.listxattr(path, follow_symlinks=False) if _is_taken(name)]
        xattrs = tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
        return cls(info.st_uid, info.st_gid, info.st_mode & 0o7777, info.st_mtime, xattrs)

    @property
    def xattr_bytes(self) -> int:
        return sum(len(name) + len(value) for name, value in self.xattrs)


def _xattrs_of(member: tarfile.TarInfo) -> tuple[tuple[str, bytes], ...]:
    """The extended attributes that are taken. Raises ValueError."""
    texts = [
        (key.removeprefix(_PAX_XATTR), value)
        for key, value in member.pax_headers.items()
        if key.startswith(_PAX_XATTR) and _is_taken(key.removeprefix(_PAX_XATTR))
    ]
    if any(len(name) > _LONGEST_XATTR_NAME for name, _ in texts):
        raise ValueError(f"the name of an extended attribute is longer than {_LONGEST_XATTR_NAME} bytes")
    if (size := sum(len(name) + len(value) for name, value in texts)) > _MOST_XATTR_BYTES:
        raise ValueError(f"its extended attributes have {size} bytes, more than {_MOST_XATTR_BYTES}")
    return tuple((name, value.encode("utf-8", "surrogateescape")) for name, value in texts)


def _is_taken(name: str) -> bool:
    return name == _CAPABILITY or (name.startswith("user.") and not name.startswith("user.overlay."))


class AttributeWriter:
    """Puts attributes on files. Raises OSError."""

    def __init__(self, *, privileged: bool) -> None:
        self._privileged = privileged

    def set_on_file(self, path: str, attributes: Attributes) -> None:
        self._set_owner(path, attributes)
        os.chmod(path, attributes.mode if self._privileged else attributes.mode & 0o777 | 0o400)
        self._set_xattrs(path, attributes)
        self._set_time(path, attributes)

    def set_on_directory(self, path: str, attributes: Attributes) -> None:
        self._set_owner(path, attributes)
        os.chmod(path, attributes.mode if self._privileged else attributes.mode & 0o1777 | 0o500)
        taken = {name for name, _ in attributes.xattrs}
        for name in os.listxattr(path, follow_symlinks=False):
            if _is_taken(name) and name not in taken:  # of an earlier entry
                os.removexattr(path, name, follow_symlinks=False)
        self._set_xattrs(path, attributes)
        self._set_time(path, attributes)

    def set_on_link(self, path: str, attributes: Attributes) -> None:
        self._set_owner(path, attributes)
        self._set_time(path, attributes)

    def _set_owner(self, path: str, attributes: Attributes) -> None:
        if self._privileged:
            os.chown(path, attributes.uid, attributes.gid, follow_symlinks=False)

    def _set_xattrs(self, path: str, attributes: Attributes) -> None:
        for name, value in attributes.xattrs:
            if name == _CAPABILITY and not self._privileged:
                continue
            try:
                os.setxattr(path, name, value, follow_symlinks=False)
            except OSError as error:
                # A file system without attributes, or a capability that this kernel does not take: the file is whole
                # without it, as it is for the other runtimes.
                if error.errno in _TOO_LARGE:
                    raise ValueError(
                        f"its extended attribute {name!r} of {len(value)} bytes does not fit into this file system"
                    ) from error
                if error.errno not in _NOT_SUPPORTED:
                    raise

    @staticmethod
    def _set_time(path: str, attributes: Attributes) -> None:
        moment = int(attributes.mtime * 1e9)
        os.utime(path, ns=(moment, moment), follow_symlinks=False)


class OpenDirectory:
    """The directory that entries are being written into. When another one is opened, it gets back its mode and time.

    Writing changes a directory's time, and without root its mode may forbid writing. Raises OSError.
    """

    def __init__(self, *, privileged: bool) -> None:
        self._privileged = privileged
        self._path: str | None = None
        self._before: os.stat_result

    def open(self, path: str) -> None:
        """Let entries be made in the directory at `path` and removed from it."""
        if path == self._path:
            return
        self.close()
        self._before = os.stat(path, follow_symlinks=False)
        self._path = path
        if not self._privileged and self._before.st_mode & 0o700 != 0o700:
            os.chmod(path, self._before.st_mode & 0o7777 | 0o700)

    def close(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            if not self._privileged and self._before.st_mode & 0o700 != 0o700:
                os.chmod(path, self._before.st_mode & 0o7777)
            os.utime(path, ns=(self._before.st_mtime_ns, self._before.st_mtime_ns), follow_symlinks=False)
