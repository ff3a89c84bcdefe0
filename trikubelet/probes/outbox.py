"""Results on their way to the sync loop: the newest of each probe.

A channel that holds each result would make a worker wait while the loop waits for a runtime, and the loop act on what
is no longer so. Here a newer result takes the place of an older one of the same probe, as `StatusSubscription` does it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from trikubelet.probes.types import ProbeKey, ProbeUpdate


class ProbeUpdates:
    """The results that were not received yet, in the order in which their probes first changed."""

    def __init__(self) -> None:
        self._pending: dict[ProbeKey, ProbeUpdate] = {}
        self._send, self._receive = trio.open_memory_channel[None](1)

    def put(self, key: ProbeKey, update: ProbeUpdate) -> None:
        """Send a result. Never waits."""
        self._pending[key] = update
        with contextlib.suppress(trio.WouldBlock):  # somebody has been woken already
            self._send.send_nowait(None)

    def drop(self, key: ProbeKey) -> None:
        """Call back what was not received yet: the probe has ended."""
        self._pending.pop(key, None)

    async def receive(self) -> ProbeUpdate:
        """The next result. Cancelling it loses nothing."""
        await trio.lowlevel.checkpoint()
        while not self._pending:
            await self._receive.receive()
        return self._pending.pop(next(iter(self._pending)))

    def __len__(self) -> int:
        return len(self._pending)
