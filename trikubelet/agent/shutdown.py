"""What an agent does when its machine shuts down, if the configuration gives pods time for that.

`node.shutdown` decides; this is what it asks of the agent's other parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.node.shutdown.groups import shutdown_periods
from trikubelet.pods.phases import Finished

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trikubelet.agent.agent import Agent
    from trikubelet.agent.options import AgentOptions
    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.node.shutdown.interface import Logind
    from trikubelet.node.shutdown.manager import ShutdownManager
    from trikubelet.pods.types import PodStatusFn
    from trikubelet.telemetry.events import EventRecorder


def node_shutdown(
    options: AgentOptions, recorder: EventRecorder, clock: WallClock, *, logind: Logind | None, on_machine: bool
) -> ShutdownManager | None:
    """None: pods get no time, or, without `on_machine`, there is no `logind` that could tell of a shutdown."""
    periods = shutdown_periods(options.configuration)
    if not periods or not (on_machine or logind is not None):
        return None
    from trikubelet.node.shutdown.manager import ShutdownManager
    from trikubelet.node.shutdown.record import FILE, ShutdownRecord

    if logind is None:
        from trikubelet.node.shutdown.logind import SystemLogind

        logind = SystemLogind()
    return ShutdownManager(
        logind,
        periods,
        record=ShutdownRecord(options.root_dir / FILE if on_machine else None),
        recorder=recorder,
        clock=clock,
    )


class AgentNode:
    """Implements `node.shutdown.manager.ShutdownNode`."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def ready(self) -> None:
        await self._agent.sync_loop.until_settled()

    def active_pods(self) -> Sequence[Pod]:
        return self._agent.desired.active()

    async def end_pod(self, pod: Pod, grace_period: int, status_fn: PodStatusFn) -> None:
        workers = self._agent.workers
        await workers.kill_pod(pod, grace_period_override=grace_period, pod_status_fn=status_fn)
        while not isinstance(workers.states.phase(pod.metadata.uid), Finished | None):
            await workers.finished.wait()

    async def report_node(self) -> None:
        if self._agent.cluster is not None:
            await self._agent.cluster.node.report_now()

    async def reported(self, uids: Collection[str]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.report_node)
            if self._agent.reporters is not None:
                nursery.start_soon(self._agent.reporters.writer.until_written, uids)
