"""The order of calls to the runtime when many pods start, or end, at once.

A runtime that is asked for a hundred sandboxes at once makes them all slowly, and whatever is stopped meanwhile waits
among them. So only so many calls that make something are under way, and of those that wait, the one goes first that is
nearest to a running container: the first pods are ready early, and the last one is not later.

Calls that stop a container never wait: its process is to have its signal at once. Sandboxes are stopped in turns of
their own, in the order in which their containers have ended: so of a hundred pods that end at once the first are gone
early, and the last one is not later. What is left of ended pods is removed when nothing waits to be stopped.

A call that takes long is one that waits itself (for a network plugin, say) and does not keep the machine busy. Its turn
is over after a while though it goes on, so that a few calls that hang do not hold up the node.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.broadcast import Inbox
from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LONGEST_TURN: Final = 2.0
"""Seconds."""


class CallKind(enum.IntEnum):
    """The kinds of calls that wait for turns, the one that goes first at the top."""

    START_CONTAINER = 0
    CREATE_CONTAINER = 1
    RUN_SANDBOX = 2
    STOP_SANDBOX = 3
    REMOVE = 4


@define(eq=False)
class _Waiter:
    kind: CallKind
    number: int
    woken: Inbox[None] = attrs.field(factory=Inbox)

    def __lt__(self, other: _Waiter) -> bool:
        return (self.kind, self.number) < (other.kind, other.number)


class Turns:
    """Lets `at_once` calls go on at a time."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._ends: dict[int, float] = {}
        """When the turns of calls under way are over at the latest, in Trio time."""
        self._waiting: list[_Waiter] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def take(self, kind: CallKind) -> AsyncIterator[None]:
        """Wait for a turn and have it within. May be cancelled freely."""
        number = next(self._numbers)
        await self._wait(_Waiter(kind, number))
        self._ends[number] = trio.current_time() + LONGEST_TURN
        self._wake_first()
        try:
            yield
        finally:
            del self._ends[number]
            self._wake_first()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def _wait(self, waiter: _Waiter) -> None:
        heapq.heappush(self._waiting, waiter)
        try:
            while self._waiting[0] is not waiter or not self._has_room():
                with trio.move_on_at(self._next_room() if self._waiting[0] is waiter else math.inf):
                    await waiter.woken.receive()
        finally:
            if self._waiting[0] is waiter:
                heapq.heappop(self._waiting)
            else:  # cancelled in the queue
                self._waiting.remove(waiter)
                heapq.heapify(self._waiting)
            self._wake_first()

    def _has_room(self) -> bool:
        now = trio.current_time()
        return sum(end > now for end in self._ends.values()) < self._at_once

    def _next_room(self) -> float:
        """When the next turn is over by itself."""
        now = trio.current_time()
        # Time goes on between two looks: the last turn may be over by now.
        return min((end for end in self._ends.values() if end > now), default=now)

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].woken.put(None)
