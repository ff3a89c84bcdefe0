"""How long the event loop is kept by one step of one task.

Measured is the processor time of the loop's thread, so that a machine that is busy with something else fails no test.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT: Final = 0.1
"""Seconds that a step may take: so late may everything else be."""


class Watchdog(trio.abc.Instrument):
    """Remembers the longest step of the tasks that it is told to watch."""

    def __init__(self, watches: Callable[[trio.lowlevel.Task], bool]) -> None:
        self._watches = watches
        self._began: float | None = None
        """None: the step that goes on now began before anybody watched."""
        self._modules = 0
        self.longest = 0.0
        """Seconds."""
        self.whose = ""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._modules = len(sys.modules)
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._began is None:
            return
        took = time.thread_time() - self._began
        # What is imported when it is first needed (OpenSSL, the metrics library) is read once in a life.
        imported = len(sys.modules) != self._modules
        if took > self.longest and not imported and self._watches(task):
            self.longest, self.whose = took, task.name


@contextmanager
def watched(watches: Callable[[trio.lowlevel.Task], bool] = lambda _: True) -> Iterator[Watchdog]:
    """Within, no step may take longer than LIMIT."""
    watchdog = Watchdog(watches)
    trio.lowlevel.add_instrument(watchdog)
    try:
        yield watchdog
    finally:
        trio.lowlevel.remove_instrument(watchdog)
    assert watchdog.longest < LIMIT, f"{watchdog.whose} kept the event loop for {watchdog.longest:.3f} s"


def assert_quick(work: Callable[[], object]) -> None:
    """The event loop would call this function: it may not take longer than LIMIT. The least of three times counts, for
    another program on the same core makes every instruction take longer."""
    times: list[float] = []
    while len(times) < 3 and (not times or times[-1] >= LIMIT):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    assert min(times) < LIMIT, f"it took {min(times):.3f} s"
