"""A container's log on its way to a reader: from the file, through the filter, to a writer; once, or for as long as
the container writes.

The story of a follow: subscribe to what may change (the file's folder, the containers), open the file, go to where the
tail begins. Then round and round: see whether the container runs, read to the file's end, and only then believe what
was seen. The file was rotated: its successor's turn. The container does not run: all is read, and the follow ends.
Else wait, for inotify, for a container, or a second.

The facts are the kubelet's (cri-client's `ReadLogs`); where it loses something we do not: the old file is read to its
end before the new one, a truncated file is read from its beginning, several rotations behind a slow reader are caught
up with, and an unfinished last line is shown when no more can come. A container that starts again is another container:
like the kubelet's, a follow ends with the one that it began with.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import trio

from trikubelet.inotify import Inotify, Mask
from trikubelet.logs import get_logger
from trikubelet.server.log_file import BLOCK, LogFile
from trikubelet.server.log_location import LogNotAvailableError, LogTarget
from trikubelet.server.log_records import LogOptions, RecordFilter

if TYPE_CHECKING:
    from trikubelet.server.changes import Wakeup

log = get_logger("logs")

POLL: Final = 1.0
"""Seconds between two looks when nothing tells of a change."""
ROTATION_LINGER: Final = 0.05
"""Seconds for which a rotated file is still read: a runtime may finish writing to it after it made the new one."""

Write = Callable[[bytes], Awaitable[None]]


class Containers(Protocol):
    """What a follow must know of the node's containers."""

    def container_running(self, container_id: str) -> bool:
        """False when the container has ended or is unknown, so that nothing more will be written to its log."""
        ...

    def subscribe(self) -> AbstractContextManager[Wakeup]:
        """Wakes when any pod or container may have changed."""
        ...


async def copy_log(target: LogTarget, options: LogOptions, write: Write, containers: Containers) -> None:
    """Write what is wanted of a container's log to `write`, and with `follow` go on until the container has ended.

    `write` gets empty bytes first, as soon as there is nothing left to refuse. Raises LogNotAvailableError before that
    when the file cannot be opened, OSError when reading fails later. Cancelling it is safe at any time.
    """
    with ExitStack() as stack:
        copy = _Copy(target, options, write, containers)
        stack.callback(copy.close)
        if options.follow:
            await copy.follow()
        else:
            await copy.once()


class _Copy:
    def __init__(self, target: LogTarget, options: LogOptions, write: Write, containers: Containers) -> None:
        # A link is resolved once, as the kubelet does: rotation takes place where the file is.
        self._path = Path(os.path.realpath(target.path))
        self._container = target.container_id
        self._options = options
        self._records = RecordFilter(options)
        self._write = write
        self._containers = containers
        self._opened: LogFile | None = None

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        if self._records.skipped:
            log.warning("lines of a log are not in CRI format", path=str(self._path), lines=self._records.skipped)

    async def once(self) -> None:
        """The file as it is now: what is written meanwhile is not part of it."""
        file = self._open()
        if file is None:
            raise _cannot_open(self._path, "no such file or directory")
        end = file.size
        await self._write(b"")
        if self._options.tail_lines is not None and await file.seek_tail(self._options.tail_lines, end):
            # The tail is complete without the unfinished line at the end.
            end = await file.end_of_lines(end)
        await self._copy(file, end)
        await self._emit(self._records.finish())

    async def follow(self) -> None:
        with self._containers.subscribe() as changed, _FolderWatch(self._path.parent) as folder:
            file = await self._wait_for_file(changed, folder)
            if file is None:
                return
            if self._options.tail_lines is not None:
                await file.seek_tail(self._options.tail_lines, file.size)
            while True:
                running = self._containers.container_running(self._container)
                await self._drain(file)
                if self._records.done:
                    return
                successor = file.successor(self._path)
                if successor is not None:
                    file = await self._switch(file, successor, running)
                elif running:
                    await _wait(changed, folder)
                else:
                    await self._emit(self._records.finish())
                    return

    def _open(self) -> LogFile | None:
        """The file at the path, None when there is none."""
        try:
            self._opened = LogFile(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _cannot_open(self._path, error.strerror or str(error)) from error
        return self._opened

    async def _wait_for_file(self, changed: Wakeup, folder: _FolderWatch) -> LogFile | None:
        """A container may run for a moment before its log is there. None: it has ended, and there was no log."""
        running = self._containers.container_running(self._container)
        file = self._open()
        if file is None and not running:
            raise _cannot_open(self._path, "no such file or directory")
        await self._write(b"")
        while file is None and running:
            await _wait(changed, folder)
            running = self._containers.container_running(self._container)
            file = self._open()
        return file

    async def _drain(self, file: LogFile) -> None:
        """Read to the end of the file."""
        if file.was_truncated():
            file.position = 0
            await self._end_record()
        await self._copy(file, None)

    async def _copy(self, file: LogFile, end: int | None) -> None:
        while not self._records.done:
            most = BLOCK if end is None else min(BLOCK, end - file.position)
            block = await file.read(most) if most > 0 else b""
            if not block:
                return
            await self._emit(self._records.feed(block))

    async def _emit(self, data: bytes) -> None:
        if data:
            await self._write(data)

    async def _switch(self, file: LogFile, successor: Path, running: bool) -> LogFile:
        """Go over to the file in which the log goes on; the present one when that has gone again."""
        if running:
            await trio.sleep(ROTATION_LINGER)
        await self._drain(file)
        try:
            following = LogFile(successor)
        except FileNotFoundError:
            return file
        file.close()
        self._opened = following
        await self._end_record()
        return following

    async def _end_record(self) -> None:
        """A record that will never be finished must not swallow the next one."""
        if self._records.mid_record:
            await self._emit(self._records.feed(b"\n"))


class _FolderWatch:
    """Wakes when something happens in a folder. Where inotify is not to be had, the follow's own period remains."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inotify: Inotify | None = None

    def __enter__(self) -> _FolderWatch:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    async def wait(self) -> None:
        """Return after an event; also after the watch has just begun, since something may have happened before."""
        if self._inotify is None:
            if not self._begin():
                await trio.sleep_forever()
            return
        if any(event.mask & Mask.IGNORED for event in await self._inotify.wait()):
            self._end()

    def _begin(self) -> bool:
        inotify = None
        try:
            inotify = Inotify()
            inotify.watch(self._folder, Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE)
        except OSError as error:
            log.debug("a log's folder is not watched, only looked at", folder=str(self._folder), error=str(error))
            if inotify is not None:
                inotify.close()
            return False
        self._inotify = inotify
        return True

    def _end(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


async def _wait(changed: Wakeup, folder: _FolderWatch) -> None:
    """Return when either wakes, or the period is over."""
    with trio.move_on_after(POLL):
        async with trio.open_nursery() as nursery:

            async def until(alarm: Wakeup | _FolderWatch) -> None:
                await alarm.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, changed)
            nursery.start_soon(until, folder)


def _cannot_open(path: Path, reason: str) -> LogNotAvailableError:
    return LogNotAvailableError(f'failed to open log file "{path}": {reason}')
