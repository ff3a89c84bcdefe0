# ruff: noqa: PTH102, PTH108, PTH115, PTH211
"""Writes the tar stream of an image layer into a directory, and nothing outside of it.

The stream comes from anywhere, and this may run as root, so each entry is judged before it is written: its name must
stay inside (`entry_path`), the directories on its way are walked one by one and a link among them is followed only
inside the image, hard links may point only at files of the image, devices are not made, and a budget of bytes and
entries holds for all layers of an image together. A refusal is an ArchiveError that names the entry; the caller throws
the directory away.

Memory is bounded too: of the names in a layer only digests are kept (`memory`), and what else unpacking has to know it
asks the disk.

The directory is private to one import, so a path that was checked stays as it was. Paths are strings here: they are
built for every entry, and the target of a link must stay as it is.

Deletions ("whiteouts") become what the layer format needs: in OVERLAY layers overlayfs' own marks, in a FLAT root the
files of the earlier layers go. A file that the same layer brings is never deleted by its whiteouts, whatever the order.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING

from trikubelet.embedded.images.attributes import Attributes, AttributeWriter, OpenDirectory
from trikubelet.embedded.images.entry_path import OPAQUE_WHITEOUT, split_entry_name, whiteout_target
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.lower import MAX_LINKS_ON_A_WAY, OPAQUE_XATTR, LowerLayers, is_opaque, is_whiteout
from trikubelet.embedded.images.memory import MemoryBudget, NameSet
from trikubelet.embedded.images.model import LayerFormat, UnpackLimits
from trikubelet.embedded.images.tar_stream import (
    CHUNK,
    Checkpoint,
    Readable,
    broken_input_is_an_archive_error,
    entries,
)
from trikubelet.formats.values import define
from trikubelet.linux.trees import remove_tree

if TYPE_CHECKING:
    import tarfile
    from pathlib import Path

_HARMLESS_DEVICES = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}  # null zero full random urandom tty ptmx
_REMEMBERED_DIRECTORIES = 1000
_KEPT_OF_A_DIRECTORY = 64
"""Bytes and its name, when the layer is measured or a directory above is hidden."""
_KEPT_OF_A_HARD_LINK = 80
"""Bytes, when the layer is measured."""


@define
class UnpackBudget:
    """What an image's layers have used of their limits so far."""

    limits: UnpackLimits
    memory: MemoryBudget
    content_bytes: int = 0
    entries: int = 0

    def take_entry(self, name: str) -> None:
        self.entries += 1
        if self.entries > self.limits.max_entries:
            raise ArchiveError(f"the image has more than {self.limits.max_entries} files", entry=name)

    def take_bytes(self, size: int, name: str) -> None:
        self.content_bytes += size
        if self.content_bytes > self.limits.max_bytes:
            raise ArchiveError(f"with it the image unpacks to more than {self.limits.max_bytes} bytes", entry=name)


