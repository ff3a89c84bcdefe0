"""Work that blocks, on threads: at most a few at a time, so that a slow disk does not take all threads of the agent.

The agent's own disk answers in the end, so that work there is waited for even when the caller is cancelled: nothing is
left half done. Other paths, a network share for one, may never answer; they have threads of their own,
and are left behind after a deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MAX_THREADS: Final = 4
FOREIGN_DEADLINE: Final = 120.0
"""Seconds."""


class Disk:
    """One for the whole agent."""

    def __init__(self) -> None:
        self._own = trio.CapacityLimiter(MAX_THREADS)
        self._foreign = trio.CapacityLimiter(MAX_THREADS)

    async def run(self, work: Callable[[], T]) -> T:
        """Do work below the agent's root folder. Cancelling it waits for its end, and tells `work` through
        `trio.from_thread.check_cancelled`."""
        return await trio.to_thread.run_sync(work, limiter=self._own)

    async def run_foreign(self, work: Callable[[], T], *, deadline: float = FOREIGN_DEADLINE) -> T:
        """Do work on a path that may never answer. Raises `trio.TooSlowError` after `deadline` seconds; cancelling it
        leaves the thread behind."""
        with trio.fail_after(deadline):
            return await trio.to_thread.run_sync(work, limiter=self._foreign, abandon_on_cancel=True)
