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
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from trikubelet.api import (
    ALL_CONTAINERS_RESTARTING,
    CONDITION_TRUE,
    POD_FAILED,
    POD_READY_TO_START_CONTAINERS,
    POD_SUCCEEDED,
    Pod,
    PodCondition,
    PodStatus,
)
from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.interface import PodCgroups
from trikubelet.cgroups.pods import NoPodCgroups
from trikubelet.clock import WallClock
from trikubelet.events import EventRecorder, EventType
from trikubelet.logs import get_logger
from trikubelet.pleg.pleg import Pleg
from trikubelet.pods import active_deadline
from trikubelet.pods.active_deadline import is_past_active_deadline
from trikubelet.pods.classify import has_ended
from trikubelet.pods.cleanup import ORPHAN_GRACE_PERIOD
from trikubelet.pods.retry import BackoffError, NetworkNotReadyError
from trikubelet.pods.types import STATUS_TIMEOUT, PodSyncReport
from trikubelet.probes.manager import ProbeManager
from trikubelet.probes.results import PodResults
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.model import PodRuntimeStatus
from trikubelet.runtime.results import SyncAction
from trikubelet.status.actual_resources import ActualResources
from trikubelet.status.container_statuses import ResourceHealthOf, no_resource_health, shows_health
from trikubelet.status.generate import Eviction, generate_pod_status, host_ip_mismatch
from trikubelet.status.lost_ends import with_lost_ends
from trikubelet.status.manager import StatusManager
from trikubelet.volumes.errors import AttachLimitError, VolumesNotReadyError
from trikubelet.volumes.interface import PodVolumes
from trikubelet.volumes.objects import WatchedObjects

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.api import ObjectMeta
    from trikubelet.pods.types import PodStatusFn, SyncPodType
    from trikubelet.runtime.model import RunningPod
    from trikubelet.runtime.plan import ProbeResults
    from trikubelet.runtime.results import PodSyncResult

log = get_logger("pod-syncer")

ATTACH_LIMIT_EXCEEDED: Final = "VolumeAttachmentLimitExceeded"


class PodCgroupError(Exception):
    """A pod's cgroup could not be made, so that it cannot start."""

    def __init__(self, pod: Pod, problem: CgroupError) -> None:
        super().__init__(f"the cgroup of {pod.full_name} could not be made: {problem}")
        self.problem = problem


class StillRunningError(Exception):
    """The runtime said that a pod was killed, and yet shows running containers."""

    def __init__(self, pod: Pod, containers: tuple[str, ...]) -> None:
        super().__init__(
            f"expected no running container of {pod.full_name} after the runtime stopped it, "
            f"found {', '.join(containers)}: the kill is tried again"
        )
        self.containers = containers


class Allocation(Protocol):
    """What a sync knows of the resources that pods are given (`trikubelet.allocation.manager`)."""

    def allocated(self, pod: Pod) -> Pod:
        """The pod with the resources that it was given."""
        ...

    def conditions(self, uid: str) -> tuple[PodCondition, ...]:
        """About the pod's resize; the same object until they change."""
        ...

    def synced(self, pod: Pod, *, in_progress: bool, error: str | None = None) -> bool:
        """How far the runtime is with the pod as allocated. Returns whether that changed the conditions."""
        ...

    async def durable(self) -> None:
        """Return when what was granted will be known after a crash. Raises CheckpointError."""
        ...

    def ended(self, uid: str) -> None:
        """Nothing of the pod runs any more."""
        ...


class AsAskedFor:
    """Pods have what their specs say: implements `Allocation` for tests of other things."""

    def allocated(self, pod: Pod) -> Pod:
        return pod

    def conditions(self, _uid: str) -> tuple[PodCondition, ...]:
        return ()

    def synced(self, _pod: Pod, *, in_progress: bool, error: str | None = None) -> bool:
        return False

    async def durable(self) -> None:
        await trio.lowlevel.checkpoint()

    def ended(self, uid: str) -> None: ...


@attrs.frozen
class _Settled:
    """What a sync had to go by that found nothing to do."""

    pod: Pod
    observed: PodRuntimeStatus
    reported: PodStatus | None
    probed: PodResults
    resizes: tuple[PodCondition, ...]

    def still_holds(
        self,
        pod: Pod,
        observed: PodRuntimeStatus,
        reported: PodStatus | None,
        probed: PodResults,
        resizes: tuple[PodCondition, ...],
        health: ResourceHealthOf,
    ) -> bool:
        """Whether another sync would have the same to go by."""
        if self.reported is not reported or self.probed is not probed or self.resizes is not resizes:
            return False
        if not _asks_the_same(self.pod, pod):
            return False
        if reported is not None and not shows_health(reported, health):
            return False
        same_time = attrs.evolve(observed, observed_at=self.observed.observed_at)
        return same_time == self.observed


