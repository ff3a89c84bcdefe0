"""How long a failed operation on a volume waits before it is tried again. Pure.

The kubelet's numbers (`exponentialbackoff`): half a second, doubled with each failure of the same operation, at most
two minutes and two seconds. An operation of another sort starts afresh, and so does one after an event that may have
cured it: whoever hears of the event drops the backoff.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import attrs

FIRST_DELAY: Final = 0.5
FACTOR: Final = 2.0
LONGEST_DELAY: Final = 122.0
"""Seconds, all three but the factor."""


@attrs.frozen
class Backoff:
    """What failed last, and when it may be tried again (Trio time)."""

    what: Hashable
    delay: float
    until: float

    def holds(self, what: Hashable, now: float) -> bool:
        """Whether `what` has to wait."""
        return self.what == what and now < self.until


def after_failure(previous: Backoff | None, what: Hashable, now: float) -> Backoff:
    """The backoff of an operation that failed just now."""
    if previous is None or previous.what != what:
        return Backoff(what, FIRST_DELAY, now + FIRST_DELAY)
    delay = min(previous.delay * FACTOR, LONGEST_DELAY)
    return Backoff(what, delay, now + delay)
