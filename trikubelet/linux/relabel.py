"""Giving a SELinux label to a file, or to a folder with all that is in it. Blocks for long.

By descriptors, following no link, and staying on one mount. A file that has the label already is only looked at, so
what was interrupted is soon done the second time. Folders that the machine itself needs are refused: those that
go-selinux refuses, whatever name or bind mount leads to them.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.linux.selinux import ATTRIBUTE
from trikubelet.linux.trees import bottom_up, go_on

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER: Final = (
    "/ /bin /boot /dev /etc /etc/passwd /etc/pki /etc/shadow /home /lib /lib64 /media /opt /proc /root /run /sbin /srv "
    "/sys /tmp /usr /var /var/lib /var/log"
)

TRIES: Final = 5
"""Other containers of the pod may move folders about meanwhile."""


class ForbiddenPathError(OSError):
    """A path of the machine's own, whose label is not for a container to have."""


def relabel(path: Path, label: str, checkpoint: Callable[[], None] = go_on, root: Path = Path("/")) -> None:
    """Give the label to what is at `path`, and to all in it; a folder gets it after its entries.

    A link at `path` itself is followed. On a file system without labels nothing happens. `checkpoint` is called for
    each folder and may raise to end the work. `root`: of the machine. Raises ForbiddenPathError, OSError.
    """
    value = label.encode()
    real = os.path.realpath(path)
    found = Path(real).stat()
    if _is_the_machines(found, root):
        raise ForbiddenPathError(errno.EPERM, "this path of the machine is not relabelled for containers", real)
    for tries_left in reversed(range(TRIES)):
        try:
            if stat.S_ISDIR(found.st_mode):
                _relabel_folder(real, value, checkpoint)
            else:
                _set(real, value)
            return
        except OSError as error:
            if error.errno == errno.ENOTSUP:
                return
            if error.errno not in (errno.ENOENT, errno.ESTALE) or not tries_left:
                raise


def _relabel_folder(path: str, value: bytes, checkpoint: Callable[[], None]) -> None:
    for folder, _, _ in bottom_up(path, one_mount=True):
        checkpoint()
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        for name in (*names, "."):
            _set(f"/proc/self/fd/{folder}/{name}", value)


def _set(path: str, value: bytes) -> None:
    """Nothing for a file that is gone."""
    try:
        if _label_of(path) != value:
            os.setxattr(path, ATTRIBUTE, value, follow_symlinks=False)
    except FileNotFoundError:
        return


def has_label(path: Path, label: str) -> bool:
    """Whether it is what `relabel` leaves when it is done. Raises OSError."""
    return _label_of(str(path)) == label.encode()


def _label_of(path: str) -> bytes:
    try:
        return os.getxattr(path, ATTRIBUTE, follow_symlinks=False).rstrip(b"\0")
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return b""


def _is_the_machines(found: os.stat_result, root: Path) -> bool:
    home = os.environ.get("HOME", "")
    for path in (*NEVER.split(), *([home] if home else [])):
        try:
            if os.path.samestat((root / path.lstrip("/")).stat(), found):
                return True
        except OSError:
            continue
    return False
