# ruff: noqa: PTH103
"""Writes a tar stream from a container below one folder of this machine, and nothing anywhere else.

The container is not trusted. So the names in it are only followed downwards, through folders that are
opened one by one and never through links; a link is made only if it cannot lead out; files appear whole or not at all,
under another name first; and whatever is no file, folder or link is left out. Owners are not taken over, nor are the
bits that would run a file as its owner.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.tar_stream import CHUNK, Readable, broken_input_is_an_archive_error, entries

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable, Iterator
    from pathlib import Path

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PERMISSIONS: Final = 0o777


class _LeftOutError(Exception):
    """An entry that is not copied, and why. The others are."""


class TarExtraction:
    """One copy. Blocking: for a worker thread. `warn` is called with the name of every entry that is left out."""

    def __init__(self, destination: Path, source: str, warn: Callable[[str], None]) -> None:
        """`source`: the name that every entry begins with, "." for none."""
        self._destination = destination
        self._source = [] if source == "." else [source]
        self._warn = warn
        self._root = destination
        self._written: set[tuple[str, ...]] = set()
        self._folders: dict[tuple[str, ...], tarfile.TarInfo] = {}
        """Their modes are set at the end: they may forbid writing."""
        self.left_out = 0

    def run(self, stream: Readable) -> int:
        """Write everything; how many entries there were. Raises ArchiveError, OSError."""
        count = 0
        subject = "what the container's tar sent"
        with broken_input_is_an_archive_error(subject):
            for tar, member in entries(stream, subject=subject):
                parts = self._parts(member)
                if count == 0:
                    parts = self._begin(member, parts)
                elif self._single:
                    raise ArchiveError("it is in no folder, and something else came before it", entry=member.name)
                count += 1
                try:
                    self._write(tar, member, parts)
                except _LeftOutError as reason:
                    self.left_out += 1
                    self._warn(f"{member.name}: {reason}")
        for parts in sorted(self._folders, reverse=True):
            self._finish_folder(parts, self._folders[parts])
        return count

    def _parts(self, member: tarfile.TarInfo) -> tuple[str, ...]:
        """Where an entry goes below the destination."""
        names = member.name.split("/")
        if ".." in names or member.name.startswith("/") or "\0" in member.name:
            raise ArchiveError("its name leads out of the copied folder", entry=member.name)
        names = [name for name in names if name not in ("", ".")]
        if names[: len(self._source)] != self._source:
            raise ArchiveError(f"its name should begin with {'/'.join(self._source)}", entry=member.name)
        return tuple(names[len(self._source) :])

    def _begin(self, member: tarfile.TarInfo, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The first entry says whether a folder or something single is copied."""
        if parts:
            raise ArchiveError("it came before the folder that it is in", entry=member.name)
        self._single = not member.isdir()
        if not self._single:
            os.makedirs(self._destination, exist_ok=True)
            return parts
        target = self._destination
        if target.is_dir():
            target = target / self._source[-1]
        # The user named it: if that is a link, the user means where it leads.
        target = target.resolve()
        os.makedirs(target.parent, exist_ok=True)
        self._root = target.parent
        return (target.name,)

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        if member.isdir():
            with self._folder(parts):
                self._folders[parts] = member
            return
        with self._folder(parts[:-1]) as folder:
            existing = _mode(parts[-1], folder)
            if existing is not None and not (stat.S_ISREG(existing) or stat.S_ISLNK(existing)):
                raise _LeftOutError(f"{self._root.joinpath(*parts)} exists and is no file")
            if member.isreg():
                self._write_file(tar, member, parts[-1], folder)
            elif member.issym():
                self._write_link(member, parts, folder)
            elif member.islnk():
                self._write_hard_link(member, parts[-1], folder)
            else:
                raise _LeftOutError("only files, folders and links are copied")
        self._written.add(parts)

    @contextmanager
    def _folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        """A descriptor of a folder, which is made if it is not there."""
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for index, name in enumerate(parts):
                if _mode(name, descriptor) is None:
                    os.mkdir(name, 0o755, dir_fd=descriptor)
                try:
                    below = os.open(name, _FOLDER, dir_fd=descriptor)
                except NotADirectoryError:
                    path = self._root.joinpath(*parts[: index + 1])
                    raise _LeftOutError(f"{path} is no folder, or a link, which is not followed") from None
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _write_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, folder: int) -> None:
        source = tar.extractfile(member)
        assert source is not None
        with _replacing(name, folder) as temporary:
            descriptor = os.open(temporary, _NEW_FILE, 0o600, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(source, file, CHUNK)
                file.flush()
                os.fchmod(descriptor, member.mode & _PERMISSIONS)
                _set_time(descriptor, member)

    def _write_link(self, member: tarfile.TarInfo, parts: tuple[str, ...], folder: int) -> None:
        if not _stays_inside(member.linkname, depth=0 if self._single else len(parts) - 1) or self._single:
            raise _LeftOutError(f"a link to {member.linkname}, which may lead out of what is copied")
        with _replacing(parts[-1], folder) as temporary:
            os.symlink(member.linkname, temporary, dir_fd=folder)

    def _write_hard_link(self, member: tarfile.TarInfo, name: str, folder: int) -> None:
        first = tuple(part for part in member.linkname.split("/") if part not in ("", "."))[len(self._source) :]
        if first not in self._written:
            raise _LeftOutError(f"another name of {member.linkname}, which was not copied")
        with self._folder(first[:-1]) as other, _replacing(name, folder) as temporary:
            os.link(first[-1], temporary, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)

    def _finish_folder(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        with self._folder(parts) as folder:
            os.fchmod(folder, member.mode & _PERMISSIONS)
            _set_time(folder, member)


def _mode(name: str, folder: int) -> int | None:
    """Of what is there under a name, links not followed; None when nothing is."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


@contextmanager
def _replacing(name: str, folder: int) -> Iterator[str]:
    """Another name to write under, which becomes the right one when all went well."""
    temporary = f".{name[:100]}.{secrets.token_hex(6)}"
    try:
        yield temporary
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        if _mode(temporary, folder) is not None:
            os.unlink(temporary, dir_fd=folder)
        raise


def _set_time(descriptor: int, member: tarfile.TarInfo) -> None:
    moment = min(max(member.mtime, 0), 2**62 / 10**9)
    os.utime(descriptor, (moment, moment))


def _stays_inside(target: str, *, depth: int) -> bool:
    """Whether a link in a folder so deep below the root can lead out of it, whatever other links are there.

    Steps up are allowed at its beginning only: after another link, a step up can lead anywhere.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    steps = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return not target.startswith("/") and steps <= depth and ".." not in parts[steps:]
