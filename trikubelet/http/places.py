"""Which clients may hold a connection, when there are more than the agent can afford.

Refusing the newest would let a thousand clients that say nothing keep everybody else out. So a newcomer, when all
places are taken, gets that of the connection that has been waiting for its client the longest: in a handshake, for a
request, or for a next one. A client that says what it wants as fast as it can is hardly ever the longest. Only when
every place is at work, being answered or taken over, it is refused.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from trikubelet.broadcast import Broadcast

if TYPE_CHECKING:
    from collections.abc import Iterator


class NoPlaceError(Exception):
    """Every connection is at work."""


class Place:
    """One connection's. It is lost by `scope` being cancelled, which only happens while it waits."""

    def __init__(self, waiting: dict[Place, None]) -> None:
        self._waiting = waiting
        self.scope = trio.CancelScope()
        self.wait()

    def wait(self) -> None:
        """From now on the connection waits for its client."""
        self._waiting.pop(self, None)
        self._waiting[self] = None

    def work(self) -> None:
        """From now on it is at work."""
        self._waiting.pop(self, None)


class Places:
    """A number of places; a shared one for whatever comes in by one door."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: set[Place] = set()
        self._waiting: dict[Place, None] = {}
        """The connections that may be closed, the longest idle first."""
        self._given_back: Broadcast[None] = Broadcast()
        self.lost = 0

    @property
    def taken(self) -> int:
        return len(self._taken)

    @contextmanager
    def take(self) -> Iterator[Place]:
        """A place while the block runs, which ends early when it is lost. Raises NoPlaceError."""
        if len(self._taken) >= self._most:
            self._take_away_one()
        place = Place(self._waiting)
        self._taken.add(place)
        try:
            with place.scope:
                yield place
        finally:
            place.work()
            self._give_back(place)

    def _take_away_one(self) -> None:
        longest = next(iter(self._waiting), None)
        if longest is None:
            raise NoPlaceError
        longest.work()
        longest.scope.cancel()
        # It is free from now on, although its task ends a moment later.
        self._give_back(longest)
        self.lost += 1

    def _give_back(self, place: Place) -> None:
        self._taken.discard(place)
        self._given_back.send(None)

    def empty_all(self) -> None:
        """Take away every place."""
        for place in list(self._taken):
            place.scope.cancel()

    async def all_given_back(self) -> None:
        while self._taken:
            await self._given_back.wait()
