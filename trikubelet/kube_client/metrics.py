"""What a client counts of its requests to the API server, as client-go's `rest_client_…` metrics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from trikubelet.telemetry.metrics import Histograms

if TYPE_CHECKING:
    from trikubelet.telemetry.metrics import Counts

DURATION_BOUNDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Seconds."""
SIZE_BOUNDS: Final = (64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
"""Bytes."""
NO_ANSWER: Final = "<error>"
"""In the place of a status code."""


class RequestMetrics:
    """Of all views of a client, by method: they speak with one server."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.answers: Counts = Counter()
        """Attempts, by status code and method."""
        self.durations = Histograms(DURATION_BOUNDS)
        """Seconds of attempts; of a watch nothing."""
        self.waits = Histograms(DURATION_BOUNDS)
        """Seconds that calls waited for the client's own rate limit."""
        self.sent = Histograms(SIZE_BOUNDS)
        self.received = Histograms(SIZE_BOUNDS)
        """Bytes of bodies, as they are on the wire."""
