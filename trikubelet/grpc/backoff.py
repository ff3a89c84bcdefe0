"""How long to wait between attempts to connect."""

from __future__ import annotations

import attrs


@attrs.frozen
class Backoff:
    """Exponential, with jitter. The defaults are the kubelet's for its runtime (cri-client: `baseBackoffDelay`,
    `maxBackoffDelay`) and gRPC's (connection-backoff.md) for the rest."""

    base: float = 0.1
    """Seconds after the first failure."""
    factor: float = 1.6
    jitter: float = 0.2
    """The delay varies by this share, up and down."""
    maximum: float = 3.0
    """Seconds, before jitter."""

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after so many failures in a row (at least 1); `chance` is uniform in [0, 1)."""
        steps = min(failures - 1, 64)
        plain = min(self.maximum, self.base * self.factor**steps)
        return plain * (1 + self.jitter * (2 * chance - 1))


DEFAULT_BACKOFF = Backoff()
