"""Housekeeping: carries out what `pods.cleanup` decides, and collects the garbage of ended pods.

Every two seconds and when a worker has finished, the sync loop has the workers compared with the desired pods; then the
node is looked at, beside the loop, since a runtime may hang; then the loop has what was found cleaned up. What takes
longer, removing ended containers and sandboxes, is done by `run`, a task of its own: at once when something ended, and
once a minute for whatever was missed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, assert_never

import attrs
import trio

from trikubelet.logs import get_logger
from trikubelet.pods.cleanup import (
    CleanupAction,
    CleanupFacts,
    DeleteMirrorPod,
    FinishRejectedPod,
    KillOrphan,
    RemovePodDirectory,
    RestartPod,
    plan_cleanup,
)
from trikubelet.runtime.model import RunningPod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trio_typing import TaskStatus

    from trikubelet.api import Pod
    from trikubelet.pleg.cache import PodStatusCache
    from trikubelet.pods.manager import PodManager
    from trikubelet.pods.workers import PodWorkers
    from trikubelet.runtime.manager import RuntimeManager
    from trikubelet.status.manager import StatusManager
    from trikubelet.volumes import PodMounts

log = get_logger("housekeeping")

GARBAGE_COLLECTION_PERIOD: Final = 60.0
"""Seconds, as the kubelet's `ContainerGCPeriod`."""


@attrs.frozen
class NodeContents:
    """What the node was found to hold."""

    running: tuple[RunningPod, ...]
    pod_directories: frozenset[str]
    """UIDs of pods with a folder."""


class Housekeeping:
    """Implements `sync_loop.Housekeeper`."""

    def __init__(
        self,
        pods: PodManager,
        workers: PodWorkers,
        runtime: RuntimeManager,
        statuses: StatusManager,
        mounts: PodMounts,
        cache: PodStatusCache,
        sources_ready: Callable[[], bool],
    ) -> None:
        self._pods = pods
        self._workers = workers
        self._runtime = runtime
        self._statuses = statuses
        self._mounts = mounts
        self._cache = cache
        self._sources_ready = sources_ready
        self._send_died, self._died = trio.open_memory_channel[tuple[str, str]](math.inf)
        self._collection_wanted = trio.Event()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Remove what has ended until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._remove_died)
            nursery.start_soon(self._collect_periodically)
            task_status.started()

    def container_died(self, uid: str, container_id: str) -> None:
        """Note that a container ended: runs of it before the last are removed, all when the pod is gone."""
        self._send_died.send_nowait((uid, container_id))

    def collect_soon(self) -> None:
        """A pod has ended for good: do not wait for the period."""
        self._collection_wanted.set()

    async def collect(self) -> None:
        """Remove containers, sandboxes and logs of pods that are gone (kubelet: `containerGC`)."""
        await self._runtime.garbage_collect(
            all_sources_ready=self._sources_ready(),
            is_pod_removed=self._workers.states.should_pod_content_be_removed,
        )

    def compare_workers(self) -> None:
        """End the workers of pods that nobody wants, and forget those that have finished."""
        self._workers.sync_known_pods(self._pods.pods())

    async def look(self) -> NodeContents:
        """What the node holds now. Raises CRIError."""
        running = await self._runtime.get_pods()
        return NodeContents(tuple(running), frozenset(await self._mounts.pod_uids()))

    async def clean_up(self, found: NodeContents) -> None:
        """The rest of a round (kubelet: `HandlePodCleanups`). The workers get nothing else meanwhile.

        `found` is newer than the last `compare_workers`, so that a pod that was forgotten then and runs all the same
        is an orphan; pods that became known since are none.
        """
        desired = self._pods.pods_and_mirror_pods()
        workers = self._workers.summaries(desired.pods)
        plan = plan_cleanup(
            CleanupFacts(
                sources_ready=self._sources_ready(),
                desired=desired,
                workers=workers,
                running=found.running,
                reported_phases=self._reported_phases(desired.pods),
                pod_directories=found.pod_directories,
            )
        )
        if plan is None:
            return
        for action in plan.actions:
            await self._carry_out(action)
        # What is still being ended is still being reported of.
        self._statuses.remove_orphaned(plan.statuses_to_keep | workers.keys())

    def _reported_phases(self, pods: Iterable[Pod]) -> dict[str, str]:
        statuses = {pod.metadata.uid: self._statuses.get_pod_status(pod.metadata.uid) for pod in pods}
        return {uid: status.phase for uid, status in statuses.items() if status is not None}

    async def _carry_out(self, action: CleanupAction) -> None:
        match action:
            case RestartPod() | FinishRejectedPod() | KillOrphan():
                log.debug("housekeeping", action=type(action).__name__)
                self._workers.update_pod(action.request(trio.current_time()))
            case RemovePodDirectory():
                await self.remove_pod_directories((action.uid,))
            case DeleteMirrorPod():
                # Mirror pods come from the API server; without one there are none.
                log.debug("orphaned mirror pod", pod=action.full_name)
            case _:
                assert_never(action)

    async def remove_pod_directories(self, uids: Iterable[str]) -> None:
        """Unmount and remove what pods that are gone have left on disk. What cannot be removed is logged."""
        for uid in uids:
            try:
                await self._mounts.remove(uid)
            except OSError as error:
                log.warning("cannot remove the directory of a pod that is gone", uid=uid, error=str(error))

    async def _remove_died(self) -> None:
        async for uid, container_id in self._died:
            status = self._cache.last_seen(uid)
            if status is None:
                continue
            if self._workers.states.should_pod_content_be_removed(uid):
                await self._runtime.remove_pod_containers(status, keep=0)
                self.collect_soon()
            else:
                await self._runtime.remove_pod_containers(status, container_id=container_id, keep=1)

    async def _collect_periodically(self) -> None:
        while True:
            with trio.move_on_after(GARBAGE_COLLECTION_PERIOD):
                await self._collection_wanted.wait()
            self._collection_wanted = trio.Event()
            try:
                await self.collect()
            except Exception as error:  # noqa: BLE001 - comes again in a minute
                log.warning("garbage collection failed", error=str(error))
