"""How long a failed operation on a volume waits before it is tried again. Pure.

The kubelet's numbers (`exponentialbackoff`): half a second, doubled with each failure of the same operation, at most
two minutes and two seconds. An operation of another sort starts afresh, and so does one after an event that may have
cured it: the receiver of the event drops the delay.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from trikubelet.backoff import Backoff
from trikubelet.formats.values import frozen

DELAYS: Final = Backoff(first=0.5, longest=122.0)


@frozen
class RetryDelay:
    """What failed last, and when it may be tried again (Trio time)."""

    what: Hashable
    delay: float
    until: float

    def holds(self, what: Hashable, now: float) -> bool:
        """Whether `what` has to wait."""
        return self.what == what and now < self.until


def after_failure(previous: RetryDelay | None, what: Hashable, now: float) -> RetryDelay:
    """The delay of an operation that failed just now."""
    if previous is None or previous.what != what:
        return RetryDelay(what, DELAYS.first, now + DELAYS.first)
    delay = DELAYS.after(previous.delay)
    return RetryDelay(what, delay, now + delay)
