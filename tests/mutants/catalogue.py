"""The guards of a pod's life, each with the edit that takes it away and the promise that this breaks.

When a change of the machine moves a text, the edit no longer applies and the run says so: move the edit along, and ask
whether the guard is still there.
"""

from __future__ import annotations

import enum
import functools
from typing import Final

import attrs


class Promise(enum.Enum):
    """The invariants. The value is what the property machine says when the promise is broken.

    Any of the texts counts: the name of one of its checks, or the words of an assertion.
    """

    NO_START_AFTER_THE_END_WAS_ASKED = ("a sync began after the pod was asked to end", "a sync runs, so a container")
    TERMINATED_MEANS_NOTHING_RUNS = (
        "what_has_terminated_has_no_running_container",
        "a killer was told of an end while containers may run",
        "a pod was forgotten while containers of it may run",
    )
    ONE_STATIC_POD_OF_A_NAME = (
        "static_pods_of_one_name_do_not_run_together",
        "only_one_static_pod_of_a_name_has_been_started",
    )
    STATIC_PODS_START_IN_ORDER = ("a static pod started before one that had come earlier",)
    PHASES_MOVE_ONE_WAY = ("phases_move_one_way", "IllegalTransitionError")
    A_GRACE_PERIOD_NEVER_GROWS = ("the grace period grew", "a_grace_period_is_the_shortest_that_was_asked_for")
    NO_UPDATE_IS_LOST = ("an update was lost", "nothing_pending_is_left_lying")
    NO_LIFE_IS_LEFT = ("a_life_is_there_exactly_while_it_has_something_to_do", "teardown")
    WHAT_IS_ASKED_TO_END_ENDS = (
        "an_idle_life_looks_again_sometime",
        "nothing_pending_is_left_lying",
        "a pod that nobody wants was kept",
        "teardown",
    )
    WHAT_IS_IN_THE_WAY_IS_CALLED_OFF = ("what_stands_in_the_way_of_the_end_is_called_off",)
    NOTHING_ELSE_IS_CALLED_OFF = ("nothing_but_a_sync_is_called_off",)
    A_DEADLINE_ONLY_MOVES_CLOSER = (
        "a_deadline_only_moves_closer",
        "a_deadline_is_the_earliest_that_was_asked_for",
    )
    A_FAULT_LOSES_NOTHING = (
        "what a fault interrupted was not begun again",
        "what_is_in_flight_is_known",
        "a fault changed",
    )
    A_UID_STARTS_AGAIN_WHEN_ASKED_FOR_ANEW = (
        "a pod that is desired was forgotten",
        "a pod that was asked for anew was kept",
    )


@attrs.frozen(kw_only=True)
class Mutant:
    """One guard taken away."""

    name: str
    file: str
    """In `trikubelet`."""
    without: str
    """What is taken away, and what that breaks: one sentence."""
    promise: Promise | None
    """The invariant that breaks; None when only facts can tell."""
    old: str
    new: str


def _mutant(file: str, name: str, promise: Promise | None, without: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file=file, without=without, promise=promise, old=old, new=new)


_state = functools.partial(_mutant, "pods/machine.py")
_registry = functools.partial(_mutant, "pods/registry.py")
_phases = functools.partial(_mutant, "pods/phases.py")


def _fact(file: str, name: str, without: str, old: str, new: str) -> Mutant:
    """Of what is not pure: the property machine has nothing to say of it."""
    return _mutant(file, name, None, without, old, new)


_life = functools.partial(_fact, "pods/life.py")
_workers = functools.partial(_fact, "pods/workers.py")
_syncer = functools.partial(_fact, "pods/syncer.py")
_supervision = functools.partial(_fact, "supervision.py")
_container = functools.partial(_fact, "runtime/containers/life.py")
_kill = functools.partial(_fact, "runtime/kill.py")


FIRST_SIGHT: Final = (
    _state(
        "terminal pod is believed to have ended",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "The cache is not asked whether a terminal pod still runs, so a running one counts as terminated.",
        "if terminal and nothing_running:",
        "if terminal:",
    ),
    _state(
        "silent cache means nothing runs",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "A pod that is not terminal but has nothing running is taken for one that ended, and is never started.",
        "if terminal and nothing_running:",
        "if nothing_running:",
    ),
    _state(
        "ended pod is killed again",
        None,
        "A terminal pod of which nothing runs is not known as terminated at once, so admission counts it as active.",
        "if terminal and nothing_running:",
        "if False:",
    ),
    _state(
        "ended pod is not cleaned up",
        Promise.WHAT_IS_ASKED_TO_END_ENDS,
        "Nothing is pending of a pod that had ended before it was seen, so its cleanup never happens.",
        "terminated_at=now, active=update, pending=update)",
        "terminated_at=now, active=update)",
    ),
    _state(
        "terminal pod that runs is dropped",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "A terminal pod that may run does not count as seen in the runtime, so it is dropped without a kill.",
        "observed_runtime=terminal or isinstance(update, RuntimeUpdate),",
        "observed_runtime=isinstance(update, RuntimeUpdate),",
    ),
    _state(
        "runtime pod does not count as seen",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "A pod that only the runtime knows does not count as seen there, so it is dropped without a kill.",
        "observed_runtime=terminal or isinstance(update, RuntimeUpdate),",
        "observed_runtime=terminal,",
    ),
)

