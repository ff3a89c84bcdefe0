"""What other parts of the agent may ask about a pod's life, and what each answer promises.

The promises depend on whether the agent has seen its whole config once, that is, whether the workers were compared with
the desired pods (`sync_known_pods`): before, an unknown pod may still turn up with running containers; after, what is
unknown does not belong here. They are those of the kubelet's `PodWorkers` interface.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trikubelet.pods.phases import (
    Finished,
    Phase,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    WaitingToStart,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.pods.registry import PodWorkerRegistry


class PodStates:
    """The phases of all pods, to be looked at. `PodWorkerRegistry` owns them."""

    def __init__(self, registry: PodWorkerRegistry) -> None:
        self._registry = registry
        self._phases = registry.phases

    @property
    def version(self) -> int:
        """Another number when a pod came, went, or is in another phase of its life."""
        return self._registry.version

    @property
    def synced(self) -> bool:
        """Whether `sync_known_pods` was called, so that what is unknown is known not to belong here."""
        return self._registry.synced

    def phase(self, uid: str) -> Phase | None:
        """The pod's phase with all that is known in it, None for a pod that is not known."""
        return self._phases.get(uid)

    def phases(self) -> Mapping[str, Phase]:
        """All pods by UID, the one known longest first. A live view: do not keep it."""
        return self._phases

    def count_by_phase(self) -> dict[type[Phase], int]:
        return dict(Counter(type(state) for state in self._phases.values()))

    def grace_periods(self) -> list[int]:
        """Of all pods that are being ended, in seconds; also of those that nobody wants any more."""
        ending = (TerminationRequested, Terminating)
        return [state.kill.grace_period for state in self._phases.values() if isinstance(state, ending)]

    def is_pod_known_terminated(self, uid: str) -> bool:
        """Whether the pod's containers are known to have ended for good.

        False for a pod that is not known, also for one that ended and was purged: only for filtering desired pods, as
        admission does.
        """
        return isinstance(self._phases.get(uid), Terminated | Finished)

    def could_have_running_containers(self, uid: str) -> bool:
        """False only when no container of the pod runs or will: it has ended, or it is unknown after the first sync."""
        state = self._phases.get(uid)
        return not self.synced if state is None else not isinstance(state, Terminated | Finished)

    def should_pod_be_finished(self, uid: str) -> bool:
        """Whether the pod has ended and released all it held; after the first sync also for a pod that is not known."""
        state = self._phases.get(uid)
        return self.synced if state is None else isinstance(state, Finished)

    def is_pod_termination_requested(self, uid: str) -> bool:
        """Whether the pod was asked to end, until it is purged. Its containers may still be starting.

        False for a pod that is not known, so not for cleanup loops: `should_pod_containers_be_terminating` is for them.
        """
        return isinstance(self._phases.get(uid), TerminationRequested | Terminating | Terminated | Finished)

    def should_pod_containers_be_terminating(self, uid: str) -> bool:
        """Whether no container of the pod will start any more; after the first sync also for a pod that is not known.

        For those who set things up for containers: stop doing so.
        """
        state = self._phases.get(uid)
        return self.synced if state is None else isinstance(state, Terminating | Terminated | Finished)

    def should_pod_runtime_be_removed(self, uid: str) -> bool:
        """Whether what only running containers need may go (mounted volumes): they have ended, or cannot have begun."""
        state = self._phases.get(uid)
        return self.synced if state is None else isinstance(state, Terminated | Finished)

    def should_pod_content_be_removed(self, uid: str) -> bool:
        """Whether all that the pod left on disk may go: evicted, or deleted and ended, or unknown after the first sync.

        Otherwise it is kept for as long as somebody may want to look at it.
        """
        match self._phases.get(uid):
            case None:
                return self.synced
            case WaitingToStart() | Syncing():
                return False
            case TerminationRequested(ending=ending) | Terminating(ending=ending):
                return ending.evicted
            case Terminated(ending=ending) | Finished(ending=ending):
                return ending.evicted or ending.deleted

    def is_pod_for_mirror_pod_terminating_by_full_name(self, full_name: str) -> bool:
        """Whether a static pod of this full name has been asked to end and still has containers.

        Until then its mirror pod shall stay, so that others see it.
        """
        uid = self._registry.started_static.get(full_name)
        return uid is not None and isinstance(self._phases.get(uid), TerminationRequested | Terminating)

    def terminating_static_full_names(self) -> frozenset[str]:
        """All full names for which `is_pod_for_mirror_pod_terminating_by_full_name` holds."""
        return frozenset(filter(self.is_pod_for_mirror_pod_terminating_by_full_name, self._registry.started_static))

    def started_static_pod(self, full_name: str) -> str | None:
        """The UID of the static pod that has this full name for itself, from its start until it has finished."""
        return self._registry.started_static.get(full_name)

    def waiting_static_pods(self, full_name: str) -> tuple[str, ...]:
        """The UIDs of the static pods that wait to start under this full name, the next one first."""
        return tuple(self._registry.waiting_static.get(full_name, ()))

    def startable_static_pod(self, full_name: str) -> str | None:
        """The UID of the static pod of this full name that waits and may start now; None when there is none."""
        if full_name in self._registry.started_static:
            return None
        return next(iter(self._registry.waiting_static.get(full_name, ())), None)
