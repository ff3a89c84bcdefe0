"""Waiting for the exit of one container.

The sources report an exit before the runtime does: a pidfd about 100 ms earlier. A container counts as exited when the
runtime says so, because only then there is nothing left to stop. So `until_ended` waits for a source's report, and then
asks the runtime until it agrees. It asks the runtime directly and not the pod status cache, which is not refreshed
while a worker acts on the pod. Where no source reports (a container that was started a moment ago is not watched yet,
and not every runtime has events), it asks the runtime every few seconds.

The delay between report and runtime is estimated from the exits before. Asking for each of a hundred containers a
hundred times a second would only slow the runtime down.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.backoff import Backoff
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.rpc.cri.v1 import ContainerState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trikubelet.rpc.cri.client import RuntimeClient

LOOKS: Final = Backoff(first=0.001, longest=0.1)
LOOK_WITHOUT_REPORT: Final = 5.0
"""Seconds between looks."""
_MOST_REMEMBERED: Final = 1000
_EARLY: Final = 0.7
"""The first question comes at this part of the usual lag, the next ones in steps of"""
_LOOKS_PER_LAG: Final = 10
_WEIGHT: Final = 0.3
"""What the last end counts among those before."""
_LONGEST_LAG: Final = 1.0
"""Seconds; a runtime that hung once is not slow for ever after."""


async def poll_until(
    seen: Callable[[], Awaitable[bool]], pause: float = LOOKS.first, *, steady_until: float = -math.inf
) -> int:
    """Poll until it is seen, ever more rarely from `steady_until` on; how often it was not.

    `pause` in seconds; `steady_until` in Trio time. Raises what `seen` raises. May be cancelled freely.
    """
    in_vain = 0
    while not await seen():
        in_vain += 1
        await trio.sleep(pause)
        if trio.current_time() >= steady_until:
            pause = LOOKS.after(pause)
    return in_vain


class ExitTracker:
    """Which containers have exited, as the sources reported."""

    def __init__(self, client: RuntimeClient) -> None:
        self._client = client
        self._reported: OrderedDict[str, float] = OrderedDict()
        """When the source reported it, in Trio time."""
        self._lag = 0.0
        """Seconds that the runtime knew later than the sources, of late."""
        self._waiting: dict[str, set[trio.Event]] = {}

    def record(self, container_id: str) -> None:
        """A source reports that this container's first process has exited."""
        self._reported.setdefault(container_id, trio.current_time())
        if len(self._reported) > _MOST_REMEMBERED:
            self._reported.popitem(last=False)
        for waiting in self._waiting.get(container_id, ()):
            waiting.set()

    async def until_ended(self, _pod_uid: str, container_id: str, *, delay: float = 0.0) -> None:
        """Return when the container has ended, also for the runtime.

        `delay`: seconds after a source's report in which the runtime is not asked, since it will say so itself; it is
        asked no more often than that afterwards.
        """
        while container_id not in self._reported:
            with trio.move_on_after(LOOK_WITHOUT_REPORT):
                await self._report_of(container_id)
                break
            if await self._has_ended(container_id):
                return
        await trio.sleep(delay)
        await self.until_runtime_knows(container_id, least_pause=delay)

    async def until_runtime_knows(self, container_id: str, *, least_pause: float = LOOKS.first) -> None:
        """Ask the runtime until it says that the container has ended, or is gone. `least_pause` in seconds."""
        reported_at = self._reported.get(container_id, trio.current_time())
        await trio.sleep_until(max(reported_at + _EARLY * self._lag, trio.current_time()))
        pause = max(LOOKS.first, self._lag / _LOOKS_PER_LAG)
        overdue = reported_at + 2 * self._lag
        looks = await poll_until(lambda: self._has_ended(container_id), max(pause, least_pause), steady_until=overdue)
        if pause < least_pause:
            return  # which was too rarely to tell the lag
        took = min(trio.current_time() - reported_at, _LONGEST_LAG)
        # That the first question was late enough tells only that the lag is no longer than this.
        if looks or took < self._lag:
            self._lag += _WEIGHT * (took - self._lag)

    @property
    def waiting(self) -> int:
        """Containers whose end somebody waits for."""
        return len(self._waiting)

    async def _report_of(self, container_id: str) -> None:
        report = trio.Event()
        self._waiting.setdefault(container_id, set()).add(report)
        try:
            await report.wait()
        finally:
            self._waiting[container_id].discard(report)
            if not self._waiting[container_id]:
                del self._waiting[container_id]

    async def _has_ended(self, container_id: str) -> bool:
        """Not what was only created: it may be started yet."""
        try:
            reply = await self._client.container_status(container_id)
        except CRIError as error:
            return error.not_found
        return reply.status.state is ContainerState.CONTAINER_EXITED
