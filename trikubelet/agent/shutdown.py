"""Ending all pods of an agent: when its machine shuts down, and when it is drained.

A machine's shutdown gives pods time if the configuration says so. `node.shutdown` decides; `AgentNode` is what it asks
of the agent's other parts. An agent whose pods are not left to the next one, as with the embedded runtime, is drained.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.cgroups.errors import CgroupError
from trikubelet.container.errors import GarbageCollectionError, KillPodError
from trikubelet.node.shutdown.groups import shutdown_periods
from trikubelet.pods.phases import Finished
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trikubelet.agent.agent import Agent
    from trikubelet.agent.options import AgentOptions
    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.node.shutdown.interface import Logind
    from trikubelet.node.shutdown.manager import ShutdownManager
    from trikubelet.pods.housekeeping import Housekeeping
    from trikubelet.pods.types import PodStatusFn
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("agent")

REMOVAL_TIMEOUT: Final = 30.0
REMOVAL_RETRY: Final = 0.1
DRAIN_MARGIN: Final = 60.0
"""Seconds beyond the longest grace period that draining may take."""


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
        await workers.kill_pod(
            pod, asked_by="the node shuts down", grace_period_override=grace_period, pod_status_fn=status_fn
        )
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


async def drain(agent: Agent) -> frozenset[str]:
    """End every pod gracefully and remove what it left. Returns the UIDs of pods that did not end in time.

    The agent keeps running meanwhile, but takes no pods any more. One that has just started first learns what the
    node holds, or it would leave that running. Cancelling it leaves the pods that still run.
    """
    await agent.sync_loop.until_settled()
    agent.sync_loop.stop_starting()
    graces = [pod.spec.termination_grace_period_seconds or 0 for pod in agent.pods.pods()]
    graces += agent.workers.states.grace_periods()
    left = await agent.workers.drain(max(graces, default=0) + DRAIN_MARGIN)
    if not left:
        await _remove_everything(agent.housekeeping, math.inf if agent.options.only_ends else REMOVAL_TIMEOUT)
    return left


async def _remove_everything(housekeeping: Housekeeping, timeout: float) -> None:
    """Until nothing is left of any pod, or for as long as a drained agent may take."""
    with trio.move_on_after(timeout) as scope:
        while True:
            try:
                if await housekeeping.remove_everything():
                    return
            except (CRIError, KillPodError, GarbageCollectionError, CgroupError, OSError) as error:
                log.warning("what the pods left cannot be removed yet", error=str(error))
            await trio.sleep(REMOVAL_RETRY)
    if scope.cancelled_caught:
        log.error("the runtime keeps containers or sandboxes of pods that have ended")
