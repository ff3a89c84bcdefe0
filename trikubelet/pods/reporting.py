"""The status of a pod that is synced or ended: generated from what was observed, and given to the status manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import CONDITION_TRUE, POD_READY_TO_START_CONTAINERS, PodCondition
from trikubelet.api.pod_kinds import has_ended
from trikubelet.status.conditions import is_restarting_all
from trikubelet.status.generate import Eviction, generate_pod_status, host_ip_mismatch, with_lost_ends
from trikubelet.status.resources import ActualResources
from trikubelet.telemetry.events import EventType

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.api import Pod, PodStatus
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.pods.syncer import SyncContext
    from trikubelet.pods.types import PodStatusFn
    from trikubelet.probes.manager import PodProbes
    from trikubelet.runtime.containers.life import PodContainers


DEADLINE_EXCEEDED: Final = "DeadlineExceeded"


class StatusReporter:
    """Reports the status of one pod."""

    def __init__(self, context: SyncContext, containers: PodContainers, probes: PodProbes) -> None:
        self._context = context
        self._containers = containers
        self._probes = probes

    def report(
        self,
        pod: Pod,
        observed: PodRuntimeStatus,
        *,
        ended: bool = False,
        change: PodStatusFn | None = None,
    ) -> PodStatus:
        """Generate the pod's status from what was observed, and make it the reported one."""
        uid = pod.metadata.uid
        previous = self._context.statuses.get_pod_status(uid) or self._context.statuses.status_before(pod)
        if ended and _never_began(previous, observed):
            return self._context.statuses.set_pod_status(pod, previous if change is None else change(previous))
        verdict = None
        if is_past_active_deadline(pod, previous.start_time, self._context.clock.now()):
            verdict = Eviction(DEADLINE_EXCEEDED, "Pod was active on the node longer than the specified deadline")
            if previous.reason != verdict.reason:
                self._context.recorder.pod_event(pod, EventType.NORMAL, verdict.reason, verdict.message)
        host_ips = self._context.host_ips()
        if (mismatch := host_ip_mismatch(previous, host_ips)) is not None:
            self._context.recorder.pod_event(pod, EventType.WARNING, "HostIPsIPFamilyMismatch", mismatch)
        if not is_restarting_all(previous):  # which removes what has ended
            observed = with_lost_ends(observed, previous, self._context.runtime.seen_end)
        status = generate_pod_status(
            pod,
            observed,
            previous=previous,
            # What has ended waits for nothing: its last exit code is to be seen.
            waiting_reasons={} if ended else self._context.runtime.waiting_reasons(uid),
            terminal=ended,
            host_ips=host_ips,
            ipv6_first=self._context.ipv6_first,
            eviction=verdict,
            outcomes=self._probes.results.outcomes,
            recursive_read_only=self._context.runtime.mounts_read_only_recursively(pod),
            resizes=() if ended else self._context.allocation.conditions(uid),
            resource_health=self._context.resource_health(uid),
            tells_sandbox=self._context.tells_sandbox,
            actual=ActualResources(self._context.runtime.actuated(uid)),
        )
        self._containers.follow(observed)
        # An agent that finds a pod running counts from the pod's start, not from its own.
        status = attrs.evolve(status, start_time=_oldest_sandbox(observed))
        return self._context.statuses.set_pod_status(pod, status if change is None else change(status))

    def sandbox_ready(self, pod: Pod, ips: tuple[str, ...]) -> None:
        """Report that the pod has its sandbox, and nothing else that is new (kubelet: `OnPodSandboxReady`)."""
        if not self._context.tells_sandbox:
            return
        reported = self._context.statuses.get_pod_status(pod.metadata.uid) or pod.status
        ready = PodCondition(
            type=POD_READY_TO_START_CONTAINERS,
            status=CONDITION_TRUE,
            observed_generation=pod.metadata.generation,
        )
        others = (one for one in reported.conditions if one.type != ready.type)
        self._context.statuses.set_pod_status(pod, attrs.evolve(reported, conditions=(*others, ready)))


def is_past_active_deadline(pod: Pod, start_time: datetime | None, now: datetime) -> bool:
    """Whether a pod has been active for its `activeDeadlineSeconds` (kubelet: `active_deadline.go`).

    `start_time`: when the agent first took note of it, None if it has not yet.
    """
    limit = pod.spec.active_deadline_seconds
    return limit is not None and start_time is not None and (now - start_time).total_seconds() >= limit


def _never_began(reported: PodStatus, observed: PodRuntimeStatus) -> bool:
    """Whether the pod had ended before it began, mostly since admission refused it: there is nothing to say of it
    beside that, not even that its containers wait."""
    begun = reported.container_statuses or reported.init_container_statuses
    return has_ended(reported) and not (begun or observed.sandbox_statuses or observed.container_statuses)


def _oldest_sandbox(observed: PodRuntimeStatus) -> datetime | None:
    return min((sandbox.created_at for sandbox in observed.sandbox_statuses if sandbox.created_at), default=None)
