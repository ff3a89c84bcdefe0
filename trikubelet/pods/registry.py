"""All pods' lives as one pure machine: their phases and the order of static pods.

None of its methods waits, and the same calls with the same times give the same result. `workers.PodWorkers` owns one,
and a `life.PodLife` for each pod in it asks it what to do next. What others may ask of it is in `states`.

Two static pods of one full name (an edited manifest gives the pod a new UID) never run together: the second waits until
the first has finished, and those that wait start in the order of their arrival. API pods of one full name may overlap,
as in the kubelet. The kubelet lets a waiting pod look again every ten seconds; here the end of one wakes the next.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.container.model import nothing_runs
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
from trikubelet.pods.states import PodStates
from trikubelet.pods.types import KillRuntimePod, Request

if TYPE_CHECKING:
    from collections.abc import Collection

    from trikubelet.container.model import PodRuntimeStatus


class WorkerLifecycle(enum.Enum):
    """A phase as housekeeping and metrics know it (kubelet: `PodWorkerState`)."""

    SYNC = "sync"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


@attrs.frozen
class WorkerSummary:
    """One worker as `sync_known_pods` found it (kubelet: `PodWorkerSync`)."""

    lifecycle: WorkerLifecycle
    orphan: bool = False
    """No longer desired."""
    has_config: bool = False
    static: bool = False


@attrs.frozen
class KnownPods:
    """What came of a comparison of the known pods with the desired ones."""

    workers: dict[str, WorkerSummary]
    """Those that remain, by UID."""
    changed: tuple[str, ...] = ()
    """UIDs of pods that are in another phase now, have something to do, or were forgotten."""
    faults: tuple[IllegalTransitionError, ...] = ()
    """Each concerns one pod, which stays as it was."""


class PodWorkerRegistry:
    """The phases of all pods. Empty at first; a pod is in here from its first request until it is purged."""

    def __init__(self) -> None:
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
        """The time told by the last `Retry` has come, and nobody has a newer version of the pod to give."""
        state = self.phases.get(uid)
        if state is not None:
            self._move(uid, Event.RETRY, machine.replay(state))

    def begin_again(self, uid: str) -> None:
        """The pod's life ended by a fault and begins again: nothing is in flight any more."""
        state = self.phases.get(uid)
        if state is not None:
            self._move(uid, Event.FAULT, machine.begin_again(state))

    def sync_known_pods(self, desired: Collection[str], now: float) -> KnownPods:
        """Compare with the UIDs of all desired pods: purge what has finished, end what nobody wants.

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
                if after is state:  # nearly all, every two seconds
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
    """There are only so many different ones, and each round of housekeeping wants one of every pod."""
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
    """What of a wanted pod's phase matters to who looks at all pods."""
    return type(state), _has_config(state), isinstance(state, Finished) and state.ending.restart_requested
