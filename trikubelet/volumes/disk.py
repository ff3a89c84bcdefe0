"""Work that blocks, on threads: at most a few at a time, so that a slow disk does not take all threads of the agent.

The agent's own disk answers in the end, so that work there is waited for even when the caller is cancelled: nothing is
left half done. Other paths, a network share for one, may never answer. They have threads of their own, which are left
behind after a deadline. A thread that gets no answer for a few seconds makes room for another, and while it hangs its
path is not asked again: a dead share costs one thread for each path on it, however often its pods try, and holds up
nobody else for long.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

import attrs
import trio

from trikubelet.formats.values import define
from trikubelet.scopes import running

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from trio_typing import TaskStatus

T = TypeVar("T")

MAX_THREADS: Final = 4
MAX_HANGING: Final = 64
"""Threads without an answer that make room for others. Beyond them all wait."""
FOREIGN_DEADLINE: Final = 120.0
"""Seconds."""
QUESTION_PATIENCE: Final = 5.0
"""Seconds: a question that a healthy path has answered long before."""
WALK_PATIENCE: Final = 120.0
"""Seconds: most walks are over."""


class Disk:
    """One for the whole agent."""

    def __init__(self) -> None:
        self._own = trio.CapacityLimiter(MAX_THREADS)
        self._foreign = ForeignPaths(patience=QUESTION_PATIENCE)
        self._walks = ForeignPaths(patience=WALK_PATIENCE)

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


class ForeignPaths:
    """Asks one question at a time of each path, and of a few paths at once."""

    def __init__(self, *, patience: float, threads: int = MAX_THREADS) -> None:
        """`patience`: seconds after which a question without an answer makes room for another."""
        self._patience = patience
        self._threads = trio.CapacityLimiter(threads)
        """Held by questions until their threads end. It grows by one for each that made room."""
        self._most = threads + MAX_HANGING
        self._open: dict[Hashable, _Question] = {}
        """The questions that threads are at, also when nobody waits for the answer."""

    def is_open(self, where: Hashable) -> bool:
        """Whether a path is being asked, or has not answered yet."""
        return where in self._open

    async def ask(self, where: Hashable, work: Callable[[], T], deadline: float) -> T:
        """See `Disk.run_foreign`. With each answer to somebody else's question the time begins anew."""
        question = _Question(self._answered, where)
        while True:
            while (earlier := self._open.get(where)) is not None:
                with trio.fail_after(deadline):
                    await earlier.answered.wait()
            await self._threads.acquire_on_behalf_of(question)
            if where not in self._open:
                break
            self._threads.release_on_behalf_of(question)
        self._open[where] = question
        try:
            async with running(partial(self._lose_patience, question)):
                with trio.fail_after(deadline):
                    limiter = cast("trio.CapacityLimiter", question)
                    return await trio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)
        finally:
            if question.has_thread:
                self._make_room(question)
            else:
                self._answered(question)

    async def _lose_patience(self, question: _Question, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep(self._patience)
        self._make_room(question)

    def _make_room(self, question: _Question) -> None:
        if not question.made_room and not question.answered.is_set() and self._threads.total_tokens < self._most:
            question.made_room = True
            self._threads.total_tokens += 1

    def _answered(self, question: _Question) -> None:
        del self._open[question.where]
        question.answered.set()
        self._threads.release_on_behalf_of(question)
        if question.made_room:
            self._threads.total_tokens -= 1


@define(eq=False)
class _Question:
    """To Trio it is the limiter of its thread, which so tells that it begins and that it has ended."""

    _on_answer: Callable[[_Question], None]
    where: Hashable
    answered: trio.Event = attrs.field(factory=trio.Event)
    has_thread: bool = False
    made_room: bool = False

    async def acquire_on_behalf_of(self, _: object) -> None:
        self.has_thread = True

    def release_on_behalf_of(self, _: object) -> None:
        self._on_answer(self)