ASKED_TO_END: Final = (
    _state(
        "running pod does not hear the request",
        Promise.NO_START_AFTER_THE_END_WAS_ASKED,
        "A request to end a pod that is known is taken for a plain update, so the pod is synced again.",
        "if asks_to_end(request):\n                return _request_termination",
        "if False:\n                return _request_termination",
    ),
    _state(
        "sync in flight is forgotten",
        Promise.WHAT_IS_IN_THE_WAY_IS_CALLED_OFF,
        "A request to end forgets that a sync is in flight, so the sync is not called off and the kill joins it.",
        "in_flight=isinstance(state, Syncing) and state.in_flight,",
        "in_flight=False,",
    ),
    _state(
        "started pod counts as not started",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "A request to end forgets that the pod was started, so a static pod finishes without a kill.",
        "active=state.active if isinstance(state, Syncing) else None,",
        "active=None,",
    ),
    _state(
        "runtime's sight is forgotten on request",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "A kill by what the runtime holds does not count as seen there, so a waiting static pod is just dropped.",
        "observed_runtime=isinstance(request, KillRuntimePod),\n    )\n\n\ndef _hasten",
        "observed_runtime=False,\n    )\n\n\ndef _hasten",
    ),
    _state(
        "runtime's sight is forgotten later",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "Seeing a pod in the runtime after it was asked to end does not count, so a static pod is just dropped.",
        "seen = state.observed_runtime or isinstance(request, KillRuntimePod)",
        "seen = state.observed_runtime",
    ),
    _state(
        "nothing is called off",
        Promise.WHAT_IS_IN_THE_WAY_IS_CALLED_OFF,
        "A request to end does not cancel the sync in flight, so the end waits for it.",
        "return isinstance(state, TerminationRequested) and state.in_flight",
        "return False",
    ),
    _state(
        "kill in flight is called off",
        Promise.NOTHING_ELSE_IS_CALLED_OFF,
        "A request cancels the kill in flight, so repeated kills put off the end again and again.",
        "return isinstance(state, TerminationRequested) and state.in_flight",
        "return isinstance(state, TerminationRequested | Terminating) and state.in_flight",
    ),
    _state(
        "every sync is called off",
        Promise.NOTHING_ELSE_IS_CALLED_OFF,
        "An update cancels the sync in flight, so a pod whose status changes often never gets through one.",
        "return isinstance(state, TerminationRequested) and state.in_flight",
        "return isinstance(state, TerminationRequested | Syncing) and state.in_flight",
    ),
    _state(
        "shorter grace is not heard",
        Promise.A_DEADLINE_ONLY_MOVES_CLOSER,
        "A further kill does not change the one in force, so the pod keeps the longer grace.",
        "kill = further_kill(state.kill, newer, request, now)",
        "kill = state.kill",
    ),
    _state(
        "kill's terms are forgotten when the pod ends itself",
        Promise.A_DEADLINE_ONLY_MOVES_CLOSER,
        "When a sync finds the pod terminal while it is being killed, the kill is forgotten, and so is its deadline.",
        "ending, kill, pending = state.ending, state.kill, state.pending",
        "ending, kill, pending = Ending(0), first_kill(active.pod, now), state.pending",
    ),
)

RESTARTS: Final = (
    _state(
        "any update asks for a restart",
        Promise.NO_UPDATE_IS_LOST,
        "An update of a pod that is ending counts as its re-creation, so it is lost, and the pod starts once more.",
        "case _ if isinstance(request, UpdatePod) and request.update_type is SyncPodType.CREATE:",
        "case _ if isinstance(request, UpdatePod):",
    ),
    _state(
        "no create asks for a restart",
        None,
        "A pod re-created while its UID is ending is taken for an update, so it never starts.",
        "case _ if isinstance(request, UpdatePod) and request.update_type is SyncPodType.CREATE:",
        "case _ if False:",
    ),
    _state(
        "history of a desired pod is purged",
        Promise.A_UID_STARTS_AGAIN_WHEN_ASKED_FOR_ANEW,
        "Housekeeping forgets a finished pod that is still desired, so a pod that has run its course starts again.",
        "return None if not desired or state.ending.restart_requested else state",
        "return None",
    ),
    _state(
        "restart never comes",
        Promise.A_UID_STARTS_AGAIN_WHEN_ASKED_FOR_ANEW,
        "Housekeeping keeps the history of a pod that was asked for anew, so it does not start.",
        "return None if not desired or state.ending.restart_requested else state",
        "return None if not desired else state",
    ),
    _state(
        "history is kept for ever",
        Promise.WHAT_IS_ASKED_TO_END_ENDS,
        "Housekeeping keeps the history of a pod that nobody wants, so memory grows with every pod.",
        "return None if not desired or state.ending.restart_requested else state",
        "return None if state.ending.restart_requested else state",
    ),
)

