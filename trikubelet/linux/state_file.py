"""A small file that is kept as something in memory is, and survives the agent.

Whoever changes what it says calls `changed` and goes on. Who must not go on before the next agent would know of it, if
this one were killed, awaits `kept`; who must not before it is on the disk, `durable`, which takes milliseconds more.
Changes that come while the file is written share the next write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from trikubelet.broadcast import Broadcast
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.linux.durable_files import write_atomically
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from trio_typing import TaskStatus

log = get_logger("state")

Snapshot = Callable[[], Callable[[], bytes]]
"""Called in the event loop; what it returns is called in a thread, so it must not read what the loop may change."""


class StateFile:
    """`run` has to run. One for each path."""

    def __init__(self, path: Path, snapshot: Snapshot, *, written: bytes | None = None) -> None:
        self.path = path
        self.written = written
        """What the file says, as far as that is known; None where there is none."""
        self._snapshot = snapshot
        self._changes = 0
        self._kept = 0
        """With so many changes there is a file, finished or not."""
        self._tried = 0
        """With so many changes the file was written, or could not be."""
        self._error: CheckpointError | None = None
        """Why it could not, the last time."""
        self._changed: Broadcast[None] = Broadcast()
        self._wanted = self._changed.subscribe()
        self._progress: Broadcast[None] = Broadcast()
        self._one_at_a_time = trio.CapacityLimiter(1)

    def changed(self) -> None:
        """The file is to be written. Never waits."""
        self._changes += 1
        self._changed.send(None)

    async def kept(self) -> None:
        """Return when a next agent that calls `finish_write` would find all changes so far. Otherwise as `durable`."""
        wanted = self._changes
        while max(self._kept, self._tried) < wanted:
            await self._progress.wait()
        if self._kept < wanted and self._error is not None:
            raise CheckpointError(self.path, self._error.problem)

    async def durable(self) -> None:
        """Return when all changes so far are on the disk. Raises CheckpointError when they cannot be written.

        Cancelling it loses nothing, and works while the disk hangs.
        """
        wanted = self._changes
        while self._tried < wanted:
            await self._progress.wait()
        if self._error is not None:
            raise CheckpointError(self.path, self._error.problem)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write, until cancelled; a write that has begun is finished. What cannot be written is written with the next
        change."""
        task_status.started()
        while True:
            if self._tried == self._changes:
                await self._wanted.receive()
            changes, content = self._changes, self._snapshot()
            token = trio.lowlevel.current_trio_token()
            complete = partial(token.run_sync_soon, self._is_kept, changes)
            await trio.to_thread.run_sync(self._write, content, complete, limiter=self._one_at_a_time)
            if self._error is not None:
                log.error("state cannot be written down", error=str(self._error))
            self._tried = changes
            self._progress.send(None)

    def _is_kept(self, changes: int) -> None:
        self._kept = max(self._kept, changes)
        self._progress.send(None)

    def _write(self, content: Callable[[], bytes], complete: Callable[[], object]) -> None:
        """Blocks on the disk."""
        self._error = None
        written = content()
        if written == self.written:
            return
        try:
            write_atomically(self.path, written, complete=complete)
        except OSError as error:
            self._error = CheckpointError(self.path, f"cannot be written: {error.strerror}")
        else:
            self.written = written
