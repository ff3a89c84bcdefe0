"""The ends of containers, for whoever waits for a certain one.

The sources hear of an end before the runtime knows it: a pidfd some 100 ms. To those who are about to stop a container,
or who wait for something that only a living one can do, an end counts when the runtime itself says so: only then is
there nothing left to stop. So `until_ended` waits for a source's word, and then asks the runtime until it agrees. That
goes past the cache of observations, which rests while a worker acts on the pod. Where no source speaks (a container
that was started a moment ago is not watched yet, and not every runtime has events) it looks by itself now and then.

How long a runtime takes to know is learnt from the ends before: asking a hundred times a second of each of a hundred
containers would only delay it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.cri.errors import CRIError
from trikubelet.cri.v1 import ContainerState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trikubelet.cri.client import RuntimeClient

FIRST_LOOK: Final = 0.001
LONGEST_LOOK: Final = 0.1
LOOK_WITHOUT_WORD: Final = 5.0
"""Seconds between looks."""
_MOST_REMEMBERED: Final = 1000
_EARLY: Final = 0.7
"""The first question comes at this part of the usual lag, the next ones in steps of"""
_LOOKS_PER_LAG: Final = 10
_WEIGHT: Final = 0.3
"""What the last end counts among those before."""
_LONGEST_LAG: Final = 1.0
"""Seconds; a runtime that hung once is not slow for ever after."""


async def look_until(
    seen: Callable[[], Awaitable[bool]], pause: float = FIRST_LOOK, *, steady_until: float = -math.inf
) -> int:
    """Look again and again until it is seen, ever more rarely once it is `steady_until`; how often it was not.

    `pause` in seconds; `steady_until` in Trio time. Raises what looking raises. May be cancelled freely.
    """
    in_vain = 0
    while not await seen():
        in_vain += 1
        await trio.sleep(pause)
        if trio.current_time() >= steady_until:
            pause = min(2 * pause, LONGEST_LOOK)
    return in_vain


class ContainerEnds:
    """What the sources heard."""

    def __init__(self, client: RuntimeClient) -> None:
        self._client = client
        self._heard: OrderedDict[str, float] = OrderedDict()
        """When the source spoke, in Trio time."""
        self._lag = 0.0
        """Seconds that the runtime knew later than the sources, of late."""
        self._waiting: dict[str, set[trio.Event]] = {}

    def note(self, container_id: str) -> None:
        """A source's word: this container's first process has ended."""
        self._heard.setdefault(container_id, trio.current_time())
        if len(self._heard) > _MOST_REMEMBERED:
            self._heard.popitem(last=False)
        for waiting in self._waiting.get(container_id, ()):
            waiting.set()

    async def until_ended(self, _pod_uid: str, container_id: str, *, patience: float = 0.0) -> None:
        """Return when the container has ended, also for the runtime.

        `patience`: seconds after a source's word in which the runtime is not asked, since it will say so itself.
        """
        while container_id not in self._heard:
            with trio.move_on_after(LOOK_WITHOUT_WORD):
                await self._word_of(container_id)
                break
            if await self._has_ended(container_id):
                return
        await trio.sleep(patience)
        await self.until_runtime_knows(container_id)

    async def until_runtime_knows(self, container_id: str) -> None:
        """Ask the runtime until it says that the container has ended, or is gone."""
        heard_at = self._heard.get(container_id, trio.current_time())
        await trio.sleep_until(max(heard_at + _EARLY * self._lag, trio.current_time()))
        pause = max(FIRST_LOOK, self._lag / _LOOKS_PER_LAG)
        overdue = heard_at + 2 * self._lag
        looks = await look_until(lambda: self._has_ended(container_id), pause, steady_until=overdue)
        took = min(trio.current_time() - heard_at, _LONGEST_LAG)
        # That the first question was late enough tells only that the lag is no longer than this.
        if looks or took < self._lag:
            self._lag += _WEIGHT * (took - self._lag)

    @property
    def waiting(self) -> int:
        """Containers whose end somebody waits for."""
        return len(self._waiting)

    async def _word_of(self, container_id: str) -> None:
        word = trio.Event()
        self._waiting.setdefault(container_id, set()).add(word)
        try:
            await word.wait()
        finally:
            self._waiting[container_id].discard(word)
            if not self._waiting[container_id]:
                del self._waiting[container_id]

    async def _has_ended(self, container_id: str) -> bool:
        """Not what was only created: it may be started yet."""
        try:
            reply = await self._client.container_status(container_id)
        except CRIError as error:
            return error.not_found
        return reply.status.state is ContainerState.CONTAINER_EXITED
