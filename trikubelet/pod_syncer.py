"""What a pod worker does to a pod, step by step (kubelet: `SyncPod`, `SyncTerminatingPod`, `SyncTerminatedPod`).

Each of the four methods is one phase's work: generate the status, hand it to the status manager, then make the node
match: volumes, then the runtime. None of them remembers what it did: whatever failed or was cancelled half-way is found
again by the next call, in the observed status that it is given. Only a sync that found nothing to do is remembered, by
what it had to go by (`_Settled`): a pod is looked at again every minute, and most of the time nothing has changed.

After it acted on the runtime, a method asks PLEG to look at that pod at once, so that the next phase starts from fresh
facts without waiting for anybody's period.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.api import POD_FAILED, POD_SUCCEEDED, Pod, PodStatus
from trikubelet.clock import WallClock
from trikubelet.events import EventRecorder, EventType
from trikubelet.logs import get_logger
from trikubelet.pleg.pleg import Pleg
from trikubelet.pods import active_deadline
from trikubelet.pods.active_deadline import is_past_active_deadline
from trikubelet.pods.cleanup import ORPHAN_GRACE_PERIOD
from trikubelet.pods.retry import BackoffError, NetworkNotReadyError
from trikubelet.pods.types import STATUS_TIMEOUT, PodSyncReport
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.model import PodRuntimeStatus
from trikubelet.status.generate import Eviction, generate_pod_status
from trikubelet.status.manager import StatusManager
from trikubelet.volumes import PodMounts, VolumeError

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.pods.types import PodStatusFn, SyncPodType
    from trikubelet.runtime.model import RunningPod

log = get_logger("pod-syncer")


class StillRunningError(Exception):
    """The runtime said that a pod was killed, and yet shows running containers."""

    def __init__(self, pod: Pod, containers: tuple[str, ...]) -> None:
        super().__init__(
            f"expected no running container of {pod.full_name} after the runtime stopped it, "
            f"found {', '.join(containers)}: the kill is tried again"
        )
        self.containers = containers


@attrs.frozen
class _Settled:
    """What a sync had to go by that found nothing to do."""

    pod: Pod
    observed: PodRuntimeStatus
    reported: PodStatus | None

    def still_holds(self, pod: Pod, observed: PodRuntimeStatus, reported: PodStatus | None) -> bool:
        """Whether another sync would have the same to go by. Another object of the same pod may be another pod."""
        if self.pod is not pod or self.reported is not reported:
            return False
        same_time = attrs.evolve(observed, observed_at=self.observed.observed_at)
        return same_time == self.observed


@attrs.define
class AgentPodSyncer:
    """Implements `trikubelet.pods.types.PodSyncer` on the agent's parts."""

    runtime: RuntimeManager
    statuses: StatusManager
    mounts: PodMounts
    recorder: EventRecorder
    clock: WallClock
    pleg: Pleg
    network_problem: Callable[[], str | None]
    """Why pods cannot have a network now, None when they can."""
    host_ips: tuple[str, ...]
    _settled: dict[str, _Settled] = attrs.field(factory=dict, init=False)
    """By UID."""

    async def sync_pod(
        self, update_type: SyncPodType, pod: Pod, mirror_pod: Pod | None, status: PodRuntimeStatus
    ) -> PodSyncReport:
        """Make the runtime match the pod.

        Raises NetworkNotReadyError, VolumeError, SyncPodError, or BackoffError when only waiting is left to do.
        """
        uid = pod.metadata.uid
        problem = self.network_problem()
        settled = self._settled.pop(uid, None)
        if problem is None and settled and settled.still_holds(pod, status, self.statuses.get_pod_status(uid)):
            self._settled[uid] = settled
            return PodSyncReport(None)
        api_status = self._report(pod, status)
        if api_status.phase in (POD_SUCCEEDED, POD_FAILED):
            return PodSyncReport(None, terminal=True)
        if problem is not None and not pod.spec.host_network:
            self.recorder.pod_event(pod, EventType.WARNING, "NetworkNotReady", f"network is not ready: {problem}")
            raise NetworkNotReadyError(problem)
        try:
            await self.mounts.prepare(pod)
        except VolumeError as error:
            message = f"Unable to attach or mount volumes: {error}"
            self.recorder.pod_event(pod, EventType.WARNING, "FailedMount", message)
            raise
        result = None
        try:
            with self.pleg.acting(uid):
                result = await self.runtime.sync_pod(pod, status)
        finally:
            # Also when it failed or was cancelled: it may have changed something before.
            if result is None or result.results:
                self.pleg.inspect_soon(uid)
        if result.backoffs or result.error is not None:
            # The reasons why containers wait belong into the status at once.
            self._report(pod, status)
        if result.error is not None:
            raise result.error
        if result.backoffs:
            waiting = ", ".join(sorted(result.backoffs))
            raise BackoffError(f"waiting to start {waiting}", min(result.backoffs.values()))
        if result.results:
            return PodSyncReport(trio.current_time())
        if pod.spec.active_deadline_seconds is None:  # a deadline passes without anything having changed
            self._settled[uid] = _Settled(pod, status, self.statuses.get_pod_status(uid))
        return PodSyncReport(None)

    async def sync_terminating_pod(
        self, pod: Pod, status: PodRuntimeStatus, grace_period: int | None, pod_status_fn: PodStatusFn | None
    ) -> PodSyncReport:
        """Stop every container of the pod; returns only when none runs, with the final status reported."""
        uid = pod.metadata.uid
        self._settled.pop(uid, None)
        self._report(pod, status, change=pod_status_fn)
        try:
            with self.pleg.acting(uid):
                await self.runtime.kill_pod(status.as_running_pod(self.runtime.runtime_name), pod, grace_period)
        except Exception as error:
            self.recorder.pod_event(pod, EventType.WARNING, "FailedKillPod", f"error killing pod: {error}")
            raise
        finally:
            self.pleg.inspect_soon(uid)
        killed_at = trio.current_time()
        with trio.fail_after(STATUS_TIMEOUT):
            stopped = await self.pleg.cache.get_newer_than(uid, killed_at)
        running = tuple(str(container.id) for container in stopped.running_containers())
        if running:
            raise StillRunningError(pod, running)
        # A stopped sandbox has no addresses, but its pod's last status shall show them.
        self._report(pod, attrs.evolve(stopped, ips=status.ips), ended=True, change=pod_status_fn)
        return PodSyncReport(killed_at)

    async def sync_terminating_runtime_pod(self, running_pod: RunningPod) -> None:
        """Stop a pod of which only the runtime knows, and which nobody wants."""
        try:
            with self.pleg.acting(running_pod.uid):
                await self.runtime.kill_pod(running_pod, None, ORPHAN_GRACE_PERIOD)
        finally:
            self.pleg.inspect_soon(running_pod.uid)

    async def sync_terminated_pod(self, pod: Pod, status: PodRuntimeStatus) -> None:
        """Release what the pod held (volumes) after its containers ended, and report the pod as ended."""
        self._report(pod, status, ended=True)
        await self.mounts.remove(pod.metadata.uid)
        self.statuses.terminate_pod(pod)

    def _report(
        self, pod: Pod, observed: PodRuntimeStatus, *, ended: bool = False, change: PodStatusFn | None = None
    ) -> PodStatus:
        """Generate the pod's status from what was observed, and make it the reported one."""
        uid = pod.metadata.uid
        previous = self.statuses.get_pod_status(uid) or pod.status
        late = is_past_active_deadline(pod, previous.start_time, self.clock.now())
        status = generate_pod_status(
            pod,
            observed,
            previous=previous,
            # What has ended waits for nothing: its last exit code is to be seen.
            waiting_reasons={} if ended else self.runtime.waiting_reasons(uid),
            terminal=ended,
            host_ips=self.host_ips,
            eviction=Eviction(active_deadline.REASON, active_deadline.MESSAGE) if late else None,
        )
        # An agent that finds a pod running counts from the pod's start, not from its own.
        status = attrs.evolve(status, start_time=_oldest_sandbox(observed))
        return self.statuses.set_pod_status(pod, status if change is None else change(status))


def _oldest_sandbox(observed: PodRuntimeStatus) -> datetime | None:
    return min((sandbox.created_at for sandbox in observed.sandbox_statuses if sandbox.created_at), default=None)
