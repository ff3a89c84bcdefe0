"""The guards of the pure pod workers, each with the edit that takes it away and the promise that this breaks.

When a change of the machine moves a text, the edit no longer applies and the run says so: move the edit along, and ask
whether the guard is still there.
"""

from __future__ import annotations

import enum
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
    A_GRACE_PERIOD_NEVER_GROWS = ("the grace period grew",)
    NO_UPDATE_IS_LOST = ("an update was lost", "nothing_pending_is_left_lying")
    NO_WORKER_IS_LEFT = ("a_worker_is_there_exactly_while_it_has_something_to_do", "teardown")
    WHAT_IS_ASKED_TO_END_ENDS = (
        "an_idle_worker_looks_again_sometime",
        "nothing_pending_is_left_lying",
        "a pod that nobody wants was kept",
        "teardown",
    )
    WHAT_IS_IN_THE_WAY_IS_CALLED_OFF = ("what_stands_in_the_way_of_the_end_is_called_off",)
    KILLERS_ARE_TOLD_ONCE = ("teardown", "killers_are_told_at_most_once")
    A_UID_STARTS_AGAIN_WHEN_ASKED_FOR_ANEW = (
        "a pod that is desired was forgotten",
        "a pod that was asked for anew was kept",
    )


@attrs.frozen(kw_only=True)
class Mutant:
    """One guard taken away."""

    name: str
    file: str
    """In `trikubelet/pods`."""
    without: str
    """What is taken away, and what that breaks: one sentence."""
    promise: Promise | None
    """The invariant that breaks; None when only facts can tell."""
    old: str
    new: str


def _state(name: str, promise: Promise | None, without: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="worker_state.py", without=without, promise=promise, old=old, new=new)


def _registry(name: str, promise: Promise | None, without: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="worker_registry.py", without=without, promise=promise, old=old, new=new)


def _termination(name: str, promise: Promise | None, without: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="termination.py", without=without, promise=promise, old=old, new=new)


def _messages(name: str, promise: Promise | None, without: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="worker_messages.py", without=without, promise=promise, old=old, new=new)


def _queries(name: str, promise: Promise | None, without: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="worker_queries.py", without=without, promise=promise, old=old, new=new)


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
        Promise.NO_WORKER_IS_LEFT,
        "Nobody wakes the worker of a pod that had ended before it was seen, so its cleanup never happens.",
        "return ended, (StartWorker(identity.uid), *_notify_now(identity, options), Wake(identity.uid))",
        "return ended, (StartWorker(identity.uid), *_notify_now(identity, options))",
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
        "if asks_to_end(options):\n                return _request_termination",
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
        "observed_runtime=options.pod is None,\n    )\n    return requested, _cancel_or_wake",
        "observed_runtime=False,\n    )\n    return requested, _cancel_or_wake",
    ),
    _state(
        "runtime's sight is forgotten later",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "Seeing a pod in the runtime after it was asked to end does not count, so a static pod is just dropped.",
        "seen = state.observed_runtime or options.pod is None",
        "seen = state.observed_runtime",
    ),
    _state(
        "nothing is called off",
        Promise.WHAT_IS_IN_THE_WAY_IS_CALLED_OFF,
        "A request to end does not cancel the work in flight, so the end waits for it.",
        "return (CancelWork(uid),) if state.in_flight else (Wake(uid),)",
        "return () if state.in_flight else (Wake(uid),)",
    ),
    _state(
        "idle worker is not woken for the end",
        Promise.WHAT_IS_ASKED_TO_END_ENDS,
        "A request to end leaves an idle worker asleep, so the pod goes on running.",
        "return (CancelWork(uid),) if state.in_flight else (Wake(uid),)",
        "return (CancelWork(uid),) if state.in_flight else ()",
    ),
    _state(
        "shorter grace waits for the longer one",
        Promise.WHAT_IS_IN_THE_WAY_IS_CALLED_OFF,
        "A shorter grace period does not cancel the kill in flight, so the pod keeps the longer one.",
        "_cancel_or_wake(state) if kill.grace_period < state.kill.grace_period else _wake_if_free(state)",
        "_wake_if_free(state)",
    ),
    _state(
        "every further kill starts again",
        None,
        "A kill that is not shorter cancels the one in flight, so repeated kills put off the end again and again.",
        "if kill.grace_period < state.kill.grace_period else",
        "if kill.grace_period <= state.kill.grace_period else",
    ),
    _state(
        "kill's terms are forgotten when the pod ends itself",
        Promise.KILLERS_ARE_TOLD_ONCE,
        "When a sync finds the pod terminal while it is being killed, the kill is forgotten, and so is the killer.",
        "ending, kill, pending = state.ending, state.kill, state.pending",
        "ending, kill, pending = Ending(0), Kill(effective_grace_period(None, active.pod, None)), state.pending",
    ),
)

