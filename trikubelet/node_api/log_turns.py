"""How readers of logs share the agent's one thread with each other and with everything else.

A block of a log costs a third of a millisecond, and a look whether there is more of one a tenth. Two hundred readers
that are all served whenever the loop comes round would make everybody else wait for sixty milliseconds each time. So
they take turns: one block for each round of the loop. And followers rest between two looks, the longer the more there
are, so that together they take no more than a part of the thread however often containers write. One alone does not
rest at all; two hundred show a new line a tenth of a second later at most.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator

REST: Final = 0.0005
"""Seconds between two looks, for each other follower."""


class LogTurns:
    """Of all readers of a run."""

    def __init__(self) -> None:
        self.turn = trio.Lock()
        """Its holder may take one block, and awaits nothing else meanwhile. Fair: first come, first served."""
        self._followers = 0

    @contextmanager
    def following(self) -> Iterator[None]:
        """One more follower, until the block ends."""
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1

    @property
    def rest(self) -> float:
        """Seconds that a follower lets pass between two looks."""
        return REST * max(0, self._followers - 1)


_turns: trio.lowlevel.RunVar[LogTurns] = trio.lowlevel.RunVar("turns_of_log_readers")


def log_turns() -> LogTurns:
    """Those of the present run."""
    try:
        return _turns.get()
    except LookupError:
        turns = LogTurns()
        _turns.set(turns)
        return turns
