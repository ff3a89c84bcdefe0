"""Starts the operations that are due, each as a task, and has them written down when they end.

One task (`run`) waits for the times that backoffs and renewals were set for. All else is started at once by whoever
heard of it (`look_at`), and after each operation the volume is looked at again.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import trio

from trikubelet.measures import Histograms
from trikubelet.volumes.decisions import Certainty, Failed, Operation, Outcome, still_useful
from trikubelet.volumes.measures import STORAGE_BOUNDS, operation_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trikubelet.volumes.book import VolumeBook
    from trikubelet.volumes.operations import Operations


class Runner:
    """`on_end` is called with the UIDs of pods for which something is different, after an operation was written down.
    `may_unstage`: as in `decisions.Situation`."""

    def __init__(
        self,
        book: VolumeBook,
        operations: Operations,
        *,
        on_end: Callable[[Operation, frozenset[str]], None],
        may_unstage: Callable[[], bool],
    ) -> None:
        self.durations = Histograms(STORAGE_BOUNDS)
        """Seconds of operations, by `operation_labels`; of those that were cancelled nothing."""
        self._book = book
        self._operations = operations
        self._on_end = on_end
        self._may_unstage = may_unstage
        self._scopes: dict[str, trio.CancelScope] = {}
        """Of the operations that are going on, by the volume's unique name."""
        self._timers: list[tuple[float, str]] = []
        self._timer_of: dict[str, float] = {}
        self._timer_changed = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, nursery: trio.Nursery) -> None:
        """Run operations in a nursery until cancelled. Before, none is started."""
        self._nursery = nursery
        self.look_at(self._book.names())
        while True:
            with trio.move_on_at(self._timers[0][0] if self._timers else float("inf")):
                await self._timer_changed.wait()
            self._timer_changed = trio.Event()
            self.look_at(self._due())

    def look_at(self, names: Iterable[str]) -> None:
        """Start what comes next for each of the volumes."""
        for name in names:
            operation = self._next(name)
            if operation is not None and self._nursery is not None:
                self._begin(operation)
                self._nursery.start_soon(self._perform, operation)

    async def do_now(self, name: str) -> None:
        """Do what comes next for a volume in the caller's task. When that is cancelled, another task takes over."""
        operation = self._next(name)
        if operation is not None:
            self._begin(operation)
            try:
                await self._do(operation)
            finally:
                self.look_at((name,))

    def try_again(self, names: Iterable[str]) -> None:
        """Something may have cured what failed."""
        names = tuple(names)
        self._book.forgive(names)
        self.look_at(names)

    def cancel_useless(self, names: Iterable[str]) -> None:
        """End operations for pods that want them no more."""
        for name in names:
            volume = self._book.get(name)
            if volume is not None and volume.running is not None and not still_useful(volume.running, volume.wanted):
                self._scopes[name].cancel()

    def _next(self, name: str) -> Operation | None:
        """What to start now; a timer is set for what has to wait."""
        volume = self._book.get(name)
        if self._nursery is None or volume is None or volume.running is not None:
            return None
        step = self._book.next_step(name, trio.current_time(), may_unstage=self._may_unstage())
        if step.operation is None and step.wake_at is not None:
            self._set_timer(name, step.wake_at)
        return step.operation

    def _begin(self, operation: Operation) -> None:
        self._book.begin(operation)
        self._scopes[operation.name] = trio.CancelScope()

    async def _perform(self, operation: Operation) -> None:
        """A task. When it is cancelled from outside, the agent ends, and nothing follows."""
        await self._do(operation)
        self.look_at((operation.name,))

    async def _do(self, operation: Operation) -> None:
        outcome: Outcome = Failed(Certainty.UNCERTAIN, "it was cancelled", cancelled=True)
        try:
            with self._scopes[operation.name]:
                outcome = await self._operations.perform(operation)
        finally:
            del self._scopes[operation.name]
            now = trio.current_time()
            if not (isinstance(outcome, Failed) and outcome.cancelled):
                self.durations.observe(operation_labels(operation, outcome), now - operation.began)
            affected = self._book.finish(operation, outcome, now)
            self._on_end(operation, affected)

    def _set_timer(self, name: str, at: float) -> None:
        if self._timer_of.get(name) == at:
            return
        self._timer_of[name] = at
        heapq.heappush(self._timers, (at, name))
        if self._timers[0] == (at, name):
            self._timer_changed.set()

    def _due(self) -> list[str]:
        now, names = trio.current_time(), []
        while self._timers and self._timers[0][0] <= now:
            at, name = heapq.heappop(self._timers)
            if self._timer_of.get(name) == at:
                del self._timer_of[name]
                names.append(name)
        return names
