"""The three sources of news, each of which can be switched off, and what is known of their health.

At least one is needed. Whatever is switched off or broken, the others carry on: relists go back to a second when no
event source is healthy, and events are acted on at once however seldom relists come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.pleg.cri_events import CriEventSource
from trikubelet.pleg.pidfd import PidfdWatchers
from trikubelet.pleg.relist import Relist
from trikubelet.supervision import supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trio_typing import TaskStatus

    from trikubelet.broadcast import Broadcast
    from trikubelet.clock import WallClock
    from trikubelet.pleg.exits import ExitTracker
    from trikubelet.pleg.pleg import Pleg, RuntimeView
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.rpc.cri.v1 import ContainerStatus

SWITCHED_OFF: Final = "switched off"


@frozen(kw_only=True)
class EnabledSources:
    """Which sources may be used."""

    pidfds: bool = True
    events: bool = True
    """The runtime's GetContainerEvents."""
    relists: bool = True
    """Periodic ones. Without them all pods are listed at the start, after gaps in events and after failures only."""


class PlegSources:
    """Makes and runs the sources of one `Pleg`."""

    def __init__(
        self,
        pleg: Pleg,
        runtime: RuntimeView,
        client: RuntimeClient,
        clock: WallClock,
        ends: ExitTracker,
        *,
        enabled: EnabledSources,
        on_end: Callable[[ContainerStatus, str], object],
        recovered: Broadcast[None],
        make_pidfds: Callable[[RuntimeClient, ExitTracker], PidfdWatchers] = PidfdWatchers,
    ) -> None:
        """`on_end` is called at ends, with status and sandbox id; `recovered` is sent on when the runtime lists again.

        It makes all sources, so it takes what each of them needs.
        """
        self.events = CriEventSource(client, clock, ends, on_end)
        self.pidfds = make_pidfds(client, ends)
        self.relist = Relist(pleg, runtime, self.events_healthy, recovered, periodic=enabled.relists)
        self._pleg = pleg
        self._enabled = enabled

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run them until cancelled. Started when everything was listed once, or could not be."""
        async with trio.open_nursery() as nursery:
            if self._enabled.pidfds:
                await nursery.start(self.pidfds.run, self._pleg, self.relist)
            await nursery.start(supervise, self.relist.run)
            if self._enabled.events:
                nursery.start_soon(supervise, self.events.run, self._pleg, self.relist)
            task_status.started()

    def events_healthy(self) -> bool:
        """Whether there is a source that reports every end at once."""
        return any(problem is None for name, problem in self.health().items() if name != "relists")

    def health(self) -> Mapping[str, str | None]:
        """What is wrong with each source, None where nothing is."""
        enabled = self._enabled
        return {
            "pidfds": self.pidfds.problem() if enabled.pidfds else SWITCHED_OFF,
            "events": self.events.problem() if enabled.events else SWITCHED_OFF,
            "relists": self.relist.unhealthy_reason() if enabled.relists else SWITCHED_OFF,
        }