WORK: Final = (
    _state(
        "sync after the request",
        Promise.NO_START_AFTER_THE_END_WAS_ASKED,
        "A worker whose pod was asked to end begins one more sync first.",
        "return terminating, _termination(taken)",
        "return terminating, SyncPod(taken) if isinstance(taken, ConfigUpdate) else _termination(taken)",
    ),
    _state(
        "waiting pod starts anyway",
        Promise.ONE_STATIC_POD_OF_A_NAME,
        "A pod that may not start yet starts, so two static pods of one name run together.",
        "if not may_start:",
        "if False:",
    ),
    _state(
        "busy worker takes more work",
        None,
        "A worker that is busy is given work all the same, so two things happen to one pod at once.",
        "if not isinstance(state, WaitingToStart | Finished) and state.in_flight:",
        "if False:",
    ),
    _state(
        "static pod that never started is killed",
        None,
        "A static pod that is removed while it waits is killed, so the runtime is bothered with a pod it never had.",
        "if state.active is None and state.identity.static and not state.observed_runtime:",
        "if False:",
    ),
    _state(
        "API pod that never started is not killed",
        None,
        "An API pod killed before it started is just dropped, although it may run since before the agent started.",
        "if state.active is None and state.identity.static and not state.observed_runtime:",
        "if state.active is None and not state.observed_runtime:",
    ),
    _state(
        "static pod that runs is dropped",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "A static pod that was started is dropped when it shall end, so its containers go on.",
        "if state.active is None and state.identity.static and not state.observed_runtime:",
        "if state.identity.static and not state.observed_runtime:",
    ),
    _state(
        "failed kill counts as an end",
        Promise.PHASES_MOVE_ONE_WAY,
        "A kill that failed counts as a success, so a pod with running containers counts as terminated.",
        "case Terminating(active=ConfigUpdate() as active), Completed():",
        "case Terminating(active=ConfigUpdate() as active), _:",
    ),
    _state(
        "failed kill of a runtime pod counts as an end",
        Promise.PHASES_MOVE_ONE_WAY,
        "A pod that only the runtime knows is forgotten although its kill failed.",
        "case Terminating(active=RuntimeUpdate()), Completed():",
        "case Terminating(active=RuntimeUpdate()), _:",
    ),
    _state(
        "failed cleanup counts as done",
        Promise.PHASES_MOVE_ONE_WAY,
        "A cleanup that failed counts as done, so the pod's volumes and cgroups stay.",
        "case Terminated(), Completed():",
        "case Terminated(), _:",
    ),
    _state(
        "terminal sync is taken for any other",
        None,
        "A sync that finds its pod terminal does not end it, so it is synced for ever.",
        "case ((Syncing() | TerminationRequested(active=ConfigUpdate())), Completed(terminal=True)):",
        "case (TerminationRequested(active=ConfigUpdate()), Completed(terminal=True)):",
    ),
    _state(
        "update that came meanwhile is dropped at the end",
        Promise.NO_UPDATE_IS_LOST,
        "What arrives during the sync that finds the pod terminal is dropped, so the end works on an old version.",
        "pending = state.pending or active\n        ending, kill",
        "pending = active\n        ending, kill",
    ),
    _state(
        "cleanup works on an old version",
        Promise.NO_UPDATE_IS_LOST,
        "What arrives during the kill is dropped, so the cleanup works on an old version of the pod.",
        "next_update = idle.pending if isinstance(idle.pending, ConfigUpdate) else active",
        "next_update = active",
    ),
    _state(
        "busy worker forgets what is pending",
        Promise.NO_UPDATE_IS_LOST,
        "A worker that is done does not look for what arrived meanwhile, so that waits for the next resync.",
        "return idle, None if idle.pending is not None else _retry(outcome)",
        "return idle, _retry(outcome)",
    ),
    _state(
        "nobody looks again",
        Promise.WHAT_IS_ASKED_TO_END_ENDS,
        "A worker with nothing pending is not told when to look again, so a failed kill is never repeated.",
        "return idle, None if idle.pending is not None else _retry(outcome)",
        "return idle, None",
    ),
    _state(
        "repetition overwrites what is newer",
        Promise.NO_UPDATE_IS_LOST,
        "A retry puts the last version over a newer one that is pending.",
        "case Syncing(active=active, pending=None) | Terminated(active=active, pending=None):",
        "case Syncing(active=active) | Terminated(active=active):",
    ),
    _state(
        "cleanup never ends",
        Promise.WHAT_IS_ASKED_TO_END_ENDS,
        "A cleanup that succeeded does not finish its pod, so the pod's life goes on for ever.",
        "return finished, None",
        "return idle, _retry(outcome)",
    ),
    _state(
        "pod ends twice",
        Promise.PHASES_MOVE_ONE_WAY,
        "A pod whose cleanup failed goes back to be killed once more.",
        "case Terminated(), Completed():",
        "case Terminated(), Failed():\n            kill = first_kill(idle.active.pod, now)\n"
        "            back = Terminating(identity=idle.identity, ending=idle.ending, kill=kill, active=idle.active)\n"
        "            return back, _retry(outcome)\n"
        "        case Terminated(), Completed():",
    ),
)

