"""Watches one manifest path: says when a reread is worth while, and which files are being written right now.

A file that was created or modified is *busy* until its writer closes it. Events of busy files wake nobody, so that a
program that writes into the folder all day costs nothing but its own events. A link (symbolic or hard) is complete
when it appears. Without inotify (limits reached) nothing is ever busy and `changed` never returns: the periodic reread
remains, and tries each time to watch again.
"""

from __future__ import annotations

import math
import os
import stat
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.linux.inotify import ENTRIES, ITSELF, FileEvent, Inotify, Mask
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

QUIET_SECONDS: Final = 1.0
"""A writer that has not written for so long counts as done."""
LONGEST_WRITE_SECONDS: Final = 10.0
"""A writer that never stops does not hide its file for longer than this."""

_APPEARS: Final = Mask.CREATE | Mask.MOVED_TO

log = get_logger("file-source")


@attrs.define
class _Writing:
    since: float
    last: float

    @property
    def until(self) -> float:
        return min(self.last + QUIET_SECONDS, self.since + LONGEST_WRITE_SECONDS)


class FolderWatch:
    """Inotify on a folder, or on the folder of a single file. Used by one task."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inotify: Inotify | None = None
        self._folder_watch: int | None = None
        self._parent_watch: int | None = None
        self._single = False
        self._writing: dict[str, _Writing] = {}
        self._unwatched_reason: str | None = None
        self.missing = False
        """Set by the reader: while the path is missing its parent is watched for its return."""

    def __enter__(self) -> FolderWatch:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _open(self) -> None:
        try:
            self._inotify = Inotify()
        except OSError as error:
            self._complain(error)

    def _close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = self._folder_watch = self._parent_watch = None
        self._writing.clear()

    def renew(self) -> None:
        """Watch what the path is now: call before every read, so that no change falls between watch and read."""
        if self._inotify is None:
            self._open()
        if self._inotify is None:
            return
        before = {self._folder_watch, self._parent_watch}
        self._single = self._is_single()
        target = self._path.parent if self._single else self._path
        try:
            self._folder_watch = self._inotify.watch(target, ENTRIES | ITSELF | Mask.ONLYDIR)
        except (FileNotFoundError, NotADirectoryError):
            self._folder_watch = None
            self._writing.clear()
        except OSError as error:
            self._complain(error)  # the watch that there is may still tell when that changes
        self._parent_watch = self._watch_parent(self._inotify) if self._folder_watch is None else None
        for stale in before - {self._folder_watch, self._parent_watch}:
            if stale is not None:
                self._inotify.unwatch(stale)

    def _is_single(self) -> bool:
        """Whether the path is a file; as before when that cannot be told."""
        try:
            return stat.S_ISREG(self._path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return self._single

    def _watch_parent(self, inotify: Inotify) -> int | None:
        try:
            return inotify.watch(self._path.parent, _APPEARS | Mask.ONLYDIR)
        except OSError:
            return None

    def _complain(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason != self._unwatched_reason:
            self._unwatched_reason = reason
            log.warning("manifests cannot be watched, they are reread periodically", reason=reason)

    def busy_names(self, now: float) -> frozenset[str]:
        """Entries that somebody is writing."""
        for name in [name for name, writing in self._writing.items() if writing.until <= now]:
            del self._writing[name]
        return frozenset(self._writing)

    async def changed(self) -> None:
        """Return when something that a reader would see has changed, or a writer went quiet.

        Cancelling it loses nothing but the wake-up.
        """
        while self._inotify is not None:
            with trio.move_on_at(min((writing.until for writing in self._writing.values()), default=math.inf)):
                try:
                    events = await self._inotify.wait()
                except OSError as error:
                    self._complain(error)
                    self._close()
                    continue
                worth = [self._record(event) for event in events]
                if any(worth):
                    return
                continue
            return
        await trio.sleep_forever()

    def _record(self, event: FileEvent) -> bool:
        """Take one event into account; True when it is worth a reread."""
        if event.mask & Mask.Q_OVERFLOW:
            self._writing.clear()
            return True
        if event.watch == self._parent_watch:
            return event.name == self._path.name
        if event.watch != self._folder_watch:
            return False
        if event.mask & (ITSELF | Mask.IGNORED):
            return True
        if self._single and event.name != self._path.name:
            return bool(event.mask & Mask.MOVED_TO)  # a link that the path goes through may have been replaced
        if event.name.startswith(".") and not event.mask & Mask.MOVED_TO:
            return False
        return self._record_entry(event)

    def _record_entry(self, event: FileEvent) -> bool:
        if event.mask & (Mask.MODIFY | Mask.CREATE):
            if event.mask & Mask.CREATE and self._complete_at_birth(event.name):
                return True
            now = trio.current_time()
            writing = self._writing.setdefault(event.name, _Writing(now, now))
            writing.last = now
            return False
        if not event.mask & Mask.ATTRIB:
            self._writing.pop(event.name, None)
        return True

    def _complete_at_birth(self, name: str) -> bool:
        """Links are: nobody will close them. So is what is no regular file."""
        folder = self._path.parent if self._single else self._path
        try:
            status = os.lstat(folder / name)
        except OSError:
            return True
        return status.st_nlink > 1 or not stat.S_ISREG(status.st_mode)
