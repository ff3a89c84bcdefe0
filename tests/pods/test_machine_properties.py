"""Anything may happen to the pure machine in any order; these things hold at every step."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.pods.factories import CREATE, KILL, SYNC, UPDATE, make_pod, request, running, runtime_status
from tests.pods.pure_node import PureNode
from trikubelet.api import Pod
from trikubelet.pods.phases import (
    Cancelled,
    CleanUpPod,
    Completed,
    ConfigUpdate,
    Failed,
    Finished,
    Outcome,
    Phase,
    Syncing,
    SyncPod,
    Terminated,
    TerminatePod,
    TerminateRuntimePod,
    Terminating,
    TerminationRequested,
    WaitingToStart,
    Work,
)
from trikubelet.pods.types import KillRuntimePod, SyncPodType, UpdatePod

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.pods.types import Request

SPEC_GRACE = 30
"""Seconds that a pod's spec gives it, when nobody asked for anything else."""
UIDS = ("api", "static-1", "static-2")
RANK: dict[type[Phase], int] = {
    phase: rank
    for rank, phase in enumerate((WaitingToStart, Syncing, TerminationRequested, Terminating, Terminated, Finished))
}
AFTER_FAULT: dict[type[Work], set[type[Work]]] = {
    SyncPod: {SyncPod, TerminatePod},
    TerminatePod: {TerminatePod},
    TerminateRuntimePod: {TerminateRuntimePod, TerminatePod},
    CleanUpPod: {CleanUpPod},
}
"""What a work that a fault interrupted is followed by: itself, unless a request came that changes it."""

uids = st.sampled_from(UIDS)
graces = st.none() | st.integers(0, 40)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [Completed(), Completed(), Completed(terminal=True), Failed(), Failed(network_not_ready=True)]
)


@attrs.define
class Life:
    """What the model remembers of one incarnation of a pod."""

    asked_to_end: bool = False
    latest: Pod | None = None
    grace: int | None = None
    """The shortest that was asked for so far, else the spec's; None while nothing has asked for the end."""
    deadline: float = math.inf
    """The earliest of what all requests asked for, each counted from its own time."""
    given_until: float = math.inf
    """The deadline that was in force when it was last looked at."""
    rank: int = 0
    restart_asked: bool = False
    started: bool = False
    runs: bool = False
    """Containers may run: a sync has begun, or they were there before; and no kill has succeeded since."""
    owed: type[Work] | None = None
    """The work that a fault interrupted."""

    def ask_to_end(self, now: float, grace: int | None, spec: int) -> None:
        """`grace`: what is asked for, if anything is; `spec`: what the newest known spec says."""
        asked = [seconds for seconds in (self.grace, grace) if seconds is not None]
        self.grace = max(1, min(asked, default=spec))
        self.deadline = min(self.deadline, now + self.grace)


class PodWorkersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.node = PureNode()
        self.lives: dict[str, Life] = {}
        self.version = 0
        self.killers_told: list[int] = []

    # --- What happens ------------------------------------------------------------------------------------------------

    def pod(self, uid: str, **more: object) -> Pod:
        self.version += 1
        pod = make_pod(uid, "web" if uid.startswith("static") else uid, static=uid.startswith("static"), **more)  # type: ignore[arg-type]
        annotations = {**pod.metadata.annotations, "version": str(self.version)}
        return attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, annotations=annotations))

    def send(
        self,
        uid: str,
        request: Request,
        *,
        asks_to_end: bool = False,
        grace: int | None = None,
        nothing_runs: bool = True,
        told: Callable[[], None] | None = None,
    ) -> None:
        life = self.lives.setdefault(uid, Life())
        known = self.node.states.phase(uid)
        creates = isinstance(request, UpdatePod) and request.update_type is SyncPodType.CREATE
        ignored = isinstance(known, Finished) or (life.asked_to_end and creates)
        if life.asked_to_end and creates:
            life.restart_asked = True
        if not isinstance(request, KillRuntimePod) and not ignored:
            life.latest = request.pod
        if not nothing_runs and not isinstance(known, Terminated | Finished):
            life.runs |= known is None or isinstance(request, KillRuntimePod)
        life.asked_to_end |= asks_to_end
        if life.asked_to_end and not ignored:
            life.ask_to_end(self.node.now + 1, grace, 1 if life.latest is None else SPEC_GRACE)
        self.node.update(request, runtime_status(uid, containers=not nothing_runs), told=told)

    @rule(uid=uids, update_type=st.sampled_from([CREATE, UPDATE, SYNC]))
    def config_update(self, uid: str, update_type: object) -> None:
        self.send(uid, request(update_type, self.pod(uid)))  # type: ignore[arg-type]

    @rule(uid=uids, grace=st.integers(0, 40))
    def deletion(self, uid: str, grace: int) -> None:
        self.send(uid, request(UPDATE, self.pod(uid, deletion_grace=grace)), asks_to_end=True, grace=grace)

    @rule(uid=uids, nothing_runs=st.booleans())
    def terminal_phase(self, uid: str, nothing_runs: bool) -> None:
        failed = request(UPDATE, self.pod(uid, phase="Failed"))
        self.send(uid, failed, asks_to_end=True, nothing_runs=nothing_runs)

    @rule(uid=uids, grace=graces, evict=st.booleans())
    def kill(self, uid: str, grace: int | None, evict: bool) -> None:
        killer = len(self.killers_told)
        self.killers_told.append(0)
        asked = request(KILL, self.pod(uid), kill={"evict": evict, "grace_period_override": grace})
        self.send(uid, asked, asks_to_end=True, grace=grace, told=lambda: self._tell(uid, killer))

    @rule(uid=uids, grace=graces)
    def runtime_kill(self, uid: str, grace: int | None) -> None:
        asked = request(KILL, running_pod=running(uid), kill={"grace_period_override": grace})
        self.send(uid, asked, asks_to_end=True, grace=grace, nothing_runs=False)

    @rule(uid=uids)
    def retry_due(self, uid: str) -> None:
        if uid in self.node.retries:
            del self.node.retries[uid]
            self.node.retry(uid)

    @precondition(lambda self: self.node.workers)
    @rule(data=st.data())
    def fault(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.node.workers)))
        before, work = self.node.states.phase(uid), self.node.busy.get(uid)
        self.node.begin_again(uid)
        after = self.node.states.phase(uid)
        assert type(after) is type(before), "a fault changed the phase"
        for what in ("identity", "ending", "kill", "active"):
            assert getattr(after, what, None) == getattr(before, what, None), f"a fault changed the {what}"
        if work is not None:
            self.lives[uid].owed = type(work)

    @rule(desired=st.sets(uids))
    def housekeeping(self, desired: set[str]) -> None:
        for uid, state in self.node.states.phases().items():
            if uid not in desired and not isinstance(state, Finished):
                self._unwanted(uid, state)
        known = self.node.sync_known_pods(*desired)
        for uid in list(self.lives):
            if uid not in known:
                assert uid not in desired or self.lives[uid].restart_asked, "a pod that is desired was forgotten"
                self._forget(uid)
            elif isinstance(self.node.states.phase(uid), Finished):
                assert uid in desired, "a pod that nobody wants was kept"
                assert not self.lives[uid].restart_asked, "a pod that was asked for anew was kept"
        for uid in desired - known.keys():
            self.send(uid, request(CREATE, self.pod(uid)))

    # Half of the rules are about work: else most pods would be asked to end before their first sync.

    @precondition(lambda self: self.node.woken - self.node.busy.keys())
    @rule()
    def all_free_lives_begin(self) -> None:
        for uid in sorted(self.node.woken - self.node.busy.keys()):
            self._begin(uid)

    @precondition(lambda self: self.node.busy)
    @rule()
    def all_work_succeeds(self) -> None:
        for uid in sorted(self.node.busy):
            self._done(uid, Completed())

    @precondition(lambda self: self._syncing())
    @rule(data=st.data())
    def sync_finds_the_pod_terminal(self, data: st.DataObject) -> None:
        self._done(data.draw(st.sampled_from(self._syncing())), Completed(terminal=True))

    @precondition(lambda self: self._syncing())
    @rule(data=st.data())
    def newer_version_during_a_sync(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(self._syncing()))
        self.send(uid, request(UPDATE, self.pod(uid)))

    def _syncing(self) -> list[str]:
        return sorted(uid for uid, work in self.node.busy.items() if isinstance(work, SyncPod))

    @precondition(lambda self: self.node.woken - self.node.busy.keys())
    @rule(data=st.data())
    def life_begins(self, data: st.DataObject) -> None:
        self._begin(data.draw(st.sampled_from(sorted(self.node.woken - self.node.busy.keys()))))

    @precondition(lambda self: self.node.busy)
    @rule(data=st.data(), outcome=outcomes)
    def work_ends(self, data: st.DataObject, outcome: Outcome) -> None:
        uid = data.draw(st.sampled_from(sorted(self.node.busy)))
        if uid in self.node.cancelled and data.draw(st.booleans()):
            outcome = Cancelled()
        self._done(uid, outcome)

    # --- What each piece of work must look like ----------------------------------------------------------------------

    def _begin(self, uid: str) -> None:
        life = self.lives[uid]
        next_in_line = self._next_in_line()
        work = self.node.begin(uid)
        owed, life.owed = life.owed, None
        assert owed is None or type(work) in AFTER_FAULT[owed], "what a fault interrupted was not begun again"
        match work:
            case None:
                return
            case SyncPod():
                assert not life.asked_to_end, "a sync began after the pod was asked to end"
                if uid.startswith("static") and not life.started:
                    assert uid == next_in_line, "a static pod started before one that had come earlier"
                life.started = life.runs = True
            case TerminatePod():
                assert life.asked_to_end
                assert life.grace is not None
                assert 1 <= self.node.kill(uid).grace_period <= life.grace, "the grace period grew"
        if isinstance(work.update, ConfigUpdate) and life.latest is not None:
            assert work.update.pod == life.latest, "an update was lost"

    def _next_in_line(self) -> str | None:
        """The static pod that has waited longest; the lives are in the order of their arrival."""
        waiting = (uid for uid in self.lives if isinstance(self.node.states.phase(uid), WaitingToStart))
        return next((uid for uid in waiting if uid.startswith("static")), None)

    def _done(self, uid: str, outcome: Outcome) -> None:
        work = self.node.busy[uid]
        if outcome == Completed(terminal=True) and isinstance(work, SyncPod):
            if not self.lives[uid].asked_to_end:
                self.lives[uid].ask_to_end(self.node.now + 1, None, SPEC_GRACE)
            self.lives[uid].asked_to_end = True
        elif isinstance(work, TerminatePod | TerminateRuntimePod) and isinstance(outcome, Completed):
            self.lives[uid].runs = False
        self.node.done(uid, outcome)
        if isinstance(work, TerminateRuntimePod) and isinstance(outcome, Completed):
            self._forget(uid)

    def _tell(self, uid: str, killer: int) -> None:
        assert not self.lives[uid].runs, "a killer was told of an end while containers may run"
        self.killers_told[killer] += 1

    def _unwanted(self, uid: str, state: Phase) -> None:
        """Housekeeping finds a pod that has not finished and that nobody wants."""
        if isinstance(state, Syncing):
            self.lives[uid].ask_to_end(self.node.now + 1, None, SPEC_GRACE)
        self.lives[uid].asked_to_end = True

    def _forget(self, uid: str) -> None:
        assert not self.lives.pop(uid).runs, "a pod was forgotten while containers of it may run"

    # --- What always holds -------------------------------------------------------------------------------------------

    @invariant()
    def phases_move_one_way(self) -> None:
        assert self.node.states.phases().keys() == self.lives.keys()
        for uid, state in self.node.states.phases().items():
            rank = RANK[type(state)]
            assert rank >= self.lives[uid].rank
            self.lives[uid].rank = rank

    @invariant()
    def a_life_is_there_exactly_while_it_has_something_to_do(self) -> None:
        alive = {uid for uid, state in self.node.states.phases().items() if not isinstance(state, Finished)}
        assert self.node.workers == alive

    @invariant()
    def what_is_in_flight_is_known(self) -> None:
        for uid, state in self.node.states.phases().items():
            in_flight = not isinstance(state, WaitingToStart | Finished) and state.in_flight
            assert in_flight == (uid in self.node.busy)

    @invariant()
    def nothing_pending_is_left_lying(self) -> None:
        for uid, state in self.node.states.phases().items():
            if isinstance(state, Finished) or uid in self.node.busy or state.pending is None:
                continue
            name = state.identity.full_name
            waits = isinstance(state, WaitingToStart) and state.identity.static
            others_turn = waits and (
                self.node.states.started_static_pod(name) is not None
                or self.node.states.waiting_static_pods(name)[0] != uid
            )
            assert others_turn or uid in self.node.woken

    @invariant()
    def an_idle_life_looks_again_sometime(self) -> None:
        for uid, state in self.node.states.phases().items():
            if not isinstance(state, Finished) and uid not in self.node.busy and state.pending is None:
                assert uid in self.node.retries or uid in self.node.woken

    @invariant()
    def only_one_static_pod_of_a_name_has_been_started(self) -> None:
        started = [
            uid
            for uid, state in self.node.states.phases().items()
            if uid.startswith("static")
            and (isinstance(state, Syncing) or (isinstance(state, TerminationRequested) and state.active is not None))
        ]
        assert len(started) <= 1
        assert set(started) <= {self.node.states.started_static_pod("web_ns")}

    @invariant()
    def static_pods_of_one_name_do_not_run_together(self) -> None:
        assert sum(life.started and life.runs for uid, life in self.lives.items() if uid.startswith("static")) <= 1

    @invariant()
    def what_has_terminated_has_no_running_container(self) -> None:
        for uid, life in self.lives.items():
            assert not (life.runs and self.node.states.is_pod_known_terminated(uid))
            assert not life.runs or self.node.states.could_have_running_containers(uid)
            assert not (life.runs and self.node.states.should_pod_runtime_be_removed(uid))

    @invariant()
    def what_stands_in_the_way_of_the_end_is_called_off(self) -> None:
        for uid, work in self.node.busy.items():
            if isinstance(work, SyncPod):
                assert not self.lives[uid].asked_to_end or uid in self.node.cancelled

    @invariant()
    def nothing_but_a_sync_is_called_off(self) -> None:
        for uid in self.node.cancelled:
            assert isinstance(self.node.busy[uid], SyncPod)

    @invariant()
    def a_kill_in_flight_knows_its_deadline(self) -> None:
        for uid, deadline in self.node.deadlines.items():
            assert deadline == self.node.kill(uid).deadline

    @invariant()
    def a_deadline_only_moves_closer(self) -> None:
        for uid, state in self.node.states.phases().items():
            if isinstance(state, TerminationRequested | Terminating):
                assert state.kill.deadline <= self.lives[uid].given_until
                self.lives[uid].given_until = state.kill.deadline

    @invariant()
    def a_deadline_is_the_earliest_that_was_asked_for(self) -> None:
        for uid, state in self.node.states.phases().items():
            if isinstance(state, TerminationRequested | Terminating):
                assert state.kill.deadline == self.lives[uid].deadline

    @invariant()
    def a_grace_period_is_the_shortest_that_was_asked_for(self) -> None:
        for uid, state in self.node.states.phases().items():
            if isinstance(state, TerminationRequested | Terminating):
                assert state.kill.grace_period == self.lives[uid].grace

    @invariant()
    def what_is_called_off_is_asked_to_end(self) -> None:
        for uid in self.node.cancelled:
            assert self.lives[uid].asked_to_end

    @invariant()
    def the_queries_agree_with_each_other(self) -> None:
        states = self.node.states
        for uid in (*UIDS, "unknown"):
            ended = states.is_pod_known_terminated(uid)
            assert not (ended and states.could_have_running_containers(uid))
            assert not ended or states.should_pod_containers_be_terminating(uid)
            assert not ended or states.should_pod_runtime_be_removed(uid)
            assert not states.should_pod_be_finished(uid) or states.should_pod_runtime_be_removed(uid)
            if states.should_pod_containers_be_terminating(uid):
                assert not isinstance(self.node.busy.get(uid), SyncPod), "a sync runs, so a container may start"

    @invariant()
    def killers_are_told_at_most_once(self) -> None:
        assert all(times <= 1 for times in self.killers_told)

    def teardown(self) -> None:
        """Once nothing fails any more and nobody wants anything, everything comes to its end.

        Not after a failure, nor where Hypothesis gave the script up because it cannot be completed.
        """
        if sys.exc_info()[0] is not None:
            return
        self.housekeeping_until_quiet()
        assert not self.node.states.phases()
        assert not self.node.workers
        assert all(times == 1 for times in self.killers_told)
        assert self.node.states.waiting_static_pods("web_ns") == ()
        assert self.node.states.started_static_pod("web_ns") is None

    def housekeeping_until_quiet(self) -> None:
        for _ in range(2):
            for uid, state in self.node.states.phases().items():
                if not isinstance(state, Finished):
                    self._unwanted(uid, state)
            self.node.sync_known_pods()
            while ready := sorted(self.node.woken | self.node.busy.keys()):
                for uid in ready:
                    if uid in self.node.busy:
                        self._done(uid, Completed())
                    elif uid in self.node.workers:
                        self._begin(uid)
        self.node.sync_known_pods()


TestPodWorkersMachine = PodWorkersMachine.TestCase
TestPodWorkersMachine.settings = settings(stateful_step_count=40, deadline=None)