HOUSEKEEPING: Final = (
    _state(
        "desired pods are ended",
        None,
        "Housekeeping does not care whether a pod is desired, so it ends them all.",
        "    if desired:\n        return state",
        "    if False:\n        return state",
    ),
    _state(
        "unwanted runtime pod is forgotten",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "A pod that the runtime was seen to hold is forgotten before it has ended.",
        "case TerminationRequested(active=None, observed_runtime=False):",
        "case TerminationRequested(active=None):",
    ),
    _state(
        "unwanted pod that runs is forgotten",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "A pod that was started and nobody wants is forgotten before it has ended.",
        "case TerminationRequested(active=None, observed_runtime=False):",
        "case TerminationRequested(observed_runtime=False):",
    ),
    _state(
        "unwanted pod's sync goes on",
        Promise.WHAT_IS_IN_THE_WAY_IS_CALLED_OFF,
        "The sync in flight of a pod that nobody wants any more is not called off.",
        "pending=newest,\n                in_flight=state.in_flight,\n",
        "pending=newest,\n",
    ),
    _state(
        "unwanted pod ends by an old version",
        Promise.NO_UPDATE_IS_LOST,
        "The newest version of a pod that nobody wants any more is dropped, so its end works on an old one.",
        "newest = state.pending or active",
        "newest = active",
    ),
    _state(
        "unwanted pod counts as kept",
        None,
        "A pod that leaves the config while it is ending does not count as deleted, so its content stays.",
        "state = attrs.evolve(state, ending=attrs.evolve(ending, deleted=True))\n            return replay(state)",
        "pass\n            return replay(state)",
    ),
    _state(
        "unwanted pod is not tried again",
        None,
        "Housekeeping does not repeat a failed kill of a pod that nobody wants, and nobody else speaks for it.",
        "            return replay(state)\n",
        "            return state\n",
    ),
    _registry(
        "nobody hears of housekeeping",
        Promise.NO_LIFE_IS_LEFT,
        "Who keeps the lives is not told which pods housekeeping forgot, so their lives go on for ever.",
        "                    changed.append(uid)\n",
        "",
    ),
    _registry(
        "one fault hinders housekeeping",
        None,
        "A pod that cannot be compared with the desired ones keeps all others from it.",
        "                faults.append(error)\n",
        "                raise\n",
    ),
)

FAULTS: Final = (
    _state(
        "what a fault interrupted is not done again",
        Promise.A_FAULT_LOSES_NOTHING,
        "A life that begins again after a fault finds nothing pending, so a kill that was interrupted is forgotten.",
        "return replay(attrs.evolve(state, in_flight=False))",
        "return attrs.evolve(state, in_flight=False)",
    ),
    _state(
        "fault leaves its work in flight",
        Promise.A_FAULT_LOSES_NOTHING,
        "What a fault interrupted counts as in flight, so the life that begins again may not begin anything.",
        "return replay(attrs.evolve(state, in_flight=False))",
        "return replay(state)",
    ),
    _state(
        "fault overwrites what is newer",
        Promise.NO_UPDATE_IS_LOST,
        "After a fault the last version is put over a newer one that is pending.",
        "return replay(attrs.evolve(state, in_flight=False))",
        "return replay(attrs.evolve(state, in_flight=False, pending=state.pending if isinstance("
        "state, TerminationRequested) else None))",
    ),
    _registry(
        "nobody takes up what a fault left",
        Promise.A_FAULT_LOSES_NOTHING,
        "The machine is not told that a life ended by a fault, so the pod stays as it was for ever.",
        "self._move(uid, Event.FAULT, machine.begin_again(state))",
        "pass",
    ),
)

STATIC_PODS: Final = (
    _registry(
        "static pods run together",
        Promise.ONE_STATIC_POD_OF_A_NAME,
        "A started static pod does not keep the next one of its name from starting.",
        "if full_name in self._registry.started_static:\n            return None",
        "",
    ),
    _registry(
        "name is free while its pod is ending",
        Promise.ONE_STATIC_POD_OF_A_NAME,
        "A static pod that is asked to end gives its name away before it has ended.",
        "if isinstance(after, Finished | None) and self.started_static.get(name) == uid:",
        "if self.started_static.get(name) == uid:",
    ),
    _registry(
        "name is never free again",
        Promise.WHAT_IS_ASKED_TO_END_ENDS,
        "A static pod that has finished keeps its name, so an edited manifest never starts.",
        "if isinstance(after, Finished | None) and self.started_static.get(name) == uid:",
        "if False:",
    ),
    _registry(
        "static pods jump the queue",
        Promise.STATIC_PODS_START_IN_ORDER,
        "A static pod need not be the next in line, so an older version of a manifest may start last.",
        "self.states.startable_static_pod(identity.full_name) == identity.uid",
        "self.states.startable_static_pod(identity.full_name) is not None",
    ),
    _registry(
        "pod that waits no more stands in line",
        None,
        "A static pod that ends while it waits keeps its place, so the others wait for it for ever.",
        "            del self.waiting_static[name][uid]\n"
        "            if not self.waiting_static[name]:\n"
        "                del self.waiting_static[name]\n",
        "            pass\n",
    ),
    _registry(
        "API pods wait for their name",
        None,
        "API pods of one full name wait for each other, so a forced deletion blocks the successor.",
        "return not identity.static or self.states",
        "return self.states",
    ),
    _registry(
        "transitions are not checked",
        None,
        "The order of phases is a picture and no rule: nothing refuses a transition that is not in the table.",
        "machine.check_transition(uid, event, before, after)",
        "pass",
    ),
)

