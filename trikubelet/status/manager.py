"""The status manager: the one owner of what is reported of pods.

Statuses come in from the pod workers (`set_pod_status`), the probes (`set_container_readiness`,
`set_container_startup`), the end of a pod (`terminate_pod`) and admission (`reject_pod`). `merge` decides what they
become; a status that says nothing new is dropped. What changed goes out to subscriptions, and each of them holds the
newest status of every pod that changed since it was last asked, so a slow reader costs no memory, blocks nothing, and
never sees a stale status. The part that writes to an API server (`status/writer.py`) is such a reader: it is woken by
what it receives, and asks for the truth (`change`) when it gets to write it.

All calls are synchronous and run in Trio's thread: none waits, so none needs a lock. Kubelet: `status_manager.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from trikubelet.api import POD_FAILED, POD_PENDING, POD_RUNNING, Pod, PodStatus, qos_class
from trikubelet.api.pod_kinds import is_static_pod, shows_version
from trikubelet.broadcast import Inbox
from trikubelet.formats.values import frozen
from trikubelet.status.conditions import containers_ready_condition, ready_condition
from trikubelet.status.generate import terminated_status
from trikubelet.status.merge import IllegalTransitionError, next_status, says_the_same
from trikubelet.status.metrics import StatusMetrics
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Container as Membership

    from trikubelet.api import ContainerStatus, PodCondition
    from trikubelet.clock import WallClock

log = get_logger("status")


class PodLookup(Protocol):
    """The part of the pod manager that is needed here; its package is above this one."""

    def pod_by_uid(self, uid: str) -> Pod | None:
        """A pod that is not a mirror pod."""
        ...

    def pod_by_full_name(self, full_name: str) -> Pod | None:
        """A pod that is not a mirror pod; of several with one name the newest."""
        ...

    def mirror_pod_of(self, pod: Pod) -> Pod | None: ...

    def resolve_uid(self, uid: str) -> str: ...


@frozen
class StatusChange:
    """The newest status of a pod, as a subscription hands it out."""

    pod: Pod
    """The pod as it was when its status was set, with that status."""
    version: int
    """Counts the changes of this pod's status, from 1."""
    finished: bool
    """Whether everything that the pod held on the node is released."""
    first_changed_at: float
    """Trio time of the oldest change that this one includes."""
    rejected: bool = False
    """Admission refused the pod: it has never run here, and this status says so for good."""

    @property
    def status(self) -> PodStatus:
        return self.pod.status


@frozen
class StatusStatistics:
    """Counts for debugging."""

    pods: int
    finished: int
    updates: int
    """Statuses that were kept since the start."""
    unchanged: int
    """Statuses that said nothing new."""
    refused: int
    """Statuses with an illegal transition."""
    subscriptions: int


class StatusSubscription(Inbox[StatusChange]):
    """The changes since the last `receive`, the newest of each pod, in the order in which the pods first changed."""

    def __init__(self, manager: StatusManager, uid: str | None = None) -> None:
        super().__init__(key=_uid)
        self._manager = manager
        self.uid = uid
        """Of the subscribed pod; None for all."""

    def put(self, change: StatusChange) -> None:
        """Called by the manager: one that takes the place of an older one includes that."""
        waiting = self._pending.get(_uid(change))
        if waiting is not None:
            change = attrs.evolve(change, first_changed_at=waiting.first_changed_at)
        super().put(change)

    def close(self) -> None:
        self._manager.unsubscribe(self)
        super().close()


def _uid(change: StatusChange) -> str:
    return change.pod.metadata.uid


