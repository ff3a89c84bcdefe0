"""How long to wait before something that failed is tried again. Pure: no clock, no random numbers of its own."""

from __future__ import annotations

from trikubelet.formats.values import frozen


@frozen
class Backoff:
    """Waits that grow with each failure in a row, in seconds."""

    first: float
    longest: float
    """Before jitter."""
    factor: float = 2.0
    jitter: float = 0.0
    """A delay varies by this share, up and down."""

    def delay(self, failures: int, chance: float = 0.5) -> float:
        """The wait after so many failures in a row, at least 1. `chance` is uniform in [0, 1)."""
        plain = min(self.longest, self.first * self.factor ** min(failures - 1, 64))
        return plain * (1 + self.jitter * (2 * chance - 1))

    def after(self, delay: float) -> float:
        """The wait that follows one of `delay`, without jitter. A longer wait than the longest stays as it is."""
        return min(self.factor * delay, max(delay, self.longest))