GRACE: Final = (
    _phases(
        "grace in force is forgotten",
        Promise.A_GRACE_PERIOD_NEVER_GROWS,
        "The grace period in force does not count, so a later request makes it longer.",
        "for seconds in (current, deletion, override) if",
        "for seconds in (deletion, override) if",
    ),
    _phases(
        "longest grace counts",
        Promise.A_GRACE_PERIOD_NEVER_GROWS,
        "Of several grace periods the longest counts, so an eviction waits as long as the API said.",
        "return max(MINIMUM_GRACE_PERIOD, min(asked, default=MINIMUM_GRACE_PERIOD))",
        "return max(MINIMUM_GRACE_PERIOD, max(asked, default=MINIMUM_GRACE_PERIOD))",
    ),
    _phases(
        "no grace at all",
        None,
        "A grace period of zero goes through, so a pod gets no time at all.",
        "return max(MINIMUM_GRACE_PERIOD, min(asked, default=MINIMUM_GRACE_PERIOD))",
        "return min(asked, default=MINIMUM_GRACE_PERIOD)",
    ),
    _phases(
        "spec shortens a deletion",
        None,
        "The spec's grace period counts beside what was asked for, so a longer one from the API is cut.",
        "if not asked and pod is not None and pod.spec.termination_grace_period_seconds is not None:\n        asked =",
        "if pod is not None and pod.spec.termination_grace_period_seconds is not None:\n        asked +=",
    ),
    _phases(
        "terminal phase is overlooked",
        Promise.NO_START_AFTER_THE_END_WAS_ASKED,
        "A terminal phase in an update does not ask for an end, so a pod that has failed is started again.",
        "return request.pod.metadata.deletion_timestamp is not None or is_terminal(request.pod)",
        "return request.pod.metadata.deletion_timestamp is not None",
    ),
    _phases(
        "deletion is overlooked",
        Promise.NO_START_AFTER_THE_END_WAS_ASKED,
        "A deletion timestamp does not ask for an end, so a deleted pod is started again.",
        "return request.pod.metadata.deletion_timestamp is not None or is_terminal(request.pod)",
        "return is_terminal(request.pod)",
    ),
    _phases(
        "later kill takes the status function away",
        None,
        "A kill without a status function takes away that of an earlier one, so an evicted pod does not say so.",
        "status_fn or kill.status_fn",
        "status_fn",
    ),
    _phases(
        "first kill's status function stays",
        None,
        "The first kill's status function counts instead of the last one's.",
        "status_fn or kill.status_fn",
        "kill.status_fn or status_fn",
    ),
    _phases(
        "deadline moves away",
        Promise.A_DEADLINE_ONLY_MOVES_CLOSER,
        "The latest deadline counts, so each further kill of a stubborn pod puts off its end.",
        "min(deadline, kill.deadline)",
        "max(deadline, kill.deadline)",
    ),
    _phases(
        "last deadline counts",
        Promise.A_DEADLINE_ONLY_MOVES_CLOSER,
        "A grace period begins anew with each request, so an update of a pod that is ending puts off its end.",
        "min(deadline, kill.deadline)",
        "deadline",
    ),
    _phases(
        "first deadline stays",
        Promise.A_DEADLINE_ONLY_MOVES_CLOSER,
        "The deadline does not move with a shorter grace period, so the pod keeps the longer one.",
        "min(deadline, kill.deadline)",
        "kill.deadline",
    ),
    _phases(
        "deadline without its grace",
        Promise.A_DEADLINE_ONLY_MOVES_CLOSER,
        "A pod that nobody asked to end gets no time at all.",
        "return Kill(grace_period, now + grace_period)",
        "return Kill(grace_period, now)",
    ),
    _phases(
        "override is not heard",
        Promise.A_DEADLINE_ONLY_MOVES_CLOSER,
        "What a kill says of its grace period does not count, so an eviction in need takes as long as any end.",
        "override = None if isinstance(request, UpdatePod) else request.grace_period_override",
        "override = None",
    ),
    _phases(
        "eviction is taken back",
        None,
        "A later kill takes an eviction back, so the content that was to be freed stays.",
        "evicted=ending.evicted or evicted",
        "evicted=evicted",
    ),
    _phases(
        "deletion is taken back",
        None,
        "A later kill takes a deletion back, so the content of a deleted pod stays.",
        "deleted=ending.deleted or deleted",
        "deleted=deleted",
    ),
)

