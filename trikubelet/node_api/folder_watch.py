"""Waking many readers when something happens in a folder, with one inotify descriptor for all of them.

A user may have 128 inotify instances (`fs.inotify.max_user_instances`), which other programs need too, so two hundred
followers of logs must not have one each. They share one, and a watch per folder. Trio has no task that would outlive
the first follower and end with the last, so reading the descriptor is a system task: it begins with the first watch of
a run and ends with the last. It may not fail, and does not: whatever goes wrong ends the watches, and their readers
are left with looking from time to time, as where inotify is not to be had at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import define
from trikubelet.linux.inotify import Inotify, Mask
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.linux.inotify import FileEvent

log = get_logger("logs")

_MASK: Final = Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE | Mask.ONLYDIR


@define(eq=False)
class _Watched:
    """A folder that somebody watches."""

    number: int
    """The kernel's, of the watch."""
    readers: list[Broadcast[None]] = attrs.field(factory=list)
    ended: bool = False
    """The folder has gone: it has no more events."""

    def notify(self) -> None:
        for reader in self.readers:
            reader.send(None)


class _SharedInotify:
    """The watches of one run."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._inotify = Inotify()
        self._watched: dict[int, _Watched] = {}
        self.closed = False
        trio.lowlevel.spawn_system_task(self._run, name="inotify of logs")

    def begin(self, folder: Path, reader: Broadcast[None]) -> _Watched:
        """Raises OSError. The kernel gives the same number for another name of the same folder."""
        number = self._inotify.watch(folder, _MASK)
        watched = self._watched.setdefault(number, _Watched(number))
        watched.readers.append(reader)
        return watched

    def end(self, watched: _Watched, reader: Broadcast[None]) -> None:
        watched.readers.remove(reader)
        if not watched.readers and not watched.ended:
            del self._watched[watched.number]
            self._inotify.unwatch(watched.number)
        self.close_if_unused()

    def close_if_unused(self) -> None:
        if not self._watched and not self.closed:
            self.closed = True
            self._inotify.close()

    async def _run(self) -> None:
        try:
            while not self.closed:
                for event in await self._inotify.wait():
                    self._notify(event)
        except trio.ClosedResourceError:
            pass
        except Exception as error:
            if self.closed:  # just when it was to be read
                return
            log.error("inotify cannot be read, followed logs are only looked at", exc_info=error)
        finally:
            for watched in list(self._watched.values()):
                self._forget(watched)
            self.close_if_unused()

    def _notify(self, event: FileEvent) -> None:
        if event.mask & Mask.Q_OVERFLOW:
            for watched in self._watched.values():
                watched.notify()
            return
        found = self._watched.get(event.watch)
        if found is None:
            return  # the last words of a watch that was ended
        if event.mask & Mask.IGNORED:
            self._forget(found)
        found.notify()

    def _forget(self, watched: _Watched) -> None:
        watched.ended = True
        self._watched.pop(watched.number, None)
        watched.notify()


_shared: trio.lowlevel.RunVar[_SharedInotify] = trio.lowlevel.RunVar("inotify_of_logs")


def _share() -> _SharedInotify:
    """Raises OSError."""
    try:
        shared = _shared.get()
    except LookupError:
        pass
    else:
        if not shared.closed:
            return shared
    shared = _SharedInotify()
    _shared.set(shared)
    return shared


class FolderWatch:
    """One reader's watch of a folder, as a context manager. Where inotify is not to be had, only `wake` wakes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed: Broadcast[None] = Broadcast()
        self._changes = self._changed.subscribe()
        self._shared: _SharedInotify | None = None
        self._watched: _Watched | None = None

    def __enter__(self) -> FolderWatch:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def wake(self) -> None:
        """Let `wait` return for another reason."""
        self._changed.send(None)

    async def wait(self) -> None:
        """Return after an event; also after the watch has just begun, since something may have happened before.

        Cancelling it loses nothing.
        """
        if self._watched is None and self._begin():
            return
        await self._changes.receive()
        if self._watched is not None and self._watched.ended:
            self._end()

    def _begin(self) -> bool:
        try:
            shared = _share()
            try:
                watched = shared.begin(self._folder, self._changed)
            finally:
                shared.close_if_unused()
        except OSError as error:
            log.debug("a log's folder is not watched, only looked at", folder=str(self._folder), error=str(error))
            return False
        self._shared, self._watched = shared, watched
        return True

    def _end(self) -> None:
        if self._shared is not None and self._watched is not None:
            self._shared.end(self._watched, self._changed)
        self._shared = self._watched = None
