"""Which process runs which tests."""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling


class Scheduling(LoadGroupScheduling):  # type: ignore[misc]
    """xdist's own, which at the end of each test counts those that its process still has to run, by way of all that
    it ever had. That grows with the square of their number. Here what is done is forgotten."""

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        for unit in [unit for unit, tests in workload.items() if all(tests.values())]:
            del workload[unit]
        left: int = super()._pending_of(workload)
        return left
