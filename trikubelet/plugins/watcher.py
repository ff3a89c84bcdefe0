"""Which plugins' sockets are in a folder, and when that changes (kubelet: `pluginwatcher.Watcher`).

The folder and all below it are watched by inotify. An event only says that a look is worth while: the look compares
what lies there with what was known, so no order of events, and none that was lost, can leave a wrong picture. What a
look cannot see is a socket that was removed and made again in between, for its inode is often the same; that the events
tell. Each appearance of a socket has a number of its own, so a follower sees it as another one.

Names that begin with a dot are passed over, and what is no socket. A folder that is removed is made again. Where the
kernel gives no inotify, the folder is looked at now and then, and watching is tried again each time.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from trikubelet.linux.inotify import ITSELF, FileEvent, Inotify, Mask
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FOLDER_MODE: Final = 0o755
LOOK_SECONDS: Final = 10.0
"""Between checks without events."""
MAX_DEPTH: Final = 8
"""Folders in folders; deeper ones are passed over."""

_APPEARS: Final = Mask.CREATE | Mask.MOVED_TO
_GOES: Final = Mask.DELETE | Mask.MOVED_FROM

log = get_logger("plugins")


class _File(NamedTuple):
    """What tells one socket from another at the same path. Changes of mode or owner are none."""

    device: int
    inode: int
    modified: int


class SocketWatch:
    """The sockets in a folder. One task uses it, in a `with` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inotify: Inotify | None = None
        self._folders: dict[int, Path] = {}
        """By watch descriptor."""
        self._files: dict[Path, _File] = {}
        self._appearances: dict[Path, int] = {}
        self._count = 0
        self._problem = ""
        self._blind = False
        """Something below the folder is not watched."""

    def __enter__(self) -> SocketWatch:
        self._inspect()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def sockets(self) -> Mapping[Path, int]:
        """By path a number that grows with each appearance of any socket."""
        return self._appearances

    async def changed(self) -> None:
        """Return when `sockets` is different. Cancelling it loses nothing."""
        before = dict(self._appearances)
        while True:
            await self._wait()
            self._inspect()
            if self._appearances != before:
                return

    async def _wait(self) -> None:
        events: list[FileEvent] = []
        with trio.move_on_after(LOOK_SECONDS) if self._blind else contextlib.nullcontext():
            if self._inotify is None:
                await trio.sleep_forever()
            try:
                events = await self._inotify.wait()
            except OSError as error:
                self._complain(error)
                self._close()
        for event in events:
            self._take(event)

    def _take(self, event: FileEvent) -> None:
        """What has gone is forgotten, so that what is there when the folder is looked at is new."""
        folder = self._folders.get(event.watch)
        if folder is None:
            return
        if event.mask & (Mask.IGNORED | ITSELF):
            self._folders.pop(event.watch, None)
            if self._inotify is not None and not event.mask & Mask.IGNORED:
                self._inotify.unwatch(event.watch)  # of a folder that was moved away
        elif event.mask & _GOES:
            gone = folder / event.name
            for path in [path for path in self._files if path == gone or gone in path.parents]:
                self._forget(path)

    def _inspect(self) -> None:
        """Bring what is known to what is there, watching each folder before it is read."""
        if self._inotify is None:
            self._open()
        self._blind = self._inotify is None
        self._make_folder()
        found = dict(self._find(self._folder, MAX_DEPTH))
        for path in [path for path in self._files if found.get(path) != self._files[path]]:
            self._forget(path)
        for path in sorted(found.keys() - self._files.keys()):
            self._count += 1
            self._files[path], self._appearances[path] = found[path], self._count

    def _make_folder(self) -> None:
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._folder.mkdir()
            self._folder.chmod(FOLDER_MODE)
        except FileExistsError:
            pass
        except OSError as error:
            self._complain(error)

    def _forget(self, path: Path) -> None:
        del self._files[path], self._appearances[path]

    def _find(self, folder: Path, depth: int) -> Iterator[tuple[Path, _File]]:
        self._watch(folder)
        try:
            with os.scandir(folder) as entries:
                names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except FileNotFoundError:
            return
        except OSError as error:
            self._complain(error)
            return
        for name, is_folder in names:
            if name.startswith("."):
                continue
            if is_folder:
                if depth > 0:
                    yield from self._find(folder / name, depth - 1)
                continue
            with contextlib.suppress(OSError):
                status = (folder / name).stat()
                if stat.S_ISSOCK(status.st_mode):
                    yield folder / name, _File(status.st_dev, status.st_ino, status.st_mtime_ns)

    def _watch(self, folder: Path) -> None:
        if self._inotify is None:
            return
        try:
            descriptor = self._inotify.watch(folder, _APPEARS | _GOES | ITSELF | Mask.ONLYDIR)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._complain(error)
        else:
            self._folders[descriptor] = folder

    def _open(self) -> None:
        try:
            self._inotify = Inotify()
        except OSError as error:
            self._complain(error)

    def _close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = None
        self._folders.clear()

    def _complain(self, error: OSError) -> None:
        self._blind = True
        problem = str(error)
        if problem != self._problem:
            self._problem = problem
            log.warning("plugins' sockets cannot be watched", folder=str(self._folder), error=problem)
