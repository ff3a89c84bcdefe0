"""The desired pods: what the sources want on this node, and which mirror pod shows which static pod.

This is the one place that knows them; others ask and keep no copy. The story: the sync loop adds, updates and removes
pods as the sources say. A mirror pod comes from the API server like any other pod, but is filed apart, since it only
shows a static pod of the same full name under another UID. Users name mirror pods, the agent works on static pods, so
UIDs that come from outside are translated (`resolve_uid`).

Behaviour of the kubelet's `pod/pod_manager.go`. Nothing here waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import is_mirror_pod, is_static_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@attrs.frozen
class PodPair:
    """A pod and the mirror pod that shows it. `pod` is None for a mirror pod whose static pod is gone."""

    pod: Pod | None
    mirror_pod: Pod | None
    was_mirror: bool
    """Whether the mirror pod was asked for."""


@attrs.frozen
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
        """When the agent first saw the pod; None for one that nobody wants."""
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
        """The pod and its mirror pod as they are wanted now, None when nobody wants the pod any more."""
        pod = self._pods.get(uid)
        return None if pod is None else (pod, self.mirror_pod_of(pod))

    def resolve_uid(self, uid: str) -> str:
        """A mirror pod's UID becomes that of the pod that it shows; any other stays (kubelet: `TranslatePodUID`)."""
        return self._shown_by.get(uid, uid)
