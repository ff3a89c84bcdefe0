"""Whether the API server answers, told by every call that ends.

During an outage dozens of tasks have something to write. Each would try again on its own schedule, and after a long
outage that is slow and bursty at once. So the first call that is answered again wakes all waiting calls. While nothing
is sent, since there are no credentials, they wait in the same way; then new credentials wake them too.
"""

from __future__ import annotations

import trio

from trikubelet.broadcast import Broadcast
from trikubelet.telemetry.logs import get_logger

log = get_logger("cluster")


class ConnectionHealth:
    """Whether the API server answers; the client keeps it.

    Any answer counts, a refusal too. Lost or refused connections, and answers that did not come in time, do not.
    Without credentials nothing is sent, which counts as no answer.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._reachable = True
        self._recoveries = 0
        self._recovered: Broadcast[None] = Broadcast()
        self.changes: Broadcast[bool] = Broadcast()
        """`reachable`, whenever it is another."""
        self._lost_at = 0.0

    @property
    def reachable(self) -> bool:
        """How the last call ended. True before the first."""
        return self._reachable

    @property
    def lost_at(self) -> float | None:
        """The Trio time since which the server does not answer; None while it does."""
        return None if self._reachable else self._lost_at

    @property
    def recoveries(self) -> int:
        """How often the server answered again after it had not, or could be thought to, with new credentials."""
        return self._recoveries

    async def wait_recovery(self, seen: int) -> None:
        """Return once `recoveries` exceeds `seen`, which the caller read before the call that failed.

        So no recovery is missed, however short, and none is waited for twice. Cancellable; nothing is left behind.
        """
        await trio.lowlevel.checkpoint()
        while self._recoveries <= seen:
            await self._recovered.wait()

    def answered(self) -> None:
        """The server answered, whatever it said."""
        if self._reachable:
            return
        self._reachable = True
        seconds = trio.current_time() - self._lost_at
        log.info("API server answers again", server=self._server, after=f"{seconds:.1f} s")
        self._wake()
        self.changes.send(self._reachable)

    def worth_a_try(self) -> None:
        """Credentials or addresses have changed: waiting calls may try whether that helped."""
        if not self._reachable:
            self._wake()

    def lost(self, cause: str) -> None:
        """The server did not answer, or stopped in the middle of it."""
        if not self._reachable:
            return
        self._reachable = False
        self._lost_at = trio.current_time()
        log.warning("API server does not answer", server=self._server, cause=cause)
        self.changes.send(self._reachable)

    def _wake(self) -> None:
        self._recoveries += 1
        self._recovered.send(None)
