"""Whether the API server answers, told by every call that ends.

During an outage dozens of tasks have something to write. Each would try again on its own schedule, and after a long
outage that is slow and bursty at once. So the first call that is answered again wakes all who wait. While nothing is
sent, since there are no credentials, they wait in the same way; then new credentials wake them too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

log = get_logger("cluster")


class ConnectionHealth:
    """An `ApiHealth` that the client keeps."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._reachable = True
        self._recoveries = 0
        self._recovered = trio.Event()
        self._listeners: list[Callable[[bool], None]] = []
        self._lost_at = 0.0

    @property
    def reachable(self) -> bool:
        """How the last call ended. True before the first."""
        return self._reachable

    @property
    def recoveries(self) -> int:
        """How often the server answered again after it had not, or was thought to."""
        return self._recoveries

    async def wait_recovery(self, seen: int) -> None:
        """Return once `recoveries` exceeds `seen`. Cancellable; nothing is left behind."""
        await trio.lowlevel.checkpoint()
        while self._recoveries <= seen:
            await self._recovered.wait()

    def subscribe(self, listener: Callable[[bool], None]) -> None:
        """`listener` is called synchronously with each change of `reachable`; it must not block."""
        self._listeners.append(listener)

    def answered(self) -> None:
        """The server answered, whatever it said."""
        if self._reachable:
            return
        self._reachable = True
        seconds = trio.current_time() - self._lost_at
        log.info("API server answers again", server=self._server, after=f"{seconds:.1f} s")
        self._wake()
        self._tell()

    def worth_a_try(self) -> None:
        """What calls are made with has changed: those who wait for the server may try whether that helped."""
        if not self._reachable:
            self._wake()

    def lost(self, cause: str) -> None:
        """The server did not answer, or stopped in the middle of it."""
        if not self._reachable:
            return
        self._reachable = False
        self._lost_at = trio.current_time()
        log.warning("API server does not answer", server=self._server, cause=cause)
        self._tell()

    def _wake(self) -> None:
        self._recoveries += 1
        self._recovered.set()
        self._recovered = trio.Event()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener(self._reachable)
