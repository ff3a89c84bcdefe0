"""One pod's life on this node: six phases, a table of what may follow what, and the functions that decide.

Everything that affects a transition of a worker stands in this file; what concerns several pods at once (the order
of static pods, the questions that other parts ask) stands in `worker_registry`. Neither knows a clock, a task or a
runtime: times are floats handed in, and what is to be done comes out as commands. `workers` carries them out.

The story of one pod, in order:

1. An update arrives (`update`). It becomes the worker's *pending* update; a newer one replaces it, since only the
   newest matters. The command is to wake the worker.
2. The worker, when it is free, takes the pending update (`begin`) and is told what to run. The update is now *active*.
3. The run ends (`done`), and the phase may change. A phase change leaves an update pending, so the worker goes on at
   once; otherwise it is told when to look again.
4. Somebody asks the pod to end: the API by a deletion timestamp or a terminal phase, the agent by a kill, the config by
   no longer naming it. From then on updates can only make it faster: the grace period shrinks, never grows, and a
   shrink cancels the kill that is running, which starts again with less.
5. When nothing runs any more the pod's resources are released, and the worker stops. The phase is kept as history, so
   that the UID cannot start again, until `known_pods_synced` finds it unwanted or asked for anew.

Behaviour follows the kubelet's pod workers (`pkg/kubelet/pod_workers.go`, 1.36): `UpdatePod` is `first_sight` and
`update`, `startPodSync` is `begin`, the family of `complete…` is `done`, `removeTerminatedWorker` is
`known_pods_synced`. Where it differs on purpose:

- who waits for a kill is told in every case, also when the pod never started or had already finished;
- a deletion's grace of 0 is the shortest there is, not one that a later kill's override may lengthen, and a deletion
  while a pod ends by itself shortens that end too: the kubelet has no grace period in force in these two cases;
- disappearance from config cancels the sync in flight, as every other request to end does;
- an eviction or deletion of a pod that is already ending counts for the question whether its content may go;
- a pod that never started but was seen in the runtime, or is terminal and may run, is killed, not just dropped; one
  that had ended before it was seen is cleaned up even when nobody wants it any more.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import attrs

from trikubelet.pods.classify import is_terminal
from trikubelet.pods.termination import (
    asks_to_end,
    effective_grace_period,
    further_ending,
    further_kill,
)
from trikubelet.pods.types import SyncPodType
from trikubelet.pods.worker_messages import (
    Cancelled,
    CancelWork,
    CleanUpPod,
    Command,
    Completed,
    ConfigUpdate,
    Failed,
    Notify,
    Outcome,
    Retry,
    RetryReason,
    Run,
    RuntimeUpdate,
    StartWorker,
    StopWorker,
    SyncPod,
    TerminatePod,
    TerminateRuntimePod,
    Update,
    Wake,
    Work,
    coalesce,
    new_update,
    remember,
)
from trikubelet.pods.worker_phases import (
    Ending,
    Finished,
    Identity,
    Kill,
    Phase,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    WaitingToStart,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.pods.types import UpdatePodOptions


Step: TypeAlias = tuple[Phase | None, tuple[Command, ...]]
"""The next phase (None: forget the pod) and what is to be done."""


# --- The table -------------------------------------------------------------------------------------------------------


class Event(enum.Enum):
    """What happens to a worker, in the words of the diagram."""

    UPDATE = "update"
    END_ASKED = "end asked"
    BEGIN = "begin"
    DONE = "done"
    TERMINAL = "done, pod is terminal"
    FAILED = "failed or cancelled"
    RETRY = "retry due"
    KNOWN_PODS_SYNCED = "known pods synced"


PhaseName: TypeAlias = type[Phase] | None
_W, _S, _R, _T, _D, _F, _NONE = WaitingToStart, Syncing, TerminationRequested, Terminating, Terminated, Finished, None
_AT_WORK = (Event.BEGIN, Event.FAILED, Event.RETRY, Event.KNOWN_PODS_SYNCED)

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
    _W: frozenset({Event.UPDATE, Event.BEGIN, Event.RETRY, Event.KNOWN_PODS_SYNCED}),
    _S: frozenset({Event.UPDATE, *_AT_WORK, Event.DONE}),
    _R: frozenset({Event.UPDATE, Event.END_ASKED, Event.DONE, Event.FAILED, Event.RETRY, Event.KNOWN_PODS_SYNCED}),
    _T: frozenset({Event.UPDATE, Event.END_ASKED, *_AT_WORK}),
    _D: frozenset({Event.UPDATE, Event.END_ASKED, *_AT_WORK}),
    _F: frozenset({Event.UPDATE, Event.END_ASKED, Event.BEGIN, Event.RETRY, Event.KNOWN_PODS_SYNCED}),
}


class IllegalTransitionError(Exception):
    """A programming error: something happened to a worker that cannot happen in its phase."""

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


def first_sight(identity: Identity, options: UpdatePodOptions, now: float, *, nothing_running: bool) -> Step:
    """The first update of a pod that has no worker.

    `nothing_running`: the status cache holds neither a running container nor a ready sandbox of it. A pod that is
    terminal and has nothing running was ended before the agent started: only its cleanup is left. One that is terminal
    and may have something running counts as seen in the runtime.
    """
    update = new_update(options)
    terminal = not isinstance(update, RuntimeUpdate) and is_terminal(update.pod)
    if not isinstance(update, RuntimeUpdate):
        if terminal and nothing_running:
            ending = further_ending(Ending(asked_at=now), options)
            ended = Terminated(identity=identity, ending=ending, terminated_at=now, active=update, pending=update)
            return ended, (StartWorker(identity.uid), *_notify_now(identity, options), Wake(identity.uid))
        if not asks_to_end(options):
            waiting = WaitingToStart(identity=identity, pending=update)
            return waiting, (StartWorker(identity.uid), *_notify_now(identity, options), Wake(identity.uid))
    requested = TerminationRequested(
        identity=identity,
        ending=further_ending(Ending(asked_at=now), options),
        kill=further_kill(None, update, options),
        active=None,
        pending=update,
        observed_runtime=terminal or isinstance(update, RuntimeUpdate),
    )
    return requested, (StartWorker(identity.uid), Wake(identity.uid))


def update(state: Phase, options: UpdatePodOptions, now: float) -> Step:
    """A further update of a known pod."""
    identity = state.identity
    match state:
        case WaitingToStart() | Syncing():
            if asks_to_end(options):
                return _request_termination(state, options, now)
            newer = coalesce(state.pending, _config_update(options, state))
            commands = _notify_now(identity, options)
            if isinstance(state, WaitingToStart):
                return attrs.evolve(state, pending=newer), (*commands, Wake(identity.uid))
            return attrs.evolve(state, pending=newer), (*commands, *_wake_if_free(state))
        case _ if options.update_type is SyncPodType.CREATE:
            return _request_restart(state), _notify_now(identity, options)
        case TerminationRequested() | Terminating():
            return _hasten(state, options)
        case Terminated():
            if options.pod is None:
                return state, _notify_now(identity, options)
            state = attrs.evolve(state, ending=further_ending(state.ending, options))
            state = attrs.evolve(state, pending=coalesce(state.pending, _config_update(options, state)))
            return state, (*_notify_now(identity, options), *_wake_if_free(state))
        case Finished():
            return state, _notify_now(identity, options)
        case _:
            assert_never(state)


def _request_termination(state: WaitingToStart | Syncing, options: UpdatePodOptions, now: float) -> Step:
    newer = coalesce(state.pending, _config_update(options, state))
    requested = TerminationRequested(
        identity=state.identity,
        ending=further_ending(Ending(asked_at=now), options),
        kill=further_kill(None, newer, options),
        active=state.active if isinstance(state, Syncing) else None,
        pending=newer,
        in_flight=isinstance(state, Syncing) and state.in_flight,
        observed_runtime=options.pod is None,
    )
    return requested, _cancel_or_wake(requested)


def _hasten(state: TerminationRequested | Terminating, options: UpdatePodOptions) -> Step:
    newer = coalesce(state.pending, _known_update(options, state))
    kill = further_kill(state.kill, newer, options)
    ending = further_ending(state.ending, options)
    commands = _cancel_or_wake(state) if kill.grace_period < state.kill.grace_period else _wake_if_free(state)
    if isinstance(state, TerminationRequested):
        seen = state.observed_runtime or options.pod is None
        return attrs.evolve(state, pending=newer, kill=kill, ending=ending, observed_runtime=seen), commands
    return attrs.evolve(state, pending=newer, kill=kill, ending=ending), commands


def _request_restart(state: TerminationRequested | Terminating | Terminated | Finished) -> Phase:
    return attrs.evolve(state, ending=attrs.evolve(state.ending, restart_requested=True))


# --- The worker's own events -----------------------------------------------------------------------------------------


def begin(state: Phase, now: float, *, may_start: bool) -> Step:
    """A free worker looks for something to do. `may_start`: no other static pod of this name is in the way."""
    uid = state.identity.uid
    if not isinstance(state, WaitingToStart | Finished) and state.in_flight:
        raise IllegalTransitionError(uid, f"{type(state).__name__}, busy", Event.BEGIN.value)
    match state:
        case WaitingToStart(pending=taken):
            if not may_start:
                return state, ()
            active = remember(None, taken)
            syncing = Syncing(identity=state.identity, started_at=now, active=active, in_flight=True)
            return syncing, (Run(uid, SyncPod(taken)),)
        case TerminationRequested(pending=taken):
            if state.active is None and state.identity.static and not state.observed_runtime:
                finished = Finished(identity=state.identity, ending=state.ending, terminated_at=now, has_config=False)
                return finished, (*_notify_waiting(state), StopWorker(uid))
            terminating = Terminating(
                identity=state.identity,
                ending=state.ending,
                kill=state.kill,
                active=remember(state.active, taken),
                in_flight=True,
            )
            return terminating, (Run(uid, _termination(taken, state.kill)),)
        case Finished():
            return state, ()
        case Syncing() | Terminating() | Terminated() if state.pending is None:
            return state, ()
        case Terminating(pending=ConfigUpdate() | RuntimeUpdate() as taken):
            started = attrs.evolve(state, active=remember(state.active, taken), pending=None, in_flight=True)
            return started, (Run(uid, _termination(taken, state.kill)),)
        case Syncing(pending=ConfigUpdate() as taken) | Terminated(pending=ConfigUpdate() as taken):
            work = SyncPod(taken) if isinstance(state, Syncing) else CleanUpPod(taken)
            active = remember(state.active, taken)
            return attrs.evolve(state, active=active, pending=None, in_flight=True), (Run(uid, work),)
        case _:
            raise IllegalTransitionError(uid, type(state).__name__, Event.BEGIN.value)


def done(state: Phase, outcome: Outcome, now: float) -> Step:
    """The work in flight has ended."""
    if isinstance(state, WaitingToStart | Finished) or not state.in_flight:
        raise IllegalTransitionError(state.identity.uid, f"{type(state).__name__}, idle", Event.DONE.value)
    uid = state.identity.uid
    idle = attrs.evolve(state, in_flight=False)
    match idle, outcome:
        case ((Syncing() | TerminationRequested(active=ConfigUpdate())), Completed(terminal=True)):
            return _run_its_course(idle, now), (Wake(uid),)
        case TerminationRequested(), _:
            return idle, (Wake(uid),)
        case Terminating(active=RuntimeUpdate()), Completed():
            return None, (*_notify_waiting(idle), StopWorker(uid))
        case Terminating(active=ConfigUpdate() as active), Completed():
            next_update = idle.pending if isinstance(idle.pending, ConfigUpdate) else active
            ended = Terminated(
                identity=idle.identity, ending=idle.ending, terminated_at=now, active=active, pending=next_update
            )
            return ended, (*_notify_waiting(idle), Wake(uid))
        case Terminated(), Completed():
            finished = Finished(
                identity=idle.identity, ending=idle.ending, terminated_at=idle.terminated_at, has_config=True
            )
            return finished, (StopWorker(uid),)
        case _:
            return idle, (Wake(uid),) if idle.pending is not None else (_retry(uid, outcome),)


def _run_its_course(state: Syncing | TerminationRequested, now: float) -> Terminating:
    """A sync reported the pod terminal; it may have been asked to end at the same time."""
    active = state.active
    assert active is not None, "a sync was in flight, so there is an active update"
    if isinstance(state, TerminationRequested):
        ending, kill, pending = state.ending, state.kill, state.pending
    else:
        pending = state.pending or active
        ending, kill = Ending(asked_at=now), Kill(effective_grace_period(None, pending.pod, None))
    return Terminating(identity=state.identity, ending=ending, kill=kill, active=active, pending=pending)


def _retry(uid: str, outcome: Outcome) -> Retry:
    match outcome:
        case Completed():
            return Retry(uid, RetryReason.RESYNC)
        case Failed(network_not_ready=True):
            return Retry(uid, RetryReason.NETWORK_NOT_READY)
        case Failed(retry_at=retry_at):
            return Retry(uid, RetryReason.ERROR, retry_at)
        case Cancelled():
            return Retry(uid, RetryReason.ERROR)
        case _:
            assert_never(outcome)


def replay(state: Phase) -> Step:
    """Do the last thing again, unless something newer is pending (kubelet: `requeueLastPodUpdate`)."""
    match state:
        case Syncing(active=active) | Terminated(active=active):
            state = attrs.evolve(state, pending=state.pending or active)
        case Terminating(active=ending):
            state = attrs.evolve(state, pending=state.pending or ending)
        case WaitingToStart() | TerminationRequested():
            pass
        case Finished():
            return state, ()
        case _:
            assert_never(state)
    return state, (Wake(state.identity.uid),) if isinstance(state, WaitingToStart) else _wake_if_free(state)


def known_pods_synced(state: Phase, now: float, *, desired: bool) -> Step:
    """Housekeeping compared the workers with the desired pods.

    Nobody else speaks for a pod that is no longer desired: it is driven to its end from here. A finished one is
    forgotten, and so is a finished one that was asked for anew.
    """
    uid = state.identity.uid
    if isinstance(state, Finished):
        return (None if not desired or state.ending.restart_requested else state), ()
    if desired:
        return state, ()
    match state:
        case WaitingToStart():
            return None, (StopWorker(uid),)
        case TerminationRequested(active=None, observed_runtime=False):
            return None, (*_notify_waiting(state), StopWorker(uid))
        case Syncing(active=active):
            newest = state.pending or active
            requested = TerminationRequested(
                identity=state.identity,
                ending=Ending(asked_at=now, deleted=True),
                kill=Kill(effective_grace_period(None, newest.pod, None)),
                active=active,
                pending=newest,
                in_flight=state.in_flight,
            )
            return requested, _cancel_or_wake(requested)
        case TerminationRequested() | Terminating() | Terminated():
            return replay(attrs.evolve(state, ending=attrs.evolve(state.ending, deleted=True)))
        case _:
            assert_never(state)


# --- Pieces ----------------------------------------------------------------------------------------------------------


def _known_update(options: UpdatePodOptions, state: Phase) -> Update:
    """The update, with the newest known spec in place of what the runtime saw."""
    newer = new_update(options)
    if isinstance(newer, RuntimeUpdate) and not isinstance(state, Finished):
        active = None if isinstance(state, WaitingToStart) else state.active
        for known in (state.pending, active):
            if isinstance(known, ConfigUpdate):
                return attrs.evolve(known, update_type=options.update_type, start_time=options.start_time)
    return newer


def _config_update(options: UpdatePodOptions, state: WaitingToStart | Syncing | Terminated) -> ConfigUpdate:
    newer = _known_update(options, state)
    assert isinstance(newer, ConfigUpdate), "these phases always have a config update to fall back to"
    return newer


def _termination(taken: Update, kill: Kill) -> Work:
    if isinstance(taken, RuntimeUpdate):
        return TerminateRuntimePod(taken)
    return TerminatePod(taken, kill.grace_period)


def _cancel_or_wake(state: Syncing | TerminationRequested | Terminating) -> tuple[Command, ...]:
    """What is in flight is out of date: end it, or begin at once when nothing is."""
    uid = state.identity.uid
    return (CancelWork(uid),) if state.in_flight else (Wake(uid),)


def _wake_if_free(state: Syncing | TerminationRequested | Terminating | Terminated) -> tuple[Command, ...]:
    """A busy worker looks for pending updates by itself when it is done."""
    return () if state.in_flight else (Wake(state.identity.uid),)


def _notify_now(identity: Identity, options: UpdatePodOptions) -> tuple[Command, ...]:
    """Who asks for an end that is already reached, or that cannot be asked for in this way, does not wait."""
    asked = options.kill_options
    if asked is None or asked.on_completed is None:
        return ()
    return (Notify(identity.uid, (asked.on_completed,)),)


def _notify_waiting(state: TerminationRequested | Terminating) -> tuple[Command, ...]:
    return (Notify(state.identity.uid, state.kill.waiting),) if state.kill.waiting else ()
