"""Waiting for an API server before it is asked again.

A failed call is tried again after a pause, longer each time; but when the server answers another call
meanwhile there is nothing to wait for any more (`health.py`). A recovery may come between a call's failure and the
beginning of the pause, so what counts is what was known before the call was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trikubelet.kube_client.health import ConnectionHealth


async def until_recovery(
    health: ConnectionHealth,
    seen: int,
    within: float,
    *,
    sooner: trio.CancelScope | None = None,
    spread: Callable[[], float] = lambda: 0.0,
) -> None:
    """Return when the server is back, and after `within` seconds at the latest.

    `seen`: `health.recoveries` before the call that failed. Cancelling `sooner` ends the wait as a recovery does.
    `spread` gives the seconds to wait after that, so that waiting calls do not come all at once.
    """
    with trio.move_on_after(within):
        with sooner or trio.CancelScope():
            await health.wait_recovery(seen)
        await trio.sleep(spread())


class GrowingPauses:
    """The pauses between one task's attempts: each `factor` times the last, between `first` and `longest` seconds."""

    def __init__(
        self,
        health: ConnectionHealth,
        first: float,
        longest: float,
        *,
        factor: float = 2.0,
        vary: Callable[[], float] = lambda: 1.0,
        spread: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`vary` gives the factor by which a pause differs from its plan, `spread` see `until_recovery`."""
        self._health = health
        self._backoff = Backoff(first, longest, factor)
        self._vary, self._spread = vary, spread
        self._seen = health.recoveries
        self.next = first
        """Seconds that the next pause is planned to take."""

    def attempt(self) -> None:
        """An attempt begins: a recovery from now on ends the pause after it."""
        self._seen = self._health.recoveries

    def succeeded(self) -> None:
        """The next pause is a first one again."""
        self.next = self._backoff.first

    async def after_failure(self) -> None:
        """Return when the next attempt is due, at once when the server is back."""
        await until_recovery(self._health, self._seen, self._grow(), spread=self._spread)

    async def until(self, event: Callable[[], Awaitable[object]]) -> None:
        """Return when the next attempt is due, at once when `event` returns: nothing failed, something is missing."""
        with trio.move_on_after(self._grow()):
            await event()

    def _grow(self) -> float:
        planned, self.next = self.next, self._backoff.after(self.next)
        return planned * self._vary()
