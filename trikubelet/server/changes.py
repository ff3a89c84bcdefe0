"""Telling any number of waiting readers that something changed, without a queue: a slow reader wakes once for many.

Readers subscribe first and look afterwards, so nothing that happens in between is missed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator


class Wakeup(Protocol):
    """One reader's alarm."""

    async def wait(self) -> None:
        """Return when something has changed since the last return (at first: since the subscription).

        Cancelling it loses nothing.
        """
        ...


class Alarm:
    """A `Wakeup` that anybody may ring."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = trio.Event()


class Changes:
    """Wakes its subscribers. `notify` may be called from any task of the run, and never blocks."""

    def __init__(self) -> None:
        self._alarms: set[Alarm] = set()

    @property
    def subscribers(self) -> int:
        return len(self._alarms)

    def notify(self) -> None:
        for alarm in self._alarms:
            alarm.ring()

    @contextmanager
    def subscribe(self, alarm: Alarm | None = None) -> Iterator[Wakeup]:
        """Until the block ends, the reader is woken for each change; by an alarm of its own, if it has one."""
        alarm = Alarm() if alarm is None else alarm
        self._alarms.add(alarm)
        try:
            yield alarm
        finally:
            self._alarms.discard(alarm)
