"""The client's own rate limit: a token bucket that urgent calls may overdraw.

A limit protects the API server from an agent that has gone wrong, but what it slows down is an agent that has much to
do: a hundred pods that start at once make several hundred writes, and at fifty a second the last pod would be Ready
seconds after it was. Yet most of those writes can wait. So a call says whether it is urgent. An urgent one goes at once
and leaves a debt; the others wait until it is paid. Over a minute the rate is still the one that was set.

Calls that wait reserve their token when they come, so they go in that order. (client-go's limiter is the same bucket
without debt.)
"""

from __future__ import annotations

import trio

from trikubelet.formats.values import define
from trikubelet.kube_client.types import RateLimit, Urgency
from trikubelet.telemetry.logs import get_logger

log = get_logger("cluster")

_NOTICEABLE = 0.05
"""Seconds of waiting that are worth a line of the debug log (client-go's own threshold)."""
_LONG = 1.0
"""Seconds of waiting that are worth a line of the log."""


def configured_limit(qps: float, burst: int) -> RateLimit | None:
    """The limit that a configuration's `…QPS` and `…Burst` mean. A rate of 0, or below, is no limit.

    So the kubelet's documentation has it; client-go makes five a second of a 0.
    """
    return RateLimit(qps, max(1, burst)) if qps > 0 else None


@define
class TokenBucket:
    """The state of a limit. Knows no clock: `now` is in seconds, on any clock that does not go back."""

    limit: RateLimit
    tokens: float
    """Calls that may go at once; below zero, calls that have gone or wait in advance of their time."""
    updated: float

    @classmethod
    def full(cls, limit: RateLimit, now: float) -> TokenBucket:
        """A bucket of which nothing was taken. Raises ValueError for a limit that would never let a call go."""
        if limit.qps <= 0 or limit.burst < 1:
            raise ValueError(f"expected a positive rate and a burst of at least 1, got {limit}")
        return cls(limit, float(limit.burst), now)

    def take(self, now: float) -> float:
        """Take a token; the seconds after which it is there. Urgent calls do not wait for that."""
        self._fill(now)
        self.tokens -= 1
        return max(0.0, -self.tokens / self.limit.qps)

    def give_back(self, now: float) -> None:
        """The call will not be made."""
        self._fill(now)
        self.tokens = min(self.limit.burst, self.tokens + 1)

    def _fill(self, now: float) -> None:
        self.tokens = min(self.limit.burst, self.tokens + max(0.0, now - self.updated) * self.limit.qps)
        self.updated = max(now, self.updated)


class RateLimiter:
    """A bucket and the calls that wait for it. None as the limit: no call waits."""

    def __init__(self, limit: RateLimit | None) -> None:
        self._limit = limit
        self._bucket: TokenBucket | None = None
        self._waiting = 0
        if limit is not None:
            TokenBucket.full(limit, 0.0)  # refuse a useless limit here, not at the first call

    @property
    def waiting(self) -> int:
        """Calls that wait now."""
        return self._waiting

    async def admit(self, urgency: Urgency, request: str) -> None:
        """Return when the call `request` may go. No checkpoint when that is at once. A cancelled wait takes nothing."""
        if self._limit is None:
            return
        now = trio.current_time()
        if self._bucket is None:
            self._bucket = TokenBucket.full(self._limit, now)
        wait = self._bucket.take(now)
        if urgency is Urgency.URGENT or wait <= 0:
            return
        self._waiting += 1
        try:
            await trio.sleep(wait)
        except trio.Cancelled:
            self._bucket.give_back(trio.current_time())
            raise
        finally:
            self._waiting -= 1
        if wait >= _NOTICEABLE:
            write = log.info if wait >= _LONG else log.debug
            write("waited for the agent's own rate limit", request=request, seconds=round(wait, 2))
