"""How long the event loop is kept by one step of one task.

Measured is the processor time of the loop's thread, so that a machine that is busy with something else fails no test;
without that of Python's collector, which finds far more in a process that has run thousands of tests than in an agent.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import time
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import trio

import trikubelet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LIMIT: Final = 0.1
"""Seconds that a step may take: so late may everything else be."""
EXAMPLE: Final = 1.0
"""Seconds of processor time for one example of a fuzz test, with the libraries that judge it: a hundred times what it
takes, so that what fails has got out of hand, on whatever machine."""
TRIES: Final = 3
_BOUNDED: Final = "_has_bounds"
_PACKAGE: Final = str(Path(trikubelet.__file__).parent)


class SlowError(AssertionError):
    """Something has taken too long."""


class _Collector(threading.local):
    """The processor time that Python's collector has taken in a thread."""

    began = 0.0
    seconds = 0.0

    def note(self, phase: str, _: object) -> None:
        if phase == "start":
            self.began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self.began


_collector = _Collector()
gc.callbacks.append(_collector.note)


class Watchdog(trio.abc.Instrument):
    """Remembers the longest step of the tasks that it is told to watch."""

    def __init__(self, watches: Callable[[trio.lowlevel.Task], bool]) -> None:
        self._watches = watches
        self._began: float | None = None
        """None: the step that goes on now began before anybody watched."""
        self._modules = 0
        self._collected = 0.0
        self.longest = 0.0
        """Seconds."""
        self.whose = ""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._modules = len(sys.modules)
        self._collected = _collector.seconds
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._began is None:
            return
        took = time.thread_time() - self._began - (_collector.seconds - self._collected)
        # What is imported when it is first needed (OpenSSL, the metrics library) is read once in a life.
        imported = len(sys.modules) != self._modules
        if took > self.longest and not imported and self._watches(task):
            self.longest, self.whose = took, task.name

    def judge(self) -> None:
        """Raises SlowError."""
        if self.longest >= LIMIT:
            raise SlowError(f"{self.whose} kept the event loop for {self.longest:.3f} s")


@contextmanager
def watched(watches: Callable[[trio.lowlevel.Task], bool] = lambda _: True) -> Iterator[Watchdog]:
    """Within, no step may take longer than LIMIT."""
    watchdog = Watchdog(watches)
    trio.lowlevel.add_instrument(watchdog)
    try:
        yield watchdog
    finally:
        trio.lowlevel.remove_instrument(watchdog)
    watchdog.judge()


def of_package(task: trio.lowlevel.Task) -> bool:
    """And not of a test, which makes keys and inputs."""
    return _PACKAGE in task.coro.cr_code.co_filename


@contextmanager
def _watched_runs() -> Iterator[None]:
    """Within, the package's tasks in each run of Trio that a test begins by itself are watched."""
    run, watchdog = trio.run, Watchdog(of_package)

    def run_watched(*arguments: Any, instruments: Sequence[trio.abc.Instrument] = (), **options: Any) -> Any:
        return run(*arguments, instruments=(*instruments, watchdog), **options)

    with patch.object(trio, "run", run_watched):
        yield
    watchdog.judge()


@contextmanager
def one_example() -> Iterator[None]:
    """Around what is done with one input, made by chance."""
    began = time.thread_time()
    yield
    took = time.thread_time() - began
    if took >= EXAMPLE:
        raise SlowError(f"this example took {took:.3f} s")


def bounded(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test, or what Hypothesis calls for each example: one that runs in the event loop, or runs one, may keep it no
    longer than LIMIT; others may take no longer than EXAMPLE. What is too slow TRIES times is too slow."""
    if hasattr(test, _BOUNDED):
        return test

    @wraps(test)
    async def watched_test(*arguments: Any, **more: Any) -> None:
        for left in reversed(range(TRIES)):
            try:
                with watched(of_package):
                    await test(*arguments, **more)
            except SlowError:
                if not left:
                    raise
            else:
                return

    @wraps(test)
    def bounded_test(*arguments: Any, **more: Any) -> None:
        for left in reversed(range(TRIES)):
            try:
                with _watched_runs(), one_example():
                    test(*arguments, **more)
            except SlowError:
                if not left:
                    raise
            else:
                return

    found = watched_test if inspect.iscoroutinefunction(test) else bounded_test
    setattr(found, _BOUNDED, True)
    return found


def assert_quick(work: Callable[[], object], limit: float = LIMIT) -> None:
    """The event loop would call this function: it may not take longer than `limit` seconds. The least of TRIES times
    counts, for another program on the same core makes every instruction take longer."""
    times: list[float] = []
    while len(times) < TRIES and (not times or times[-1] >= limit):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    assert min(times) < limit, f"it took {min(times):.3f} s"
