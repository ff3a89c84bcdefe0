"""The watch sees what it looks for: an agent without one of its guards breaks one promise, and that one is reported."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from tests.captured_logs import capture_logs
from tests.sim.node_stage import NodeStage, make_pod
from trikubelet.pods import life as pod_life
from trikubelet.pods import machine, phases
from trikubelet.pods.housekeeping import Housekeeping
from trikubelet.pods.phases import ConfigUpdate, Finished, Phase, WaitingToStart, new_update
from trikubelet.pods.registry import PodStates, PodWorkerRegistry
from trikubelet.pods.retry import RetryPolicy
from trikubelet.pods.syncer import AgentPodSyncer
from trikubelet.pods.types import KillRuntimePod, PodSyncReport
from trikubelet.pods.workers import PodWorkers
from trikubelet.runtime.backoff import CONTAINER_MAXIMUM
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

    from trikubelet.pods.life import PodLife
    from trikubelet.pods.types import Kill, Request


@contextmanager
def watched_node() -> Iterator[NodeStage]:
    with capture_logs():
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


def test_what_an_agent_was_about_when_it_was_killed_is_no_violation() -> None:
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.pass_time(5)
        stage.restart_agent(downtime=5.0)
        stage.settle()
        assert stage._agent is not None
        stage._agent.workers._lives.clear()  # as if its task had ended before its phase was written
        assert broken(stage) == []
        stage.end()
        assert broken(stage) == []


def test_a_sync_that_is_not_called_off_starts_a_container_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_life, "is_in_the_way", lambda _state: False)
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
    update = machine.update

    def begin_again(state: Phase, request: Request, now: float) -> Phase:
        if not isinstance(state, Finished) or isinstance(request, KillRuntimePod):
            return update(state, request, now)
        pending = new_update(request)
        assert isinstance(pending, ConfigUpdate)
        return WaitingToStart(identity=state.identity, pending=pending)

    monkeypatch.setattr(machine, "update", begin_again)
    monkeypatch.setattr(machine, "check_transition", lambda *_: None)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "batch", 1))
        stage.pass_time(10)
        stage.change_image("one", 2)
        assert broken(stage) == [ONE_WAY]


def test_a_grace_period_may_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink = phases.effective_grace_period

    def take_the_last(in_force: int | None, *rest: Any) -> int:
        return shrink(None, *rest)

    monkeypatch.setattr(phases, "effective_grace_period", take_the_last)
    with watched_node() as stage:
        stage.put("api", make_pod("one", "web", "stubborn", 5))
        stage.pass_time(5)
        stage.mark_deleted("one", 5)
        stage.pass_time(1)
        stage.mark_deleted("one", 20)
        assert broken(stage) == [GRACE_SHRINKS]


def test_an_end_may_not_be_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    further_kill = phases.further_kill

    def put_off(kill: Kill | None, *rest: Any) -> Kill:
        later = further_kill(kill, *rest)
        return later if kill is None else attrs.evolve(later, deadline=kill.deadline + 1)

    monkeypatch.setattr(machine, "further_kill", put_off)
    with watched_node() as stage:
        stage.put("api", make_pod("one", "web", "stubborn", 5))
        stage.pass_time(5)
        stage.mark_deleted("one", 5)
        stage.pass_time(1)
        stage.mark_deleted("one", 5)
        assert broken(stage) == [GRACE_SHRINKS]


def test_an_update_may_not_be_lost_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "coalesce", lambda pending, newer: newer if pending is None else pending)
    with watched_node() as stage:
        stage.sim.delays["StartContainer"] = 5.0
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.pass_time(1)
        stage.change_image("one", 2)
        stage.change_image("one", 1)
        stage.pass_time(10)
        assert broken(stage) == [NO_UPDATE_LOST]


def test_a_worker_may_not_stay_on_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    live = PodWorkers._live

    async def live_and_stay(workers: PodWorkers, life: PodLife) -> None:
        await live(workers, life)
        workers._lives[life.uid] = life

    monkeypatch.setattr(PodWorkers, "_live", live_and_stay)
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
    monkeypatch.setattr("trikubelet.agent.options.CONTAINER_INITIAL", CONTAINER_MAXIMUM)
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
    live = PodWorkers._live

    async def live_and_stay(*arguments: Any) -> None:
        await live(*arguments)
        del arguments
        await trio.sleep_forever()

    monkeypatch.setattr(PodWorkers, "_live", live_and_stay)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.end()
        assert broken(stage) == [NO_LEAKS]
        assert ": 1 tasks " in str(stage.watch.violations[0])


def test_a_channel_that_is_not_closed_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    live = PodWorkers._live

    async def live_and_be_remembered(workers: PodWorkers, life: PodLife) -> None:
        kept.append(life)
        await live(workers, life)

    monkeypatch.setattr(PodWorkers, "_live", live_and_be_remembered)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.end()
        assert broken(stage) == [NO_LEAKS]
        assert ": 2 channels" in str(stage.watch.violations[0])
    assert len(kept) == 1


def test_a_scope_that_is_not_left_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stay_within(housekeeping: Housekeeping) -> None:
        with ExitStack() as scopes:
            while True:
                await housekeeping._collection_wanted.receive()
                scopes.enter_context(trio.CancelScope())
                await trio.sleep(1)
                await housekeeping.collect()

    monkeypatch.setattr(Housekeeping, "_collect_periodically", stay_within)
    with watched_node() as stage:
        stage.put("file", make_pod("one", "web", "obedient", 1))
        stage.end()
        assert set(broken(stage)) == {NO_LEAKS}
        assert "scopes" in str(stage.watch.violations[0])
