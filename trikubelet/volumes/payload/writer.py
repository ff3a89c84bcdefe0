"""Puts a payload into a folder so that readers see the old one or the new one, never half (kubelet: `AtomicWriter`).

    token       -> ..data/token            what containers open
    ..data      -> ..2026_02_01_15_04_05.123456789
    ..2026_02_01_15_04_05.123456789/token  one version: all files, written before any link leads to it

A new version is written beside the old one, given to its readers, and shown by renaming a new link over `..data`: one
step. Then the links that containers open are made or removed, and the old version is deleted. A program that wants
several files of one version opens `..data` once. Programs may watch `..data` for updates.

The agent may be killed between any two steps. What it leaves is a version that no link leads to, the new link under its
first name, or links of the wrong number; the next write finds them by looking at the folder, not by remembering, and
does so also when the content has not changed. All of it blocks.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.payload.names import with_clean_paths
from trikubelet.volumes.removal import remove_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from trikubelet.volumes.payload.files import Payload, PayloadFile

log = get_logger("volumes")

DATA: Final = "..data"
_NEW_DATA: Final = "..data_tmp"
_VERSION: Final = re.compile(r"\.\.\d{4}(_\d\d){5}\.[^/]+")
_FOLDER_MODE: Final = 0o755


def write_payload(
    folder: Path, payload: Mapping[str, PayloadFile], *, now: datetime, own: Callable[[], None] | None = None
) -> bool:
    """Let a folder, which must exist, show the payload and nothing else. Returns whether the content was another.

    `own` is called before new content is shown, to set the owners of its files. Content is compared by its
    bytes: modes and owners of files that are there already stay. Raises PayloadError for paths that no file may have,
    and OSError; then the old content is shown, and after the next write nothing is left of this one.
    """
    files = with_clean_paths(payload)
    shown = _shown_version(folder)
    _remove_leftovers(folder, keep=shown)
    changed = shown is None or not _holds(folder / shown, files)
    if changed:
        version = _new_version(folder, now)
        try:
            _write_files(version, files)
            if own is not None:
                own()
            (folder / _NEW_DATA).symlink_to(version.name)
            (folder / _NEW_DATA).rename(folder / DATA)
        except BaseException:
            with suppress(OSError):
                remove_folder(version, _go_on)
            raise
    _make_links(folder, files)
    _remove_links(folder, {_first(path) for path in files})
    if changed and shown is not None:
        remove_folder(folder / shown, _go_on)
    return changed


def is_written(folder: Path) -> bool:
    """Whether the folder shows a payload."""
    return _shown_version(folder) is not None


def _shown_version(folder: Path) -> str | None:
    """The name of the version that is shown; None when none is."""
    try:
        name = str((folder / DATA).readlink())
    except FileNotFoundError:
        return None
    return name if _VERSION.fullmatch(name) and (folder / name).is_dir() else None


def _remove_leftovers(folder: Path, *, keep: str | None) -> None:
    """What an agent left that was killed while it wrote."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    if _NEW_DATA in names:
        (folder / _NEW_DATA).unlink()
    for name in names:
        if name != keep and _VERSION.fullmatch(name):
            remove_folder(folder / name, _go_on)


def _holds(version: Path, files: Mapping[str, PayloadFile]) -> bool:
    """Whether a version has exactly these files with these contents."""
    folders = {path[:end] for path in files for end in range(len(path)) if path[end] == "/"}
    pending = [""]
    seen = 0
    while pending:
        prefix = pending.pop()
        with os.scandir(version / prefix) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False) and path in folders:
                    pending.append(f"{path}/")
                elif path not in files or not _has_content(entry, files[path].data):
                    return False
                else:
                    seen += 1
    return seen == len(files)


def _has_content(entry: os.DirEntry[str], data: bytes) -> bool:
    info = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(info.st_mode) or info.st_size != len(data):
        return False
    return Path(entry.path).read_bytes() == data


def _new_version(folder: Path, now: datetime) -> Path:
    version = Path(tempfile.mkdtemp(prefix=f"..{now:%Y_%m_%d_%H_%M_%S}.", dir=folder))
    version.chmod(_FOLDER_MODE)
    return version


def _write_files(version: Path, files: Mapping[str, PayloadFile]) -> None:
    made = {"."}
    for path, file in files.items():
        for parent in reversed(Path(path).parents):
            if str(parent) not in made:
                made.add(str(parent))
                (version / parent).mkdir()
                (version / parent).chmod(_FOLDER_MODE)
        _write_file(version / path, file)


def _write_file(path: Path, file: PayloadFile) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(file.data)
        if file.user is not None:
            _give(descriptor, file.user, path)
        os.fchmod(descriptor, file.mode)


def _give(descriptor: int, user: int, path: Path) -> None:
    try:
        os.fchown(descriptor, user, -1)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        # Without root, containers run as the agent's own user, which owns it already.
        log.warning("no permission to give a file to the pod's user", path=str(path), user=user)


def _make_links(folder: Path, files: Payload) -> None:
    for path, file in files.items():
        name = _first(path)
        link = folder / name
        if os.path.lexists(link):
            continue  # the one that is to be there, or the mount point of another volume
        link.symlink_to(f"{DATA}/{name}")
        if file.user is not None and os.geteuid() == 0:
            os.lchown(link, file.user, -1)


def _remove_links(folder: Path, names: set[str]) -> None:
    """Links into the data that lead nowhere any more."""
    with os.scandir(folder) as entries:
        stale = [entry for entry in entries if entry.is_symlink() and entry.name not in names | {DATA}]
    for entry in stale:
        if Path(entry.path).readlink() == Path(DATA, entry.name):
            Path(entry.path).unlink()


def _first(path: str) -> str:
    return path.partition("/")[0]


def _go_on() -> None:
    """The few files of a payload are removed in one go."""
