"""Ending every pod of an agent, for those that do not leave them to the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.cgroups.errors import CgroupError
from trikubelet.container.errors import GarbageCollectionError, KillPodError
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.agent.agent import Agent
    from trikubelet.pods.housekeeping import Housekeeping

log = get_logger("agent")

REMOVAL_TIMEOUT: Final = 30.0
REMOVAL_RETRY: Final = 0.1
DRAIN_MARGIN: Final = 60.0
"""Seconds beyond the longest grace period that draining may take."""


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
        await _remove_everything(agent.housekeeping)
    return left


async def _remove_everything(housekeeping: Housekeeping) -> None:
    """Until nothing is left of any pod, or for as long as a drained agent may take."""
    with trio.move_on_after(REMOVAL_TIMEOUT) as scope:
        while True:
            try:
                if await housekeeping.remove_everything():
                    return
            except (CRIError, KillPodError, GarbageCollectionError, CgroupError, OSError) as error:
                log.warning("what the pods left cannot be removed yet", error=str(error))
            await trio.sleep(REMOVAL_RETRY)
    if scope.cancelled_caught:
        log.error("the runtime keeps containers or sandboxes of pods that have ended")
