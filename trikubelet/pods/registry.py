"""All pods' lives as one pure machine: their phases and the order of static pods.

None of its methods waits, and the same calls with the same times give the same result. `workers.PodWorkers` owns one,
and a `life.PodLife` for each pod in it asks it what to do next. All other parts ask its `PodStates`.

Two static pods of one full name (an edited manifest gives the pod a new UID) never run together: the second waits until
the first has finished, and those that wait start in the order of their arrival. API pods of one full name may overlap,
as in the kubelet. The kubelet lets a waiting pod look again every ten seconds; here the end of one wakes the next.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.container.model import nothing_runs
from trikubelet.formats.values import frozen
from trikubelet.pods import machine
from trikubelet.pods.machine import Event, IllegalTransitionError
from trikubelet.pods.phases import (
    Completed,
    ConfigUpdate,
    Finished,
    Identity,
    Outcome,
    Phase,
    Retry,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    WaitingToStart,
    Work,
    asks_to_end,
)
from trikubelet.pods.types import KillRuntimePod, Request

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trikubelet.container.model import PodRuntimeStatus

OnMove: TypeAlias = Callable[[Phase | None, Phase | None], None]
"""Is told of a pod's phase before and after something; None: the pod was, or is, not known."""


class WorkerLifecycle(enum.Enum):
    """A phase as housekeeping and metrics know it (kubelet: `PodWorkerState`)."""

    SYNC = "sync"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


@frozen
class WorkerSummary:
    """One worker as `sync_known_pods` found it (kubelet: `PodWorkerSync`)."""

    lifecycle: WorkerLifecycle
    orphan: bool = False
    """No longer desired."""
    has_config: bool = False
    static: bool = False


@frozen
class KnownPods:
    """What came of a comparison of the known pods with the desired ones."""

    workers: dict[str, WorkerSummary]
    """Those that remain, by UID."""
    changed: tuple[str, ...] = ()
    """UIDs of pods that are in another phase now, have something to do, or were forgotten."""
    faults: tuple[IllegalTransitionError, ...] = ()
    """Each concerns one pod, which stays as it was."""


MOST_PURGED: Final = 2000
"""So many take about 30 ms, for which the event loop does not turn."""


class PodWorkerRegistry:
    """The phases of all pods. Empty at first; a pod is in here from its first request until it is purged."""

    def __init__(self, on_move: OnMove = lambda before, after: None) -> None:
        """`on_move` is told of a pod's phase before and after everything that happens to it; it must neither wait nor
        raise."""
        self._on_move = on_move
        self.phases: dict[str, Phase] = {}
        self.version = 0
        """Another number when a pod came, went, or is in another phase of its life."""
        self.synced = False
        """Whether `sync_known_pods` was called."""
        self.started_static: dict[str, str] = {}
        """Full name to the UID of the pod that has it for itself."""
        self.waiting_static: dict[str, dict[str, None]] = {}
        """Full name to the UIDs of those that wait for it, in order."""
        self.states = PodStates(self)
        """What others may ask."""

    # --- What happens ------------------------------------------------------------------------------------------------

    def update_pod(self, request: Request, now: float, runtime_status: PodRuntimeStatus | None = None) -> None:
        """Take one request.

        `runtime_status` is what the cache holds of the pod, None when the cache holds an error. It matters for a pod
        seen for the first time that is already terminal.
        """
        identity = _identity(request, now)
        uid = identity.uid
        event = Event.END_ASKED if asks_to_end(request) else Event.UPDATE
        state = self.phases.get(uid)
        if state is None:
            idle = runtime_status is not None and nothing_runs(runtime_status)
            after = machine.first_sight(identity, request, now, nothing_running=idle)
        else:
            after = machine.update(state, request, now)
        self._move(uid, event, after)

    def begin(self, uid: str, now: float) -> Work | None:
        """The pod's life is free and looks for work. None when there is none, or the pod is not known."""
        state = self.phases.get(uid)
        if state is None:
            return None
        after, work = machine.begin(state, now, may_start=self._may_start(state.identity))
        self._move(uid, Event.BEGIN, after)
        return work

    def done(self, uid: str, outcome: Outcome, now: float) -> Retry | None:
        """The work that `begin` gave out has ended. When to look again, None when there is more to do at once."""
        state = self._known(uid, Event.DONE)
        event = Event.FAILED
        if isinstance(outcome, Completed):
            may_be_terminal = isinstance(state, Syncing | TerminationRequested)
            event = Event.TERMINAL if outcome.terminal and may_be_terminal else Event.DONE
        after, retry = machine.done(state, outcome, now)
        self._move(uid, event, after)
        return retry

    def retry(self, uid: str) -> None:
        """The time told by the last `Retry` has come, and no newer version of the pod is pending."""
        state = self.phases.get(uid)
        if state is not None:
            self._move(uid, Event.RETRY, machine.replay(state))

    def begin_again(self, uid: str) -> None:
        """The pod's life ended by a fault and begins again: nothing is in flight any more."""
        state = self.phases.get(uid)
        if state is not None:
            self._move(uid, Event.FAULT, machine.begin_again(state))

    def sync_known_pods(self, desired: Collection[str], now: float) -> KnownPods:
        """Compare with the UIDs of all desired pods: purge what has finished, end what is no longer desired.

        Of thousands that have finished, MOST_PURGED are purged; the others remain for the next comparison.
        A desired pod that is not among the workers that remain shall be sent as CREATE by the caller.
        """
        self.synced = True
        workers: dict[str, WorkerSummary] = {}
        changed: list[str] = []
        faults: list[IllegalTransitionError] = []
        for uid, state in list(self.phases.items()):
            after: Phase | None = state
            try:
                after = machine.known_pods_synced(state, now, desired=uid in desired)
                if after is None and len(changed) >= MOST_PURGED:
                    after = state
                elif after is state:  # nearly all, every two seconds
                    machine.check_transition(uid, Event.KNOWN_PODS_SYNCED, state, after)
                else:
                    self._move(uid, Event.KNOWN_PODS_SYNCED, after)
                    changed.append(uid)
            except IllegalTransitionError as error:
                after = state
                faults.append(error)
            if after is not None:
                workers[uid] = _summary(after, orphan=uid not in desired)
        return KnownPods(workers, tuple(changed), tuple(faults))

    def summaries(self, desired: Collection[str]) -> dict[str, WorkerSummary]:
        """All known pods, finished ones included, beside the UIDs of all desired pods."""
        return {uid: _summary(state, orphan=uid not in desired) for uid, state in self.phases.items()}

    # --- The order of static pods ------------------------------------------------------------------------------------

    def _may_start(self, identity: Identity) -> bool:
        """Kubelet: `allowStaticPodStart`."""
        return not identity.static or self.states.startable_static_pod(identity.full_name) == identity.uid

    def _move(self, uid: str, event: Event, after: Phase | None) -> None:
        before = self.phases.get(uid)
        machine.check_transition(uid, event, before, after)
        if before is None or after is None or _outline(before) != _outline(after):
            self.version += 1
        if after is None:
            self.phases.pop(uid, None)
        else:
            self.phases[uid] = after
        if type(before) is not type(after):
            self._follow_static_order(before, after)
        self._on_move(before, after)

    def _follow_static_order(self, before: Phase | None, after: Phase | None) -> None:
        known = before or after
        if known is None or not known.identity.static:
            return
        uid, name = known.identity.uid, known.identity.full_name
        if isinstance(after, WaitingToStart):
            self.waiting_static.setdefault(name, {})[uid] = None
            return
        if isinstance(before, WaitingToStart):
            del self.waiting_static[name][uid]
            if not self.waiting_static[name]:
                del self.waiting_static[name]
        if isinstance(after, Syncing):
            self.started_static[name] = uid
        elif isinstance(after, Finished | None) and self.started_static.get(name) == uid:
            del self.started_static[name]

    def _known(self, uid: str, event: Event) -> Phase:
        state = self.phases.get(uid)
        if state is None:
            raise IllegalTransitionError(uid, "unknown", event.value)
        return state


