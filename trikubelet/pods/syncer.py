"""What the life of a pod does to it, step by step (kubelet: `SyncPod`, `SyncTerminatingPod`, `SyncTerminatedPod`).

Each of the four methods is one phase's work: generate the status, hand it to the status manager, then make the node
match: volumes, then the runtime. None of them remembers what it did: whatever failed or was cancelled half-way is found
again by the next call, in the observed status that it is given. Only the input of a sync that found nothing to do
is remembered (`settled`), so that the same sync is not done again every minute.

After it acted on the runtime, a method asks PLEG to look at that pod at once, so that the next phase starts from fresh
facts and waits for no period.

What a pod holds outside of this process (`Durable`) is acquired while it is synced, and released in
`sync_terminated_pod`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from trikubelet.allocation.manager import AllocationManager
from trikubelet.api import POD_FAILED, POD_SUCCEEDED, ObjectMeta, Pod, PodStatus
from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.interface import PodCgroups
from trikubelet.cgroups.pods import NoPodCgroups
from trikubelet.clock import WallClock
from trikubelet.formats.values import frozen
from trikubelet.kube_client.volume_objects import WatchedObjects
from trikubelet.pleg.pleg import Pleg
from trikubelet.pods.context import INSPECTION
from trikubelet.pods.reporting import StatusReporter
from trikubelet.pods.retry import BackoffError, NetworkNotReadyError
from trikubelet.pods.settled import Settled
from trikubelet.pods.types import STATUS_TIMEOUT, PodSyncReport
from trikubelet.probes.manager import ProbeManager
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.results import SyncAction
from trikubelet.status.conditions import is_restarting_all
from trikubelet.status.container_statuses import ResourceHealthOf, no_resource_health
from trikubelet.status.manager import StatusManager
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.spans import Spans, spanned
from trikubelet.telemetry.steps import Steps
from trikubelet.volumes.errors import AttachLimitError, PodFoldersError, VolumesNotReadyError
from trikubelet.volumes.interface import PodVolumes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from trikubelet.container.model import PodRuntimeStatus, RunningPod
    from trikubelet.container.probe_results import ProbeResults
    from trikubelet.kube_client.volume_objects import References
    from trikubelet.pods.types import Kill, SyncPodType
    from trikubelet.probes.manager import PodProbes
    from trikubelet.runtime.containers.life import PodContainers
    from trikubelet.runtime.results import PodSyncResult

log = get_logger("pod-syncer")

ATTACH_LIMIT_EXCEEDED: Final = "VolumeAttachmentLimitExceeded"
VOLUMES: Final = "volumes to be there"
RELEASE: Final = "release"
"""Steps, as the one that `life` names."""


class PodCgroupError(Exception):
    """A pod's cgroup could not be made, so that it cannot start."""

    def __init__(self, pod: Pod, problem: CgroupError) -> None:
        super().__init__(f"the cgroup of {pod.full_name} could not be made: {problem}")
        self.problem = problem


class RestartError(Exception):
    """A container that was to be restarted did not end."""


class StillRunningError(Exception):
    """The runtime said that a pod was killed, and yet shows running containers."""

    def __init__(self, pod: Pod, containers: tuple[str, ...]) -> None:
        super().__init__(
            f"expected no running container of {pod.full_name} after the runtime stopped it, "
            f"found {', '.join(containers)}: the kill is tried again"
        )
        self.containers = containers


async def no_claims(_uid: str) -> None:
    """For a node whose pods have no resource claims."""


class Durable(Protocol):
    """Something that pods hold outside of this process, so that it outlives the agent: mounts, cgroups, grants."""

    async def release(self, uid: str) -> None:
        """Give back what the pod held, whose containers have ended. Fine when there is nothing. The next call goes on
        where one failed or was cancelled."""
        ...


