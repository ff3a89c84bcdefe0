"""How `trikubelet run` is ended: the first SIGINT or SIGTERM asks, the second one insists.

Signals are counted by their handler and not by a task, which would see them only while Trio's loop turns and the task
is not cancelled. The second signal cancels everything and sets an alarm, whose signal a moment later leaves without
unwinding. So no cleanup that waits, no thread that hangs in the kernel, no loop that hangs itself and nothing that
Python does at its exit keeps the process. An agent that was asked to end logs now and then what it is waiting for.
"""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.formats.values import define
from trikubelet.node_api.task_tree import task_tree
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import FrameType

log = get_logger("agent")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
EXIT_SECOND_SIGNAL: Final = 130
ONE_SIGNAL: Final = 1.0
"""Seconds in which several signals count as one: a terminal and `timeout` both signal a whole group of processes."""
CLEANUP_TIMEOUT: Final = 1.0
"""Seconds between a second signal and the end by force."""
TOLD_EVERY: Final = 5.0
"""Seconds."""
_MOST_TASKS: Final = 20
_NURSERY: Final = "trio._core._run.Nursery"


@define(eq=False)
class Ending:
    """How far the agent is when it is asked to end."""

    asked: trio.Event = attrs.field(factory=trio.Event)
    insisted: bool = False
    runtime_started: bool = False
    """Before, there is nothing to end in order."""
    step: str = "starting"
    """What is being done, for the log."""
    progress: Callable[[], str] = lambda: ""
    """What it waits for, for people; empty when that is not known."""
    left_running: Callable[[], str] = lambda: ""
    """What runs on after a second signal, for people."""
    clock: Callable[[], float] = time.monotonic
    everything: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _signals: int = 0
    _signaled_at: float = -math.inf

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """While the block runs, signals end it. In the main thread only."""
        token = trio.lowlevel.current_trio_token()

        def count(number: int, _: FrameType | None) -> None:
            now = self.clock()
            if self._signals == 1 and now - self._signaled_at < ONE_SIGNAL:
                return
            self._signals, self._signaled_at = self._signals + 1, now
            if self._signals == 1:
                token.run_sync_soon(self._ask, number)
            elif self._signals == 2:
                self.insisted = True
                _leave_soon()
                token.run_sync_soon(self._insist, number)

        before = {number: signal.signal(number, count) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int) -> None:
        log.info("asked to end", signal=signal.Signals(number).name)
        self.ask()

    def ask(self) -> None:
        """As by the first signal."""
        self.asked.set()
        if not self.runtime_started:
            self.everything.cancel()

    def _insist(self, number: int) -> None:
        log.warning("second signal: ending at once", signal=signal.Signals(number).name)
        if left := self.left_running():
            log.warning(left)
        self.everything.cancel()


def _leave_soon() -> None:
    # The alarm outlives Trio's loop, and where Python has taken its handlers down it ends the process by itself.
    signal.signal(signal.SIGALRM, _leave)
    signal.setitimer(signal.ITIMER_REAL, CLEANUP_TIMEOUT)


def _leave(_: int, __: FrameType | None) -> None:
    os._exit(EXIT_SECOND_SIGNAL)


async def until_ended(run: Callable[[], Awaitable[int]], ending: Ending) -> int:
    """The exit code: that of `run`, 0 when it was cancelled by the first signal, EXIT_SECOND_SIGNAL by a second one.

    What `run` raises comes out in a group; after a second signal it is only logged. When cancelled, `run` is.
    """
    code = 0
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, _log_what_takes_long, ending)
            with ending.everything:
                code = await run()
            nursery.cancel_scope.cancel()
    except* Exception as group:
        if not ending.insisted:
            raise
        log.error("something failed while ending at once", exc_info=group)
    return EXIT_SECOND_SIGNAL if ending.insisted else code


async def _log_what_takes_long(ending: Ending) -> None:
    await ending.asked.wait()
    while True:
        await trio.sleep(TOLD_EVERY)
        log.info(ending.progress() or f"still {ending.step}")
        waits = list(dict.fromkeys(_waiting(task_tree())))
        log.debug("tasks that are left", tasks=len(waits), waits=waits[:_MOST_TASKS])


def _waiting(task: dict[str, Any]) -> Iterator[str]:
    """Where the tasks of ours wait, but for those that wait for others of them."""
    if "waits_at" in task and task["waits_at"] != task["waits_in"] and _NURSERY not in task["waits_in"]:
        yield f"{task['waits_at']} in {task['waits_in']}"
    for nursery in task.get("nurseries", ()):
        for child in nursery["tasks"]:
            yield from _waiting(child)
