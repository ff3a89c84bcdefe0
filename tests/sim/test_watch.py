"""The watch sees what it looks for: an agent without one of its guards breaks one promise, and that one is reported."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import structlog
import trio

from tests.sim.node_stage import NodeStage, make_pod
from trikubelet.housekeeping import Housekeeping
from trikubelet.pod_syncer import AgentPodSyncer
from trikubelet.pods import termination, worker_state
from trikubelet.pods.retry import RetryPolicy
from trikubelet.pods.types import PodSyncReport
from trikubelet.pods.worker_messages import ConfigUpdate, StartWorker, Wake
from trikubelet.pods.worker_phases import Finished, Phase, WaitingToStart
from trikubelet.pods.worker_queries import PodStates
from trikubelet.pods.worker_registry import PodWorkerRegistry
from trikubelet.pods.workers import PodWorkers
from trikubelet.runtime import backoff
from trikubelet.sim.watch import (
    ENDING_BOUND,
    ENDS_IN_TIME,
    GRACE_SHRINKS,
    NO_LEAKS,
    NO_START_AFTER_END,
    NO_UPDATE_LOST,
    NOTHING_LEFT,
    ONE_STATIC_POD,
    ONE_WAY,
    RUNS_AS_WANTED,
    TERMINATED_IS_STILL,
    WORKERS_MATCH,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from trikubelet.pods.types import UpdatePodOptions


@contextmanager
def watched_node() -> Iterator[NodeStage]:
    with structlog.testing.capture_logs():
        stage = NodeStage()
        try:
            yield stage
        finally:
            stage.close()


def broken(stage: NodeStage) -> list[str]:
    stage.watch.sweep()
    return [violation.invariant for violation in stage.watch.violations]


def test_a_sound_agent_breaks_no_promise() -> None:
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "crasher", 1))
        stage.put("api", make_pod("two", "db", "stubborn", 10))
        stage.pass_time(5)
        stage.mark_deleted("two", 5)
        stage.put("file", make_pod("three", "web", "slow", 1))
        stage.end()
        assert broken(stage) == []
        assert stage.watch.checks.keys() >= {
            NO_START_AFTER_END, TERMINATED_IS_STILL, ONE_STATIC_POD, ONE_WAY, GRACE_SHRINKS, NO_UPDATE_LOST,
            WORKERS_MATCH, ENDS_IN_TIME, RUNS_AS_WANTED, NOTHING_LEFT, NO_LEAKS,
        }  # fmt: skip


def test_a_sync_that_is_not_called_off_starts_a_container_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    call_off = worker_state._cancel_or_wake
    monkeypatch.setattr(worker_state, "_cancel_or_wake", lambda state: () if state.in_flight else call_off(state))
    with watched_node() as stage:
        stage.sim.delays["StartContainer"] = 5.0
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.pass_time(1)
        stage.remove("one")
        stage.pass_time(60)
        assert broken(stage) == [NO_START_AFTER_END]


def test_a_pod_may_not_be_called_terminated_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    async def believe(*_: object) -> PodSyncReport:
        await trio.lowlevel.checkpoint()
        return PodSyncReport(trio.current_time())

    monkeypatch.setattr(AgentPodSyncer, "sync_terminating_pod", believe)
    with watched_node() as stage:
        stage.put("api", make_pod("one", "web", "obedient", 1))
        stage.pass_time(5)
        stage.mark_deleted("one", 1)
        stage.pass_time(5)
        assert broken(stage) == [TERMINATED_IS_STILL]


def test_a_static_pod_that_does_not_wait_runs_beside_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodWorkerRegistry, "_may_start", lambda *_: True)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "stubborn", 10))
        stage.pass_time(5)
        stage.put("file", make_pod("two", "web", "obedient", 1))
        stage.pass_time(5)
        assert broken(stage) == [ONE_STATIC_POD]


def test_a_finished_pod_may_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    update = worker_state.update

    def begin_again(state: Phase, options: UpdatePodOptions, now: float) -> worker_state.Step:
        if not isinstance(state, Finished) or options.pod is None:
            return update(state, options, now)
        uid = state.identity.uid
        pending = ConfigUpdate(pod=options.pod, update_type=options.update_type)
        return WaitingToStart(identity=state.identity, pending=pending), (StartWorker(uid), Wake(uid))

    monkeypatch.setattr(worker_state, "update", begin_again)
    monkeypatch.setattr(worker_state, "check_transition", lambda *_: None)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "batch", 1))
        stage.pass_time(10)
        stage.change_image("one", 2)
        assert broken(stage) == [ONE_WAY]


def test_a_grace_period_may_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink = termination.effective_grace_period

    def take_the_last(in_force: int | None, *rest: Any) -> int:
        return shrink(None, *rest)

    monkeypatch.setattr(termination, "effective_grace_period", take_the_last)
    with watched_node() as stage:
        stage.put("api", make_pod("one", "web", "stubborn", 5))
        stage.pass_time(5)
        stage.mark_deleted("one", 5)
        stage.pass_time(1)
        stage.mark_deleted("one", 20)
        assert broken(stage) == [GRACE_SHRINKS]


def test_an_update_may_not_be_lost_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_state, "coalesce", lambda pending, newer: newer if pending is None else pending)
    with watched_node() as stage:
        stage.sim.delays["StartContainer"] = 5.0
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.pass_time(1)
        stage.change_image("one", 2)
        stage.change_image("one", 1)
        stage.pass_time(10)
        assert broken(stage) == [NO_UPDATE_LOST]


def test_a_worker_may_not_stay_on_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodWorkers, "_stop", lambda workers, uid: workers._workers[uid].wake.close())
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "batch", 1))
        stage.pass_time(10)
        assert broken(stage) == [WORKERS_MATCH]


def test_a_kill_that_failed_has_to_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "delay", lambda *_: float("inf"))
    with watched_node() as stage:
        stage.put("api", make_pod("one", "web", "obedient", 1))
        stage.pass_time(5)
        for rpc in ("StopContainer", "StopPodSandbox"):
            stage.break_calls("error", rpc, 1)
        stage.mark_deleted("one", 1)
        stage.pass_time(ENDING_BOUND)
        assert broken(stage) == []
        stage.pass_time(2)
        assert broken(stage) == [ENDS_IN_TIME]


def test_a_start_that_failed_has_to_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "delay", lambda *_: float("inf"))
    with watched_node() as stage:
        stage.break_calls("error", "RunPodSandbox", 1)
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.get_well()
        assert broken(stage) == [RUNS_AS_WANTED]


def test_a_container_may_not_wait_longer_than_its_crashes_justify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "CONTAINER_INITIAL", backoff.CONTAINER_MAXIMUM)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "crasher", 1))
        stage.pass_time(5)
        stage.get_well()
        assert broken(stage) == [RUNS_AS_WANTED]


def test_what_pods_leave_behind_has_to_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodStates, "should_pod_content_be_removed", lambda *_: False)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.end()
        assert set(broken(stage)) == {NOTHING_LEFT}


def test_a_task_that_does_not_end_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    work = PodWorkers._work

    async def work_and_stay(*arguments: Any) -> None:
        await work(*arguments)
        await trio.sleep_forever()

    monkeypatch.setattr(PodWorkers, "_work", work_and_stay)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.end()
        assert broken(stage) == [NO_LEAKS]
        assert ": 1 tasks " in str(stage.watch.violations[0])


def test_a_channel_that_is_not_closed_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = []
    monkeypatch.setattr(PodWorkers, "_stop", lambda workers, uid: forgotten.append(workers._workers.pop(uid)))
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.pass_time(5)
        stage.remove("one")
        stage.pass_time(120)  # the worker notices by itself that it was forgotten
        stage.end()
        assert broken(stage) == [NO_LEAKS]
        assert ": 1 channels " in str(stage.watch.violations[0])


def test_a_scope_that_is_not_left_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    collect_periodically = Housekeeping._collect_periodically

    async def stay_within(housekeeping: Housekeeping) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect_periodically, housekeeping)
            with ExitStack() as scopes:
                while True:
                    await housekeeping._collection_wanted.wait()
                    scopes.enter_context(trio.CancelScope())
                    await trio.sleep(1)

    monkeypatch.setattr(Housekeeping, "_collect_periodically", stay_within)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.end()
        assert set(broken(stage)) == {NO_LEAKS}
        assert "scopes" in str(stage.watch.violations[0])
