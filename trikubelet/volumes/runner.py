"""Starts the operations that are due, each as a task, and has them written down when they end.

One task waits for the times that backoffs and renewals were set for. All else is started at once by the task that
learns of it (`start_next`), and so is what follows an operation.
"""

from __future__ import annotations

import heapq
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from trikubelet.broadcast import Broadcast
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.metrics import Histograms
from trikubelet.volumes.decisions import Certainty, Failed, Operation, Outcome, still_useful
from trikubelet.volumes.metrics import STORAGE_BOUNDS, operation_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trio_typing import TaskStatus

    from trikubelet.volumes.operations import Operations
    from trikubelet.volumes.tracked_volumes import TrackedVolumes


class Runner:
    """`on_end` is called with the UIDs of pods for which something is different, after an operation was written down.
    `may_unstage`: as in `decisions.VolumeContext`."""

    def __init__(
        self,
        tracked: TrackedVolumes,
        operations: Operations,
        *,
        on_end: Callable[[Operation, frozenset[str]], None],
        may_unstage: Callable[[], bool],
    ) -> None:
        self.durations = Histograms(STORAGE_BOUNDS)
        """Seconds of operations, by `operation_labels`; of those that were cancelled nothing."""
        self._tracked = tracked
        self._operations = operations
        self._on_end = on_end
        self._may_unstage = may_unstage
        self._scopes: dict[str, trio.CancelScope] = {}
        """Of the operations that are going on, by the volume's unique name."""
        self._timers: list[tuple[float, str]] = []
        self._timer_of: dict[str, float] = {}
        self._timer_changed: Broadcast[None] = Broadcast()
        self._start, self._begun = trio.open_memory_channel[Operation](math.inf)
        self._running = False
        self._pods: dict[str, trio.Nursery] = {}
        """Of pods whose scopes are open, by UID."""

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run operations until cancelled. Before, none is started."""
        async with trio.open_nursery() as nursery:
            self._running = True
            nursery.start_soon(supervise, self._keep_time)
            self.start_next(self._tracked.names())
            task_status.started()
            await supervise(self._begin_operations, nursery)

    async def _begin_operations(self, nursery: trio.Nursery) -> None:
        async for operation in self._begun:
            nursery.start_soon(contain, self._perform, operation)

    def start_next(self, names: Iterable[str]) -> None:
        """Start what comes next for each of the volumes."""
        for name in names:
            operation = self._next(name)
            if operation is not None:
                self._begin(operation)
                if operation.uid in self._pods:
                    task_name = f"{operation.action.value} volume {operation.name}"
                    self._pods[operation.uid].start_soon(self._perform, operation, name=task_name)
                else:
                    self._start.send_nowait(operation)

    @contextmanager
    def of_pod(self, uid: str, nursery: trio.Nursery) -> Iterator[None]:
        """Within, operations for this pod alone run in its nursery."""
        self._pods[uid] = nursery
        try:
            yield
        finally:
            if self._pods.get(uid) is nursery:
                del self._pods[uid]

    async def do_now(self, name: str) -> None:
        """Do what comes next for a volume in the caller's task. When that is cancelled, another task takes over."""
        operation = self._next(name)
        if operation is not None:
            self._begin(operation)
            try:
                await self._do(operation)
            finally:
                self.start_next((name,))

    def try_again(self, names: Iterable[str]) -> None:
        """Something may have cured what failed."""
        names = tuple(names)
        self._tracked.forgive(names)
        self.start_next(names)

    def cancel_useless(self, names: Iterable[str]) -> None:
        """End operations for pods that want them no more."""
        for name in names:
            volume = self._tracked.get(name)
            if volume is not None and volume.running is not None and not still_useful(volume.running, volume.wanted):
                self._scopes[name].cancel()

    def _next(self, name: str) -> Operation | None:
        """What to start now; a timer is set for what has to wait."""
        volume = self._tracked.get(name)
        if not self._running or volume is None or volume.running is not None:
            return None
        step = self._tracked.next_step(name, trio.current_time(), may_unstage=self._may_unstage())
        if step.operation is None and step.wake_at is not None:
            self._set_timer(name, step.wake_at)
        return step.operation

    def _begin(self, operation: Operation) -> None:
        self._tracked.begin(operation)
        self._scopes[operation.name] = trio.CancelScope()

    async def _perform(self, operation: Operation) -> None:
        """A task. When it is cancelled with its pod's scope, another one takes over."""
        try:
            await self._do(operation)
        finally:
            self.start_next((operation.name,))

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
            affected = self._tracked.finish(operation, outcome, now)
            self._on_end(operation, affected)

    def _set_timer(self, name: str, at: float) -> None:
        if self._timer_of.get(name) == at:
            return
        self._timer_of[name] = at
        heapq.heappush(self._timers, (at, name))
        if self._timers[0] == (at, name):
            self._timer_changed.send(None)

    async def _keep_time(self) -> None:
        while True:
            with trio.move_on_at(self._timers[0][0] if self._timers else math.inf):
                await self._timer_changed.wait()
            self.start_next(self._due())

    def _due(self) -> list[str]:
        now, names = trio.current_time(), []
        while self._timers and self._timers[0][0] <= now:
            at, name = heapq.heappop(self._timers)
            if self._timer_of.get(name) == at:
                del self._timer_of[name]
                names.append(name)
        return names