RESTARTS: Final = (
    _state(
        "any update asks for a restart",
        Promise.NO_UPDATE_IS_LOST,
        "An update of a pod that is ending counts as its re-creation, so it is lost, and the pod starts once more.",
        "case _ if options.update_type is SyncPodType.CREATE:",
        "case _ if options.update_type is not SyncPodType.KILL:",
    ),
    _state(
        "no create asks for a restart",
        None,
        "A pod re-created while its UID is ending is taken for an update, so it never starts.",
        "case _ if options.update_type is SyncPodType.CREATE:",
        "case _ if False:",
    ),
    _state(
        "history of a desired pod is purged",
        Promise.A_UID_STARTS_AGAIN_WHEN_ASKED_FOR_ANEW,
        "Housekeeping forgets a finished pod that is still desired, so a pod that has run its course starts again.",
        "return (None if not desired or state.ending.restart_requested else state), ()",
        "return None, ()",
    ),
    _state(
        "restart never comes",
        Promise.A_UID_STARTS_AGAIN_WHEN_ASKED_FOR_ANEW,
        "Housekeeping keeps the history of a pod that was asked for anew, so it does not start.",
        "return (None if not desired or state.ending.restart_requested else state), ()",
        "return (None if not desired else state), ()",
    ),
    _state(
        "history is kept for ever",
        Promise.WHAT_IS_ASKED_TO_END_ENDS,
        "Housekeeping keeps the history of a pod that nobody wants, so memory grows with every pod.",
        "return (None if not desired or state.ending.restart_requested else state), ()",
        "return (None if state.ending.restart_requested else state), ()",
    ),
)

WORK: Final = (
    _state(
        "sync after the request",
        Promise.NO_START_AFTER_THE_END_WAS_ASKED,
        "A worker whose pod was asked to end begins one more sync first.",
        "return started, (Run(uid, _termination(taken, state.kill)),)\n        case Syncing",
        "return started, (Run(uid, SyncPod(taken) if isinstance(taken, ConfigUpdate) else"
        " _termination(taken, state.kill)),)\n        case Syncing",
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
        "return idle, (Wake(uid),) if idle.pending is not None else (_retry(uid, outcome),)",
        "return idle, (_retry(uid, outcome),)",
    ),
    _state(
        "nobody looks again",
        Promise.WHAT_IS_ASKED_TO_END_ENDS,
        "A worker with nothing pending is not told when to look again, so a failed kill is never repeated.",
        "return idle, (Wake(uid),) if idle.pending is not None else (_retry(uid, outcome),)",
        "return idle, (Wake(uid),) if idle.pending is not None else ()",
    ),
    _state(
        "update does not wake",
        Promise.NO_UPDATE_IS_LOST,
        "An update of an idle worker's pod does not wake it.",
        "return () if state.in_flight else (Wake(state.identity.uid),)",
        "return ()",
    ),
    _state(
        "repetition overwrites what is newer",
        Promise.NO_UPDATE_IS_LOST,
        "A retry puts the last version over a newer one that is pending.",
        "state = attrs.evolve(state, pending=state.pending or active)\n        case Terminating",
        "state = attrs.evolve(state, pending=active)\n        case Terminating",
    ),
    _state(
        "nobody is told of the end",
        Promise.KILLERS_ARE_TOLD_ONCE,
        "Who waits for a kill is not told when the containers have ended, so an eviction runs into its deadline.",
        "return ended, (*_notify_waiting(idle), Wake(uid))",
        "return ended, (Wake(uid),)",
    ),
    _state(
        "worker of a finished pod stays",
        Promise.NO_WORKER_IS_LEFT,
        "The worker of a pod that has finished is not stopped, so its task stays for ever.",
        "return finished, (StopWorker(uid),)",
        "return finished, ()",
    ),
    _state(
        "pod ends twice",
        Promise.PHASES_MOVE_ONE_WAY,
        "A pod whose cleanup failed goes back to be killed once more.",
        "case Terminated(), Completed():",
        "case Terminated(), Failed():\n            kill = Kill(1)\n"
        "            back = Terminating(identity=idle.identity, ending=idle.ending, kill=kill, active=idle.active)\n"
        "            return back, (_retry(uid, outcome),)\n"
        "        case Terminated(), Completed():",
    ),
)

