"""Tells the runtime which networks the cluster gave to this node's pods (kubelet: `updatePodCIDR`).

Some network plugins want to know. Most do not, and a runtime that fails here still runs pods, so this is done beside
everything else and tried again at leisure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.broadcast import Broadcast
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = get_logger("node")

RETRY: Final = 10.0


class PodCIDRUpdater:
    """Sends the networks to the runtime, each change once."""

    def __init__(self, apply: Callable[[str], Awaitable[None]]) -> None:
        """`apply` takes networks that are joined by commas, has a deadline, and raises CRIError."""
        self._apply = apply
        self._wanted = ""
        self._applied = ""
        self._changed: Broadcast[None] = Broadcast()
        self._changes = self._changed.subscribe()

    def update(self, cidrs: tuple[str, ...]) -> None:
        """What the node object says. A node that has none yet changes nothing."""
        if cidrs and ",".join(cidrs) != self._wanted:
            self._wanted = ",".join(cidrs)
            self._changed.send(None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while self._wanted != self._applied:
                wanted = self._wanted
                try:
                    await self._apply(wanted)
                except CRIError as error:
                    log.warning("Error updating pod CIDR", cidrs=wanted, error=str(error))
                    with trio.move_on_after(RETRY):
                        await self._changes.receive()
                else:
                    self._applied = wanted
                    log.info("the runtime knows the pods' networks", cidrs=wanted)
            await self._changes.receive()
