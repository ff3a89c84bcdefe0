"""Work that blocks, on threads: at most a few at a time, so that a slow disk does not take all threads of the agent.

The agent's own disk answers in the end, so that work there is waited for even when the caller is cancelled: nothing is
left half done. Other paths, a network share for one, may never answer. They have threads of their own, which are left
behind after a deadline. Such a thread takes no place from others, and while it hangs its path is not asked again: one
dead share costs one thread, however often its pods try, and holds up nobody else.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

MAX_THREADS: Final = 4
FOREIGN_DEADLINE: Final = 120.0
"""Seconds."""


class Disk:
    """One for the whole agent."""

    def __init__(self) -> None:
        self._own = trio.CapacityLimiter(MAX_THREADS)
        self._foreign = _ForeignPaths()
        self._walks = _ForeignPaths()

    async def run(self, work: Callable[[], T]) -> T:
        """Do work below the agent's root folder. Cancelling it waits for its end, and tells `work` through
        `trio.from_thread.check_cancelled`."""
        return await trio.to_thread.run_sync(work, limiter=self._own)

    async def run_foreign(self, where: Hashable, work: Callable[[], T], *, deadline: float = FOREIGN_DEADLINE) -> T:
        """Do work on a path that may never answer; `where` is that path, or what else one question is asked of.

        Raises `trio.TooSlowError` when the path has not answered after `deadline` seconds, this question or an earlier
        one; waiting for a thread does not count. Cancelling it leaves the thread behind.
        """
        return await self._foreign.ask(where, work, deadline)

    async def walk_foreign(self, where: Hashable, work: Callable[[], T], *, deadline: float) -> T:
        """As `run_foreign`, for what may take hours: it takes no thread from questions."""
        return await self._walks.ask(where, work, deadline)


class _ForeignPaths:
    """Asks one question at a time of each path, and of a few paths at once."""

    def __init__(self) -> None:
        self._asking = trio.CapacityLimiter(MAX_THREADS)
        """Whoever waits for an answer. A thread that is left behind is not among them."""
        self._threads = trio.CapacityLimiter(math.inf)
        self._open: dict[Hashable, trio.Event] = {}
        """The questions that threads are at, also when nobody waits for the answer."""

    async def ask(self, where: Hashable, work: Callable[[], T], deadline: float) -> T:
        while True:
            with trio.fail_after(deadline):
                while (earlier := self._open.get(where)) is not None:
                    await earlier.wait()
            async with self._asking:
                if where not in self._open:
                    with trio.fail_after(deadline):
                        return await self._run(where, work)

    async def _run(self, where: Hashable, work: Callable[[], T]) -> T:
        token = trio.lowlevel.current_trio_token()

        def run() -> T:
            try:
                return work()
            finally:
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._answered, where)

        self._open[where] = trio.Event()
        return await trio.to_thread.run_sync(run, limiter=self._threads, abandon_on_cancel=True)

    def _answered(self, where: Hashable) -> None:
        self._open.pop(where).set()
