"""Deletes ResourceSlices of this node: what drivers offer that are not there to give it (kubelet:
`wipeResourceSlices`).

When the agent starts, no driver has registered, and perhaps none ever will: all of the node's are deleted, and drivers
that come write theirs anew. A driver whose plugins have all been away for thirty seconds loses its own; thirty are
enough for a pod of a plugin to be replaced. A plugin that comes back stops a deletion also while it is tried again and
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.backoff import Backoff
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.types import RESOURCE_SLICES
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.kube_client.types import ApiClient

WIPING_DELAY: Final = 30.0
"""(`defaultWipingDelay`)"""
RETRIES: Final = Backoff(first=1.0, longest=300.0, jitter=0.2)

log = get_logger("claims")


class SliceWiper:
    """Told which drivers are there, it deletes what the others offer."""

    def __init__(self, client: ApiClient, node_name: str, rng: Random) -> None:
        self._client = client
        self._node_name = node_name
        self._rng = rng
        self._pending: dict[str, trio.CancelScope] = {}
        """By driver: to be deleted some time, or being deleted."""
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started at once; begins with all that the node has."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                nursery.start_soon(supervise, self.wipe)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def usable(self, driver: str) -> None:
        """A plugin of the driver is there."""
        if (scope := self._pending.pop(driver, None)) is not None:
            scope.cancel()

    def unusable(self, driver: str) -> None:
        """None is. Said again, it changes nothing."""
        if self._nursery is not None and driver not in self._pending:
            self._pending[driver] = scope = trio.CancelScope()
            self._nursery.start_soon(supervise, self._wipe_later, driver, scope)

    async def wipe(self, driver: str = "") -> None:
        """Delete the slices of a driver, or of all, on this node; try until it succeeds."""
        selector = f"spec.nodeName={self._node_name}" + (f",spec.driver={driver}" if driver else "")
        failures = 0
        while True:
            try:
                await self._client.delete_collection(RESOURCE_SLICES, field_selector=selector)
            except ApiStatusError as error:
                if error.not_found:  # a server that knows of no slices
                    return
                problem = str(error)
            except ApiError as error:
                problem = str(error)
            else:
                log.info("ResourceSlices deleted", selector=selector)
                return
            failures += 1
            pause = RETRIES.delay(failures, self._rng.random())
            log.debug("ResourceSlices not deleted", selector=selector, problem=problem, retry_in=round(pause, 1))
            await trio.sleep(pause)

    async def _wipe_later(self, driver: str, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(WIPING_DELAY)
            await self.wipe(driver)
            if self._pending.get(driver) is scope:
                del self._pending[driver]
