"""The part of an agent that probes containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import trio

from trikubelet.probes.asking import NetworkAndExec
from trikubelet.probes.manager import ProbeManager
from trikubelet.probes.prober import Prober
from trikubelet.probes.types import ProbeKind
from trikubelet.runtime.plan import ProbeResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.cri.client import RuntimeClient
    from trikubelet.events import EventRecorder
    from trikubelet.probes.types import Asker, ProbeUpdate
    from trikubelet.status.manager import StatusManager


class ProbeParts:
    """`manager` has the workers. Implements `sync_loop.Probes`."""

    def __init__(
        self,
        runtime: RuntimeClient,
        statuses: StatusManager,
        *,
        recorder: EventRecorder,
        clock: WallClock,
        rng: Random,
        newest: Callable[[str], Pod | None],
        asker: Asker | None = None,
    ) -> None:
        """`asker` stands in for the network and the runtime's exec, which a simulated node does not have."""
        self._statuses = statuses
        prober = Prober(asker or NetworkAndExec(runtime), recorder)
        self.manager = ProbeManager(prober, statuses, clock=clock, rng=rng, newest=newest)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, which ends all probes."""
        await self.manager.run(task_status=task_status)

    async def receive(self) -> ProbeUpdate:
        return await self.manager.receive()

    def report(self, update: ProbeUpdate) -> bool:
        """Kubelet: `handleProbeSync` and its callers."""
        good = update.result is ProbeResult.SUCCESS
        match update.kind:
            case ProbeKind.LIVENESS:
                return update.result is ProbeResult.FAILURE
            case ProbeKind.READINESS:
                self._statuses.set_container_readiness(update.pod_uid, str(update.container_id), good)
            case ProbeKind.STARTUP:
                self._statuses.set_container_startup(update.pod_uid, str(update.container_id), good)
            case _:
                assert_never(update.kind)
        return True
