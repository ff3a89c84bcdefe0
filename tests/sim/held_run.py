"""A run of Trio that stands still between steps, for tests whose next step depends on what the last one did.

Trio runs as a guest of a loop that turns only while a step is being taken, in the caller's own thread. On a mock clock
that jumps as soon as nothing can run, Trio never waits for input or output; so it never needs the thread in which a
guest does that, and between steps no time passes, not even simulated.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import trio
import trio.testing

from trikubelet.sim.node import fixed_choices

if TYPE_CHECKING:
    import outcome

LONGEST_STEP: Final = 3600.0
"""Simulated seconds: a step that takes longer hangs."""


class HeldRun:
    """One run, with every choice fixed by `seed`. `close` it before the next one begins."""

    def __init__(self, *, seed: int) -> None:
        self._ticks: deque[Callable[[], object]] = deque()
        self._outcome: outcome.Outcome[None] | None = None
        self._nursery: trio.Nursery | None = None
        self._error: Exception | None = None
        self._taken = 0
        self._resources = ExitStack()
        self._resources.enter_context(fixed_choices(seed))
        self._send_step, self._steps = trio.open_memory_channel[Callable[[], Awaitable[object]]](1)
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._add_tick,
            done_callback=self._ended,
            host_uses_signal_set_wakeup_fd=True,  # so that Trio leaves the signals alone
            clock=trio.testing.MockClock(autojump_threshold=0),
        )

    def start_soon(self, background: Callable[[], Awaitable[object]]) -> None:
        """A task that lives from the next step on, until `close`. An exception in it ends the run, and the step."""

        async def start() -> None:
            assert self._nursery is not None
            self._nursery.start_soon(background)

        self.do(start)

    def do(self, step: Callable[[], Awaitable[object]]) -> None:
        """Take one step: the run goes on until `step` has returned. Raises what `step` raised."""
        number = self._taken + 1
        self._send_step.send_nowait(step)
        while self._taken < number and self._outcome is None:
            self._ticks.popleft()()
        if self._outcome is not None:
            self._outcome.unwrap()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Cancel everything. Raises what the run raised, unless a step did already."""
        over = self._outcome is not None
        try:
            self._send_step.close()
            while self._outcome is None:
                self._ticks.popleft()()
        finally:
            self._resources.close()
        if not over:
            self._outcome.unwrap()

    async def _main(self) -> None:
        async with trio.open_nursery() as self._nursery:
            async for step in self._steps:
                self._error = None
                try:
                    with trio.fail_after(LONGEST_STEP):
                        await step()
                except Exception as error:  # noqa: BLE001 - the caller's
                    self._error = error
                self._taken += 1
            self._nursery.cancel_scope.cancel()

    def _add_tick(self, tick: Callable[[], object]) -> None:
        assert threading.current_thread() is threading.main_thread(), "Trio waits for something real"
        self._ticks.append(tick)

    def _ended(self, result: outcome.Outcome[None]) -> None:
        self._outcome = result
