"""Housekeeping: carries out what `pods.cleanup` decides, and collects the garbage of ended pods.

Every two seconds and when a worker has finished, the sync loop has the workers compared with the desired pods; then the
node is looked at, beside the loop, since a runtime may hang; then the loop has what was found cleaned up. What takes
longer, removing ended containers and sandboxes, is done by `run`, a task of its own: soon after something ended, and
once a minute for whatever was missed.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, assert_never

import trio

from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.cgroups.orphans import OrphanCgroups
from trikubelet.cgroups.pods import NoPodCgroups
from trikubelet.container.errors import GarbageCollectionError, KillPodError
from trikubelet.container.model import RunningPod
from trikubelet.formats.values import frozen
from trikubelet.pods.cleanup import (
    CleanupAction,
    CleanupFacts,
    DeleteMirrorPod,
    FinishRejectedPod,
    KillOrphan,
    RemovePodCgroup,
    RemovePodDirectory,
    RestartPod,
    ThrottlePodCgroup,
    plan_cleanup,
)
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.gc_choice import ContainerGCPolicy
from trikubelet.supervision import supervise
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from collections.abc import Set as AbstractSet

    from trio_typing import TaskStatus

    from trikubelet.api import Pod
    from trikubelet.cgroups.interface import PodCgroups
    from trikubelet.pleg.cache import PodStatusCache
    from trikubelet.pods.manager import PodManager
    from trikubelet.pods.workers import PodWorkers
    from trikubelet.runtime.manager import RuntimeManager
    from trikubelet.status.manager import StatusManager
    from trikubelet.telemetry.events import EventRecorder
    from trikubelet.telemetry.metrics import Counts
    from trikubelet.volumes.interface import PodVolumes

log = get_logger("housekeeping")

GARBAGE_COLLECTION_PERIOD: Final = 60.0
"""Seconds, as the kubelet's `ContainerGCPeriod`."""
COLLECTION_DELAY: Final = 1.0
"""Seconds to wait for more when a pod has ended: the pods of a batch are collected together."""


@frozen
class NodeContents:
    """What the node was found to hold."""

    running: tuple[RunningPod, ...]
    pod_directories: frozenset[str]
    """UIDs of pods with a folder."""
    pod_cgroups: frozenset[str] = frozenset()
    """UIDs of pods with a cgroup; empty when it was not looked."""


def _no_mirrors(full_name: str) -> None:
    """Mirror pods come from the API server; without one there are none."""
    log.debug("orphaned mirror pod", pod=full_name)


