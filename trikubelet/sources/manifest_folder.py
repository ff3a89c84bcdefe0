"""Writing manifests for a person: what `apply`, `run IMAGE` and `delete` do to files.

The folders stay the truth: the file source finds there what is written, as if an editor had saved it. A manifest is
checked first exactly as the source reads it, and replaced as a whole. One input is one file, byte for byte, so its
comments stay.

Two kinds of files. Files in `ROOT/applied` are the command line's: it replaces them, each with one backup, and removes
them. Every other file is a person's: no command writes into it or over it, and `delete` moves it to `ROOT/removed`, if
the person says so.

In a cluster there is one folder, that of static pods, which other tools write into as well. A file there is the command
line's if `ROOT/written` has a copy of it with the same bytes. A file that was edited since is the person's. The mark is
not in the file, so a copy of the file on another machine is a person's too. New files have names that begin with
`trikubelet-`, and are never written over another file.

All of it blocks on the disk: not for the event loop.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.api import Pod
from trikubelet.formats.values import frozen
from trikubelet.linux.durable_files import sync_folder, write_atomically, write_new
from trikubelet.sources.manifests import display_path, parse_manifest, place_of, read_manifest

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from trikubelet.sources.manifests import Manifest

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
MODE: Final = 0o600
"""Permissions of written files: environment variables may be secret."""
APPLIED: Final = "applied"
"""Folder below the root folder: manifests of the command line."""
REMOVED: Final = "removed"
"""Folder below the root folder: manifests of a person that `delete` moved away."""
WRITTEN: Final = "written"
"""Folder below the root folder: copies of what was written into a cluster's folder of static pods."""
PREFIX: Final = "trikubelet-"
"""Names in a cluster's folder of static pods begin with it."""


class ManifestFolderError(Exception):
    """Nothing was changed. The text says why, and what to do."""


class NotHeldError(ManifestFolderError):
    """No file holds the pod."""


@frozen
class Applied:
    """What was written, or would be."""

    file: Path
    pods: tuple[str, ...]
    """Namespace and name, with a slash between."""
    before: bytes | None
    """What the file held; None when it is new."""
    warnings: tuple[str, ...] = ()


@frozen
class Removed:
    """What a `delete` did to files."""

    files: tuple[tuple[Path, Path | None], ...]
    """Each file that held the pod, with where it was moved to; None for a file of the command line, which is gone."""
    others: tuple[str, ...] = ()
    """Other pods of these files."""