def _asks_the_same(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod give a sync the same to do.

    The API server sends the pod again with each status that the agent writes. What it says there matters when it has
    ended the pod, and for what others set: readiness gates and resource claims.
    """
    if one is other:
        return True
    old, new = one.status, other.status
    if old.phase != new.phase and has_ended(new):
        return False
    if one.spec.readiness_gates and old.conditions != new.conditions:
        return False
    return (
        one.spec == other.spec
        and _without_version(one.metadata) == _without_version(other.metadata)
        and old.resource_claim_statuses == new.resource_claim_statuses
        and old.extended_resource_claim_status == new.extended_resource_claim_status
    )


def _without_version(metadata: ObjectMeta) -> ObjectMeta:
    return attrs.evolve(metadata, resource_version="", managed_fields=())


@attrs.define
class AgentPodSyncer:
    """Implements `trikubelet.pods.types.PodSyncer` on the agent's parts."""

    runtime: RuntimeManager
    statuses: StatusManager
    volumes: PodVolumes
    objects: WatchedObjects
    probes: ProbeManager
    recorder: EventRecorder
    clock: WallClock
    pleg: Pleg
    network_problem: Callable[[], str | None]
    """Why pods cannot have a network now, None when they can."""
    host_ips: Callable[[], tuple[str, ...]]
    """The node's addresses, which may change."""
    mirrors: Callable[[Pod, Pod | None], None] = lambda pod, mirror: None
    """Told of each pod that is synced, with the mirror pod that shows it: sees to it that a static pod has one."""
    starts_nothing: Callable[[], bool] = lambda: False
    """Whether pods are about to be ended, so that what has ended of them stays so."""
    allocation: Allocation = attrs.field(factory=AsAskedFor)
    resource_health: Callable[[str], ResourceHealthOf] = lambda uid: no_resource_health
    """How the devices of a pod's containers do, by its UID."""
    cgroups: PodCgroups = attrs.field(factory=NoPodCgroups)
    _settled: dict[str, _Settled] = attrs.field(factory=dict, init=False)
    """By UID."""

    async def sync_pod(
        self, update_type: SyncPodType, pod: Pod, mirror_pod: Pod | None, status: PodRuntimeStatus
    ) -> PodSyncReport:
        """Make the runtime match the pod.

        Raises NetworkNotReadyError, PodCgroupError, VolumesNotReadyError, SyncPodError, or BackoffError when only
        waiting is left.
        """
        uid, pod = pod.metadata.uid, self.allocation.allocated(pod)
        settled = self._settled.pop(uid, None)
        reported, probed = self.statuses.get_pod_status(uid), self.probes.results.of_pod(uid)
        if (
            settled is not None
            and self.network_problem() is None
            and settled.still_holds(
                pod, status, reported, probed, self.allocation.conditions(uid), self.resource_health(uid)
            )
        ):
            self._settled[uid] = settled
            self.mirrors(pod, mirror_pod)
            self.volumes.refresh(pod)
            return PodSyncReport(None)
        report = await self._sync(pod, mirror_pod, status)
        if report is None:
            # Neither removals nor other resources are news of which anybody would hear.
            with trio.fail_after(STATUS_TIMEOUT):
                status = await self.pleg.cache.get_newer_than(uid, trio.current_time())
            report = await self._sync(pod, mirror_pod, status)
        # What two rounds have not done is left to the next sync, however often that will be so.
        return PodSyncReport(trio.current_time()) if report is None else report

    async def _sync(self, pod: Pod, mirror_pod: Pod | None, status: PodRuntimeStatus) -> PodSyncReport | None:
        """One round; None when another has to see what came of it: all containers were ended for them to start again,
        or the pod was resized."""
        uid = pod.metadata.uid
        resizing = self.runtime.is_resize_in_progress(pod, status)
        self.allocation.synced(pod, in_progress=resizing)
        resizes = self.allocation.conditions(uid)
        api_status = self._report(pod, status)
        if api_status.phase in (POD_SUCCEEDED, POD_FAILED):
            return PodSyncReport(None, terminal=True)
        self._await_network(pod)
        if not await self._enter_cgroup(pod, status, api_status):
            return None
        self.mirrors(pod, mirror_pod)
        if self.starts_nothing():
            return PodSyncReport(None)
        self.objects.register(pod)
        try:
            await self.volumes.prepare(pod)
        except AttachLimitError as error:
            self.recorder.pod_event(pod, EventType.WARNING, ATTACH_LIMIT_EXCEEDED, str(error))
            self.statuses.reject_pod(pod, ATTACH_LIMIT_EXCEEDED, str(error))
            return PodSyncReport(None, terminal=True)
        except VolumesNotReadyError as error:
            if not error.timed_out:
                text = f"Unable to attach or mount volumes: {error}"
                self.recorder.pod_event(pod, EventType.WARNING, "FailedMount", text)
            raise
        self.probes.add_pod(pod)
        probed = self.probes.results.of_pod(uid)
        if resizing:
            await self.allocation.durable()
        result = await self._act(pod, status, api_status, probed.plan)
        if result.resize_problem is not None:
            self.allocation.synced(pod, in_progress=True, error=result.resize_problem)
        if result.backoffs or result.error is not None:
            # The reasons why containers wait belong into the status at once.
            self._report(pod, status)
        if result.error is not None:
            raise result.error
        done = {one.action for one in result.results}
        if SyncAction.RESIZE_POD in done or (_restarts_all(api_status) and SyncAction.REMOVE_CONTAINER in done):
            return None
        if result.backoffs:
            waiting = ", ".join(sorted(result.backoffs))
            raise BackoffError(f"waiting to start {waiting}", min(result.backoffs.values()))
        if result.results:
            return PodSyncReport(trio.current_time())
        if pod.spec.active_deadline_seconds is None:  # a deadline passes without anything having changed
            self._settled[uid] = _Settled(pod, status, self.statuses.get_pod_status(uid), probed, resizes)
        return PodSyncReport(None)

    async def _act(
        self, pod: Pod, status: PodRuntimeStatus, api_status: PodStatus, probed: ProbeResults
    ) -> PodSyncResult:
        """Let the runtime manager do its part."""
        result = None
        # A pod in the node's network has the node's addresses, of which its sandbox knows nothing.
        addressed = attrs.evolve(status, ips=tuple(one.ip for one in api_status.pod_ips))
        try:
            with self.pleg.acting(pod.metadata.uid):
                result = await self.runtime.sync_pod(
                    pod,
                    addressed,
                    restart_all_containers=_restarts_all(api_status),
                    probes=probed,
                    on_sandbox_ready=self._sandbox_ready,
                )
            return result
        finally:
            # Also when it failed or was cancelled: it may have changed something before.
            if result is None or result.results:
                self.pleg.inspect_soon(pod.metadata.uid)

    async def _enter_cgroup(self, pod: Pod, status: PodRuntimeStatus, api_status: PodStatus) -> bool:
        """Have the pod's cgroup made before its sandbox. False: what ran elsewhere, without cgroups or in those of
        another class, was ended so that it can begin anew in there (kubelet: `SyncPod`). Raises PodCgroupError."""
        begun = any(one.state.running is not None for one in api_status.container_statuses)
        try:
            if not begun:
                await self.cgroups.ensure(pod)
                return True
            if await self.cgroups.exists(pod):
                return True
        except CgroupError as error:
            text = f"unable to ensure pod container exists: {error}"
            self.recorder.pod_event(pod, EventType.WARNING, "FailedToCreatePodContainer", text)
            raise PodCgroupError(pod, error) from error
        log.warning("ending a pod that runs outside of its cgroup, to start it in there", pod=pod.full_name)
        await self._kill(pod, status, None)
        return False

    def _await_network(self, pod: Pod) -> None:
        """Raises NetworkNotReadyError for a pod that has to wait."""
        problem = self.network_problem()
        if problem is not None and not pod.spec.host_network:
            self.recorder.pod_event(pod, EventType.WARNING, "NetworkNotReady", f"network is not ready: {problem}")
            raise NetworkNotReadyError(problem)

    def _sandbox_ready(self, pod: Pod, ips: tuple[str, ...]) -> None:
        """Report that the pod has its sandbox, and nothing else that is new (kubelet: `OnPodSandboxReady`)."""
        reported = self.statuses.get_pod_status(pod.metadata.uid) or pod.status
        ready = PodCondition(
            type=POD_READY_TO_START_CONTAINERS,
            status=CONDITION_TRUE,
            observed_generation=pod.metadata.generation,
        )
        others = (one for one in reported.conditions if one.type != ready.type)
        self.statuses.set_pod_status(pod, attrs.evolve(reported, conditions=(*others, ready)))

    async def sync_terminating_pod(
        self, pod: Pod, status: PodRuntimeStatus, grace_period: int | None, pod_status_fn: PodStatusFn | None
    ) -> PodSyncReport:
        """Stop every container of the pod; returns only when none runs, with the final status reported."""
        uid, pod = pod.metadata.uid, self.allocation.allocated(pod)
        self._settled.pop(uid, None)
        self._report(pod, status, change=pod_status_fn)
        self.probes.stop_liveness_and_startup(pod)
        await self._kill(pod, status, grace_period)
        self.probes.remove_pod(uid)
        killed_at = trio.current_time()
        with trio.fail_after(STATUS_TIMEOUT):
            stopped = await self.pleg.cache.get_newer_than(uid, killed_at)
        running = tuple(str(container.id) for container in stopped.running_containers())
        if running:
            raise StillRunningError(pod, running)
        self._report(pod, stopped, ended=True, change=pod_status_fn)
        return PodSyncReport(killed_at)

    async def _kill(self, pod: Pod, status: PodRuntimeStatus, grace_period: int | None) -> None:
        """End what runs of the pod. Raises KillPodError, after the event for it."""
        uid = pod.metadata.uid
        try:
            with self.pleg.acting(uid):
                await self.runtime.kill_pod(status.as_running_pod(self.runtime.runtime_name), pod, grace_period)
        except Exception as error:
            self.recorder.pod_event(pod, EventType.WARNING, "FailedKillPod", f"error killing pod: {error}")
            raise
        finally:
            self.pleg.inspect_soon(uid)

    async def sync_terminating_runtime_pod(self, running_pod: RunningPod) -> None:
        """Stop a pod of which only the runtime knows, and which nobody wants."""
        try:
            with self.pleg.acting(running_pod.uid):
                await self.runtime.kill_pod(running_pod, None, ORPHAN_GRACE_PERIOD)
        finally:
            self.pleg.inspect_soon(running_pod.uid)

    async def sync_terminated_pod(self, pod: Pod, status: PodRuntimeStatus) -> None:
        """Release what the pod held (volumes, its cgroup) after its containers ended, and report the pod as ended."""
        pod = self.allocation.allocated(pod)
        self.probes.remove_pod(pod.metadata.uid)
        self.allocation.ended(pod.metadata.uid)
        self._report(pod, status, ended=True)
        await self.volumes.release(pod.metadata.uid)
        self.objects.unregister(pod.metadata.uid)
        await self.cgroups.release(pod.metadata.uid)
        self.runtime.release(pod.metadata.uid)
        self.statuses.terminate_pod(pod)

    def _report(
        self,
        pod: Pod,
        observed: PodRuntimeStatus,
        *,
        ended: bool = False,
        change: PodStatusFn | None = None,
    ) -> PodStatus:
        """Generate the pod's status from what was observed, and make it the reported one."""
        uid = pod.metadata.uid
        previous = self.statuses.get_pod_status(uid) or self.statuses.status_before(pod)
        if ended and _never_began(previous, observed):
            return self.statuses.set_pod_status(pod, previous if change is None else change(previous))
        verdict = None
        if is_past_active_deadline(pod, previous.start_time, self.clock.now()):
            verdict = Eviction(active_deadline.REASON, active_deadline.MESSAGE)
            if previous.reason != verdict.reason:
                self.recorder.pod_event(pod, EventType.NORMAL, verdict.reason, verdict.message)
        host_ips = self.host_ips()
        if (mismatch := host_ip_mismatch(previous, host_ips)) is not None:
            self.recorder.pod_event(pod, EventType.WARNING, "HostIPsIPFamilyMismatch", mismatch)
        if not _restarts_all(previous):  # which removes what has ended
            observed = with_lost_ends(observed, previous, self.runtime.seen_end)
        status = generate_pod_status(
            pod,
            observed,
            previous=previous,
            # What has ended waits for nothing: its last exit code is to be seen.
            waiting_reasons={} if ended else self.runtime.waiting_reasons(uid),
            terminal=ended,
            host_ips=host_ips,
            eviction=verdict,
            outcomes=self.probes.results.of_pod(uid).outcomes,
            recursive_read_only=self.runtime.mounts_read_only_recursively(pod),
            resizes=self.allocation.conditions(uid),
            resource_health=self.resource_health(uid),
            actual=ActualResources(self.runtime.actuated(uid)),
        )
        # An agent that finds a pod running counts from the pod's start, not from its own.
        status = attrs.evolve(status, start_time=_oldest_sandbox(observed))
        return self.statuses.set_pod_status(pod, status if change is None else change(status))


def _restarts_all(status: PodStatus) -> bool:
    return any(
        condition.type == ALL_CONTAINERS_RESTARTING and condition.status == CONDITION_TRUE
        for condition in status.conditions
    )


def _never_began(reported: PodStatus, observed: PodRuntimeStatus) -> bool:
    """Whether the pod had ended before it began, mostly since admission refused it: there is nothing to say of it
    beside that, not even that its containers wait."""
    begun = reported.container_statuses or reported.init_container_statuses
    return has_ended(reported) and not (begun or observed.sandbox_statuses or observed.container_statuses)


def _oldest_sandbox(observed: PodRuntimeStatus) -> datetime | None:
    return min((sandbox.created_at for sandbox in observed.sandbox_statuses if sandbox.created_at), default=None)
