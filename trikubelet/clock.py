"""The two clocks of the agent.

Durations and deadlines use `trio.current_time()`, always. Timestamps that leave the process (statuses, log lines,
events) come from one injected `WallClock`, so that a test under `trio.testing.MockClock` sees both move together.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

import trio


class WallClock(Protocol):
    """Tells the date. Implementations are cheap and never block."""

    def now(self) -> datetime:
        """The current time, timezone-aware, in UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class TrioClock:
    """A wall clock that follows `trio.current_time()`: for tests and simulations on a mock clock.

    The first call of `now` fixes the epoch, so the object may be built outside `trio.run`.
    """

    def __init__(self, epoch: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._epoch = epoch
        self._origin: float | None = None

    def now(self) -> datetime:
        current = trio.current_time()
        if self._origin is None:
            self._origin = current
        return self._epoch + timedelta(seconds=current - self._origin)
