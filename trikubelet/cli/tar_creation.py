"""Writes a file or folder of this machine as a tar stream for a container."""

from __future__ import annotations

import os
import stat
import tarfile
from typing import IO, TYPE_CHECKING, Final

from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BUFFER: Final = 256 * 2**10


class TarCreation:
    """One copy. Blocking: for a worker thread. `warn` is called with the path of every file that is left out."""

    def __init__(self, source: Path, name: str, warn: Callable[[str], None]) -> None:
        """`name`: what it shall be called there."""
        self._source = source
        self._name = name
        self._warn = warn
        self.left_out = 0

    def run(self, stream: IO[bytes]) -> None:
        """Write everything. Raises CommandError, OSError; BrokenPipeError when nobody reads any more."""
        with tarfile.open(
            fileobj=stream,
            mode="w|",
            bufsize=_BUFFER,
            format=tarfile.GNU_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar:
            self._add(tar, os.fspath(self._source), self._name)

    def _add(self, tar: tarfile.TarFile, path: str, name: str) -> None:
        kind = os.lstat(path).st_mode
        if stat.S_ISREG(kind):
            self._add_file(tar, path, name)
        elif stat.S_ISDIR(kind):
            self._add_entry(tar, path, name)
            with os.scandir(path) as found:
                names = sorted(entry.name for entry in found)
            for below in names:
                self._add(tar, os.path.join(path, below), f"{name}/{below}")  # noqa: PTH118
        elif stat.S_ISLNK(kind):
            self._add_entry(tar, path, name)
        else:
            self.left_out += 1
            self._warn(f"{path}: only files, folders and links are copied")

    def _add_entry(self, tar: tarfile.TarFile, path: str, name: str) -> None:
        tar.addfile(tar.gettarinfo(path, name))
        tar.members = []  # type: ignore[attr-defined]  # it would remember all of them

    def _add_file(self, tar: tarfile.TarFile, path: str, name: str) -> None:
        tar.inodes = {}  # type: ignore[attr-defined]  # every name is a file of its own there
        try:
            with open(path, "rb", opener=_open) as file:
                tar.addfile(tar.gettarinfo(arcname=name, fileobj=file), file)
        except OSError as error:
            if str(error) == "unexpected end of data":
                raise CommandError(f"{path} became shorter while it was copied") from None
            raise
        tar.members = []  # type: ignore[attr-defined]


def _open(path: str, flags: int) -> int:
    """Neither through a link nor waiting for somebody, should it have become something else meanwhile."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