class LayerUnpacker:
    """Unpacks layers into directories. For OVERLAY make one per layer; for FLAT one object applies all layers in turn.

    Blocking: call from a worker thread. `checkpoint` is called for every entry and chunk; it may raise to end the work.
    """

    def __init__(
        self,
        root: Path,
        layer_format: LayerFormat,
        *,
        budget: UnpackBudget,
        checkpoint: Checkpoint,
        lower: LowerLayers | None = None,
        privileged: bool,
    ) -> None:
        self._root = os.fspath(root)
        self._overlay = layer_format is LayerFormat.OVERLAY
        self._budget = budget
        self._checkpoint = checkpoint
        self._lower = lower or LowerLayers(())
        self._privileged = privileged
        self._attributes = AttributeWriter(privileged=privileged)
        self._open = OpenDirectory(privileged=privileged)
        self._directories: set[str] = {""}
        """A few of the paths that are real directories in the root, so that the way to the next entry is not walked."""
        self._brought = NameSet(budget.memory)
        """Paths that the current layer brings. Some of them may be gone, with a directory that was replaced."""
        self._hidden = NameSet(budget.memory)
        """Directories that the current layer told to show nothing of those before it."""

    def apply(self, layer: Readable, *, subject: str) -> None:
        """Write one layer's uncompressed tar stream. Raises ArchiveError."""
        try:
            with broken_input_is_an_archive_error(subject):
                for tar, member in entries(layer, subject=subject):
                    self._checkpoint()
                    self._budget.take_entry(member.name)
                    try:
                        self._write_entry(tar, member)
                    except (OSError, ValueError, OverflowError) as error:
                        raise ArchiveError(f"cannot be written: {error}", entry=member.name) from error
        finally:  # an exception may keep this object for a while
            self._brought.clear()
            self._hidden.clear()

    def finish(self) -> None:
        """Give the last directory its mode and time. To be called once, after the last layer. Raises OSError."""
        self._open.close()

    # One entry

    def _write_entry(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = split_entry_name(member.name, max_depth=self._budget.limits.max_depth)
        if not parts:  # the root keeps its mode 0755, as in containerd: one of a private folder would shut out users
            return
        parent = self._enter(parts[:-1], member.name)
        if parts[-1] == OPAQUE_WHITEOUT:
            self._hide_all_below(parent)
            return
        deleted = whiteout_target(parts[-1], entry=member.name)
        if deleted is not None:
            if deleted:
                self._delete(_join(parent, deleted))
            return
        self._bring(tar, member, _join(parent, parts[-1]))

    def _bring(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.isdir():
            self._place_directory(path, member)
        elif member.isreg():
            self._budget.take_bytes(member.size, member.name)
            self._clear(path)
            self._write_file(tar, member, self._absolute(path))
        elif member.issym():
            self._budget.take_bytes(len(member.linkname), member.name)
            self._clear(path)
            os.symlink(member.linkname, self._absolute(path))
            self._attributes.set_on_link(self._absolute(path), Attributes.of_entry(member))
        elif member.islnk():
            self._place_hard_link(path, member)
        elif member.isfifo():
            self._clear(path)
            os.mkfifo(self._absolute(path))
            self._attributes.set_on_file(self._absolute(path), Attributes.of_entry(member))
        elif member.ischr() or member.isblk():
            self._place_device(path, member)
        else:
            raise ArchiveError(f"it is of an unknown type {member.type!r}", entry=member.name)
        self._mark_brought(path)

    def _mark_brought(self, path: str) -> None:
        """The current layer brings this path, and so all directories above it."""
        while path and path not in self._brought:
            self._brought.add(path)
            path = path.rpartition("/")[0]

    def _place_directory(self, path: str, member: tarfile.TarInfo) -> None:
        attributes = Attributes.of_entry(member)
        self._budget.take_bytes(attributes.xattr_bytes, member.name)
        if path not in self._directories:
            self._make_directory(path)
        self._set_on_directory(path, attributes)

    def _set_on_directory(self, path: str, attributes: Attributes) -> None:
        self._open.close()  # it may be this one
        self._attributes.set_on_directory(self._absolute(path), attributes)

    def _make_directory(self, path: str) -> None:
        """A directory at `path`, in the place of whatever else is there; then it shows nothing of the layers below."""
        absolute = self._absolute(path)
        existing = _lstat(absolute)
        if existing is None or not stat.S_ISDIR(existing.st_mode):
            parent, _, name = path.rpartition("/")
            self._budget.memory.take(_KEPT_OF_A_DIRECTORY + len(name))
            self._open.open(self._absolute(parent))
            if existing is not None:
                os.unlink(absolute)
            os.mkdir(absolute, 0o700)
            if existing is not None and self._overlay:
                self._make_opaque(path)
        self._remember_directory(path)

    def _imply_directory(self, path: str, attributes: Attributes) -> None:
        """A directory that the layer does not bring, but has entries in. It counts as one."""
        self._budget.take_entry(path)
        self._make_directory(path)
        self._set_on_directory(path, attributes)

    def _remember_directory(self, path: str) -> None:
        if len(self._directories) >= _REMEMBERED_DIRECTORIES:
            self._directories = {""}
        self._directories.add(path)

    def _write_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, absolute: str) -> None:
        source = tar.extractfile(member)
        if source is None:
            raise ArchiveError("it has no content to read", entry=member.name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with source, os.fdopen(os.open(absolute, flags, 0o600), "wb", buffering=0) as target:
            left = member.size
            while left:
                self._checkpoint()
                chunk = source.read(min(CHUNK, left))
                if not chunk:
                    raise ArchiveError(f"it ends {left} bytes too early", entry=member.name)
                left -= len(chunk)
                if member.issparse() and not any(chunk):
                    target.seek(len(chunk), os.SEEK_CUR)
                else:
                    _write_all(target.fileno(), chunk)
            target.truncate(member.size)
        attributes = Attributes.of_entry(member)
        self._budget.take_bytes(attributes.xattr_bytes, member.name)
        self._attributes.set_on_file(absolute, attributes)

    def _place_hard_link(self, path: str, member: tarfile.TarInfo) -> None:
        try:
            parts = split_entry_name(member.linkname, max_depth=self._budget.limits.max_depth)
        except ArchiveError as error:
            raise ArchiveError(f"it is a hard link to {member.linkname!r}: {error.reason}", entry=member.name) from None
        if not parts:
            raise ArchiveError("it is a hard link to the image's root", entry=member.name)
        target = _join(self._enter(parts[:-1], member.name), parts[-1])
        if target == path:
            return
        info = _lstat(self._absolute(target))
        if info is None:
            info = self._copy_up(target, member.name)
        if info is None or stat.S_ISDIR(info.st_mode) or (self._overlay and is_whiteout(info)):
            raise ArchiveError(f"it is a hard link to {member.linkname!r}, no file of the image", entry=member.name)
        self._budget.memory.take(_KEPT_OF_A_HARD_LINK)
        self._clear(path)
        os.link(self._absolute(target), self._absolute(path), follow_symlinks=False)

    def _copy_up(self, path: str, entry: str) -> os.stat_result | None:
        """Bring a file of a lower layer into this one, since a hard link cannot cross layers."""
        source = self._find_below(path)
        if source is None:
            return None
        info = os.lstat(source)
        if not stat.S_ISREG(info.st_mode):
            return None
        self._budget.take_bytes(info.st_size, entry)
        self._open.open(self._absolute(path.rpartition("/")[0]))
        shutil.copyfile(source, self._absolute(path), follow_symlinks=False)
        self._attributes.set_on_file(self._absolute(path), Attributes.of_file(source, info))
        self._mark_brought(path)
        return os.lstat(self._absolute(path))

    def _place_device(self, path: str, member: tarfile.TarInfo) -> None:
        """Devices in /dev are left out: a container gets its own /dev. Others are refused but for harmless ones."""
        if path.startswith("dev/"):
            return
        number = (member.devmajor, member.devminor)
        if not self._privileged or not member.ischr() or number not in _HARMLESS_DEVICES:
            kind = "character" if member.ischr() else "block"
            raise ArchiveError(
                f"it is a {kind} device {number[0]}:{number[1]}, which would open this machine's hardware to containers"
                if self._privileged
                else f"it is a {kind} device {number[0]}:{number[1]}, which only root can create",
                entry=member.name,
            )
        self._clear(path)
        os.mknod(self._absolute(path), stat.S_IFCHR | 0o600, os.makedev(*number))
        self._attributes.set_on_file(self._absolute(path), Attributes.of_entry(member))

    # The way to an entry

    def _enter(self, parts: list[str], entry: str) -> str:
        """The path of the directory that `parts` lead to, made where it is missing.

        Links on the way are followed as the container would see them: above the root there is the root.
        """
        straight = "/".join(parts)
        if straight in self._directories:
            return straight
        here: list[str] = []
        pending = parts[::-1]
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if here:
                    here.pop()
                continue
            here.append(part)
            link = self._step_into("/".join(here), entry)
            if link is None:
                continue
            links += 1
            if links > MAX_LINKS_ON_A_WAY:
                raise ArchiveError(f"more than {MAX_LINKS_ON_A_WAY} links are on its way", entry=entry)
            here = [] if link.startswith("/") else here[:-1]
            pending.extend(reversed(link.split("/")))
        return "/".join(here)

    def _step_into(self, path: str, entry: str) -> str | None:
        """Make sure that `path`, whose parent is a directory, is one: None. Or the target of the link that it is."""
        if path in self._directories:
            return None
        absolute = self._absolute(path)
        info = _lstat(absolute)
        if info is None:
            return self._inherit_directory(path)
        if stat.S_ISLNK(info.st_mode):
            return os.readlink(absolute)
        if stat.S_ISDIR(info.st_mode):
            self._remember_directory(path)
        elif self._overlay and is_whiteout(info):
            self._imply_directory(path, Attributes())
        else:
            raise ArchiveError(f"it lies in {path!r}, which is not a directory", entry=entry)
        return None

    def _inherit_directory(self, path: str) -> str | None:
        """Make a directory that the layer implies but does not bring: as the layers below have it, else plain."""
        below = self._find_below(path)
        attributes = Attributes()
        if below is not None:
            info = os.lstat(below)
            if stat.S_ISLNK(info.st_mode):
                return os.readlink(below)
            if stat.S_ISDIR(info.st_mode):
                attributes = Attributes.of_file(below, info)
        self._imply_directory(path, attributes)
        return None

    # Deletions

    def _delete(self, path: str) -> None:
        if path in self._brought:
            info = _lstat(self._absolute(path))
            if info is not None and stat.S_ISDIR(info.st_mode):
                self._hide_all_below(path)
            return
        self._clear(path)
        # overlayfs lists a mark as a broken file where it has nothing to merge: only what is there gets one.
        if self._overlay and self._find_below(path) is not None:
            self._budget.take_entry(path)
            os.mknod(self._absolute(path), stat.S_IFCHR | 0o600, os.makedev(0, 0))

    def _hide_all_below(self, directory: str) -> None:
        """Show nothing in the directory but what this layer brings."""
        if directory in self._hidden:  # all that is in it came after that
            return
        self._hidden.add(directory)
        self._prune(directory)
        if self._overlay and directory:
            self._make_opaque(directory)
        elif self._overlay:  # overlayfs looks at no mark on the root itself
            for name in self._lower.names_in_root():
                self._delete(name)

    def _make_opaque(self, directory: str) -> None:
        os.setxattr(self._absolute(directory), OPAQUE_XATTR, b"y")

    def _find_below(self, path: str) -> str | None:
        """The file that the layers below show at this path, unless this layer hides the directory it is in."""
        source = self._lower.find(path)
        parent = path.rpartition("/")[0]
        while source is not None and parent:
            if is_opaque(self._absolute(parent)):
                return None
            parent = parent.rpartition("/")[0]
        return source

    def _prune(self, directory: str) -> None:
        """Remove what the current layer did not bring."""
        brought: list[str] = []
        with os.scandir(self._absolute(directory)) as found:
            for entry in found:
                self._checkpoint()
                path = _join(directory, entry.name)
                if path not in self._brought:
                    self._clear(path)
                elif entry.is_dir(follow_symlinks=False):
                    brought.append(entry.name)
        for name in brought:
            self._prune(_join(directory, name))

    def _clear(self, path: str) -> None:
        """Remove what is at `path` in this root, so that something else can take its place."""
        self._open.open(self._absolute(path.rpartition("/")[0]))
        absolute = self._absolute(path)
        info = _lstat(absolute)
        if info is None:
            return
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(absolute)
            return
        self._directories = {""}
        remove_tree(absolute, checkpoint=self._checkpoint)

    def _absolute(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _join(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
