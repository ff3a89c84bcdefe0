"""Counts what health checks found, for `/metrics/slis` (KEP-3466).

The kubelet counts when somebody asks its `/healthz`. Here a scrape asks too: a node without probes has its numbers
all the same.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trikubelet.telemetry.metrics import Counts

HEALTHZ: Final = "healthz"
SUCCESS: Final = "success"
ERROR: Final = "error"


class HealthChecks:
    """`checks` gives what is wrong, None where nothing is, by the name of the check."""

    def __init__(self, checks: Callable[[], Mapping[str, str | None]]) -> None:
        self._checks = checks
        self.results: dict[str, bool] = {}
        """The last ones, by name."""
        self.counts: Counts = Counter()
        """By name and result."""

    def check(self) -> Mapping[str, str | None]:
        """Ask all checks, count, and give what they say. For `/healthz`, too."""
        found = self._checks()
        for name, problem in found.items():
            self.observe(name, problem is None)
        return found

    def observe(self, name: str, well: bool) -> None:
        """Count what somebody else has asked."""
        self.results[name] = well
        self.counts[name, SUCCESS if well else ERROR] += 1

    def reset(self) -> None:
        """Forget everything (`DELETE /metrics/slis`)."""
        self.results.clear()
        self.counts.clear()
