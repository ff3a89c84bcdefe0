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

The kubelet reads the present file only. On request the older ones come first (`LogOptions.previous_files`). The
present file is opened before they are looked for, so that a rotation in between makes no gap.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import trio

from trikubelet.node_api.folder_watch import FolderWatch
from trikubelet.node_api.log_file import BLOCK, LogFile, after_newlines
from trikubelet.node_api.log_location import LogNotAvailableError, LogTarget
from trikubelet.node_api.log_records import LogOptions, RecordFilter
from trikubelet.node_api.log_turns import log_turns
from trikubelet.node_api.rotated_logs import CompressedLog, count_lines, older_files, open_older
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.broadcast import Subscription

log = get_logger("logs")

POLL: Final = 1.0
"""Seconds between two checks without events."""
ROTATION_LINGER: Final = 0.05
"""Seconds for which a rotated file is still read: a runtime may finish writing to it after it made the new one."""

Write = Callable[[bytes], Awaitable[None]]


class Containers(Protocol):
    """What a follow must know of the node's containers."""

    def container_running(self, container_id: str) -> bool:
        """False when the container has ended or is unknown, so that nothing more will be written to its log."""
        ...

    def subscribe(self) -> Subscription[None]:
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
        self._turns = log_turns()
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
        if await self._begin(file, end):
            # The tail is complete without the unfinished line at the end.
            end = await file.end_of_lines(end)
        await self._copy(file, end)
        await self._emit(self._records.finish())

    async def follow(self) -> None:
        with (
            self._containers.subscribe() as changed,
            FolderWatch(self._path.parent) as folder,
            self._turns.following(),
        ):
            file = await self._wait_for_file(changed, folder)
            if file is None:
                return
            await self._begin(file, file.size)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pass_on, changed, folder)
                await self._go_on(file, folder)
                nursery.cancel_scope.cancel()

    async def _go_on(self, file: LogFile, folder: FolderWatch) -> None:
        while True:
            looked = trio.current_time()
            running = self._containers.container_running(self._container)
            await self._drain(file)
            if self._records.done:
                return
            successor = file.open_successor(self._path)
            if successor is not None:
                await self._switch(file, successor, running)
                file = successor
            elif running:
                with trio.move_on_after(POLL):
                    await folder.wait()
                if (rest := self._turns.rest) > 0:
                    await trio.sleep_until(looked + rest)
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

    async def _wait_for_file(self, changed: Subscription[None], folder: FolderWatch) -> LogFile | None:
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

    async def _begin(self, file: LogFile, end: int) -> bool:
        """Go to where what is wanted of the present file begins, and write what is wanted of older ones.

        True: with what is before `end`, the tail that was asked for is complete.
        """
        missing = self._options.tail_lines
        if missing is not None:
            if await file.seek_tail(missing, end):
                return True
            if self._options.previous_files:
                missing -= await count_lines(file, end)
                file.position = 0
        if not self._options.previous_files:
            return False
        names = older_files(self._path, file)[-self._options.previous_files :]
        skip = 0
        if missing is not None:
            names, skip, missing = await self._tail_of_older(names, missing)
        for name in names:
            await self._copy_older(name, skip)
            skip = 0
        return missing == 0

    async def _tail_of_older(self, names: list[str], lines: int) -> tuple[list[str], int, int]:
        """The files in which the last `lines` lines are, how many of the first one's to skip, how many are missing."""
        for index in reversed(range(len(names))):
            found = 0
            with _opened(open_older(self._path.parent, names[index])) as file:
                if file is not None:
                    found = await count_lines(file)
            if found >= lines:
                return names[index:], found - lines, 0
            lines -= found
        return names, 0, lines

    async def _copy_older(self, name: str, skip: int) -> None:
        """Write a file but for its first lines. One that was removed meanwhile has nothing."""
        with _opened(open_older(self._path.parent, name)) as file:
            while file is not None and not self._records.done:
                block = await file.read(BLOCK)
                if not block:
                    break
                if skip:
                    lines = min(skip, block.count(b"\n"))
                    skip -= lines
                    block = block[after_newlines(block, lines) :] if not skip else b""
                await self._emit(self._records.feed(block))
        await self._end_record()

    async def _drain(self, file: LogFile) -> None:
        """Read to the end of the file."""
        if file.was_truncated():
            file.position = 0
            await self._end_record()
        await self._copy(file, None)

    async def _copy(self, file: LogFile, end: int | None) -> None:
        while not self._records.done:
            # A file's size is cheaper to get than the knowledge that there is nothing to read.
            most = min(BLOCK, (file.size if end is None else end) - file.position)
            if most <= 0:
                return
            async with self._turns.turn:
                block = file.read_at_once(most)
                data = self._records.feed(block) if block else b""
            if block is None:
                block = await file.read(most)
                data = self._records.feed(block)
            await self._emit(data)
            if not block or len(block) == most < BLOCK:
                return  # what has come since is for the next look

    async def _emit(self, data: bytes) -> None:
        if data:
            await self._write(data)

    async def _switch(self, file: LogFile, successor: LogFile, running: bool) -> None:
        """Read the rest of a file, and go over to its successor."""
        with ExitStack() as stack:
            stack.callback(successor.close)
            if running:
                await trio.sleep(ROTATION_LINGER)
            await self._drain(file)
            stack.pop_all()
        file.close()
        self._opened = successor
        await self._end_record()

    async def _end_record(self) -> None:
        """A record that will never be finished must not swallow the next one."""
        if self._records.mid_record:
            await self._emit(self._records.feed(b"\n"))


@contextmanager
def _opened(file: LogFile | CompressedLog | None) -> Iterator[LogFile | CompressedLog | None]:
    try:
        yield file
    finally:
        if file is not None:
            file.close()


async def _wait(changed: Subscription[None], folder: FolderWatch) -> None:
    """Return when either wakes, or the period is over."""
    with trio.move_on_after(POLL):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, changed, folder)
            await folder.wait()
            nursery.cancel_scope.cancel()


async def _pass_on(changed: Subscription[None], folder: FolderWatch) -> None:
    """Let one wait be enough: of the two, it is the folder that has news all the time."""
    while True:
        await changed.receive()
        folder.wake()


def _cannot_open(path: Path, reason: str) -> LogNotAvailableError:
    return LogNotAvailableError(f'failed to open log file "{path}": {reason}')
