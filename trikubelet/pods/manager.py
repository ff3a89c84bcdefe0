"""The desired pods: what the sources want on this node, and which mirror pod shows which static pod.

This is the one place that knows them; others ask and keep no copy. The story: the sync loop adds, updates and removes
pods as the sources say. A mirror pod comes from the API server like any other pod, but is filed apart, since it only
shows a static pod of the same full name under another UID. Users name mirror pods, the agent works on static pods, so
UIDs that come from outside are translated (`resolve_uid`).

Behaviour of the kubelet's `pod/pod_manager.go`. Nothing here waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import TERMINAL_PHASES, is_mirror_pod, is_static_pod, is_terminal
from trikubelet.formats.values import frozen
from trikubelet.pods.registry import WorkerLifecycle, WorkerSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from trikubelet.pods.registry import PodWorkerRegistry
    from trikubelet.sources.mux import SourceMux
    from trikubelet.status.manager import StatusManager


@frozen
class PodPair:
    """A pod and the mirror pod that shows it. `pod` is None for a mirror pod whose static pod is gone."""

    pod: Pod | None
    mirror_pod: Pod | None
    was_mirror: bool
    """Whether the mirror pod was asked for."""


@frozen
class AllPods:
    pods: tuple[Pod, ...]
    mirror_pods: tuple[Pod, ...]
    orphaned_mirror_full_names: tuple[str, ...]
    """Full names of mirror pods that show no pod."""


class PodManager:
    """The desired pods by UID and by full name."""

    def __init__(self, pods: Iterable[Pod] = (), *, now: Callable[[], float] = lambda: 0.0) -> None:
        """`now`: the time by which `wanted_since` tells, Trio's in an agent."""
        self._now = now
        self._pods: dict[str, Pod] = {}
        self._pods_by_full_name: dict[str, Pod] = {}
        self._mirrors: dict[str, Pod] = {}
        self._mirrors_by_full_name: dict[str, Pod] = {}
        self._shown_by: dict[str, str] = {}
        """UID of a mirror pod to the UID of the pod that it shows."""
        self._limited_in_time: dict[str, Pod] = {}
        self._wanted_since: dict[str, float] = {}
        self.version = 0
        """Another number after each change."""
        self.set_pods(pods)

    # --- Changes -----------------------------------------------------------------------------------------------------

    def set_pods(self, pods: Iterable[Pod]) -> None:
        """Forget all pods and take these."""
        for index in (self._pods, self._pods_by_full_name, self._mirrors, self._mirrors_by_full_name):
            index.clear()
        self._limited_in_time.clear()
        self._wanted_since.clear()
        self.version += 1
        self._shown_by.clear()
        for pod in pods:
            self.update_pod(pod)

    def add_pod(self, pod: Pod) -> None:
        """The same as `update_pod`; the name says what the caller knows."""
        self.update_pod(pod)

    def update_pod(self, pod: Pod) -> None:
        """Take a new version of a pod or mirror pod, known or not."""
        self.version += 1
        name = pod.full_name
        if is_mirror_pod(pod):
            self._mirrors[pod.metadata.uid] = self._mirrors_by_full_name[name] = pod
        else:
            if pod.metadata.uid not in self._pods:
                self._wanted_since[pod.metadata.uid] = self._now()
            self._pods[pod.metadata.uid] = self._pods_by_full_name[name] = pod
            self._limited_in_time.pop(pod.metadata.uid, None)
            if pod.spec.active_deadline_seconds is not None:
                self._limited_in_time[pod.metadata.uid] = pod
        shown, mirror = self._pods_by_full_name.get(name), self._mirrors_by_full_name.get(name)
        if shown is not None and mirror is not None:
            self._shown_by[mirror.metadata.uid] = shown.metadata.uid

    def remove_pod(self, pod: Pod) -> None:
        """Forget a pod or mirror pod. One that is not known does no harm.

        An older pod of the same full name leaves the newer one's entry alone (the kubelet drops it: an edited manifest
        brings the new pod before the old one's removal).
        """
        self.version += 1
        mirror = is_mirror_pod(pod)
        by_uid = self._mirrors if mirror else self._pods
        by_full_name = self._mirrors_by_full_name if mirror else self._pods_by_full_name
        by_uid.pop(pod.metadata.uid, None)
        if not mirror:
            self._limited_in_time.pop(pod.metadata.uid, None)
            self._wanted_since.pop(pod.metadata.uid, None)
        named = by_full_name.get(pod.full_name)
        if named is not None and named.metadata.uid == pod.metadata.uid:
            del by_full_name[pod.full_name]
        if mirror:
            self._shown_by.pop(pod.metadata.uid, None)

    # --- Questions ---------------------------------------------------------------------------------------------------

    def pods(self) -> tuple[Pod, ...]:
        """All pods that are not mirror pods."""
        return tuple(self._pods.values())

    @property
    def limited_in_time(self) -> tuple[Pod, ...]:
        """The pods with `activeDeadlineSeconds`."""
        return tuple(self._limited_in_time.values())

    def pods_and_mirror_pods(self) -> AllPods:
        """Everything, for housekeeping."""
        orphaned = tuple(name for name in self._mirrors_by_full_name if name not in self._pods_by_full_name)
        return AllPods(self.pods(), tuple(self._mirrors.values()), orphaned)

    def pod_by_uid(self, uid: str) -> Pod | None:
        """A pod that is not a mirror pod."""
        return self._pods.get(uid)

    def wanted_since(self, uid: str) -> float | None:
        """When the agent first saw the pod; None for one that is not desired."""
        return self._wanted_since.get(uid)

    def pod_by_full_name(self, full_name: str) -> Pod | None:
        """A pod that is not a mirror pod; of several with one name the newest."""
        return self._pods_by_full_name.get(full_name)

    def static_pods_with_mirrors(self) -> tuple[tuple[Pod, Pod | None], ...]:
        """Each static pod that has its full name, and the mirror pod that shows it (`GetStaticPodToMirrorPodMap`)."""
        return tuple(
            (pod, self._mirrors_by_full_name.get(name))
            for name, pod in self._pods_by_full_name.items()
            if is_static_pod(pod)
        )

    def mirror_pod_of(self, pod: Pod) -> Pod | None:
        """The mirror pod with the pod's full name."""
        return self._mirrors_by_full_name.get(pod.full_name)

    def pod_of_mirror(self, mirror_pod: Pod) -> Pod | None:
        """The pod with the mirror pod's full name."""
        return self._pods_by_full_name.get(mirror_pod.full_name)

    def pair(self, pod: Pod) -> PodPair:
        """The given pod with its counterpart (kubelet: `GetPodAndMirrorPod`)."""
        if is_mirror_pod(pod):
            return PodPair(self.pod_of_mirror(pod), pod, was_mirror=True)
        return PodPair(pod, self.mirror_pod_of(pod), was_mirror=False)

    def desired(self, uid: str) -> tuple[Pod, Pod | None] | None:
        """The pod and its mirror pod as they are desired now, None when the pod is no longer desired."""
        pod = self._pods.get(uid)
        return None if pod is None else (pod, self.mirror_pod_of(pod))

    def resolve_uid(self, uid: str) -> str:
        """A mirror pod's UID becomes that of the pod that it shows; any other stays (kubelet: `TranslatePodUID`)."""
        return self._shown_by.get(uid, uid)


