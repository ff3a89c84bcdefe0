"""What an agent does when its machine shuts down, if the configuration gives pods time for that.

`shutdown` decides; this is what it asks of the agent's other parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.pods.worker_phases import Finished
from trikubelet.shutdown.groups import shutdown_periods

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trikubelet.agent import Agent
    from trikubelet.api import Pod
    from trikubelet.pods.types import PodStatusFn
    from trikubelet.shutdown.interface import Logind
    from trikubelet.shutdown.manager import ShutdownManager


def node_shutdown(agent: Agent, *, logind: Logind | None, on_machine: bool) -> ShutdownManager | None:
    """None: pods get no time, or, without `on_machine`, there is no `logind` that could tell of a shutdown."""
    periods = shutdown_periods(agent.options.configuration)
    if not periods or not (on_machine or logind is not None):
        return None
    from trikubelet.shutdown.manager import ShutdownManager
    from trikubelet.shutdown.record import FILE, ShutdownRecord

    if logind is None:
        from trikubelet.shutdown.logind import SystemLogind

        logind = SystemLogind()
    return ShutdownManager(
        logind,
        periods,
        AgentNode(agent),
        record=ShutdownRecord(agent.options.root_dir / FILE if on_machine else None),
        recorder=agent.recorder,
        clock=agent.clock,
    )


class AgentNode:
    """Implements `shutdown.manager.ShutdownNode`."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._worker_finished = trio.Event()
        agent.on_worker_finished(self._finished)

    async def ready(self) -> None:
        await self._agent.sync_loop.until_settled()

    def active_pods(self) -> Sequence[Pod]:
        return self._agent.sync_loop.active_pods()

    async def end_pod(self, pod: Pod, grace_period: int, status_fn: PodStatusFn) -> None:
        workers = self._agent.workers
        await workers.kill_pod(pod, grace_period_override=grace_period, pod_status_fn=status_fn)
        while not isinstance(workers.states.phase(pod.metadata.uid), Finished | None):
            await self._worker_finished.wait()

    async def report_node(self) -> None:
        if self._agent.cluster is not None:
            await self._agent.cluster.node.report_now()

    async def reported(self, uids: Collection[str]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.report_node)
            if self._agent.reporters is not None:
                nursery.start_soon(self._agent.reporters.writer.until_written, uids)

    def _finished(self, _uid: str) -> None:
        self._worker_finished.set()
        self._worker_finished = trio.Event()
