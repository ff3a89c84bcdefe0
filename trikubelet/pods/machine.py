"""One pod's life on this node: six phases, a table of what may follow what, and the functions that decide.

Everything that affects a transition stands in this file; what concerns several pods at once (the order of static pods,
the questions that other parts ask) stands in `registry`. Neither knows a clock, a task or a runtime: times are
floats handed in, and what comes out is the next phase and the work to do in it. `life` does the work.

The story of one pod, in order:

1. A request arrives (`update`). It becomes the *pending* update; a newer one replaces it: only the newest matters.
2. The pod's life, when it is free, takes the pending update (`begin`) and is told what to do. The update is now
   *active*.
3. The work ends (`done`), and the phase may change. A phase change leaves an update pending, so the life goes on at
   once; otherwise it is told when to look again.
4. The pod is asked to end: by the API (a deletion timestamp or a terminal phase), by the agent (a kill), or by the
   config, which no longer names it. A sync in flight is then in the way (`is_in_the_way`). From then on requests can
   only make the end come sooner: the grace period's deadline moves closer, never away.
5. When nothing runs any more the pod's resources are released, and its life ends. The phase is kept as history, so that
   the UID cannot start again, until `known_pods_synced` finds it unwanted or asked for anew.

Behaviour follows the kubelet's pod workers (`pkg/kubelet/pod_workers.go`, 1.36): `UpdatePod` is `first_sight` and
`update`, `startPodSync` is `begin`, the family of `complete…` is `done`, `removeTerminatedWorker` is
`known_pods_synced`. Where it differs on purpose:

- a task that waits for the end of a pod is told in every case, also when the pod never started or has finished before;
- a deletion's grace of 0 is the shortest there is, not one that a later kill's override may lengthen, and a deletion
  while a pod ends by itself shortens that end too: the kubelet has no grace period in force in these two cases;
- a shorter grace period moves the deadline of the kill that is under way, which is not cancelled for it;
- disappearance from config cancels the sync in flight, as every other request to end does;
- an eviction or deletion of a pod that is already ending counts for the question whether its content may go;
- a pod that never started but was seen in the runtime, or is terminal and may run, is killed, not just dropped; one
  that had ended before it was seen is cleaned up even when it is no longer desired;
- a fault of the agent in the middle of a pod's life has it begun again in the phase where it was (`begin_again`).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import attrs

from trikubelet.api.pod_kinds import is_terminal
from trikubelet.pods.phases import (
    NOT_DESIRED,
    Cancelled,
    CleanUpPod,
    Completed,
    ConfigUpdate,
    Ending,
    Failed,
    Finished,
    Identity,
    Outcome,
    Phase,
    Retry,
    RetryReason,
    RuntimeUpdate,
    Syncing,
    SyncPod,
    Terminated,
    TerminatePod,
    TerminateRuntimePod,
    Terminating,
    TerminationRequested,
    Update,
    WaitingToStart,
    Work,
    asks_to_end,
    coalesce,
    first_kill,
    further_ending,
    further_kill,
    new_update,
    remember,
)
from trikubelet.pods.types import KillRuntimePod, SyncPodType, UpdatePod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.pods.types import Request


# --- The table -------------------------------------------------------------------------------------------------------


class Event(enum.Enum):
    """What happens to a pod, in the words of the diagram."""

    UPDATE = "update"
    END_ASKED = "end asked"
    BEGIN = "begin"
    DONE = "done"
    TERMINAL = "done, pod is terminal"
    FAILED = "failed or cancelled"
    RETRY = "retry due"
    FAULT = "fault of the agent"
    KNOWN_PODS_SYNCED = "known pods synced"


PhaseName: TypeAlias = type[Phase] | None
_W, _S, _R, _T, _D, _F, _NONE = WaitingToStart, Syncing, TerminationRequested, Terminating, Terminated, Finished, None
_AT_WORK = (Event.BEGIN, Event.FAILED, Event.RETRY, Event.FAULT, Event.KNOWN_PODS_SYNCED)

# Where each event leads. None stands for a pod that is not known.
TRANSITIONS: Final[Mapping[PhaseName, Mapping[Event, tuple[PhaseName, ...]]]] = {
    None: {Event.UPDATE: (_W,), Event.END_ASKED: (_R, _D)},
    _W: {Event.BEGIN: (_S,), Event.END_ASKED: (_R,), Event.KNOWN_PODS_SYNCED: (_NONE,)},
    _S: {Event.TERMINAL: (_T,), Event.END_ASKED: (_R,), Event.KNOWN_PODS_SYNCED: (_R,)},
    _R: {Event.TERMINAL: (_T,), Event.BEGIN: (_T, _F), Event.KNOWN_PODS_SYNCED: (_NONE,)},
    _T: {Event.DONE: (_D, _NONE)},
    _D: {Event.DONE: (_F,)},
    _F: {Event.KNOWN_PODS_SYNCED: (_NONE,)},
}

# What each phase hears and may stay as it is. What is in neither table cannot happen.
STAYS: Final[Mapping[PhaseName, frozenset[Event]]] = {
    None: frozenset(),
    _W: frozenset({Event.UPDATE, Event.BEGIN, Event.RETRY, Event.FAULT, Event.KNOWN_PODS_SYNCED}),
    _S: frozenset({Event.UPDATE, *_AT_WORK, Event.DONE}),
    _R: frozenset(
        {
            Event.UPDATE,
            Event.END_ASKED,
            Event.DONE,
            Event.FAILED,
            Event.RETRY,
            Event.FAULT,
            Event.KNOWN_PODS_SYNCED,
        }
    ),
    _T: frozenset({Event.UPDATE, Event.END_ASKED, *_AT_WORK}),
    _D: frozenset({Event.UPDATE, Event.END_ASKED, *_AT_WORK}),
    _F: frozenset({Event.UPDATE, Event.END_ASKED, Event.BEGIN, Event.RETRY, Event.FAULT, Event.KNOWN_PODS_SYNCED}),
}


class IllegalTransitionError(Exception):
    """A programming error: something happened to a pod that cannot happen in its phase."""

    def __init__(self, uid: str, phase: str, event: str) -> None:
        super().__init__(f"pod {uid}: {event!r} cannot happen while it is {phase}")
        self.uid = uid
        self.phase = phase
        self.event = event


def check_transition(uid: str, event: Event, before: Phase | None, after: Phase | None) -> None:
    """Raise IllegalTransitionError for a transition that is not in the table."""
    now, then = (None if phase is None else type(phase) for phase in (before, after))
    if (now is then and event in STAYS[now]) or then in TRANSITIONS[now].get(event, ()):
        return
    names = ["unknown" if phase is None else phase.__name__ for phase in (now, then)]
    raise IllegalTransitionError(uid, f"{names[0]} (to become {names[1]})", event.value)


# --- Updates ---------------------------------------------------------------------------------------------------------


def first_sight(identity: Identity, request: Request, now: float, *, nothing_running: bool) -> Phase:
    """The first request of a pod that is not known.

    `nothing_running`: the status cache holds neither a running container nor a ready sandbox of it. A pod that is
    terminal and has nothing running was ended before the agent started: only its cleanup is left. One that is terminal
    and may have something running counts as seen in the runtime.
    """
    update = new_update(request)
    terminal = not isinstance(update, RuntimeUpdate) and is_terminal(update.pod)
    if not isinstance(update, RuntimeUpdate):
        if terminal and nothing_running:
            ending = further_ending(Ending(asked_at=now), request)
            return Terminated(identity=identity, ending=ending, terminated_at=now, active=update, pending=update)
        if not asks_to_end(request):
            return WaitingToStart(identity=identity, pending=update)
    return TerminationRequested(
        identity=identity,
        ending=further_ending(Ending(asked_at=now), request),
        kill=further_kill(None, update, request, now),
        active=None,
        pending=update,
        observed_runtime=terminal or isinstance(update, RuntimeUpdate),
    )


def update(state: Phase, request: Request, now: float) -> Phase:
    """A further request of a known pod."""
    match state:
        case WaitingToStart() | Syncing():
            if asks_to_end(request):
                return _request_termination(state, request, now)
            return attrs.evolve(state, pending=coalesce(state.pending, _config_update(request, state)))
        case _ if isinstance(request, UpdatePod) and request.update_type is SyncPodType.CREATE:
            return _request_restart(state)
        case TerminationRequested() | Terminating():
            return _hasten(state, request, now)
        case Terminated():
            if isinstance(request, KillRuntimePod):
                return state
            state = attrs.evolve(state, ending=further_ending(state.ending, request))
            return attrs.evolve(state, pending=coalesce(state.pending, _config_update(request, state)))
        case Finished():
            return state
        case _:
            assert_never(state)


def is_in_the_way(state: Phase) -> bool:
    """Whether the work in flight is out of date, so that it shall be cancelled: a sync of a pod that is to end."""
    return isinstance(state, TerminationRequested) and state.in_flight


def _request_termination(state: WaitingToStart | Syncing, request: Request, now: float) -> TerminationRequested:
    newer = coalesce(state.pending, _config_update(request, state))
    return TerminationRequested(
        identity=state.identity,
        ending=further_ending(Ending(asked_at=now), request),
        kill=further_kill(None, newer, request, now),
        active=state.active if isinstance(state, Syncing) else None,
        pending=newer,
        in_flight=isinstance(state, Syncing) and state.in_flight,
        observed_runtime=isinstance(request, KillRuntimePod),
    )


def _hasten(state: TerminationRequested | Terminating, request: Request, now: float) -> Phase:
    newer = coalesce(state.pending, _known_update(request, state))
    kill = further_kill(state.kill, newer, request, now)
    ending = further_ending(state.ending, request)
    if isinstance(state, TerminationRequested):
        seen = state.observed_runtime or isinstance(request, KillRuntimePod)
        return attrs.evolve(state, pending=newer, kill=kill, ending=ending, observed_runtime=seen)
    return attrs.evolve(state, pending=newer, kill=kill, ending=ending)


def _request_restart(state: TerminationRequested | Terminating | Terminated | Finished) -> Phase:
    return attrs.evolve(state, ending=attrs.evolve(state.ending, restart_requested=True))


# --- The life's own events -------------------------------------------------------------------------------------------


def begin(state: Phase, now: float, *, may_start: bool) -> tuple[Phase, Work | None]:
    """A life that is free looks for something to do. `may_start`: no other static pod of this name is in the way."""
    uid = state.identity.uid
    if not isinstance(state, WaitingToStart | Finished) and state.in_flight:
        raise IllegalTransitionError(uid, f"{type(state).__name__}, busy", Event.BEGIN.value)
    match state:
        case WaitingToStart(pending=taken):
            if not may_start:
                return state, None
            active = remember(None, taken)
            return Syncing(identity=state.identity, started_at=now, active=active, in_flight=True), SyncPod(taken)
        case TerminationRequested(pending=taken):
            if state.active is None and state.identity.static and not state.observed_runtime:
                return Finished(identity=state.identity, ending=state.ending, terminated_at=now, has_config=False), None
            terminating = Terminating(
                identity=state.identity,
                ending=state.ending,
                kill=state.kill,
                active=remember(state.active, taken),
                in_flight=True,
            )
            return terminating, _termination(taken)
        case Finished():
            return state, None
        case Syncing() | Terminating() | Terminated() if state.pending is None:
            return state, None
        case Terminating(pending=ConfigUpdate() | RuntimeUpdate() as taken):
            started = attrs.evolve(state, active=remember(state.active, taken), pending=None, in_flight=True)
            return started, _termination(taken)
        case Syncing(pending=ConfigUpdate() as taken) | Terminated(pending=ConfigUpdate() as taken):
            work = SyncPod(taken) if isinstance(state, Syncing) else CleanUpPod(taken)
            return attrs.evolve(state, active=remember(state.active, taken), pending=None, in_flight=True), work
        case _:
            raise IllegalTransitionError(uid, type(state).__name__, Event.BEGIN.value)


def done(state: Phase, outcome: Outcome, now: float) -> tuple[Phase | None, Retry | None]:
    """The work in flight has ended. The next phase (None: forget the pod), and when to look again if nothing is
    pending."""
    if isinstance(state, WaitingToStart | Finished) or not state.in_flight:
        raise IllegalTransitionError(state.identity.uid, f"{type(state).__name__}, idle", Event.DONE.value)
    idle = attrs.evolve(state, in_flight=False)
    match idle, outcome:
        case ((Syncing() | TerminationRequested(active=ConfigUpdate())), Completed(terminal=True)):
            return _run_its_course(idle, outcome, now), None
        case TerminationRequested(), _:
            return idle, None
        case Terminating(active=RuntimeUpdate()), Completed():
            return None, None
        case Terminating(active=ConfigUpdate() as active), Completed():
            next_update = idle.pending if isinstance(idle.pending, ConfigUpdate) else active
            ended = Terminated(
                identity=idle.identity, ending=idle.ending, terminated_at=now, active=active, pending=next_update
            )
            return ended, None
        case Terminated(), Completed():
            finished = Finished(
                identity=idle.identity, ending=idle.ending, terminated_at=idle.terminated_at, has_config=True
            )
            return finished, None
        case _:
            return idle, None if idle.pending is not None else _retry(outcome)


def _run_its_course(state: Syncing | TerminationRequested, outcome: Completed, now: float) -> Terminating:
    """A sync reported the pod terminal; it may have been asked to end at the same time."""
    active = state.active
    assert active is not None, "a sync was in flight, so there is an active update"
    if isinstance(state, TerminationRequested):
        ending, kill, pending = state.ending, state.kill, state.pending
    else:
        pending = state.pending or active
        ending, kill = Ending(asked_at=now, asked_by=tuple(filter(None, (outcome.why,)))), first_kill(pending.pod, now)
    return Terminating(identity=state.identity, ending=ending, kill=kill, active=active, pending=pending)


def _retry(outcome: Outcome) -> Retry:
    match outcome:
        case Completed():
            return Retry(RetryReason.RESYNC)
        case Failed(network_not_ready=True):
            return Retry(RetryReason.NETWORK_NOT_READY)
        case Failed(retry_at=retry_at):
            return Retry(RetryReason.ERROR, retry_at)
        case Cancelled():
            return Retry(RetryReason.ERROR)
        case _:
            assert_never(outcome)


def replay(state: Phase) -> Phase:
    """Do the last thing again, unless something newer is pending (kubelet: `requeueLastPodUpdate`).

    The same object when something is.
    """
    match state:
        case Syncing(active=active, pending=None) | Terminated(active=active, pending=None):
            return attrs.evolve(state, pending=active)
        case Terminating(active=ending, pending=None):
            return attrs.evolve(state, pending=ending)
        case Syncing() | Terminating() | Terminated() | WaitingToStart() | TerminationRequested() | Finished():
            return state
        case _:
            assert_never(state)


def begin_again(state: Phase) -> Phase:
    """A fault ended the life in the middle of something: whatever was in flight is to be done again."""
    if isinstance(state, WaitingToStart | Finished):
        return state
    return replay(attrs.evolve(state, in_flight=False))


def known_pods_synced(state: Phase, now: float, *, desired: bool) -> Phase | None:
    """Housekeeping compared the lives with the desired pods. None: forget the pod.

    For a pod that is no longer desired no request arrives: it is driven to its end from here. A finished one is
    forgotten, and so is a finished one that was asked for anew.
    """
    if isinstance(state, Finished):
        return None if not desired or state.ending.restart_requested else state
    if desired:
        return state
    match state:
        case WaitingToStart():
            return None
        case TerminationRequested(active=None, observed_runtime=False):
            return None
        case Syncing(active=active):
            newest = state.pending or active
            return TerminationRequested(
                identity=state.identity,
                ending=Ending(asked_at=now, deleted=True, asked_by=(NOT_DESIRED,)),
                kill=first_kill(newest.pod, now),
                active=active,
                pending=newest,
                in_flight=state.in_flight,
            )
        case TerminationRequested() | Terminating() | Terminated():
            ending = state.ending
            if not ending.deleted:
                state = attrs.evolve(state, ending=attrs.evolve(ending, deleted=True))
            return replay(state)
        case _:
            assert_never(state)


# --- Pieces ----------------------------------------------------------------------------------------------------------


def _known_update(request: Request, state: Phase) -> Update:
    """The update, with the newest known spec in place of what the runtime saw."""
    newer = new_update(request)
    if isinstance(newer, RuntimeUpdate) and not isinstance(state, Finished):
        active = None if isinstance(state, WaitingToStart) else state.active
        for known in (state.pending, active):
            if isinstance(known, ConfigUpdate):
                return attrs.evolve(known, update_type=SyncPodType.KILL, start_time=request.start_time)
    return newer


def _config_update(request: Request, state: WaitingToStart | Syncing | Terminated) -> ConfigUpdate:
    newer = _known_update(request, state)
    assert isinstance(newer, ConfigUpdate), "these phases always have a config update to fall back to"
    return newer


def _termination(taken: Update) -> Work:
    return TerminateRuntimePod(taken) if isinstance(taken, RuntimeUpdate) else TerminatePod(taken)