HOUSEKEEPING: Final = (
    _state(
        "desired pods are ended",
        None,
        "Housekeeping does not care whether a pod is desired, so it ends them all.",
        "    if desired:\n        return state, ()",
        "    if False:\n        return state, ()",
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
        "pending=newest,\n                in_flight=state.in_flight,\n            )\n"
        "            return requested, _cancel_or_wake(requested)",
        "pending=newest,\n                in_flight=state.in_flight,\n            )\n"
        "            return requested, _wake_if_free(requested)",
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
        "return replay(attrs.evolve(state, ending=attrs.evolve(state.ending, deleted=True)))",
        "return replay(state)",
    ),
    _state(
        "unwanted pod is not tried again",
        None,
        "Housekeeping does not repeat a failed kill of a pod that nobody wants, and nobody else speaks for it.",
        "return replay(attrs.evolve(state, ending=attrs.evolve(state.ending, deleted=True)))",
        "return attrs.evolve(state, ending=attrs.evolve(state.ending, deleted=True)), ()",
    ),
    _state(
        "killer of a forgotten pod is not told",
        Promise.KILLERS_ARE_TOLD_ONCE,
        "Who waits for a pod that is forgotten before it starts waits in vain.",
        "return None, (*_notify_waiting(state), StopWorker(uid))\n        case Syncing",
        "return None, (StopWorker(uid),)\n        case Syncing",
    ),
)

STATIC_PODS: Final = (
    _registry(
        "static pods run together",
        Promise.ONE_STATIC_POD_OF_A_NAME,
        "A started static pod does not keep the next one of its name from starting.",
        "if identity.full_name in self._started_static:\n            return False",
        "",
    ),
    _registry(
        "name is free while its pod is ending",
        Promise.ONE_STATIC_POD_OF_A_NAME,
        "A static pod that is asked to end gives its name away before it has ended.",
        "if isinstance(after, Finished | None) and self._started_static.get(name) == uid:",
        "if self._started_static.get(name) == uid:",
    ),
    _registry(
        "name is never free again",
        Promise.WHAT_IS_ASKED_TO_END_ENDS,
        "A static pod that has finished keeps its name, so an edited manifest never starts.",
        "if isinstance(after, Finished | None) and self._started_static.get(name) == uid:",
        "if False:",
    ),
    _registry(
        "static pods jump the queue",
        Promise.STATIC_PODS_START_IN_ORDER,
        "A static pod need not be the next in line, so an older version of a manifest may start last.",
        "return self.waiting_static_pods(identity.full_name)[:1] == (identity.uid,)",
        "return True",
    ),
    _registry(
        "next static pod sleeps on",
        Promise.NO_UPDATE_IS_LOST,
        "The end of a static pod does not wake the next of its name, so that one never starts.",
        "return tuple(Wake(waiting) for waiting in self.waiting_static_pods(name)[:1])",
        "return ()",
    ),
    _registry(
        "pod that waits no more stands in line",
        None,
        "A static pod that ends while it waits keeps its place, so the others wait for it for ever.",
        "            del self._waiting_static[name][uid]\n"
        "            if not self._waiting_static[name]:\n"
        "                del self._waiting_static[name]\n",
        "            pass\n",
    ),
    _registry(
        "API pods wait for their name",
        None,
        "API pods of one full name wait for each other, so a forced deletion blocks the successor.",
        "if not identity.static:\n            return True",
        "",
    ),
    _registry(
        "runtime pods can be synced",
        None,
        "A pod that only the runtime knows may be asked for something other than its end.",
        "if options.pod is None and options.running_pod is not None and options.update_type is not SyncPodType.KILL:",
        "if False:",
    ),
    _registry(
        "transitions are not checked",
        None,
        "The order of phases is a picture and no rule: nothing refuses a transition that is not in the table.",
        "worker_state.check_transition(uid, event, before, after)",
        "pass",
    ),
)