class StatusManager:
    """Holds the reported status of every pod on the node."""

    def __init__(
        self,
        clock: WallClock,
        pods: PodLookup,
        *,
        wanted_since: Callable[[str], float | None] = lambda uid: None,
        on_change: Callable[[StatusChange], None] = lambda change: None,
    ) -> None:
        """`wanted_since`: the Trio time from which on a pod is wanted, by UID. `on_change` is called with every change;
        it must neither wait nor raise."""
        self._clock = clock
        self._pods = pods
        self._wanted_since = wanted_since
        self.metrics = StatusMetrics()
        self._changes: dict[str, StatusChange] = {}
        self._subscriptions: list[StatusSubscription] = []
        self._of_pod: dict[str, list[StatusSubscription]] = {}
        self._updates = self._unchanged = self._refused = 0
        self._on_change = on_change
        self.phases_version = 0
        """Another number when a pod is reported for the first time or in another phase."""

    def get_pod_status(self, uid: str) -> PodStatus | None:
        """The reported status of the pod (a mirror pod's UID stands for its static pod); None without one."""
        change = self._changes.get(self._pods.resolve_uid(uid))
        return None if change is None else change.status

    def change(self, uid: str) -> StatusChange | None:
        """The newest change of the pod's status, the same object until the next one. None when nothing is reported."""
        return self._changes.get(uid)

    def changes(self) -> tuple[StatusChange, ...]:
        """The newest change of every pod that is reported."""
        return tuple(self._changes.values())

    def subscribe(self, uid: str | None = None) -> StatusSubscription:
        """A subscription that starts with every status there is; with a UID, to that pod's alone."""
        subscription = StatusSubscription(self, uid)
        if uid is not None:
            self._of_pod.setdefault(uid, []).append(subscription)
            if uid in self._changes:
                subscription.put(self._changes[uid])
            return subscription
        self._subscriptions.append(subscription)
        for change in self._changes.values():
            subscription.put(change)
        return subscription

    def unsubscribe(self, subscription: StatusSubscription) -> None:
        """Hand out no more changes to it."""
        uid = subscription.uid
        among = self._subscriptions if uid is None else self._of_pod.get(uid, [])
        if subscription in among:
            among.remove(subscription)
        if uid is not None and not among:
            self._of_pod.pop(uid, None)

    def set_pod_status(self, pod: Pod, status: PodStatus) -> PodStatus:
        """Report a generated status; gives what is reported now, which stays the old one after an illegal transition.

        A pod that is being deleted is handed to the subscriptions even when nothing changed: its deletion may wait
        for that. What admission said of a pod stays: a sync of a rejected pod only ends it.
        """
        known = self._changes.get(pod.metadata.uid)
        if known is not None and known.rejected:
            status = known.status
        status = attrs.evolve(status, observed_generation=pod.metadata.generation)
        return self._update(pod, status, force=pod.metadata.deletion_timestamp is not None, finished=False)

    def set_container_readiness(self, uid: str, container_id: str, ready: bool) -> None:
        """A readiness probe has a new result. Ignored for a pod or container that is not reported."""
        found = self._find(uid, container_id, "readiness")
        if found is None or found[2].ready == ready:
            return
        pod, status, container = found
        status = _replace_container(status, attrs.evolve(container, ready=ready))
        statuses = (*status.init_container_statuses, *status.container_statuses)
        for condition in (
            ready_condition(pod, status.conditions, statuses, status.phase),
            containers_ready_condition(pod, statuses, status.phase),
        ):
            status = attrs.evolve(status, conditions=_replace_condition(status.conditions, condition))
        self._update(pod, status, force=False, finished=False)

    def set_container_startup(self, uid: str, container_id: str, started: bool) -> None:
        """A startup probe has a new result. Ignored for a pod or container that is not reported."""
        found = self._find(uid, container_id, "startup")
        if found is None or found[2].started is started:
            return
        pod, status, container = found
        status = _replace_container(status, attrs.evolve(container, started=started))
        self._update(pod, status, force=False, finished=False)

    def reject_pod(self, pod: Pod, reason: str, message: str) -> PodStatus:
        """Admission refuses the pod (kubelet: `rejectPod`): it has failed, and there is nothing else to say of it."""
        self.metrics.rejected(reason)
        return self._update(pod, _rejected(pod, reason, message), force=False, finished=False, rejected=True)

    def explain_rejection(self, uid: str, reason: str, message: str) -> None:
        """A rejected pod was judged again, and is still refused, perhaps for another reason."""
        known = self._changes.get(uid)
        if known is not None and known.rejected:
            self._update(known.pod, _rejected(known.pod, reason, message), force=False, finished=False)

    def readmit_pod(self, pod: Pod) -> None:
        """A pod that was rejected may run after all: nothing that was said of it holds."""
        known = self._changes.get(pod.metadata.uid)
        if known is not None and known.rejected:
            status = PodStatus(observed_generation=pod.metadata.generation, phase=POD_PENDING, qos_class=qos_class(pod))
            self._keep(pod, known, known.status, status, finished=False, rejected=False)

    def terminate_pod(self, pod: Pod) -> PodStatus:
        """The pod has released everything: report an end for it and for every container that has begun."""
        change = self._changes.get(pod.metadata.uid)
        status = pod.status if change is None else change.status
        return self._update(pod, terminated_status(pod, status), force=True, finished=True)

    def remove_orphaned(self, uids: Membership[str]) -> None:
        """Forget every pod whose UID is not in `uids`."""
        for uid in [uid for uid in self._changes if uid not in uids]:
            del self._changes[uid]
            for subscription in self._subscriptions:
                subscription.drop(uid)

    def statistics(self) -> StatusStatistics:
        return StatusStatistics(
            pods=len(self._changes),
            finished=sum(change.finished for change in self._changes.values()),
            updates=self._updates,
            unchanged=self._unchanged,
            refused=self._refused,
            subscriptions=len(self._subscriptions) + sum(map(len, self._of_pod.values())),
        )

    def _update(self, pod: Pod, status: PodStatus, *, force: bool, finished: bool, rejected: bool = False) -> PodStatus:
        uid = pod.metadata.uid
        known = self._changes.get(uid)
        old = self.status_before(pod) if known is None else known.status
        try:
            merged = next_status(pod, old, status, self._clock.now())
        except IllegalTransitionError as error:
            self._refused += 1
            log.error("status update refused", pod=pod.full_name, uid=uid, error=str(error))
            return old
        if known is not None and known.finished and not is_static_pod(pod):
            finished = True
        if known is not None and not force and says_the_same(old, merged):
            self._unchanged += 1
            return old
        rejected = rejected or (known is not None and known.rejected)
        self._keep(pod, known, old, merged, finished=finished, rejected=rejected)
        return merged

    def _keep(
        self,
        pod: Pod,
        known: StatusChange | None,
        old: PodStatus,
        new: PodStatus,
        *,
        finished: bool,
        rejected: bool,
    ) -> None:
        """Report the status from now on. `known`: the last change, None for the first."""
        uid = pod.metadata.uid
        self._updates += 1
        self._measure(uid, old, new)
        if known is None or old.phase != new.phase:
            self.phases_version += 1
        change = StatusChange(
            pod=attrs.evolve(pod, status=new),
            version=1 if known is None else known.version + 1,
            finished=finished,
            first_changed_at=trio.current_time(),
            rejected=rejected,
        )
        self._changes[uid] = change
        self._on_change(change)
        for subscription in (*self._subscriptions, *self._of_pod.get(uid, ())):
            subscription.put(change)

    def _measure(self, uid: str, old: PodStatus, new: PodStatus) -> None:
        self.metrics.changed(old, new)
        if old.phase != new.phase == POD_RUNNING and old.phase in ("", POD_PENDING):
            since = self._wanted_since(uid)
            if since is not None:
                self.metrics.starts.observe(trio.current_time() - since)

    def status_before(self, pod: Pod) -> PodStatus:
        """The status that was reported before this agent started: by its mirror pod, for a static one that has one.

        A mirror pod of an earlier version tells of another pod. The kubelet takes that for this one's, and shows the
        phase of a pod that is gone.
        """
        mirror = self._pods.mirror_pod_of(pod)
        return pod.status if mirror is None or not shows_version(mirror, pod) else mirror.status

    def _find(self, uid: str, container_id: str, what: str) -> tuple[Pod, PodStatus, ContainerStatus] | None:
        pod = self._pods.pod_by_uid(uid)
        change = self._changes.get(uid)
        if pod is None or change is None:
            log.debug("probe result for a pod that is not reported", probe=what, uid=uid, container=container_id)
            return None
        status = change.status
        for container in (*status.container_statuses, *status.init_container_statuses):
            if container.container_id == container_id:
                return pod, status, container
        log.debug("probe result for a container that is not reported", probe=what, uid=uid, container=container_id)
        return None


def _rejected(pod: Pod, reason: str, message: str) -> PodStatus:
    return PodStatus(
        observed_generation=pod.metadata.generation,
        phase=POD_FAILED,
        reason=reason,
        message=f"Pod was rejected: {message}",
        qos_class=qos_class(pod),
    )


def _replace_container(status: PodStatus, container: ContainerStatus) -> PodStatus:
    def replaced(statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
        return tuple(container if one.container_id == container.container_id else one for one in statuses)

    return attrs.evolve(
        status,
        container_statuses=replaced(status.container_statuses),
        init_container_statuses=replaced(status.init_container_statuses),
    )


def _replace_condition(conditions: tuple[PodCondition, ...], new: PodCondition) -> tuple[PodCondition, ...]:
    if all(condition.type != new.type for condition in conditions):
        return (*conditions, new)
    return tuple(new if condition.type == new.type else condition for condition in conditions)
