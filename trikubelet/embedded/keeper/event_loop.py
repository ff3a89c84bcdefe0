"""The keeper's loop: descriptors, timers, and nothing that waits.

Level-triggered epoll, so a callback may take as little as it likes and is called again in the next turn: that is what
makes "one block per container and turn" a rule that needs no bookkeeping. Time is the kernel's monotonic clock; the
keeper is a process of its own, outside Trio.
"""

from __future__ import annotations

import heapq
import select
import time

from trikubelet.embedded.keeper.log import log_exception

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
WRITE = select.EPOLLOUT
READ_WRITE = READ | WRITE


class Timer:
    """A callback due at a time; `cancel` makes it a no-op."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.due < other.due


class EventLoop:
    """Callbacks for descriptors and timers. A callback that fails is noted on stderr; the loop goes on."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], object]] = {}
        self._timers: list[Timer] = []
        self._running = True
        self.turn = 0
        """Counts the rounds of the loop, for work that may happen once in each."""

    def watch(self, descriptor: int, callback: Callable[[int], object], events: int = READ) -> None:
        """Call `callback(events)` in each turn in which the descriptor is ready."""
        if descriptor in self._callbacks:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def forget(self, descriptor: int) -> None:
        """Stop watching. Must come before the descriptor is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        while self._running:
            ready = self._epoll.poll(self._pause())
            self.turn += 1
            for descriptor, events in ready:
                callback = self._callbacks.get(descriptor)
                if callback is not None:
                    _guarded(callback, events)
            now = time.monotonic()
            while self._timers and self._timers[0].due <= now:
                due = heapq.heappop(self._timers).callback
                if due is not None:
                    _guarded(_without_events(due), 0)

    def _pause(self) -> float:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return -1.0
        return max(0.0, self._timers[0].due - time.monotonic())


def _guarded(callback: Callable[[int], object], events: int) -> None:
    try:
        callback(events)
    except Exception:  # noqa: BLE001 - one container's trouble must not end the others; it is in keeper.log
        log_exception()


def _without_events(callback: Callable[[], object]) -> Callable[[int], object]:
    return lambda _events: callback()
