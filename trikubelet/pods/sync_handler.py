"""What the sync loop does about a change of one pod (kubelet: `SyncHandler`). No method waits.

A desired pod is taken into the pod manager, judged by admission, and handed to the pod workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import trio

from trikubelet.admission.declared_features import FAILED_CHECK, update_problem
from trikubelet.admission.types import Admitted, Rejected
from trikubelet.allocation.manager import AllocationManager
from trikubelet.api import Pod
from trikubelet.api.pod_kinds import is_static_pod, is_terminal
from trikubelet.broadcast import Broadcast
from trikubelet.cgroups.interface import PodCgroups
from trikubelet.clock import WallClock
from trikubelet.formats.values import frozen
from trikubelet.kube_client.volume_objects import WatchedObjects
from trikubelet.pleg.cache import PodStatusCache
from trikubelet.pods.admitting import Admitting, Beside
from trikubelet.pods.housekeeping import Housekeeping
from trikubelet.pods.manager import DesiredPods, PodManager
from trikubelet.pods.types import KillPod, SyncPodType, UpdatePod, UpdateType
from trikubelet.pods.workers import PodWorkers, record_fault
from trikubelet.probes.manager import ProbeManager
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.state import RuntimeState
from trikubelet.status.conditions import readiness_differs
from trikubelet.status.manager import StatusManager
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.admission.types import Verdict
    from trikubelet.pods.admitting import AdmittingEvent

log = get_logger("sync-loop")


@frozen(kw_only=True)
class SyncParts:
    """What the sync loop and its handler act on, and ask. It is where all of these meet."""

    pods: PodManager
    desired: DesiredPods
    workers: PodWorkers
    housekeeping: Housekeeping
    admitting: Admitting
    statuses: StatusManager
    probes: ProbeManager
    allocation: AllocationManager
    cache: PodStatusCache
    recorder: EventRecorder
    clock: WallClock
    runtime: RuntimeManager
    runtime_state: RuntimeState
    objects: WatchedObjects
    cgroups: PodCgroups
    news: Sequence[Broadcast[str]]
    """UIDs of pods: something that the pod waits for may be there."""
    sources_ready: Callable[[AbstractSet[str]], bool]
    """Whether these are all configured sources of pods."""
    features: AbstractSet[str]
    """What the node has of what updates may need."""
    is_replaced: Callable[[Pod], bool] = lambda pod: False
    """Whether the source of a pod that is removed has another one of its name now."""


class SyncHandler:
    """Acts on changes of pods."""

    def __init__(self, parts: SyncParts) -> None:
        self._parts = parts
        self._pods = parts.pods
        self._workers = parts.workers
        self._admitting = parts.admitting

    def beside(self) -> Beside:
        """The pods that count for the admission of others."""
        return self._admitting.beside(self._parts.desired.active())

    def add_pod(self, pod: Pod, beside: Beside | None = None) -> None:
        """A source has a new pod. `beside`: the pods that count for its admission; it joins them unless rejected."""
        self._pods.add_pod(pod)
        pair = self._pods.pair(pod)
        ended = self._workers.states.is_pod_termination_requested(pod.metadata.uid) or is_terminal(pod)
        if pair.was_mirror or ended:
            self._dispatch(pod, SyncPodType.CREATE)
            return
        beside = self.beside() if beside is None else beside
        verdict = self._admitting.ask(pod, beside)
        self._follow_verdict(pod, verdict)
        if not isinstance(verdict, Rejected):
            self._admitting.joins(beside, pod)

    def update_pod(self, pod: Pod) -> None:
        """A source has a newer version of a pod, which may be deleted."""
        uid, ends = pod.metadata.uid, pod.metadata.deletion_timestamp is not None
        old = self._pods.pod_by_uid(uid)
        self._pods.update_pod(pod)
        if uid in self._admitting.held:
            if not ends:
                self._admitting.update(pod)
                return
            self._admitting.forget(uid)  # it never starts: its worker only ends it
        elif self._is_rejected(uid) and not ends:
            return
        elif old is not None and not ends:
            # A change that needs what the node lacks gets an event, and is done as far as it goes, as in the kubelet.
            if (problem := update_problem(old, pod, self._parts.features)) is not None:
                self._parts.recorder.pod_event(pod, EventType.WARNING, FAILED_CHECK, problem)
            self._parts.allocation.changed(old, pod)
        self._dispatch(pod, SyncPodType.UPDATE)

    def remove_pod(self, pod: Pod) -> None:
        """A source has the pod no more."""
        self._admitting.forget(pod.metadata.uid)
        self._pods.remove_pod(pod)
        self._parts.allocation.removed(pod.metadata.uid)
        pair = self._pods.pair(pod)
        if pair.was_mirror:
            if pair.pod is not None:
                # There may be another mirror pod already.
                self._update_worker(pair.pod, self._pods.mirror_pod_of(pair.pod), SyncPodType.UPDATE)
        elif self._parts.desired.sources_ready():
            # Before that the source's view may be incomplete; housekeeping comes back to it.
            asked_by = _removed_by(pod, replaced=self._parts.is_replaced(pod))
            self._workers.update_pod(KillPod(pod=pod, start_time=trio.current_time(), asked_by=asked_by))

    def reconcile_pod(self, pod: Pod) -> None:
        """Only the status of a pod is another one at its source."""
        self._pods.update_pod(pod)
        pair = self._pods.pair(pod)
        if pair.pod is not None and not pair.was_mirror and readiness_differs(pair.pod):
            self._update_worker(pair.pod, pair.mirror_pod, SyncPodType.SYNC)

    def sync_pods(self, pods: Sequence[Pod]) -> None:
        """Something that these pods' workers have to see has happened. A fault concerns one pod only."""
        for pod in pods:
            try:
                self._sync_pod(pod)
            except Exception as error:  # noqa: BLE001 - recorded; the pod is looked at again
                record_fault(self._parts.recorder, pod, error)

    def admit_again(self, event: AdmittingEvent) -> None:
        """What a held pod waited for has been done."""
        self._follow_verdict(event.held.pod, self._admitting.again(event, self.beside()))

    def admit_what_waited_for_runtime(self) -> None:
        """Judge held pods again that wait to know the runtime's abilities."""
        for held in self._admitting.waiting_for_runtime():
            self._follow_verdict(held.pod, self._admitting.judge(held, self.beside()))

    def _follow_verdict(self, pod: Pod, verdict: Verdict | None) -> None:
        """Carry out a verdict; None and those that are not final leave the pod held."""
        if isinstance(verdict, Admitted):
            self._parts.allocation.admitted(pod)
            self._dispatch(pod, SyncPodType.CREATE)
        elif isinstance(verdict, Rejected):
            log.info("pod rejected", pod=pod.full_name, reason=verdict.reason, problem=_told(verdict))
            self._parts.recorder.pod_event(pod, EventType.WARNING, verdict.reason, verdict.message)
            self._parts.statuses.reject_pod(pod, verdict.reason, _told(verdict))

    def rejected_static_pods(self) -> list[Pod]:
        """The pods to judge again when a pod has ended. An API pod stays rejected: its maker has made another one."""
        return [pod for pod in self._pods.pods() if is_static_pod(pod) and self._is_rejected(pod.metadata.uid)]

    def admit_rejected_again(self, rejected: Sequence[Pod]) -> None:
        """A pod has ended, and what it held may be what these static pods lack: judge them again."""
        beside = self.beside()
        for pod in rejected:
            if self._workers.states.phase(pod.metadata.uid) is not None:
                continue  # what an earlier agent has left of it is being ended
            verdict = self._admitting.ask(pod, beside)
            if isinstance(verdict, Rejected):
                self._parts.statuses.explain_rejection(pod.metadata.uid, verdict.reason, _told(verdict))
                continue
            log.info("a rejected pod may run now", pod=pod.full_name)
            self._parts.statuses.readmit_pod(pod)
            self._follow_verdict(pod, verdict)
            self._admitting.joins(beside, pod)

    def _is_rejected(self, uid: str) -> bool:
        change = self._parts.statuses.change(uid)
        return change is not None and change.rejected

    def _sync_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid not in self._admitting.held and not self._is_rejected(uid):
            self._update_worker(pod, self._pods.mirror_pod_of(pod), SyncPodType.SYNC)

    def _dispatch(self, pod: Pod, update_type: UpdateType) -> None:
        pair = self._pods.pair(pod)
        if pair.pod is None:
            log.debug("mirror pod without its static pod", pod=pod.full_name)
            return
        self._update_worker(pair.pod, pair.mirror_pod, SyncPodType.UPDATE if pair.was_mirror else update_type)

    def _update_worker(self, pod: Pod, mirror_pod: Pod | None, update_type: UpdateType) -> None:
        now = trio.current_time()
        self._workers.update_pod(UpdatePod(update_type=update_type, pod=pod, mirror_pod=mirror_pod, start_time=now))


def _removed_by(pod: Pod, *, replaced: bool) -> str:
    """Who asks for the end of a pod that its source has no more, for people."""
    if replaced:
        return "replaced by a newer version of its manifest"
    if not is_static_pod(pod):
        return "its object is gone from the API server"
    return "manifest removed"


def _told(verdict: Rejected) -> str:
    """What the pod's status says; the event has the kubelet's message alone, which others look for."""
    return f"{verdict.message}: {verdict.because}" if verdict.because else verdict.message
