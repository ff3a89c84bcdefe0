"""Counts the requests that the node's servers get, by what they ask for (kubelet: `server/metrics`).

Paths come from clients. Only the first parts that the kubelet knows are told apart, and the methods of HTTP.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.telemetry.metrics import OTHER, Counts, Histograms, bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_WRITE: Final = "readwrite"
READ_ONLY: Final = "readonly"
METHODS: Final = frozenset({"OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"})
PATHS: Final = frozenset(
    {
        *("attach", "checkpoint", "configz", "containerLogs", "debug", "exec", "flagz", "healthz", "logs", "metrics"),
        *("metrics/cadvisor", "metrics/probes", "metrics/resource", "metrics/slis", "pods", "portForward", "pprof"),
        *("run", "runningpods", "stats", "statusz"),
    }
)
_LONG: Final = frozenset({"attach", "debug", "exec", "portforward"})
"""As the kubelet has them; its `portForward` is none of them, for the capital."""
STREAMS: Final = frozenset({"attach", "exec", "portforward"})


class RequestCounts:
    """By method, path, server (`readwrite` or `readonly`) and whether such requests last long."""

    def __init__(self) -> None:
        self.requests: Counts = Counter()
        self.durations = Histograms()
        """Seconds until the answer was sent, or the stream ended."""
        self.in_flight: Counts = Counter()
        self.websockets: Counts = Counter()
        """Streams over WebSocket, by what is streamed: `exec`, `attach` or `portforward`."""

    @contextmanager
    def request(self, method: str, path: str, *, server: str = READ_WRITE) -> Iterator[None]:
        """Within, the server is busy with a request. `path`: without the query."""
        root = path_label(path)
        labels = (bounded(method, METHODS), root, server, "true" if root in _LONG else "false")
        began = trio.current_time()
        self.requests[labels] += 1
        self.in_flight[labels] += 1
        try:
            yield
        finally:
            self.in_flight[labels] -= 1
            self.durations.observe(labels, trio.current_time() - began)

    def websocket(self, stream: str) -> None:
        """A request for a stream came over WebSocket."""
        self.websockets[(bounded(stream, STREAMS),)] += 1


def path_label(path: str) -> str:
    """The path's first part, for metrics the first two, or `other` (`getMetricBucket`)."""
    first, _, rest = path.removeprefix("/").partition("/")
    if first == "metrics" and rest:
        first = f"metrics/{rest.partition('/')[0]}"
    return bounded(first, PATHS) if first else OTHER
