"""Housekeeping's decisions: what to do about everything that no longer fits what is desired.

The story of a round, which the sync loop makes every two seconds and whenever a worker has stopped, once all sources
are ready: it compares the workers with the desired pods (`PodWorkers.sync_known_pods`), lists the pods that run, hands
both in here, and carries out the plan from top to bottom. Nothing else may reach the workers in between.

Behaviour of the kubelet's `HandlePodCleanups`. The plan is a value; this module does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

import attrs

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import is_mirror_pod, is_terminal
from trikubelet.container.model import RunningPod
from trikubelet.formats.values import frozen
from trikubelet.pods.manager import AllPods, is_inactive
from trikubelet.pods.phases import DELETED, NOT_DESIRED
from trikubelet.pods.registry import WorkerSummary
from trikubelet.pods.types import KillPod, KillRuntimePod, SyncPodType, UpdatePod

ORPHAN_GRACE_PERIOD: Final = 1
"""Seconds for an orphan: a running pod that is neither desired nor known to the pod workers."""


@frozen(kw_only=True)
class CleanupFacts:
    """What housekeeping sees."""

    sources_ready: bool
    """Whether every source has sent its first pods. Before, no pod may be taken for undesired."""
    desired: AllPods
    workers: Mapping[str, WorkerSummary]
    """The answer of `sync_known_pods` for the desired pods."""
    running: Collection[RunningPod]
    """Pods with a running container or a ready sandbox, listed after the workers were compared."""
    reported_phases: Mapping[str, str] = attrs.field(factory=dict)
    """The agent's own word on pods' phases, by UID: admission rejects a pod by calling it Failed."""
    terminating_static: Collection[str] = ()
    """Full names of static pods that are still being ended: their mirror pods stay."""
    pod_directories: Collection[str] = ()
    """UIDs with a directory under `pods/`."""
    pod_cgroups: Collection[str] = ()
    """UIDs with a cgroup of their own."""
    held: Collection[str] = ()
    """UIDs of desired pods that wait for admission: they have no worker, may run from before, and are left alone."""


@frozen
class DeleteMirrorPod:
    """The pod that it shows is gone."""

    full_name: str


@frozen
class RestartPod:
    """Desired, may run, and has no worker: mostly re-created with a UID whose first life has just finished.

    It is not judged again by admission, as in the kubelet.
    """

    pod: Pod
    mirror_pod: Pod | None

    def request(self, now: float) -> UpdatePod:
        """What to tell the worker."""
        return UpdatePod(update_type=SyncPodType.CREATE, pod=self.pod, mirror_pod=self.mirror_pod, start_time=now)


@frozen
class FinishRejectedPod:
    """Deleted and terminal without ever having had a worker (admission refused it): its deletion must complete."""

    pod: Pod

    def request(self, now: float) -> KillPod:
        """What to tell the worker."""
        return KillPod(pod=self.pod, start_time=now, asked_by=DELETED)


@frozen
class KillOrphan:
    """Runs, and is neither desired nor known to the pod workers."""

    running_pod: RunningPod

    def request(self, now: float) -> KillRuntimePod:
        """What to tell the worker."""
        return KillRuntimePod(
            running_pod=self.running_pod,
            start_time=now,
            asked_by=NOT_DESIRED,
            grace_period_override=ORPHAN_GRACE_PERIOD,
        )


@frozen
class RemovePodDirectory:
    """Volumes and the like of a pod that is neither desired nor running, and that no worker is cleaning up."""

    uid: str


@frozen
class RemovePodCgroup:
    """The cgroup of a pod of which nothing runs, with whatever is left in it."""

    uid: str


@frozen
class ThrottlePodCgroup:
    """The cgroup of such a pod whose volumes are still there. What volumes in memory hold is charged to it and would be
    charged to the group of all pods, so it stays until they are gone."""

    uid: str


CleanupAction: TypeAlias = (
    DeleteMirrorPod
    | RestartPod
    | FinishRejectedPod
    | KillOrphan
    | RemovePodDirectory
    | RemovePodCgroup
    | ThrottlePodCgroup
)


@frozen
class CleanupPlan:
    """The actions in their order. After them, what is kept for other pods (statuses, user ids) is dropped."""

    actions: tuple[CleanupAction, ...] = ()
    statuses_to_keep: frozenset[str] = frozenset()
    """UIDs whose reported statuses stay."""


def plan_cleanup(facts: CleanupFacts) -> CleanupPlan | None:
    """Decide one round. None while the sources are not ready: then nothing is done at all."""
    if not facts.sources_ready:
        return None
    running = {pod.uid: pod for pod in facts.running}
    restarts = _restarts(facts)
    rejected = [
        FinishRejectedPod(pod)
        for pod in facts.desired.pods
        if pod.metadata.deletion_timestamp is not None
        and is_terminal(pod)
        and pod.metadata.uid not in facts.workers
        and pod.metadata.uid not in running
    ]
    known = facts.workers.keys() | {action.pod.metadata.uid for action in restarts} | set(facts.held)
    orphans = [KillOrphan(pod) for uid, pod in running.items() if uid not in known]
    actions: list[CleanupAction] = [*_directories(facts, running), *_cgroups(facts, known | running.keys())]
    actions += [
        DeleteMirrorPod(name)
        for name in facts.desired.orphaned_mirror_full_names
        if name not in facts.terminating_static
    ]
    actions += [*restarts, *rejected, *orphans]
    return CleanupPlan(
        actions=tuple(actions),
        statuses_to_keep=frozenset(pod.metadata.uid for pod in (*facts.desired.pods, *facts.desired.mirror_pods)),
    )


def _restarts(facts: CleanupFacts) -> list[RestartPod]:
    mirrors = {pod.full_name: pod for pod in facts.desired.mirror_pods}
    return [
        RestartPod(pod, mirrors.get(pod.full_name))
        for pod in facts.desired.pods
        if pod.metadata.uid not in facts.workers
        and pod.metadata.uid not in facts.held
        and not is_mirror_pod(pod)
        and not is_inactive(pod, None, facts.reported_phases.get(pod.metadata.uid))
    ]


def _directories(facts: CleanupFacts, running: Mapping[str, RunningPod]) -> list[RemovePodDirectory]:
    wanted = {pod.metadata.uid for pod in facts.desired.pods} | running.keys() | facts.workers.keys()
    return [RemovePodDirectory(uid) for uid in facts.pod_directories if uid not in wanted]


def _cgroups(facts: CleanupFacts, used: AbstractSet[str]) -> list[RemovePodCgroup | ThrottlePodCgroup]:
    """Kubelet: `cleanupOrphanedPodCgroups`."""
    return [
        ThrottlePodCgroup(uid) if uid in facts.pod_directories else RemovePodCgroup(uid)
        for uid in facts.pod_cgroups
        if uid not in used
    ]