@frozen(kw_only=True)
class ManifestFolder:
    """The manifests of one agent."""

    root_dir: Path
    node_name: str
    persons: Path | None
    """The folder, or single file, of static pods that a person names."""
    in_cluster: bool = False
    """Whether the command line writes into the person's folder, under names of its own."""
    may_refer: bool = False
    """See `sources.manifests.read_static_pod`."""
    last_good: Callable[[Path], Iterable[Pod]] | None = None
    """Gives the pods that the source took from a file, for a file that is broken now."""

    def apply(self, raw: bytes, name: str, *, dry_run: bool = False, must_be_new: bool = False) -> Applied:
        """Check a manifest, and write it if it is well. `name`: what to call the file where it is new.

        Raises ManifestFolderError with every warning and problem, one a line, and OSError. `must_be_new`: also when the
        pod has a file.
        """
        if _FILE_NAME.fullmatch(name) is None:
            raise ManifestFolderError(f"expected letters, digits, '.', '_' and '-' in the file's name, got {name!r}")
        target = self._target()
        found = self._parse(raw, Path(name))  # as who wrote it knows it: there is no such file in the folder yet
        if found.problems:
            # A field that is not known is often the one that is missed.
            told = [f"{warning} (warning)" for warning in found.warnings]
            raise ManifestFolderError("\n".join([*told, *map(str, found.problems)]))
        wanted, held = {*_names(found)}, self._held()
        holders = [file for file, pods in held.items() if pods & wanted]
        for file in holders:
            if not self._is_own(file):
                pod = min(held[file] & wanted)
                raise ManifestFolderError(
                    f"the pod {pod} is in {display_path(file)}, {self._whose()}: edit that file, or move it away with "
                    f"`trikubelet delete {pod} --remove-file`"
                )
            if must_be_new:
                raise ManifestFolderError(
                    f"the pod {min(held[file] & wanted)} exists, in {display_path(file)}: --replace replaces it"
                )
        file = self._place(wanted, name, held, holders, target)
        found = self._parse(raw, file)
        warnings = tuple(map(str, found.warnings))
        before = file.read_bytes() if file in held else None
        if not dry_run and before != raw:
            self._write(file, raw, before)
        return Applied(file, tuple(_names(found)), before, warnings)

    def delete(self, pod: str, *, remove_file: bool = False, with_others: bool = False) -> Removed:
        """Remove the files that hold a pod, by namespace and name with a slash between.

        `remove_file`: a person's file too, which moves to `ROOT/removed`. `with_others`: also a file that holds other
        pods. Raises NotHeldError when no file holds the pod, ManifestFolderError without these two, and OSError.
        """
        held = self._held()
        holders = [file for file, pods in held.items() if pod in pods]
        if not holders:
            raise NotHeldError(f"no manifest holds the pod {pod}")
        persons = [file for file in holders if not self._is_own(file)]
        if persons and not remove_file:
            raise ManifestFolderError(
                f"the pod {pod} is in {_list(persons)}, {self._whose()}: remove the pod there, or give --remove-file "
                f"to move the file to {display_path(self.root_dir / REMOVED)}"
            )
        others = {other for file in holders for other in held[file]} - {pod}
        if others and not with_others:
            raise ManifestFolderError(
                f"{_list(holders)} also holds {', '.join(sorted(others))}: give --with-others to end these pods too"
            )
        moved = {file: self._move(file) for file in persons}
        for file in holders:
            if file not in persons:
                self._unlink(file)
        return Removed(tuple((file, moved.get(file)) for file in holders), tuple(sorted(others)))

    # -- Where files are ----------------------------------------------------------------------------------------------

    def _target(self) -> Path:
        """The folder that is written into. Raises ManifestFolderError."""
        if not self.in_cluster:
            return self.root_dir / APPLIED
        if self.persons is None:
            raise ManifestFolderError("the agent has no folder of static pods: start it with --manifests FOLDER")
        if self.persons.is_file():
            raise ManifestFolderError(f"{display_path(self.persons)} is one manifest, and no folder: edit it by hand")
        return self.persons

    def _held(self) -> dict[Path, set[str]]:
        """Each file, the person's first, with the names of its pods."""
        files = [] if self.persons is None else _files(self.persons)
        if not self.in_cluster:
            files += _files(self.root_dir / APPLIED)
        return {file: self._pods_in(file) for file in files}

    def _pods_in(self, file: Path) -> set[str]:
        """The pods that a file defines, and of a broken one those of its last good version too."""
        found = read_manifest(file, self.node_name, may_refer=self.may_refer)
        if not found.problems or self.last_good is None:
            return {*found.names}
        return {*found.names, *map(place_of, self.last_good(file))}

    def _is_own(self, file: Path) -> bool:
        """True if the command line wrote the file, and in a cluster if nobody edited it since."""
        if file.is_symlink() or not file.is_file():
            return False
        if not self.in_cluster:
            return file.parent == self.root_dir / APPLIED
        content = file.read_bytes()
        return any(content == _content(copy) for copy in (self._copy(file), self._next(file)))

    def _whose(self) -> str:
        if self.in_cluster:
            return "a file that no command wrote as it is now"
        return "a file of yours"

    def _place(
        self, wanted: set[str], name: str, held: Mapping[Path, set[str]], holders: list[Path], target: Path
    ) -> Path:
        """The file that the manifest replaces, or a new one."""
        if len(holders) > 1 or any(not held[holder] <= wanted for holder in holders):
            places = "; ".join(f"{display_path(holder)} holds {', '.join(sorted(held[holder]))}" for holder in holders)
            raise ManifestFolderError(f"{places}: apply all of these pods as one manifest, or delete them first")
        if holders:
            return holders[0]
        for candidate in (name, f"{min(wanted).replace('/', '-')}.yaml"):
            own = candidate if not self.in_cluster or candidate.startswith(PREFIX) else f"{PREFIX}{candidate}"
            file = target / own
            if file not in held or (not held[file] and self._is_own(file)):  # also in the place of a broken one
                return file
        raise ManifestFolderError(f"{display_path(file)} holds other pods: give the file another name")

    def _copy(self, file: Path) -> Path:
        return self.root_dir / WRITTEN / file.name

    def _next(self, file: Path) -> Path:
        """The copy to be, while the file is being written; a writer that was killed may have left it."""
        return self.root_dir / WRITTEN / f".{file.name}.next"

    def _backup(self, file: Path) -> Path:
        """The version before; hidden, so that no source reads it."""
        return (self.root_dir / WRITTEN if self.in_cluster else file.parent) / f".{file.name}.before"

    # -- Changes ------------------------------------------------------------------------------------------------------

    def _write(self, file: Path, raw: bytes, before: bytes | None) -> None:
        """Write a file of the command line."""
        for folder in (file.parent, self._backup(file).parent):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        if before is not None:
            write_atomically(self._backup(file), before, mode=MODE)
        else:
            self._backup(file).unlink(missing_ok=True)
        if not self.in_cluster:
            write_atomically(file, raw, mode=MODE)
            return
        # In this order the file is equal to its copy or to the next one, wherever the writer is killed.
        write_atomically(self._next(file), raw, mode=MODE)
        if before is None:
            write_new(file, raw, mode=MODE)  # another program may have made the file just now
        else:
            write_atomically(file, raw, mode=MODE)
        self._next(file).rename(self._copy(file))
        sync_folder(self._copy(file).parent)

    def _unlink(self, file: Path) -> None:
        """Remove a file of the command line, with its backup."""
        file.unlink()
        sync_folder(file.parent)
        self._backup(file).unlink(missing_ok=True)
        if self.in_cluster:
            for copy in (self._copy(file), self._next(file)):
                copy.unlink(missing_ok=True)

    def _move(self, file: Path) -> Path:
        """Move a person's file to the folder of removed ones, under a name that is free there."""
        folder = self.root_dir / REMOVED
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        for number in itertools.count():
            moved = folder / (f"{file.name}.{number}" if number else file.name)
            with contextlib.suppress(FileExistsError):
                write_new(moved, b"", mode=MODE)  # nobody else takes the name now
                break
        try:
            _rename_or_copy(file, moved)
        except Exception:
            if moved.lstat().st_size == 0:
                moved.unlink()
            raise
        sync_folder(folder)
        sync_folder(file.parent)
        return moved

    def _parse(self, raw: bytes, file: Path) -> Manifest:
        return parse_manifest(raw, file, self.node_name, may_refer=self.may_refer)


def _rename_or_copy(file: Path, moved: Path) -> None:
    """Move a file over an empty one. What is saved to the file meanwhile is never lost: it moves, or it stays.

    Raises ManifestFolderError, and OSError.
    """
    if not file.is_file():
        raise ManifestFolderError(f"{display_path(file)} is no regular file now: remove it by hand")
    if not file.is_symlink():  # a link may be relative: its content is kept
        try:
            file.replace(moved)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return
    before = file.stat()
    write_atomically(moved, file.read_bytes(), mode=MODE)
    shutil.copystat(file, moved)
    if _version(file.stat()) != _version(before):
        raise ManifestFolderError(
            f"{display_path(file)} was changed while it was moved: the version before is in {display_path(moved)}, "
            "try again"
        )
    file.unlink()


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _files(path: Path) -> list[Path]:
    """Manifests of a folder, in the source's order, or a single one."""
    try:
        entries = sorted(path.iterdir())
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        return [path]
    return [entry for entry in entries if not entry.name.startswith(".")]


def _list(files: Iterable[Path]) -> str:
    return ", ".join(map(display_path, files))


def _names(manifest: Manifest) -> Iterator[str]:
    for entry in manifest.pods:
        yield place_of(entry.pod)
