"""The ends of containers, for whoever waits for a certain one.

The sources hear of an end before the runtime knows it: a pidfd some 100 ms. To those who are about to stop a container,
or who wait for something that only a living one can do, an end counts when the runtime itself says so: only then is
there nothing left to stop. So `until_ended` waits for a source's word, and then asks the runtime until it agrees. That
goes past the cache of observations, which rests while a worker acts on the pod.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.cri.errors import CRIError
from trikubelet.cri.v1 import ContainerState

if TYPE_CHECKING:
    from trikubelet.cri.client import RuntimeClient

FIRST_LOOK: Final = 0.001
LONGEST_LOOK: Final = 0.1
_MOST_REMEMBERED: Final = 1000


class ContainerEnds:
    """What the sources heard."""

    def __init__(self, client: RuntimeClient) -> None:
        self._client = client
        self._heard: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, trio.Event] = {}

    def note(self, container_id: str) -> None:
        """A source's word: this container's first process has ended."""
        self._heard[container_id] = None
        if len(self._heard) > _MOST_REMEMBERED:
            self._heard.popitem(last=False)
        waiting = self._waiting.pop(container_id, None)
        if waiting is not None:
            waiting.set()

    async def until_ended(self, _pod_uid: str, container_id: str) -> None:
        """Return when the container has ended, also for the runtime. For ever, if no source ever tells of it."""
        if container_id not in self._heard:
            await self._waiting.setdefault(container_id, trio.Event()).wait()
        pause = FIRST_LOOK
        while await self._runs(container_id):
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK)

    async def _runs(self, container_id: str) -> bool:
        try:
            reply = await self._client.container_status(container_id)
        except CRIError as error:
            return not error.not_found
        return reply.status.state in (ContainerState.CONTAINER_RUNNING, ContainerState.CONTAINER_UNKNOWN)