@frozen(kw_only=True)
class SyncContext:
    """What the syncers of all pods share."""

    runtime: RuntimeManager
    statuses: StatusManager
    volumes: PodVolumes
    objects: WatchedObjects
    probes: ProbeManager
    recorder: EventRecorder
    clock: WallClock
    pleg: Pleg
    allocation: AllocationManager
    network_problem: Callable[[], str | None]
    """Why pods cannot have a network now, None when they can."""
    host_ips: Callable[[], tuple[str, ...]]
    """The node's addresses, which may change."""
    durables: Sequence[Durable]
    """What pods hold outside of this process, in the order in which it is released."""
    mirrors: Callable[[Pod, Pod | None], None] = lambda pod, mirror: None
    """Called for each pod that is synced, with the mirror pod that shows it: makes that of a static pod."""
    ipv6_first: bool = False
    """Whether pods' primary addresses are of that family."""
    tells_sandbox: bool = True
    """Whether the condition PodReadyToStartContainers is reported."""
    starts_nothing: Callable[[], bool] = lambda: False
    """Whether pods are about to be ended, so that what has ended of them stays so."""
    resource_health: Callable[[str], ResourceHealthOf] = lambda uid: no_resource_health
    """How the devices of a pod's containers do, by its UID."""
    unprepare_claims: Callable[[str], Awaitable[None]] = no_claims
    """Has what was prepared for a pod's resource claims undone, by its UID. Raises; then the pod has not ended yet."""
    cgroups: PodCgroups = attrs.field(factory=NoPodCgroups)
    spans: Spans | None = None
    """Tells of pods' volumes."""
    steps: Steps = attrs.field(factory=Steps)
    """Where it is told what goes on for a pod."""
    syncers: dict[str, AgentPodSyncer] = attrs.field(factory=dict)
    """Of the pods whose lives go on, by UID."""

    @contextmanager
    def open_pod(self, uid: str, nursery: trio.Nursery) -> Iterator[AgentPodSyncer]:
        """Implements `trikubelet.pods.types.OpenPod`."""
        with (
            self.probes.of_pod(uid, nursery) as probes,
            self.objects.references(uid) as references,
            self.volumes.of_pod(uid, nursery),
        ):
            containers = self.runtime.containers_of_pod(nursery, probes)
            syncer = self.syncers[uid] = AgentPodSyncer(self, uid, containers, probes, references)
            try:
                yield syncer
            finally:
                if self.syncers.get(uid) is syncer:
                    del self.syncers[uid]


