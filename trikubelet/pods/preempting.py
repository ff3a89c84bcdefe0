"""Ending pods to make room for a critical one: what admission's answer `Preempt` asks for.

    verdict    admission has chosen the pods, and the critical pod is held
    end        all are asked to end at the same time, each with its own grace period
    then       each has ended, or has not in time: the critical pod is admitted without being asked about again

The kubelet ends them one after the other, while its sync loop waits. Here it is a task beside the loop.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from trikubelet.api import POD_FAILED, Pod, PodStatus
from trikubelet.formats.values import frozen
from trikubelet.pods.workers import KillTimeoutError
from trikubelet.status.conditions import as_disrupted
from trikubelet.supervision import contain
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Counts, bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.pods.types import PodStatusFn

log = get_logger("preemption")

RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage", "pods", ""})
"""Those that are counted by name; others pods may name as they like."""
PREEMPTING: Final = "Preempting"
MESSAGE: Final = "Preempted in order to admit critical pod"
_CONDITION_MESSAGE: Final = "Pod was preempted by Kubelet to accommodate a critical pod."


class PodKiller(Protocol):
    """Ends pods (`trikubelet.pods.workers.PodWorkers`)."""

    async def kill_pod(
        self,
        pod: Pod,
        *,
        asked_by: str,
        evict: bool = False,
        grace_period_override: int | None = None,
        pod_status_fn: PodStatusFn | None = None,
    ) -> None:
        """Kill a pod and wait until its containers have ended. Raises KillTimeoutError."""
        ...


@frozen
class Preempting:
    """Carries out `Preempt`."""

    killer: PodKiller
    recorder: EventRecorder
    ended: Counts = attrs.field(factory=Counter)
    """Pods that made room, by what there was too little of."""

    async def make_room(self, preemptor: Pod, victims: Sequence[Pod], resource: str = "") -> None:
        """End the victims, for want of a resource (kubelet: `evictPodsToFreeRequests`).

        Returns when each has ended or has had its time.
        A pod that does not end in time is still being ended, and the critical pod need not wait for it. Cancelling
        this stops the waiting, not the ending.
        """
        for victim in victims:
            self.recorder.pod_event(victim, EventType.WARNING, PREEMPTING, MESSAGE)
            log.info(
                "pod ends to make room", pod=victim.full_name, uid=victim.metadata.uid, for_pod=preemptor.full_name
            )
        async with trio.open_nursery() as nursery:
            for victim in victims:
                nursery.start_soon(contain, self._end, victim, preemptor, resource)

    async def _end(self, victim: Pod, preemptor: Pod, resource: str) -> None:
        def preempted(status: PodStatus) -> PodStatus:
            return preempted_status(status, victim.metadata.generation)

        try:
            asked_by = f"preempted to make room for {preemptor.metadata.namespace}/{preemptor.metadata.name}"
            await self.killer.kill_pod(victim, asked_by=asked_by, evict=True, pod_status_fn=preempted)
        except KillTimeoutError as error:
            log.error("a pod did not make room in time", pod=victim.full_name, problem=str(error))
        else:
            self.ended[(bounded(resource, RESOURCES),)] += 1


def preempted_status(status: PodStatus, generation: int) -> PodStatus:
    """What a pod's status becomes that was ended to make room. Pure."""
    ended = attrs.evolve(status, phase=POD_FAILED, reason=PREEMPTING, message=MESSAGE)
    return as_disrupted(ended, _CONDITION_MESSAGE, generation)