GRACE: Final = (
    _termination(
        "grace in force is forgotten",
        Promise.A_GRACE_PERIOD_NEVER_GROWS,
        "The grace period in force does not count, so a later request makes it longer.",
        "for seconds in (current, deletion, override) if",
        "for seconds in (deletion, override) if",
    ),
    _termination(
        "longest grace counts",
        Promise.A_GRACE_PERIOD_NEVER_GROWS,
        "Of several grace periods the longest counts, so an eviction waits as long as the API said.",
        "return max(MINIMUM_GRACE_PERIOD, min(asked, default=MINIMUM_GRACE_PERIOD))",
        "return max(MINIMUM_GRACE_PERIOD, max(asked, default=MINIMUM_GRACE_PERIOD))",
    ),
    _termination(
        "no grace at all",
        None,
        "A grace period of zero goes through, so a pod gets no time at all.",
        "return max(MINIMUM_GRACE_PERIOD, min(asked, default=MINIMUM_GRACE_PERIOD))",
        "return min(asked, default=MINIMUM_GRACE_PERIOD)",
    ),
    _termination(
        "spec shortens a deletion",
        None,
        "The spec's grace period counts beside what was asked for, so a longer one from the API is cut.",
        "if not asked and pod is not None and pod.spec.termination_grace_period_seconds is not None:\n        asked =",
        "if pod is not None and pod.spec.termination_grace_period_seconds is not None:\n        asked +=",
    ),
    _termination(
        "terminal phase is overlooked",
        Promise.NO_START_AFTER_THE_END_WAS_ASKED,
        "A terminal phase in an update does not ask for an end, so a pod that has failed is started again.",
        "        or is_terminal(pod)\n",
        "",
    ),
    _termination(
        "deletion is overlooked",
        Promise.NO_START_AFTER_THE_END_WAS_ASKED,
        "A deletion timestamp does not ask for an end, so a deleted pod is started again.",
        "        or pod.metadata.deletion_timestamp is not None\n",
        "",
    ),
    _termination(
        "later kill takes the status function away",
        None,
        "A kill without a status function takes away that of an earlier one, so an evicted pod does not say so.",
        "status_fn = asked.pod_status_fn or status_fn",
        "status_fn = asked.pod_status_fn",
    ),
    _termination(
        "first kill's status function stays",
        None,
        "The first kill's status function counts instead of the last one's.",
        "status_fn = asked.pod_status_fn or status_fn",
        "status_fn = status_fn or asked.pod_status_fn",
    ),
    _termination(
        "second killer replaces the first",
        Promise.KILLERS_ARE_TOLD_ONCE,
        "Of several who wait for an end only the last is told.",
        "waiting = () if kill is None else kill.waiting",
        "waiting: tuple[Callable[[], None], ...] = () if asked is not None or kill is None else kill.waiting",
    ),
    _termination(
        "eviction is taken back",
        None,
        "A later kill takes an eviction back, so the content that was to be freed stays.",
        "evicted=ending.evicted or evicted",
        "evicted=evicted",
    ),
    _termination(
        "deletion is taken back",
        None,
        "A later kill takes a deletion back, so the content of a deleted pod stays.",
        "deleted=ending.deleted or deleted",
        "deleted=deleted",
    ),
)

UPDATES: Final = (
    _messages(
        "newest start time counts",
        None,
        "The newest start time replaces the oldest, so the latency looks shorter than it was.",
        "start_time=min(times, default=None)",
        "start_time=max(times, default=None)",
    ),
    _messages(
        "repetition counts as latency",
        None,
        "A repetition keeps its start time, so every resync counts as a slow update.",
        "return attrs.evolve(taken, mirror_pod=mirror_pod, update_type=SyncPodType.SYNC, start_time=None)",
        "return attrs.evolve(taken, mirror_pod=mirror_pod, update_type=SyncPodType.SYNC)",
    ),
    _messages(
        "mirror pod is forgotten",
        None,
        "A repetition forgets the mirror pod, so a new one is made each time.",
        "taken.mirror_pod or (active.mirror_pod if isinstance(active, ConfigUpdate) else None)",
        "taken.mirror_pod",
    ),
    _queries(
        "containers may start while the queries say no",
        Promise.NO_START_AFTER_THE_END_WAS_ASKED,
        "Others stop setting up for containers while a sync may still start some.",
        "return self._synced if state is None else isinstance(state, Terminating | Terminated | Finished)",
        "return self._synced if state is None else isinstance("
        "state, TerminationRequested | Terminating | Terminated | Finished)",
    ),
    _queries(
        "volumes go while containers run",
        Promise.TERMINATED_MEANS_NOTHING_RUNS,
        "What containers need is taken away while they are still ending.",
        "return self._synced if state is None else isinstance(state, Terminated | Finished)",
        "return self._synced if state is None else isinstance(state, Terminating | Terminated | Finished)",
    ),
    _queries(
        "deleted pod's content goes early",
        None,
        "The content of a deleted pod goes while its containers still run.",
        "                return ending.evicted\n",
        "                return ending.evicted or ending.deleted\n",
    ),
    _queries(
        "unknown pods do not run",
        None,
        "Before the whole config was seen, a pod that is not known yet is said to have no running container.",
        "return not self._synced if state is None else not isinstance(state, Terminated | Finished)",
        "return False if state is None else not isinstance(state, Terminated | Finished)",
    ),
)

MUTANTS: Final = (
    *FIRST_SIGHT,
    *ASKED_TO_END,
    *RESTARTS,
    *WORK,
    *HOUSEKEEPING,
    *STATIC_PODS,
    *GRACE,
    *UPDATES,
)