class AgentPodSyncer:
    """Implements `trikubelet.pods.types.PodSyncer` on the agent's parts, for one pod."""

    def __init__(
        self,
        context: SyncContext,
        uid: str,
        containers: PodContainers,
        probes: PodProbes,
        references: References,
    ) -> None:
        self._context = context
        self._uid = uid
        self._containers = containers
        self._probes = probes
        self._references = references
        self._reporter = StatusReporter(context, containers, probes)
        self._settled: Settled | None = None

    async def sync_pod(
        self, update_type: SyncPodType, pod: Pod, mirror_pod: Pod | None, status: PodRuntimeStatus
    ) -> PodSyncReport:
        """Make the runtime match the pod.

        Raises NetworkNotReadyError, PodCgroupError, VolumesNotReadyError, SyncPodError, or BackoffError when only
        waiting is left.
        """
        context, uid = self._context, self._uid
        pod = context.allocation.allocated(pod)
        settled, self._settled = self._settled, None
        reported, probed = context.statuses.get_pod_status(uid), self._probes.results
        if (
            settled is not None
            and context.network_problem() is None
            and settled.still_holds(
                pod, status, reported, probed, context.allocation.conditions(uid), context.resource_health(uid)
            )
        ):
            self._settled = settled
            context.mirrors(pod, mirror_pod)
            context.volumes.refresh(pod)
            return PodSyncReport(None)
        report = await self._sync(pod, mirror_pod, status)
        if report is None:
            # PLEG sends no event for removals, nor for other resources.
            with trio.fail_after(STATUS_TIMEOUT):
                status = await self._context.pleg.cache.get_newer_than(uid, trio.current_time())
            report = await self._sync(pod, mirror_pod, status)
        # What two rounds have not done is left to the next sync, or one pod could keep its worker busy for ever.
        return PodSyncReport(trio.current_time()) if report is None else report

    async def _sync(self, pod: Pod, mirror_pod: Pod | None, status: PodRuntimeStatus) -> PodSyncReport | None:
        """One round; None when another has to see what came of it: all containers were ended for them to start again,
        or the pod was resized."""
        uid = pod.metadata.uid
        resizing = self._context.runtime.is_resize_in_progress(pod, status)
        self._context.allocation.synced(pod, in_progress=resizing)
        resizes = self._context.allocation.conditions(uid)
        api_status = self._reporter.report(pod, status)
        if api_status.phase in (POD_SUCCEEDED, POD_FAILED):
            return PodSyncReport(None, terminal=True, why=_course_run(api_status))
        self._await_network(pod)
        if not await self._enter_cgroup(pod, status, api_status):
            return None
        self._context.mirrors(pod, mirror_pod)
        if self._context.starts_nothing():
            return PodSyncReport(None)
        self._references.follow(pod)
        if not await self._prepare_volumes(pod):
            return PodSyncReport(None, terminal=True, why=ATTACH_LIMIT_EXCEEDED)
        self._probes.add(pod)
        self._containers.follow(status)
        probed = self._probes.results
        if resizing:
            await self._context.allocation.durable()
        result = await self._act(pod, status, api_status, probed.plan)
        if result.resize_problem is not None:
            self._context.allocation.synced(pod, in_progress=True, error=result.resize_problem)
        if result.backoffs or result.error is not None:
            # The reasons why containers wait belong into the status at once.
            self._reporter.report(pod, status)
        if result.error is not None:
            raise result.error
        done = {one.action for one in result.results}
        if SyncAction.RESIZE_POD in done or (is_restarting_all(api_status) and SyncAction.REMOVE_CONTAINER in done):
            return None
        if result.backoffs:
            waiting = ", ".join(sorted(result.backoffs))
            raise BackoffError(f"waiting to start {waiting}", min(result.backoffs.values()))
        if result.results:
            return PodSyncReport(trio.current_time())
        if pod.spec.active_deadline_seconds is None:  # a deadline passes without anything having changed
            self._settled = Settled(pod, status, self._context.statuses.get_pod_status(uid), probed, resizes)
        return PodSyncReport(None)

    async def _act(
        self, pod: Pod, status: PodRuntimeStatus, api_status: PodStatus, probed: ProbeResults
    ) -> PodSyncResult:
        """Let the runtime manager do its part."""
        # A pod in the node's network has the node's addresses, of which its sandbox knows nothing.
        addressed = attrs.evolve(status, ips=tuple(one.ip for one in api_status.pod_ips))
        with self._context.pleg.acting(pod.metadata.uid) as action:
            result = await self._context.runtime.sync_pod(
                pod,
                addressed,
                self._containers,
                restart_all_containers=is_restarting_all(api_status),
                probes=probed,
                on_sandbox_ready=self._reporter.sandbox_ready,
            )
            action.changed = bool(result.results)
            action.made = result.made if result.error is None else None
        return result

    async def _enter_cgroup(self, pod: Pod, status: PodRuntimeStatus, api_status: PodStatus) -> bool:
        """Have the pod's cgroup made before its sandbox. False: what ran elsewhere, without cgroups or in those of
        another class, was ended so that it can begin anew in there (kubelet: `SyncPod`). Raises PodCgroupError."""
        begun = any(one.state.running is not None for one in api_status.container_statuses)
        try:
            if not begun:
                await self._context.cgroups.ensure(pod)
                return True
            if await self._context.cgroups.exists(pod):
                return True
        except CgroupError as error:
            text = f"unable to ensure pod container exists: {error}"
            self._context.recorder.pod_event(pod, EventType.WARNING, "FailedCreatePodContainer", text)
            raise PodCgroupError(pod, error) from error
        log.warning("ending a pod that runs outside of its cgroup, to start it in there", pod=pod.full_name)
        await self._kill(pod, status, deadline=None)
        return False

    async def _prepare_volumes(self, pod: Pod) -> bool:
        """False: the pod is rejected, as the node can attach no more volumes. Raises VolumesNotReadyError."""
        context = self._context
        try:
            with (
                spanned(context.spans, "waitForAttachAndMount", scope="trikubelet/volumes"),
                context.steps.step(self._uid, VOLUMES),
            ):
                await context.volumes.prepare(pod)
        except AttachLimitError as error:
            context.recorder.pod_event(pod, EventType.WARNING, ATTACH_LIMIT_EXCEEDED, str(error))
            context.statuses.reject_pod(pod, ATTACH_LIMIT_EXCEEDED, str(error))
            return False
        except PodFoldersError as error:
            text = f"error making pod data directories: {error}"
            context.recorder.pod_event(pod, EventType.WARNING, "Failed", text)
            raise
        except VolumesNotReadyError as error:
            if not error.timed_out:
                text = f"Unable to attach or mount volumes: {error}"
                context.recorder.pod_event(pod, EventType.WARNING, "FailedMount", text)
            raise
        return True

    def _await_network(self, pod: Pod) -> None:
        """Raises NetworkNotReadyError for a pod that has to wait."""
        problem = self._context.network_problem()
        if problem is not None and not pod.spec.host_network:
            self._context.recorder.pod_event(
                pod, EventType.WARNING, "NetworkNotReady", f"network is not ready: {problem}"
            )
            raise NetworkNotReadyError(problem)

    async def sync_terminating_pod(self, pod: Pod, status: PodRuntimeStatus, kill: Callable[[], Kill]) -> PodSyncReport:
        """Stop every container of the pod; returns only when none runs, with the final status reported."""
        uid, pod = self._uid, self._context.allocation.allocated(pod)
        self._settled = None
        self._reporter.report(pod, status, change=kill().status_fn)
        await self._kill(pod, status, deadline=kill().deadline)
        self._probes.stop()
        killed_at = trio.current_time()
        with trio.fail_after(STATUS_TIMEOUT), self._context.steps.step(uid, INSPECTION):
            stopped = await self._context.pleg.cache.get_newer_than(uid, killed_at)
        running = tuple(str(container.id) for container in stopped.running_containers())
        if running:
            raise StillRunningError(pod, running)
        # Before the end is reported: others may give the devices away then.
        with self._context.steps.step(uid, "release of resource claims"):
            await self._context.unprepare_claims(uid)
        self._reporter.report(pod, stopped, ended=True, change=kill().status_fn)
        return PodSyncReport(killed_at)

    async def _kill(self, pod: Pod, status: PodRuntimeStatus, *, deadline: float | None) -> None:
        running = status.as_running_pod(self._context.runtime.runtime_name)
        await self._end(running, pod, deadline=deadline, for_good=deadline is not None)

    async def _end(self, running: RunningPod, pod: Pod | None, *, deadline: float | None, for_good: bool) -> None:
        """End what runs of the pod. Raises KillPodError, after the event for it."""
        context = self._context
        try:
            with context.pleg.acting(self._uid) as action:
                await context.runtime.kill_pod(running, pod, self._containers, deadline=deadline, for_good=for_good)
                action.made = {}
        except Exception as error:
            named = pod or Pod(metadata=ObjectMeta(name=running.name, namespace=running.namespace, uid=running.uid))
            context.recorder.pod_event(named, EventType.WARNING, "FailedKillPod", f"error killing pod: {error}")
            raise

    async def sync_terminating_runtime_pod(self, running_pod: RunningPod, kill: Kill) -> None:
        """Stop a pod that is not desired, and of which only the runtime knows."""
        await self._end(running_pod, None, deadline=kill.deadline, for_good=True)

    async def restart_containers(self, pod: Pod, names: Collection[str]) -> None:
        """End running containers of the pod with their grace, because somebody asked for it. The sync that follows
        starts them again, those of `names` that wait in a back-off too.

        Raises RestartError when one of them did not end. Cancelling it stops the waiting, not the ending.
        """
        context = self._context
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            if container.name in names:
                context.runtime.start_at_once(pod, container)
        problems: list[str] = []

        async def end(container_id: str, name: str) -> None:
            message = f"Container {name} is restarted, as somebody asked for"
            result = await self._containers.kill_container(pod, container_id, name, message=message)
            if result.failed:
                problems.append(f"{name}: {result.message}")

        async with trio.open_nursery() as nursery:
            for running in context.pleg.cache.get(self._uid).running_containers():
                if running.name in names:
                    nursery.start_soon(end, running.id.id, running.name)
        if problems:
            raise RestartError("; ".join(sorted(problems)))

    def shorten_grace(self, deadline: float) -> None:
        """Containers that are being stopped have until `deadline`, if that is sooner than what they had."""
        self._containers.shorten_grace(deadline)

    async def sync_terminated_pod(self, pod: Pod, status: PodRuntimeStatus) -> None:
        """Release what the pod held outside of this process, and report the pod as ended."""
        pod = self._context.allocation.allocated(pod)
        self._probes.stop()
        self._reporter.report(pod, status, ended=True)
        for held in self._context.durables:
            with self._context.steps.step(self._uid, RELEASE, subject=type(held).__name__):
                await held.release(self._uid)
        self._context.statuses.terminate_pod(pod)


def _course_run(status: PodStatus) -> str:
    """Why a pod is to be ended that nobody asked to end, for people."""
    if status.reason:
        return f"{status.reason}: {status.message}" if status.message else status.reason
    return f"its containers have ended, the pod is {status.phase}"
