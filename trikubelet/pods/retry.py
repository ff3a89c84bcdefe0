"""When a life that has nothing to do looks at its pod again.

The kubelet's intervals (`completeWork` in its pod workers): a minute after success, ten seconds after an error, one
second when only the network is missing, and when a container's own backoff expires, if that is what stands in the way.
Each gets up to half of itself on top, so that many pods that failed together do not come back together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.pods.phases import Failed, Retry, RetryReason

if TYPE_CHECKING:
    from collections.abc import Iterator

JITTER: Final = 0.5
"""The largest part of an interval that is added to it."""


class NetworkNotReadyError(Exception):
    """The pod needs the runtime's network, which is not ready. Tried again soon."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"network is not ready: {reason}")
        self.reason = reason


class BackoffError(Exception):
    """Something of the pod is in backoff, so that another attempt before `retry_at` would do nothing."""

    def __init__(self, message: str, retry_at: float) -> None:
        super().__init__(message)
        self.retry_at = retry_at
        """Trio time at which the backoff expires."""


@frozen(kw_only=True)
class RetryPolicy:
    """Intervals in seconds."""

    resync_interval: float = 60.0
    backoff: float = 10.0
    network_backoff: float = 1.0

    def delay(self, retry: Retry, now: float, fraction: float) -> float:
        """Seconds to wait. `fraction`, in 0…1, says how much of the largest jitter is added."""
        match retry.reason:
            case RetryReason.RESYNC:
                seconds = self.resync_interval
            case RetryReason.NETWORK_NOT_READY:
                seconds = self.network_backoff
            case RetryReason.ERROR:
                seconds = self.backoff
                if retry.not_before is not None:
                    seconds = min(max(retry.not_before - now, 0.0), self.resync_interval)
        return seconds * (1 + JITTER * fraction)


def failure(error: BaseException) -> Failed:
    """What an error says about the next attempt.

    Looks into exception groups and causes. Any exception with a `retry_at` (Trio time) counts as a backoff; of several
    the earliest counts. A missing network outweighs backoffs.
    """
    errors = list(_walk(error))
    times = [time for each in errors if isinstance(time := getattr(each, "retry_at", None), int | float)]
    return Failed(
        network_not_ready=any(isinstance(each, NetworkNotReadyError) for each in errors),
        retry_at=min(times, default=None),
    )


def _walk(error: BaseException) -> Iterator[BaseException]:
    yield error
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _walk(part)
    if error.__cause__ is not None:
        yield from _walk(error.__cause__)