class PodStates:
    """What other parts of the agent may ask about a pod's life (kubelet: the queries of `PodWorkers`).

    What an answer promises depends on whether the agent has seen its whole config once, that is, whether the workers
    were compared with the desired pods (`sync_known_pods`). Before, an unknown pod may still turn up with running
    containers; after, what is unknown does not belong here.
    """

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
        """Of all pods that are being ended, in seconds; also of those that are no longer desired."""
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

        Nothing shall be set up for its containers then.
        """
        state = self._phases.get(uid)
        return self.synced if state is None else isinstance(state, Terminating | Terminated | Finished)

    def should_pod_runtime_be_removed(self, uid: str) -> bool:
        """Whether what only running containers need may go (mounted volumes): they have ended, or cannot have begun."""
        state = self._phases.get(uid)
        return self.synced if state is None else isinstance(state, Terminated | Finished)

    def should_pod_content_be_removed(self, uid: str) -> bool:
        """Whether all that the pod left on disk may go: evicted, or deleted and ended, or unknown after the first sync.

        Otherwise it is kept, so that a user can look at it.
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

        Its mirror pod stays until then, so that users see the pod.
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


def _identity(request: Request, now: float) -> Identity:
    if isinstance(request, KillRuntimePod):
        pod = request.running_pod
        return Identity(uid=pod.uid, full_name=pod.full_name, static=False, first_seen=now)
    of = request.pod
    return Identity(uid=of.metadata.uid, full_name=of.full_name, static=is_static_pod(of), first_seen=now)


_LIFECYCLES: Final = {
    WaitingToStart: WorkerLifecycle.SYNC,
    Syncing: WorkerLifecycle.SYNC,
    TerminationRequested: WorkerLifecycle.TERMINATING,
    Terminating: WorkerLifecycle.TERMINATING,
    Terminated: WorkerLifecycle.TERMINATED,
    Finished: WorkerLifecycle.TERMINATED,
}
_SUMMARIES: Final[dict[tuple[type[Phase], bool, bool, bool], WorkerSummary]] = {}


def _summary(state: Phase, *, orphan: bool) -> WorkerSummary:
    """The summary of a phase. Equal ones are one object: each round of housekeeping needs one for every pod."""
    has_config = _has_config(state)
    static = has_config and state.identity.static
    key = type(state), orphan, has_config, static
    known = _SUMMARIES.get(key)
    if known is None:
        known = _SUMMARIES[key] = WorkerSummary(_LIFECYCLES[type(state)], orphan, has_config, static)
    return known


def _has_config(state: Phase) -> bool:
    match state:
        case TerminationRequested():
            return isinstance(state.pending, ConfigUpdate)
        case Terminating():
            return isinstance(state.active, ConfigUpdate)
        case Finished():
            return state.has_config
        case _:
            return True


def _outline(state: Phase) -> tuple[type[Phase], bool, bool]:
    """What of a desired pod's phase matters to housekeeping: `version` is another number when it changes."""
    return type(state), _has_config(state), isinstance(state, Finished) and state.ending.restart_requested