UPDATES: Final = (
    _phases(
        "newest start time counts",
        None,
        "The newest start time replaces the oldest, so the latency looks shorter than it was.",
        "start_time=min(times, default=None)",
        "start_time=max(times, default=None)",
    ),
    _phases(
        "repetition counts as latency",
        None,
        "A repetition keeps its start time, so every resync counts as a slow update.",
        "return attrs.evolve(taken, mirror_pod=mirror_pod, update_type=SyncPodType.SYNC, start_time=None)",
        "return attrs.evolve(taken, mirror_pod=mirror_pod, update_type=SyncPodType.SYNC)",
    ),
    _phases(
        "mirror pod is forgotten",
        None,
        "A repetition forgets the mirror pod, so a new one is made each time.",
        "taken.mirror_pod or (active.mirror_pod if isinstance(active, ConfigUpdate) else None)",
        "taken.mirror_pod",
    ),
    _registry(
        "containers may start while the queries say no",
        Promise.NO_START_AFTER_THE_END_WAS_ASKED,
        "Others stop setting up for containers while a sync may still start some.",
        "return self.synced if state is None else isinstance(state, Terminating | Terminated | Finished)",
        "return self.synced if state is None else isinstance("
        "state, TerminationRequested | Terminating | Terminated | Finished)",
    ),
    _registry(
        "volumes go while containers run",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "What containers need is taken away while they are still ending.",
        "return self.synced if state is None else isinstance(state, Terminated | Finished)",
        "return self.synced if state is None else isinstance(state, Terminating | Terminated | Finished)",
    ),
    _registry(
        "deleted pod's content goes early",
        None,
        "The content of a deleted pod goes while its containers still run.",
        "                return ending.evicted\n",
        "                return ending.evicted or ending.deleted\n",
    ),
    _registry(
        "unknown pods do not run",
        None,
        "Before the whole config was seen, a pod that is not known yet is said to have no running container.",
        "return not self.synced if state is None else not isinstance(state, Terminated | Finished)",
        "return False if state is None else not isinstance(state, Terminated | Finished)",
    ),
)