def is_inactive(pod: Pod, worker: WorkerSummary | None, reported_phase: str | None) -> bool:
    """Whether a desired pod shall not run any more (kubelet: `isPodInactive`).

    That is so for one known to have ended, and for a terminal one, unless it is just being ended.
    """
    if worker is not None and worker.lifecycle is WorkerLifecycle.TERMINATED:
        return True
    terminal = is_terminal(pod) or reported_phase in TERMINAL_PHASES
    return terminal and (worker is None or worker.lifecycle is not WorkerLifecycle.TERMINATING)


class DesiredPods:
    """Which desired pods are active: what the pod manager, the pod workers and the status manager know of them, joined.

    It is there before the sync loop, so that other parts of the agent can ask it.
    """

    def __init__(self, pods: PodManager, registry: PodWorkerRegistry, statuses: StatusManager) -> None:
        self._pods = pods
        self._registry = registry
        self._statuses = statuses
        self._sources_ready = False

    def active(self) -> list[Pod]:
        """Those that have not ended (kubelet: `GetActivePods`)."""
        pods = self._pods.pods()
        workers = self._registry.summaries({pod.metadata.uid for pod in pods})
        return [pod for pod in pods if not is_inactive(pod, workers.get(pod.metadata.uid), self._reported(pod))]

    def active_uids(self) -> set[str]:
        return {pod.metadata.uid for pod in self.active()}

    def sources_ready(self) -> bool:
        """Whether the first pods of every source have been handled."""
        return self._sources_ready

    def handled(self, sources: SourceMux, names: AbstractSet[str]) -> bool:
        """The sync loop has handled the first pods of the sources with these names. Returns whether that is all."""
        self._sources_ready = sources.sources_ready(names)
        return self._sources_ready

    def _reported(self, pod: Pod) -> str | None:
        status = self._statuses.get_pod_status(pod.metadata.uid)
        return None if status is None else status.phase
