"""Advisory locks between processes, waited for without a thread.

The kernel releases a lock when its holder dies, so nothing is ever stale. Waiting asks again every few milliseconds:
a thread blocked in flock() could not be cancelled.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

_ASK_AGAIN = 0.01


class LockTimeoutError(TimeoutError):
    """Another process held a lock for too long."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(f"{path} was held by another process for more than {seconds:g} s")
        self.path = path


@asynccontextmanager
async def held_lock(path: Path, *, shared: bool, timeout: float) -> AsyncIterator[None]:
    """Hold the lock of this file, alone or with others who share it. Raises LockTimeoutError after `timeout` seconds.

    May be cancelled while it waits.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with trio.move_on_after(timeout) as scope:
            while not _try(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):  # noqa: ASYNC110  (nothing tells)
                await trio.sleep(_ASK_AGAIN)
        if scope.cancelled_caught:
            raise LockTimeoutError(path, timeout)
        yield
    finally:
        os.close(fd)


@contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock alone when it is free: yields whether it does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _try(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def _try(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