class Housekeeping:
    """Compares what there is with what is wanted, and removes what has ended."""

    def __init__(
        self,
        pods: PodManager,
        workers: PodWorkers,
        runtime: RuntimeManager,
        statuses: StatusManager,
        volumes: PodVolumes,
        cache: PodStatusCache,
        sources_ready: Callable[[], bool],
        recorder: EventRecorder,
        container_gc: ContainerGCPolicy = ContainerGCPolicy(),  # noqa: B008 - frozen
        delete_mirror: Callable[[str], None] | None = None,
        held: Callable[[], Collection[str]] = tuple,
        cgroups: PodCgroups = NoPodCgroups(),  # noqa: B008 - frozen
    ) -> None:
        """`delete_mirror` takes the full name of a mirror pod whose static pod is gone. `held` gives the UIDs of pods
        that housekeeping must leave alone, as those that wait for admission."""
        self._pods = pods
        self._workers = workers
        self._runtime = runtime
        self._statuses = statuses
        self._volumes = volumes
        self._cache = cache
        self._sources_ready = sources_ready
        self._recorder = recorder
        self._container_gc = container_gc
        self._delete_mirror = delete_mirror or _no_mirrors
        self._held = held
        self._cgroups = OrphanCgroups(cgroups, is_gone=self._has_no_worker)
        self._send_died, self._died = trio.open_memory_channel[tuple[str, str]](math.inf)
        self._send_gone, self._gone = trio.open_memory_channel[str](math.inf)
        self._going: set[str] = set()
        """UIDs whose folders are to be removed."""
        self._collection_wanted = workers.finished.subscribe(key=lambda _: None)
        """A pod's life is over, or a container of a pod that is gone has ended: collect soon."""
        self._compared: tuple[int, int] | None = None
        """The versions of pods and workers at the last comparison, if it found nothing to do."""
        self._inspected: object = None
        self._quiet: object = None
        """What the agent knew when a whole round last found nothing to do."""
        self.restarted: Counts = Counter()
        """Pods that began anew with a UID that had ended, by whether they are static ("true" or "")."""
        self.orphans = 0
        """How many running pods were neither desired nor known to the pod workers."""
        self.orphaned_folders: frozenset[str] = frozenset()
        """UIDs of the pods that are gone of which the last round found a folder."""
        self._not_removed: set[str] = set()
        self._removing = trio.Lock()
        """A runtime refuses to remove what it is removing already."""

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Remove what has ended until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._remove_died)
            nursery.start_soon(supervise, self._remove_gone)
            nursery.start_soon(supervise, self._cgroups.run)
            nursery.start_soon(supervise, self._collect_periodically)
            task_status.started()

    def container_died(self, uid: str, container_id: str) -> None:
        """A container ended: its runs before the last will be removed, all of them when the pod is gone."""
        self._send_died.send_nowait((uid, container_id))

    async def collect(self) -> None:
        """Remove containers, sandboxes and logs of pods that are gone (kubelet: `containerGC`)."""
        async with self._removing:
            await self._runtime.garbage_collect(
                self._container_gc,
                all_sources_ready=self._sources_ready(),
                is_pod_removed=self._workers.states.should_pod_content_be_removed,
            )

    async def delete_dead_containers(self) -> None:
        """The same because the disk is needed: also of pods that have ended and whose objects are still there.

        Kubelet: `DeleteAllUnusedContainers`.
        """
        states = self._workers.states
        async with self._removing:
            await self._runtime.garbage_collect(
                self._container_gc,
                all_sources_ready=self._sources_ready(),
                is_pod_removed=states.should_pod_content_be_removed,
                is_runtime_removable=lambda uid: (
                    states.should_pod_content_be_removed(uid) or states.should_pod_runtime_be_removed(uid)
                ),
            )

    async def remove_everything(self) -> bool:
        """Remove what is left when every pod has ended. Returns whether nothing is; raises what `look` raises.

        A call to the runtime that was cancelled may have made something all the same: that is ended too.
        """
        async with self._removing:
            problems: list[Exception] = []
            async with trio.open_nursery() as nursery:
                for running in await self._runtime.get_pods():
                    nursery.start_soon(self._end, running, problems)
            if problems:
                raise problems[0]
            await self._runtime.garbage_collect(all_sources_ready=True, is_pod_removed=lambda _: True)
        await self._remove_pod_directories(await self._volumes.pod_uids())
        await self._cgroups.remove_all()
        return not await self._runtime.get_pods(all=True)

    async def _end(self, running: RunningPod, problems: list[Exception]) -> None:
        """Each container has its own grace; what goes wrong is left to the caller."""
        try:
            await self._runtime.kill_pod(running, None, None)
        except (CRIError, KillPodError) as error:
            problems.append(error)

    @property
    def unremovable_folders(self) -> int:
        """How many of `orphaned_folders` could not be removed when that was tried last."""
        return len(self._not_removed & self.orphaned_folders)

    def has_work(self) -> bool:
        """Whether anything that the agent knows of has changed since a round found nothing to do.

        On a node where nothing happens, rounds would be a good part of what the agent costs.
        """
        return self._quiet is None or self._quiet != self._known()

    def _known(self) -> tuple[object, ...]:
        return (*self._versions(), frozenset(self._held()), self._sources_ready(), self._seen_of_unknown_pods())

    def _versions(self) -> tuple[int, int, int]:
        return self._pods.version, self._workers.states.version, self._statuses.phases_version

    def _seen_of_unknown_pods(self) -> tuple[object, ...]:
        """What the runtime was last seen to hold of pods that have no worker."""
        unknown = self._cache.uids() - self._workers.states.phases().keys()
        return self._cache.is_complete, {uid: self._cache.runs(uid) for uid in unknown}

    def compare_workers(self) -> None:
        """End the workers of pods that are not desired, and forget those that have finished."""
        seen = self._versions()[:2]
        before = set(self._workers.states.phases())
        desired = self._pods.pods_and_mirror_pods()
        workers = self._workers.sync_known_pods(desired.pods)
        # A forgotten pod that is still wanted begins anew: what was reported of its last life is not about this one.
        wanted = {pod.metadata.uid for pod in (*desired.pods, *desired.mirror_pods)} - (before - workers.keys())
        self._statuses.remove_orphaned(wanted | workers.keys())
        # Pods that are not desired are asked to end again, until they have.
        all_wanted = workers.keys() <= {pod.metadata.uid for pod in desired.pods}
        self._compared = seen if all_wanted and seen == self._versions()[:2] else None

    async def inspect_node(self) -> NodeContents:
        """What the node holds now of pods without a worker. Raises CRIError.

        The runtime is asked only when there may be such a pod.
        """
        self._inspected = self._known()
        directories = frozenset(await self._volumes.pod_uids())
        running = await self._runtime.get_pods() if self._may_hold_unknown_pods(directories) else ()
        return NodeContents(tuple(running), directories, await self._cgroups.find())

    def _may_hold_unknown_pods(self, directories: Iterable[str]) -> bool:
        if not self._cache.is_complete:
            return True
        known = self._workers.states.phases().keys()
        ended = {pod.metadata.uid for pod in self._pods.pods() if pod.metadata.deletion_timestamp is not None}
        seen_running = {uid for uid in self._cache.uids() - known if self._cache.runs(uid)}
        return bool(seen_running or (ended | set(directories)) - known)

    def clean_up(self, found: NodeContents) -> None:
        """The rest of a round (kubelet: `HandlePodCleanups`). The workers get nothing else meanwhile.

        What takes long is left to `run`. `found` is newer than the last `compare_workers`, so that a pod that was
        forgotten then and runs all the same is an orphan; pods that became known since are none.
        """
        nothing_to_do = self._clean_up(found) and self._compared == self._versions()[:2]
        self._quiet = self._inspected if nothing_to_do and self._inspected == self._known() else None

    def _clean_up(self, found: NodeContents) -> bool:
        """Returns whether there was nothing to do."""
        desired = self._pods.pods_and_mirror_pods()
        workers = self._workers.summaries(desired.pods)
        plan = plan_cleanup(
            CleanupFacts(
                sources_ready=self._sources_ready(),
                desired=desired,
                workers=workers,
                running=found.running,
                reported_phases=self._reported_phases(desired.pods),
                terminating_static=self._workers.states.terminating_static_full_names(),
                pod_directories=found.pod_directories,
                pod_cgroups=found.pod_cgroups,
                held=self._held(),
            )
        )
        if plan is None:
            return False
        self.orphaned_folders = frozenset(
            action.uid for action in plan.actions if isinstance(action, RemovePodDirectory)
        )
        self._not_removed &= self.orphaned_folders
        # Of a pod that is being ended, too: for one that only the runtime knew, no worker removes the group.
        wanted = {pod.metadata.uid for pod in desired.pods}
        orphans = any(isinstance(action, KillOrphan) for action in plan.actions)
        self._cgroups.expect(orphans=orphans or not found.pod_cgroups <= wanted)
        carried_out = [self._carry_out(action) for action in plan.actions]
        running = {pod.uid for pod in found.running}
        released = self._release_user_ids(plan.statuses_to_keep | workers.keys() | running)
        # What is still being ended is still being reported of.
        self._statuses.remove_orphaned(plan.statuses_to_keep | workers.keys())
        return released and not any(carried_out)

    def _release_user_ids(self, uids: AbstractSet[str]) -> bool:
        """Whether all could be taken back."""
        try:
            self._runtime.user_namespaces.release_others(uids)
        except OSError as error:
            log.warning("user ids of pods that are gone cannot be taken back", error=str(error))
            return False
        return True

    def _reported_phases(self, pods: Iterable[Pod]) -> dict[str, str]:
        statuses = {pod.metadata.uid: self._statuses.get_pod_status(pod.metadata.uid) for pod in pods}
        return {uid: status.phase for uid, status in statuses.items() if status is not None}

    def _carry_out(self, action: CleanupAction) -> bool:
        """Whether that may lead to anything."""
        match action:
            case RestartPod() | FinishRejectedPod() | KillOrphan():
                log.debug("housekeeping", action=type(action).__name__)
                self._count(action)
                self._workers.update_pod(action.request(trio.current_time()))
            case RemovePodDirectory():
                if action.uid not in self._going:
                    self._going.add(action.uid)
                    self._send_gone.send_nowait(action.uid)
            case RemovePodCgroup():
                self._cgroups.remove(action.uid)
            case ThrottlePodCgroup():
                return self._cgroups.throttle(action.uid)
            case DeleteMirrorPod():
                self._delete_mirror(action.full_name)
            case _:
                assert_never(action)
        return True

    def _count(self, action: RestartPod | FinishRejectedPod | KillOrphan) -> None:
        if isinstance(action, RestartPod):
            self.restarted[("true" if is_static_pod(action.pod) else "",)] += 1
        self.orphans += isinstance(action, KillOrphan)

    async def _remove_pod_directories(self, uids: Iterable[str]) -> None:
        """Unmount and remove what pods that are gone have left on disk. What cannot be removed is logged."""
        for uid in uids:
            try:
                await self._volumes.remove(uid)
                self._not_removed.discard(uid)
            except Exception as error:  # noqa: BLE001 - comes again
                self._not_removed.add(uid)
                log.warning("cannot remove the directory of a pod that is gone", uid=uid, error=str(error))

    async def _remove_gone(self) -> None:
        async for uid in self._gone:
            self._going.discard(uid)
            if self._is_gone(uid):
                await self._remove_pod_directories((uid,))

    def _is_gone(self, uid: str) -> bool:
        """Whether no pod with this UID has come meanwhile."""
        return self._pods.pod_by_uid(uid) is None and self._workers.states.phase(uid) is None

    def _has_no_worker(self, uid: str) -> bool:
        return self._workers.states.phase(uid) is None and uid not in self._held()

    async def _remove_died(self) -> None:
        async for uid, container_id in self._died:
            status = self._cache.last_seen(uid)
            if status is None:
                continue
            gone = self._workers.states.should_pod_content_be_removed(uid)
            try:
                async with self._removing:
                    if gone:
                        await self._runtime.remove_pod_containers(status, keep=0)
                    else:
                        await self._runtime.remove_pod_containers(status, container_id=container_id, keep=1)
            except Exception as error:  # noqa: BLE001 - garbage collection comes back to it
                log.warning("ended containers could not be removed", uid=uid, error=str(error))
            if gone:
                self._collection_wanted.put(uid)

    async def _collect_periodically(self) -> None:
        while True:
            with trio.move_on_after(GARBAGE_COLLECTION_PERIOD):
                await self._collection_wanted.receive()
                await trio.sleep(COLLECTION_DELAY)
            self._collection_wanted.drop(None)
            try:
                await self.collect()
            except GarbageCollectionError as error:
                log.warning("garbage collection failed", error=str(error))
                self._recorder.node_event(EventType.WARNING, "ContainerGCFailed", str(error))
            except Exception as error:  # noqa: BLE001 - comes again in a minute
                log.warning("garbage collection failed", error=str(error))
