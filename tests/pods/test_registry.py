"""The kubelet's `pod_workers_test.go` as facts, and what is different here on purpose."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.pods.factories import (
    CREATE,
    KILL,
    SYNC,
    UPDATE,
    make_mirror,
    make_pod,
    request,
    running,
    runtime_status,
)
from tests.pods.pure_node import PureNode
from trikubelet.pods import machine
from trikubelet.pods.machine import Event, IllegalTransitionError, is_in_the_way
from trikubelet.pods.phases import (
    Cancelled,
    CleanUpPod,
    Completed,
    Failed,
    Finished,
    Retry,
    RetryReason,
    Syncing,
    SyncPod,
    Terminated,
    TerminatePod,
    Terminating,
    TerminationRequested,
    WaitingToStart,
)
from trikubelet.pods.registry import WorkerLifecycle, WorkerSummary

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.pods.phases import Phase
    from trikubelet.pods.types import SyncPodType

SYNCED, ENDED, CLEANED = ("sync", "create"), ("terminate", 30), ("clean up",)


@pytest.fixture
def node() -> PureNode:
    return PureNode()


def finished(node: PureNode, uid: str) -> Finished:
    state = node.states.phase(uid)
    assert isinstance(state, Finished)
    return state


def started(node: PureNode, pod: Pod) -> PureNode:
    node.update(request(CREATE, pod))
    node.settle()
    assert isinstance(node.states.phase(pod.metadata.uid), Syncing)
    return node


# --- TestUpdatePod ---------------------------------------------------------------------------------------------------


def test_a_new_pod_is_recorded_and_started(node: PureNode) -> None:
    pod = make_pod("1", "running-pod")
    node.update(request(CREATE, pod))
    waiting = node.states.phase("1")
    assert isinstance(waiting, WaitingToStart)
    assert (waiting.identity.full_name, waiting.identity.first_seen) == ("running-pod_ns", 1)
    node.settle()
    syncing = node.states.phase("1")
    assert isinstance(syncing, Syncing)
    assert (syncing.active.pod, syncing.pending, syncing.in_flight) == (pod, None, False)
    assert node.records["1"] == [SYNCED]
    assert not node.states.is_pod_known_terminated("1")


def test_a_create_for_a_terminating_uid_only_asks_for_a_restart(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.update(request(CREATE, make_pod("1", "newer")))
    node.settle()
    state = finished(node, "1")
    assert state.ending.restart_requested
    assert not state.ending.deleted
    assert node.records["1"] == [SYNCED, ENDED, CLEANED]
    assert node.states.is_pod_known_terminated("1")


@pytest.mark.parametrize("update_type", [UPDATE, SYNC, KILL])
def test_only_a_create_asks_for_a_restart(node: PureNode, update_type: SyncPodType) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.update(request(update_type, pod))
    node.settle()
    node.update(request(update_type, pod))
    assert not finished(node, "1").ending.restart_requested


def test_a_create_at_first_sight_of_a_pod_that_is_ending_is_no_restart(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1", deletion_grace=5)))
    node.settle()
    assert not finished(node, "1").ending.restart_requested


def test_a_deletion_timestamp_ends_a_running_pod_with_the_deletions_grace(node: PureNode) -> None:
    started(node, make_pod("1"))
    node.update(request(UPDATE, make_pod("1", deletion_grace=15)))
    node.settle()
    assert node.records["1"] == [SYNCED, ("terminate", 15), CLEANED]
    assert finished(node, "1").ending.deleted


def test_an_eviction_ends_a_running_pod_with_the_specs_grace(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod, kill={"evict": True}))
    node.settle()
    assert node.records["1"] == [SYNCED, ENDED, CLEANED]
    ending = finished(node, "1").ending
    assert ending.evicted
    assert not ending.deleted


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_pod_never_seen_is_ended_while_the_cache_has_no_word_of_it(node: PureNode, phase: str) -> None:
    node.update(request(CREATE, make_pod("1", phase=phase)), status=None)
    node.settle()
    assert node.records["1"] == [ENDED, CLEANED]


@pytest.mark.parametrize(("containers", "sandbox"), [(True, False), (False, True)])
def test_a_terminal_pod_never_seen_is_ended_when_something_of_it_runs(
    node: PureNode, containers: bool, sandbox: bool
) -> None:
    status = runtime_status("1", containers=containers, sandbox=sandbox)
    node.update(request(CREATE, make_pod("1", phase="Failed")), status)
    node.settle()
    assert node.records["1"] == [ENDED, CLEANED]


@pytest.mark.parametrize("status", [None, runtime_status("1", containers=True)], ids=["no word", "runs"])
def test_a_terminal_static_pod_never_seen_is_killed_and_not_just_dropped(
    node: PureNode, status: PodRuntimeStatus | None
) -> None:
    node.update(request(CREATE, make_pod("1", static=True, phase="Failed")), status)
    node.settle()
    assert node.records["1"] == [ENDED, CLEANED]


def test_a_terminal_pod_of_which_something_runs_is_not_forgotten_before_it_has_ended(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1", phase="Failed")), runtime_status("1", containers=True))
    assert set(node.sync_known_pods()) == {"1"}
    node.settle()
    assert node.records["1"] == [ENDED, CLEANED]


def test_a_terminal_pod_never_seen_of_which_nothing_runs_is_only_cleaned_up(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1", phase="Succeeded")), runtime_status("1"))
    assert isinstance(node.states.phase("1"), Terminated)
    assert node.states.is_pod_known_terminated("1")
    assert not node.states.should_pod_be_finished("1")
    node.settle()
    assert node.records["1"] == [CLEANED]
    assert node.states.should_pod_be_finished("1")


def test_a_terminal_phase_in_a_later_update_ends_the_pod(node: PureNode) -> None:
    started(node, make_pod("1"))
    node.update(request(UPDATE, make_pod("1", phase="Failed")), runtime_status("1"))
    node.settle()
    assert node.records["1"] == [SYNCED, ENDED, CLEANED]


def test_a_pod_that_only_the_runtime_knows_is_ended_with_one_second_and_forgotten(node: PureNode) -> None:
    node.update(request(KILL, running_pod=running("1")))
    state = node.states.phase("1")
    assert isinstance(state, TerminationRequested)
    assert (state.kill.grace_period, state.ending.deleted, state.observed_runtime) == (1, True, True)
    node.settle()
    assert node.records["1"] == [("terminate runtime pod",)]
    assert node.states.phase("1") is None
    assert not node.workers


# --- TestUpdatePodForRuntimePod and TestUpdatePodForTerminatedRuntimePod ---------------------------------------------


def test_a_runtime_kill_of_a_pod_with_config_uses_the_newest_config(node: PureNode) -> None:
    started(node, make_pod("1"))
    node.update(request(UPDATE, make_pod("1", grace=20)))
    node.update(request(KILL, running_pod=running("1")))
    work = node.begin("1")
    assert isinstance(work, TerminatePod)
    assert node.kill("1").grace_period == 20
    node.done("1")
    node.settle()
    assert finished(node, "1").ending.deleted


def test_a_runtime_kill_of_a_pod_that_has_ended_is_ignored(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.begin("1")
    node.done("1")
    assert isinstance(node.states.phase("1"), Terminated)
    before = node.states.phase("1")
    node.update(request(KILL, running_pod=running("1")))
    assert node.states.phase("1") == before


def test_config_that_arrives_for_a_runtime_pod_being_ended_takes_over_the_next_attempt(node: PureNode) -> None:
    node.update(request(KILL, running_pod=running("1")))
    node.begin("1")
    node.update(request(UPDATE, make_pod("1", static=True)))
    node.done("1", Failed())
    assert isinstance(node.begin("1"), TerminatePod)
    node.done("1")
    node.settle()
    assert node.records["1"] == [("terminate runtime pod",), ("terminate", 1), CLEANED]


# --- TestUpdatePodDoesNotForgetSyncPodKill, TestUpdatePodParallel ----------------------------------------------------


def test_a_kill_is_not_forgotten_when_an_update_follows(node: PureNode) -> None:
    pod = make_pod("1")
    for update_type in (CREATE, KILL, UPDATE):
        node.update(request(update_type, pod))
    node.settle()
    assert node.records["1"] == [ENDED, CLEANED]


def test_pending_updates_coalesce_to_the_newest(node: PureNode) -> None:
    for name in ("a", "b", "c"):
        node.update(request(UPDATE, make_pod("1", name)))
    work = node.begin("1")
    assert isinstance(work, SyncPod)
    assert work.update.pod.metadata.name == "c"
    for name in ("d", "e"):
        node.update(request(UPDATE, make_pod("1", name)))
    assert node.woken == set(), "a busy worker is not woken"
    node.done("1")
    work = node.begin("1")
    assert isinstance(work, SyncPod)
    assert work.update.pod.metadata.name == "e"


def test_the_oldest_start_time_is_kept_and_a_repetition_has_none(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1"), start_time=5))
    node.update(request(UPDATE, make_pod("1"), start_time=3))
    node.update(request(UPDATE, make_pod("1"), start_time=9))
    work = node.begin("1")
    assert work is not None
    assert work.update.start_time == 3
    node.done("1")
    node.retry("1")
    work = node.begin("1")
    assert work is not None
    assert work.update.start_time is None


def test_a_mirror_pod_once_seen_is_kept_for_repetitions(node: PureNode) -> None:
    pod = make_pod("1", static=True)
    mirror = make_mirror(pod, "m")
    node.update(request(CREATE, pod, mirror_pod=mirror))
    node.settle()
    node.update(request(UPDATE, pod))
    node.settle()
    node.retry("1")
    work = node.begin("1")
    assert isinstance(work, SyncPod)
    assert work.update.mirror_pod == mirror
    assert work.update.update_type is SYNC


# --- TestTerminalPhaseTransition, TestCompleteWork -------------------------------------------------------------------


def test_a_sync_that_finds_the_pod_terminal_ends_it_at_once(node: PureNode) -> None:
    started(node, make_pod("1"))
    node.update(request(UPDATE, make_pod("1")))
    node.begin("1")
    node.done("1", Completed(terminal=True))
    assert isinstance(node.states.phase("1"), Terminating)
    assert node.woken == {"1"}
    node.settle()
    assert node.records["1"][2:] == [ENDED, CLEANED]
    assert not finished(node, "1").ending.deleted


@pytest.mark.parametrize(
    ("outcome", "retry"),
    [
        (Completed(), Retry(RetryReason.RESYNC)),
        (Failed(), Retry(RetryReason.ERROR)),
        (Failed(retry_at=7.0), Retry(RetryReason.ERROR, 7.0)),
        (Failed(network_not_ready=True, retry_at=7.0), Retry(RetryReason.NETWORK_NOT_READY)),
        (Cancelled(), Retry(RetryReason.ERROR)),
    ],
)
def test_a_worker_with_nothing_pending_is_told_when_to_look_again(
    node: PureNode, outcome: Completed | Failed | Cancelled, retry: Retry
) -> None:
    node.update(request(CREATE, make_pod("1")))
    node.begin("1")
    node.done("1", outcome)
    assert node.retries == {"1": retry}
    assert not node.woken


def test_a_worker_with_something_pending_goes_on_at_once_after_an_error(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1")))
    node.begin("1")
    node.update(request(UPDATE, make_pod("1")))
    node.done("1", Failed())
    assert not node.retries
    assert node.woken == {"1"}


def test_an_update_during_the_sync_that_finds_the_pod_terminal_is_used_for_its_end(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1")))
    node.begin("1")
    node.update(request(UPDATE, make_pod("1", "newer")))
    node.done("1", Completed(terminal=True))
    work = node.begin("1")
    assert isinstance(work, TerminatePod)
    assert work.update.pod.metadata.name == "newer"


def test_a_pod_that_has_run_its_course_gets_the_grace_of_its_newest_spec(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1", grace=30)))
    node.begin("1")
    node.update(request(UPDATE, make_pod("1", grace=5)))
    node.done("1", Completed(terminal=True))
    assert node.kill("1").deadline == node.now + 5
    node.settle()
    assert node.records["1"] == [SYNCED, ("terminate", 5), CLEANED]


def test_an_update_during_the_kill_is_used_for_the_cleanup(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.begin("1")
    node.update(request(UPDATE, make_pod("1", "newer")))
    node.done("1")
    work = node.begin("1")
    assert isinstance(work, CleanUpPod)
    assert work.update.pod.metadata.name == "newer"


def test_a_kill_during_the_sync_that_finds_the_pod_terminal_keeps_its_terms(node: PureNode) -> None:
    pod, told = make_pod("1"), Told()
    node.update(request(CREATE, pod))
    node.begin("1")
    node.update(request(KILL, pod, kill={"evict": True, "grace_period_override": 5}), told=told)
    node.done("1", Completed(terminal=True))
    node.settle()
    assert node.records["1"] == [SYNCED, ("terminate", 5), CLEANED]
    assert finished(node, "1").ending.evicted
    assert told.times == 1


# --- Cancellation and the grace period -------------------------------------------------------------------------------


def test_a_request_to_end_cancels_the_sync_in_flight_and_ends_the_pod_after_it(node: PureNode) -> None:
    pod = make_pod("1")
    node.update(request(CREATE, pod))
    node.begin("1")
    node.update(request(KILL, pod))
    assert node.cancelled == {"1"}
    assert node.states.is_pod_termination_requested("1")
    assert not node.states.should_pod_containers_be_terminating("1"), "the sync may still start containers"
    node.done("1", Cancelled())
    node.begin("1")
    assert node.states.should_pod_containers_be_terminating("1")
    assert node.records["1"] == [SYNCED, ENDED]


def test_a_shorter_grace_moves_the_deadline_of_the_kill_in_flight_closer_and_cancels_nothing(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.begin("1")
    assert node.kill("1").deadline == node.now - 1 + 30
    node.update(request(KILL, pod, kill={"grace_period_override": 5}))
    assert not node.cancelled
    assert (node.kill("1").grace_period, node.kill("1").deadline) == (5, node.now + 5)
    assert node.deadlines == {"1": node.now + 5}
    node.settle()
    assert node.records["1"] == [SYNCED, ENDED, CLEANED]


def test_a_kill_in_flight_that_got_less_time_and_failed_begins_anew_with_what_is_left_of_it(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.begin("1")
    node.update(request(KILL, pod, kill={"grace_period_override": 5}))
    deadline = node.kill("1").deadline
    node.done("1", Failed())
    node.begin("1")
    assert node.records["1"] == [SYNCED, ENDED, ("terminate", 5)]
    assert node.kill("1").deadline == deadline


@pytest.mark.parametrize("after", [0, 10, 28])
@pytest.mark.parametrize("in_flight", [True, False])
def test_the_deadline_is_the_earliest_that_was_asked_for(node: PureNode, after: int, in_flight: bool) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    if in_flight:
        node.begin("1")
    first = node.kill("1").deadline
    node.now += after
    node.update(request(KILL, pod, kill={"grace_period_override": 10}))
    assert node.kill("1").deadline == min(first, node.now + 10)
    assert node.kill("1").grace_period == 10


def test_only_a_sync_in_flight_is_in_the_way_of_an_end(node: PureNode) -> None:
    def in_the_way() -> bool:
        state = node.states.phase("1")
        assert state is not None
        return is_in_the_way(state)

    pod = make_pod("1")
    node.update(request(CREATE, pod))
    assert not in_the_way()
    node.begin("1")
    assert not in_the_way(), "nobody asked for an end"
    node.update(request(KILL, pod))
    assert in_the_way()
    node.done("1", Cancelled())
    assert not in_the_way()
    node.begin("1")
    assert not in_the_way()
    node.done("1")
    node.begin("1")
    assert not in_the_way()


@pytest.mark.parametrize("override", [30, 31, 300])
def test_a_grace_that_is_not_shorter_disturbs_nothing(node: PureNode, override: int) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.begin("1")
    node.update(request(KILL, pod, kill={"grace_period_override": override}))
    assert not node.cancelled
    state = node.states.phase("1")
    assert isinstance(state, Terminating)
    assert state.kill.grace_period == 30
    assert node.deadlines == {"1": state.kill.deadline} == {"1": node.now - 2 + 30}


def test_a_kill_that_succeeds_after_it_was_hastened_is_a_success(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.begin("1")
    node.update(request(KILL, pod, kill={"grace_period_override": 5}))
    node.done("1", Completed())
    node.settle()
    assert node.records["1"] == [SYNCED, ENDED, CLEANED]


def test_the_last_kills_status_function_counts(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    first, second = (functools.partial(attrs.evolve, reason=reason) for reason in ("first", "second"))
    node.update(request(KILL, pod, kill={"pod_status_fn": first}))
    node.update(request(KILL, pod, kill={"pod_status_fn": second}))
    node.update(request(KILL, pod))
    node.update(request(KILL, pod, kill={"grace_period_override": 30}))
    assert node.kill("1").status_fn is second
    node.begin("1")
    assert node.kill("1").status_fn is second


# --- Who waits for an end --------------------------------------------------------------------------------------------


class Told:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def test_killers_are_told_once_when_the_containers_have_ended(node: PureNode) -> None:
    pod, first, second = make_pod("1"), Told(), Told()
    started(node, pod)
    node.update(request(KILL, pod), told=first)
    node.begin("1")
    node.update(request(KILL, pod), told=second)
    node.done("1", Failed())
    assert (first.times, second.times) == (0, 0)
    node.begin("1")
    node.done("1", Completed())
    assert (first.times, second.times) == (1, 1)
    node.settle()
    assert (first.times, second.times) == (1, 1)


@pytest.mark.parametrize("static", [True, False])
def test_a_killer_is_told_in_every_later_phase_at_once(node: PureNode, static: bool) -> None:
    pod, told = make_pod("1", static=static), Told()
    started(node, pod)
    node.update(request(KILL, pod))
    node.begin("1")
    node.done("1")
    node.update(request(KILL, pod), told=told)
    assert told.times == 1
    node.settle()
    node.update(request(KILL, pod), told=told)
    assert told.times == 2


def test_the_killer_of_a_static_pod_that_never_started_is_told(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1", static=True)))
    node.settle()
    waiting, told = make_pod("2", static=True), Told()
    node.update(request(CREATE, waiting))
    node.update(request(KILL, waiting), told=told)
    node.settle()
    assert told.times == 1
    assert "2" not in node.records


def test_the_killer_of_a_pod_that_is_forgotten_before_it_starts_is_told(node: PureNode) -> None:
    pod, told = make_pod("1"), Told()
    node.update(request(KILL, pod), told=told)
    node.sync_known_pods()
    assert told.times == 1


def test_the_killer_of_a_runtime_pod_is_told(node: PureNode) -> None:
    told = Told()
    node.update(request(KILL, running_pod=running("1")), told=told)
    node.settle()
    assert told.times == 1


# --- TestStaticPodExclusion, Test_allowPodStart ----------------------------------------------------------------------


def static(uid: str) -> Pod:
    return make_pod(uid, "pod1", static=True)


def test_static_pods_of_one_full_name_run_one_after_the_other_in_order_of_arrival(node: PureNode) -> None:
    node.update(request(UPDATE, make_pod("1-normal", "pod1")))
    for uid in ("2", "3", "4"):
        node.update(request(UPDATE, static(uid)))
    node.settle()
    assert set(node.records) == {"1-normal", "2"}, "an API pod of the same name does not count"
    assert node.states.started_static_pod("pod1_ns") == "2"
    assert node.states.waiting_static_pods("pod1_ns") == ("3", "4")

    node.update(request(UPDATE, static("3")))
    node.settle()
    assert "3" not in node.records, "another update does not start it"

    node.update(request(KILL, static("3")))
    node.settle()
    assert not finished(node, "3").has_config
    assert "3" not in node.records, "it ended without touching the runtime"

    node.update(request(KILL, static("2")))
    node.settle()
    assert isinstance(node.states.phase("4"), Syncing), "nobody had to wake it"
    assert node.states.started_static_pod("pod1_ns") == "4"
    assert node.states.waiting_static_pods("pod1_ns") == ()

    assert node.sync_known_pods("1-normal", "2", "3", "4") == {
        "1-normal": WorkerSummary(WorkerLifecycle.SYNC, has_config=True),
        "2": WorkerSummary(WorkerLifecycle.TERMINATED, has_config=True, static=True),
        "3": WorkerSummary(WorkerLifecycle.TERMINATED),
        "4": WorkerSummary(WorkerLifecycle.SYNC, has_config=True, static=True),
    }
    assert set(node.sync_known_pods("1-normal", "2", "4")) == {"1-normal", "2", "4"}
    assert node.states.phase("3") is None


def test_a_static_pod_whose_end_its_worker_has_not_seen_does_not_hold_up_the_next(node: PureNode) -> None:
    started(node, static("4"))
    node.update(request(UPDATE, static("5")))
    node.settle()
    node.held.add("5")
    node.update(request(KILL, static("5")))
    node.update(request(UPDATE, static("6")))
    node.update(request(KILL, static("4")))
    node.settle()
    assert isinstance(node.states.phase("5"), TerminationRequested)
    assert isinstance(node.states.phase("6"), Syncing)
    node.held.clear()
    node.settle()
    assert isinstance(node.states.phase("5"), Finished)
    assert node.states.started_static_pod("pod1_ns") == "6"


def test_a_later_static_pod_does_not_overtake_the_next_in_line(node: PureNode) -> None:
    started(node, static("6"))
    node.held.add("7")
    for uid in ("7", "8", "9"):
        node.update(request(UPDATE, static(uid)))
    node.settle()
    node.update(request(KILL, static("6")))
    node.settle()
    node.update(request(CREATE, static("6")))
    node.update(request(UPDATE, static("8")))
    node.settle()
    assert finished(node, "6").ending.restart_requested
    assert node.states.started_static_pod("pod1_ns") is None
    assert not {"7", "8", "9"} & set(node.records)
    node.update(request(KILL, static("7")))
    node.settle()
    assert node.records["8"] == [("sync", "update")], "the next in line ended, so it is the turn of this one"
    assert "9" not in node.records


def test_a_static_pod_keeps_its_name_until_its_cleanup_is_done(node: PureNode) -> None:
    started(node, static("1"))
    node.update(request(CREATE, static("2")))
    node.update(request(KILL, static("1")))
    node.begin("1")
    assert node.states.is_pod_for_mirror_pod_terminating_by_full_name("pod1_ns")
    assert node.states.terminating_static_full_names() == {"pod1_ns"}
    node.done("1")
    assert not node.states.is_pod_for_mirror_pod_terminating_by_full_name("pod1_ns")
    node.held.add("1")
    node.settle()
    assert "2" not in node.records
    node.held.clear()
    node.settle()
    assert node.records["2"] == [SYNCED]


def test_a_purged_static_pod_lets_the_next_one_start(node: PureNode) -> None:
    node.held.add("1")
    node.update(request(CREATE, static("1")))
    node.update(request(CREATE, static("2")))
    node.settle()
    assert not node.records
    node.sync_known_pods("2")
    node.settle()
    assert node.states.phase("1") is None
    assert node.records["2"] == [SYNCED]


def test_a_waiting_static_pod_that_the_runtime_holds_is_killed_before_it_finishes(node: PureNode) -> None:
    started(node, static("1"))
    node.update(request(CREATE, static("2")))
    node.update(request(KILL, running_pod=running("2", "pod1")))
    node.settle()
    assert node.records["2"] == [ENDED, CLEANED]


def test_a_static_pod_killed_while_it_waits_is_not_just_dropped_once_the_runtime_is_seen_to_hold_it(
    node: PureNode,
) -> None:
    started(node, static("1"))
    node.update(request(CREATE, static("2")))
    node.update(request(KILL, static("2")))
    node.update(request(KILL, running_pod=running("2", "pod1")))
    node.settle()
    assert node.records["2"] == [ENDED, CLEANED]


def test_the_end_of_a_waiting_static_pod_does_not_wake_the_others_in_vain(node: PureNode) -> None:
    started(node, static("1"))
    for uid in ("2", "3"):
        node.update(request(CREATE, static(uid)))
    node.settle()
    node.update(request(KILL, static("2")))
    assert node.woken == {"2"}


# --- TestSyncKnownPods, Test_removeTerminatedWorker ------------------------------------------------------------------


def test_queries_before_and_after_the_first_sync_of_known_pods(node: PureNode) -> None:
    states = node.states
    for uid in "0123":
        node.update(request(UPDATE, make_pod(uid)))
    node.settle()
    node.update(request(KILL, make_pod("0", deleted=True)))
    node.update(request(KILL, make_pod("1")))
    node.settle()

    for uid in "01":
        assert states.should_pod_containers_be_terminating(uid)
        assert states.is_pod_termination_requested(uid)
        assert not states.could_have_running_containers(uid)
        assert states.should_pod_runtime_be_removed(uid)
        assert states.should_pod_be_finished(uid)
    assert not states.should_pod_containers_be_terminating("2")
    assert not states.is_pod_termination_requested("2")
    assert states.could_have_running_containers("2")
    assert not states.should_pod_runtime_be_removed("2")
    assert states.should_pod_content_be_removed("0"), "deleted and ended"
    assert not states.should_pod_content_be_removed("1"), "ended and not deleted"
    assert not states.should_pod_content_be_removed("2")

    assert not states.should_pod_containers_be_terminating("unknown")
    assert states.could_have_running_containers("unknown")
    assert not states.should_pod_content_be_removed("unknown")
    assert not states.should_pod_runtime_be_removed("unknown")
    assert not states.should_pod_be_finished("unknown")

    assert set(node.sync_known_pods("2", "3")) == {"2", "3"}
    assert node.workers == {"2", "3"}
    assert states.should_pod_containers_be_terminating("unknown")
    assert not states.could_have_running_containers("unknown")
    assert states.should_pod_content_be_removed("unknown")
    assert states.should_pod_runtime_be_removed("unknown")
    assert states.should_pod_be_finished("unknown")
    assert not states.is_pod_termination_requested("unknown")
    assert not states.is_pod_known_terminated("unknown")

    assert node.sync_known_pods()["2"] == WorkerSummary(WorkerLifecycle.TERMINATING, orphan=True, has_config=True)
    node.settle()
    assert node.workers == set()
    assert set(states.phases()) == {"2", "3"}
    assert node.sync_known_pods() == {}
    assert not states.phases()


def test_an_evicted_pods_content_may_go_before_it_has_ended(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    assert not node.states.should_pod_content_be_removed("1")
    node.update(request(KILL, pod, kill={"evict": True}))
    assert node.states.should_pod_content_be_removed("1")


def test_an_evicted_pods_content_may_go_although_it_had_ended_before_it_was_seen(node: PureNode) -> None:
    evicted = request(KILL, make_pod("1", phase="Failed"), kill={"evict": True})
    node.update(evicted, runtime_status("1"))
    assert isinstance(node.states.phase("1"), Terminated)
    assert node.states.should_pod_content_be_removed("1")


def test_a_deleted_pods_content_stays_until_it_has_ended(node: PureNode) -> None:
    started(node, make_pod("1"))
    node.update(request(UPDATE, make_pod("1", deletion_grace=3)))
    node.begin("1")
    assert not node.states.should_pod_content_be_removed("1")
    node.done("1")
    assert node.states.should_pod_content_be_removed("1")


def test_an_eviction_and_a_deletion_are_not_taken_back_by_a_later_kill(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod, kill={"evict": True}))
    node.update(request(UPDATE, make_pod("1", deletion_grace=3)))
    node.update(request(KILL, pod))
    state = node.states.phase("1")
    assert isinstance(state, TerminationRequested)
    assert (state.ending.evicted, state.ending.deleted) == (True, True)


def test_a_killed_pod_that_then_leaves_the_config_counts_as_deleted(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.begin("1")
    node.sync_known_pods()
    node.done("1")
    assert node.states.should_pod_content_be_removed("1")


def test_what_containers_need_stays_until_they_have_ended(node: PureNode) -> None:
    started(node, make_pod("1"))
    node.update(request(KILL, make_pod("1")))
    node.begin("1")
    assert not node.states.should_pod_runtime_be_removed("1")
    assert node.states.could_have_running_containers("1")
    node.done("1")
    assert node.states.should_pod_runtime_be_removed("1")
    assert not node.states.should_pod_be_finished("1"), "its cleanup is still to be done"


def test_a_deletion_after_the_end_makes_the_content_removable(node: PureNode) -> None:
    started(node, make_pod("1"))
    node.update(request(KILL, make_pod("1")))
    node.begin("1")
    node.done("1")
    assert not node.states.should_pod_content_be_removed("1")
    node.update(request(UPDATE, make_pod("1", deletion_grace=1)))
    assert node.states.should_pod_content_be_removed("1")


def test_a_pod_nobody_wants_that_never_started_is_forgotten_without_any_work(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1")))
    assert node.sync_known_pods() == {}
    assert not node.workers
    assert not node.records


def test_a_pod_that_only_the_runtime_knows_is_not_forgotten_before_it_has_ended(node: PureNode) -> None:
    node.update(request(KILL, running_pod=running("1")))
    assert set(node.sync_known_pods()) == {"1"}
    node.settle()
    assert node.records["1"] == [("terminate runtime pod",)]


def test_a_pod_nobody_wants_that_runs_is_ended_with_its_specs_grace_and_its_sync_cancelled(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1", grace=7)))
    node.begin("1")
    node.sync_known_pods()
    assert node.cancelled == {"1"}
    assert node.kill("1").deadline == node.now + 7
    node.done("1", Cancelled())
    node.settle()
    assert node.records["1"] == [SYNCED, ("terminate", 7), CLEANED]
    assert finished(node, "1").ending.deleted


def test_the_pending_update_of_a_pod_nobody_wants_is_used_for_its_end(node: PureNode) -> None:
    started(node, make_pod("1"))
    node.held.add("1")
    node.update(request(UPDATE, make_pod("1", "newer", grace=5)))
    node.sync_known_pods()
    work = node.begin("1")
    assert isinstance(work, TerminatePod)
    assert work.update.pod.metadata.name == "newer"
    assert node.kill("1").grace_period == 5, "of the spec that is used"


def test_each_sync_of_known_pods_tries_again_to_end_what_nobody_wants(node: PureNode) -> None:
    pod = make_pod("1", deletion_grace=2)
    started(node, make_pod("1"))
    node.update(request(KILL, pod))
    node.settle(Failed())
    assert node.records["1"] == [SYNCED, ("terminate", 2)]
    node.sync_known_pods("1")
    assert not node.woken, "a desired pod waits for its backoff"
    node.sync_known_pods()
    node.settle(Failed())
    node.sync_known_pods()
    node.settle()
    assert node.records["1"] == [SYNCED, *[("terminate", 2)] * 3, CLEANED]


def test_a_pod_asked_for_anew_starts_after_its_history_is_purged(node: PureNode) -> None:
    pod = static("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.update(request(CREATE, pod))
    assert set(node.sync_known_pods("1")) == {"1"}, "not finished yet"
    node.settle()
    assert node.sync_known_pods("1") == {}, "forgotten although it is desired"
    node.update(request(CREATE, pod))
    node.settle()
    assert node.records["1"] == [SYNCED, ENDED, CLEANED, SYNCED]


def test_a_finished_uid_does_not_start_again_before_its_history_is_purged(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.settle()
    for update_type in (CREATE, UPDATE, SYNC, KILL):
        node.update(request(update_type, pod))
    node.settle()
    assert node.records["1"] == [SYNCED, ENDED, CLEANED]
    assert not node.workers


def test_a_finished_pod_that_is_still_desired_is_kept_as_history(node: PureNode) -> None:
    pod = make_pod("1")
    started(node, pod)
    node.update(request(KILL, pod))
    node.settle()
    assert node.sync_known_pods("1") == {"1": WorkerSummary(WorkerLifecycle.TERMINATED, has_config=True)}


# --- Faults of the agent ---------------------------------------------------------------------------------------------


def test_what_a_fault_interrupts_is_done_again_with_its_newest_version(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1")))
    node.begin("1")
    node.begin_again("1")
    node.settle()
    assert node.records["1"] == [SYNCED, ("sync", "sync")]
    node.update(request(UPDATE, make_pod("1", "newer")))
    node.begin("1")
    node.update(request(UPDATE, make_pod("1", "newest")))
    node.begin_again("1")
    work = node.begin("1")
    assert isinstance(work, SyncPod)
    assert work.update.pod.metadata.name == "newest"


def test_an_end_that_a_fault_interrupts_goes_on_with_its_terms(node: PureNode) -> None:
    pod, told = make_pod("1"), Told()
    started(node, pod)
    node.update(request(KILL, pod, kill={"evict": True, "grace_period_override": 7}), told=told)
    node.begin("1")
    kill = node.kill("1")
    node.begin_again("1")
    node.begin("1")
    assert node.kill("1") == kill
    assert told.times == 0
    node.done("1")
    assert told.times == 1
    node.begin("1")
    node.begin_again("1")
    node.settle()
    assert node.records["1"] == [SYNCED, *[("terminate", 7)] * 2, CLEANED, CLEANED]
    assert finished(node, "1").ending.evicted


def test_a_sync_that_a_fault_interrupts_while_its_pod_shall_end_is_not_done_again(node: PureNode) -> None:
    pod = make_pod("1")
    node.update(request(CREATE, pod))
    node.begin("1")
    node.update(request(KILL, pod))
    node.begin_again("1")
    node.settle()
    assert node.records["1"] == [SYNCED, ENDED, CLEANED]


@pytest.mark.parametrize("static", [True, False])
def test_a_fault_of_a_life_that_does_nothing_has_its_pod_looked_at_again(node: PureNode, static: bool) -> None:
    started(node, make_pod("1", static=static))
    node.begin_again("1")
    node.settle()
    assert node.records["1"] == [SYNCED, ("sync", "sync")]


def test_a_fault_before_the_start_and_after_the_end_changes_nothing(node: PureNode) -> None:
    pod = make_pod("1")
    node.begin_again("1")
    assert node.states.phase("1") is None
    node.update(request(CREATE, pod))
    waiting = node.states.phase("1")
    node.begin_again("1")
    assert node.states.phase("1") is waiting
    node.update(request(KILL, pod))
    node.settle()
    history = finished(node, "1")
    node.begin_again("1")
    assert node.states.phase("1") is history
    assert not node.workers


def test_a_pod_that_cannot_be_compared_with_the_desired_ones_stays_and_hinders_no_other(
    node: PureNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid in ("1", "2"):
        started(node, make_pod(uid, uid))
    compare = machine.known_pods_synced

    def jump(state: Phase, now: float, *, desired: bool) -> Phase | None:
        return None if state.identity.uid == "1" else compare(state, now, desired=desired)

    monkeypatch.setattr(machine, "known_pods_synced", jump)
    before = node.states.phase("1")
    known = node.registry.sync_known_pods({"1"}, node.now)
    [fault] = known.faults
    assert (fault.uid, fault.event) == ("1", Event.KNOWN_PODS_SYNCED.value)
    assert node.states.phase("1") is before
    assert known.changed == ("2",)
    assert {uid: summary.lifecycle for uid, summary in known.workers.items()} == {
        "1": WorkerLifecycle.SYNC,
        "2": WorkerLifecycle.TERMINATING,
    }


# --- What cannot happen ----------------------------------------------------------------------------------------------


def test_work_that_was_not_given_out_cannot_be_done(node: PureNode) -> None:
    with pytest.raises(IllegalTransitionError, match="unknown"):
        node.registry.done("1", Completed(), 0)
    node.update(request(CREATE, make_pod("1")))
    with pytest.raises(IllegalTransitionError, match="WaitingToStart"):
        node.registry.done("1", Completed(), 0)


def test_a_worker_without_work_cannot_have_ended_it(node: PureNode) -> None:
    started(node, make_pod("1"))
    with pytest.raises(IllegalTransitionError, match="Syncing, idle"):
        node.registry.done("1", Completed(), 0)


def test_a_busy_worker_cannot_begin_something_else(node: PureNode) -> None:
    node.update(request(CREATE, make_pod("1")))
    node.begin("1")
    with pytest.raises(IllegalTransitionError, match="busy"):
        node.registry.begin("1", 0)


def test_a_pod_that_is_asked_to_end_again_is_news_only_once(node: PureNode) -> None:
    """Many that end at once are each looked at whenever another one has ended."""
    node.update(request(CREATE, make_pod("1")))
    node.settle()
    node.held.add("1")
    node.sync_known_pods()
    node.begin("1")  # its end is in flight
    assert node.registry.sync_known_pods((), node.now).changed == ("1",), "once more, should this fail"
    assert node.registry.sync_known_pods((), node.now).changed == ()
    ending = node.states.phase("1")
    node.sync_known_pods()
    assert node.states.phase("1") is ending