LIFE: Final = (
    _life(
        "what runs for a pod outlives it",
        "The nursery of a pod's life is not cancelled at its end, so the life waits for ever for what runs in there.",
        "            everything.cancel_scope.cancel()\n",
        "",
    ),
    _life(
        "sync goes on beside the request to end",
        "The news of a request to end does not cancel the sync in flight, so the end waits for it.",
        "if phase is not None and is_in_the_way(phase):",
        "if False:",
    ),
    _life(
        "kill in flight does not hear of its new deadline",
        "What attends a kill does not pass on that there is less time, so a pod keeps its longer grace.",
        "pod.shorten_grace(phase.kill.deadline)",
        "pass",
    ),
    _life(
        "nobody listens during a work",
        "News is not attended to while a work is under way, so neither a sync is called off nor a kill hastened.",
        "            self._attend(*self.in_flight)\n",
        "            pass\n",
    ),
    _life(
        "killers wait for the cleanup too",
        "Who waits for the end of a pod's containers is told when all is released, so an eviction runs into its limit.",
        "                self.containers_ended.set()\n                await self._clean_up(pod, work)\n",
        "                await self._clean_up(pod, work)\n                self.containers_ended.set()\n",
    ),
    _life(
        "killers are told too early",
        "Who waits for the end of a pod's containers is told when it begins, so what they hold is given away twice.",
        "                work = await self._terminate(pod, work)\n                self.containers_ended.set()\n",
        "                self.containers_ended.set()\n                work = await self._terminate(pod, work)\n",
    ),
    _life(
        "news is not told",
        "News for a pod that has nothing to do does not reach it, so an update waits for the next look at the pod.",
        "            self._send_news.send_nowait(None)\n",
        "            pass\n",
    ),
    _life(
        "forgotten life stays",
        "A life that is forgotten is not told so, and waits for ever.",
        "        self._send_news.close()\n",
        "        pass\n",
    ),
    _life(
        "pod is never looked at again",
        "The time to look again passes without a look, so what failed is not tried again.",
        "                self._look_again()\n",
        "",
    ),
    _life(
        "time to look again is not noted",
        "What the machine says of the next look is dropped, so what failed is not tried again.",
        "        if retry is not None:\n            delay",
        "        if False:\n            delay",
    ),
    _life(
        "look again at the old version",
        "A pod is looked at again as it was, though a newer version is wanted by now.",
        "newest = None if self._context.desired is None else self._context.desired(self.uid)",
        "newest = None",
    ),
    _life(
        "failed work is believed to have done nothing",
        "After a work that failed, the status from before it counts as fresh, so what it did is done twice.",
        "            self._acted_at = now  # What it did before it failed is not known.\n",
        "            pass\n",
    ),
    _life(
        "work is believed to have done nothing",
        "After a work the status from before it counts as fresh, so what it did is done twice.",
        "            self._acted_at = report.acted_at\n",
        "            pass\n",
    ),
    _life(
        "status may take for ever",
        "A status that never comes is waited for without end, so the pod hangs and nobody knows why.",
        "with trio.fail_after(STATUS_TIMEOUT), self._context.steps",
        "with trio.fail_after(math.inf), self._context.steps",
    ),
    _life(
        "kill is told once and for all",
        "The work that ends a pod sees the kill as it was when it began, so a later eviction's reason is not reported.",
        "return await pod.sync_terminating_pod(update.pod, status, self._kill)",
        "return await pod.sync_terminating_pod(update.pod, status, (lambda kill: lambda: kill)(self._kill()))",
    ),
    _workers(
        "fault does not begin again",
        "After a fault the machine still believes that its work is in flight, so the life fails again and again.",
        "            self._registry.begin_again(life.uid)\n",
        "",
    ),
    _workers(
        "fault ends all lives",
        "A fault in one pod's life reaches the nursery of all, so every pod is left alone.",
        "            self._fault(life.uid, fault)\n",
        "            raise fault\n",
    ),
    _supervision(
        "fault is taken up at once",
        "A life that fails at once each time is begun again at once, so a fault takes all of a processor.",
        "        await trio.sleep(FAULTS.delay(failures))\n",
        "        await trio.lowlevel.checkpoint()\n",
    ),
    _workers(
        "fault of a life that is over",
        "A fault of a life that was forgotten touches the next one of its UID, whose work is then done twice.",
        "            if self._lives.get(life.uid) is not life:\n                return False  # forgotten\n",
        "",
    ),
    _workers(
        "life that is over takes what comes",
        "A pod that comes while one of its UID is about to be over is told to that one, so it has no life.",
        "if life is not None and (phase is None or _is_of_another(life, phase)):",
        "if life is not None and phase is None:",
    ),
    _workers(
        "next static pod sleeps on",
        "The end of a static pod's life does not wake the next of its name, so that one never starts.",
        "        self.finished.send(life.uid)\n        if phase is not None and phase.identity.static:\n",
        "        self.finished.send(life.uid)\n        if False:\n",
    ),
    _workers(
        "life is not told of requests",
        "The life of a known pod is not told of a request, so the request waits for the next look at the pod.",
        "        if life is not None:\n            life.notify()\n",
        "        if life is not None:\n            pass\n",
    ),
    _workers(
        "housekeeping is not told on",
        "Lives are not told what housekeeping changed, so pods that nobody wants go on running.",
        "        for uid in known.changed:\n            self._notify(uid)\n",
        "",
    ),
    _workers(
        "nobody is told that a life is over",
        "Housekeeping does not hear that a life is over, so a pod that was asked for anew waits for the next round.",
        "        self.finished.send(life.uid)\n",
        "",
    ),
    _workers(
        "life that is over stays on the books",
        "A life that is over is kept, so memory grows with every pod, and a drain waits for pods that have ended.",
        "        if self._lives.get(life.uid) is life:\n            del self._lives[life.uid]\n",
        "",
    ),
    _workers(
        "drain lets new pods in",
        "Pods that come while all are ended are started, so a node that shuts down never becomes quiet.",
        "        if self.draining_since is not None and unknown and pod is not None:\n            return\n",
        "",
    ),
    _workers(
        "drain waits for ever",
        "A pod that does not end keeps the node from shutting down.",
        "with trio.move_on_after(timeout):",
        "with trio.move_on_after(math.inf):",
    ),
    _workers(
        "killer waits for ever",
        "A pod that does not end keeps its killer waiting, so an eviction never turns to another pod.",
        "with trio.move_on_after(seconds):",
        "with trio.move_on_after(math.inf):",
    ),
)

SYNCER: Final = (
    _syncer(
        "what a pod held is not released",
        "The end of a pod leaves its mounts, cgroups and grants, so the node runs out of them.",
        "            await held.release(self._uid)\n",
        "            pass\n",
    ),
    _syncer(
        "pod is reported as ended too early",
        "A pod is reported as ended before what it held is released, so the API forgets it while it is in the way.",
        "        for held in self._context.durables:\n"
        "            with self._context.steps.step(self._uid, RELEASE, subject=type(held).__name__):\n"
        "                await held.release(self._uid)\n"
        "        self._context.statuses.terminate_pod(pod)\n",
        "        self._context.statuses.terminate_pod(pod)\n"
        "        for held in self._context.durables:\n            await held.release(self._uid)\n",
    ),
    _syncer(
        "runtime is believed",
        "A pod counts as ended although the runtime shows containers of it that run.",
        "        if running:\n            raise StillRunningError(pod, running)\n",
        "",
    ),
    _syncer(
        "kill has no deadline",
        "The end of a pod does not know its deadline, so each container takes the grace of its spec.",
        "await self._kill(pod, status, deadline=kill().deadline)",
        "await self._kill(pod, status, deadline=None)",
    ),
    _syncer(
        "why a pod was killed is not reported",
        "The last status of a killed pod does not say why, so an evicted pod looks like one that ended by itself.",
        "self._reporter.report(pod, stopped, ended=True, change=kill().status_fn)",
        "self._reporter.report(pod, stopped, ended=True)",
    ),
)

