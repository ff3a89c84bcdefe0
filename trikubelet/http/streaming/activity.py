"""When something last moved on a connection."""

from __future__ import annotations

import trio


class Activity:
    """Recorded by the readers and writers of a connection, watched by one task."""

    def __init__(self) -> None:
        self._last = trio.current_time()

    def record(self) -> None:
        self._last = trio.current_time()

    async def wait_idle(self, timeout: float) -> None:
        """Return once nothing was recorded for `timeout` seconds."""
        while True:
            left = self._last + timeout - trio.current_time()
            if left <= 0:
                return
            await trio.sleep(left)