CONTAINERS: Final = (
    _container(
        "probes outlive their container",
        "The scope of a container is not cancelled at its end, so its probes keep it, and the container ends for ever.",
        "                    if self.over:\n                        break\n            nursery.cancel_scope.cancel()\n",
        "                    if self.over:\n                        break\n",
    ),
    _container(
        "container's end that is under way is not known",
        "Who asks for the end of a container that is being ended begins it once more.",
        "known = None if life is None else life.ending",
        "known = None",
    ),
    _container(
        "one who joins has to wait",
        "Who joins an end that is under way with less time waits for the longer grace.",
        "            known.grace.shorten(ending.grace.deadline)\n",
        "",
    ),
    _container(
        "what is under way is not hastened",
        "A shorter grace does not reach the containers that are being ended.",
        "                life.ending.grace.shorten(deadline)\n",
        "                pass\n",
    ),
    _container(
        "what begins later has its old grace",
        "A container whose end begins after the pod's grace was shortened takes the longer one.",
        "grace = Grace(min(deadline, self._deadline))",
        "grace = Grace(deadline)",
    ),
    _container(
        "pod's deadline moves away",
        "A later deadline of the pod replaces an earlier one.",
        "self._deadline = min(self._deadline, deadline)",
        "self._deadline = deadline",
    ),
    _container(
        "end of what has ended goes on",
        "A container that is seen to have ended goes on being ended, so a runtime that hangs holds up its pod.",
        "            self.ending.scope.cancel()\n",
        "            pass\n",
    ),
    _container(
        "sidecars wait in vain",
        "Sidecars do not hear that the main containers have ended, so they wait until the grace period is over.",
        "        if order is not None:\n            order.mark_ended(name)\n",
        "",
    ),
    _container(
        "turn outlasts the grace",
        "A sidecar waits for its turn longer than the pod's grace period.",
        '                with grace.limit(), step("turn to end"):\n'
        "                    await ending.order.wait_for_turn(self.name)\n",
        "                await ending.order.wait_for_turn(self.name)\n",
    ),
    _container(
        "scope of a container stays",
        "A container that has ended stays on the books, so memory grows with every restart.",
        "            del self._lives[container_id]\n",
        "            pass\n",
    ),
    _container(
        "what a hook left behind is kept",
        "That a container's hook has run is remembered after its end, so memory grows with every container.",
        "            self._killer.has_ended(self._id)\n",
        "",
    ),
    _kill(
        "hook runs twice",
        "A preStop hook that was begun is begun again by the next attempt to end its container.",
        "        self._hooks_begun.add(container_id)\n",
        "",
    ),
    _kill(
        "hook without grace",
        "A preStop hook is begun although there is no time left.",
        "or began or grace.deadline <= trio.current_time():",
        "or began:",
    ),
    _kill(
        "hook is waited for beyond the grace",
        "The stop of a container waits for a preStop hook that has used up the grace period.",
        "            grace.limit() as limit,\n",
        "            trio.CancelScope() as limit,\n",
    ),
    _kill(
        "hook keeps its old deadline",
        "A grace period that gets shorter does not end the wait for the hook that runs.",
        "                limit.deadline = deadline\n",
        "                pass\n",
    ),
    _kill(
        "container's deadline moves away",
        "A later deadline replaces an earlier one, so each further kill puts off the end.",
        "        if deadline < self.deadline:\n",
        "        if deadline != self.deadline:\n",
    ),
    _kill(
        "stop is not asked for again",
        "A grace period that gets shorter does not reach the runtime, which waits as long as it was told first.",
        "                follow()\n",
        "                pass\n",
    ),
    _kill(
        "first stop is waited for",
        "A stop with less grace that was answered does not count until the first one is answered too.",
        "            if answers[-1] is None or len(answers) == requests:\n",
        "            if len(answers) == requests:\n",
    ),
    _kill(
        "no time to stop",
        "A container may get no time at all between its signal and its end.",
        "max(math.ceil(self.deadline - trio.current_time()), MINIMUM_GRACE_PERIOD)",
        "math.ceil(self.deadline - trio.current_time())",
    ),
    _kill(
        "stop is not tried again",
        "A runtime that is away for a moment is not asked again, so the pod waits for its next attempt.",
        "if remaining <= 0 or not (error.unavailable or error.timed_out):",
        "if True:",
    ),
)

MUTANTS: Final = (
    *FIRST_SIGHT,
    *ASKED_TO_END,
    *RESTARTS,
    *WORK,
    *HOUSEKEEPING,
    *FAULTS,
    *STATIC_PODS,
    *GRACE,
    *UPDATES,
    *LIFE,
    *SYNCER,
    *CONTAINERS,
)
