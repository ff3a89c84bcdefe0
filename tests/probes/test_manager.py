"""Which workers there are, what stops them, and what becomes of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.probes.stage import (
    ALWAYS,
    LIVENESS,
    READINESS,
    STARTUP,
    container,
    container_id,
    pod,
    probe,
    probe_stage,
    probe_tasks,
)
from trikubelet.api import Container
from trikubelet.container.probe_results import ProbeResult
from trikubelet.probes.results import NO_RESULTS
from trikubelet.probes.types import ProbeKey, ProbeUpdate

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.probes.manager import ProbeManager
    from trikubelet.probes.types import ProbeKind

SUCCESS, FAILURE = ProbeResult.SUCCESS, ProbeResult.FAILURE
ALL = (LIVENESS, READINESS, STARTUP)
HOURS = 36000.0


def probed(uid: str = "u") -> Pod:
    """A container for each kind of probe, and some without."""
    return pod(
        uid,
        container("none"),
        container("readiness", READINESS),
        container("liveness", LIVENESS),
        container("startup", STARTUP),
    )


def of_probed(uid: str = "u") -> set[tuple[str, str, ProbeKind]]:
    return {(uid, "readiness", READINESS), (uid, "liveness", LIVENESS), (uid, "startup", STARTUP)}


def with_sidecar(*kinds: ProbeKind, restart: str | None = ALWAYS) -> Pod:
    side = container("side", *kinds, restart_policy=restart)
    return pod("u", container("main", *kinds), init=(container("init"), side))


# --- who has workers: TestAddRemovePods, TestCleanupPods ---


async def test_a_pod_without_probes_has_no_workers_and_costs_no_subscription(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.add(pod("u", container("a"), container("b")))
        await wait_all_tasks_blocked()
        assert stage.kinds() == set()
        assert stage.statuses.statistics().subscriptions == 0
        assert probe_tasks() == []
        stage.end("u")
        assert stage.manager.statistics().pods == 0


async def test_each_probe_has_a_worker_until_its_pod_is_removed(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.add(probed())
        assert stage.kinds() == of_probed()
        stage.add(probed("another"))
        stage.end("another")
        await wait_all_tasks_blocked()
        assert stage.kinds() == of_probed()
        for _ in range(2):
            stage.scopes["u"].probes.stop()
            assert stage.kinds() == set()
        stage.end("u")
        await wait_all_tasks_blocked()
        assert probe_tasks() == []
        assert stage.statuses.statistics().subscriptions == 0


@pytest.mark.parametrize(("restart", "kinds"), [(ALWAYS, set(ALL)), (None, set())])
async def test_sidecars_have_workers_and_other_init_containers_have_not(
    restart: str | None, kinds: set[ProbeKind], autojump_clock: MockClock
) -> None:
    async with probe_stage() as stage:
        side = container("side", *ALL, restart_policy=restart)
        stage.add(pod("u", container("main"), init=(container("init"), side)))
        assert stage.kinds() == {("u", "side", kind) for kind in kinds}
        stage.end("u")
        assert stage.kinds() == set()


async def test_pods_that_end_take_their_workers_with_them_and_no_others(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        for uid in ("ends", "stays"):
            of = stage.add(probed(uid))
            stage.report(of, *(stage.running(name) for name in ("none", "readiness", "liveness", "startup")))
        await wait_all_tasks_blocked()
        tasks = probe_tasks()
        stage.end("ends")
        assert stage.kinds() == of_probed("stays")
        await wait_all_tasks_blocked()
        assert len(probe_tasks()) == len(tasks) / 2
        assert sorted(set(probe_tasks())) == sorted(set(tasks))


async def test_a_hundred_pods_leave_nothing(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        for number in range(100):
            of = stage.add(pod(str(number), container("c", *ALL)))
            stage.report(of, stage.running())
        await wait_all_tasks_blocked()
        for number in range(100):
            stage.end(str(number))
        await wait_all_tasks_blocked()
        assert stage.kinds() == set()
        assert probe_tasks() == []
        assert len(stage.manager.results) == 0


async def test_adding_a_pod_again_changes_nothing(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", container("c", READINESS)))
        stage.report(of, stage.running())
        for _ in range(24):
            stage.sync(of)
            await trio.sleep(1)
        assert stage.times() == [0, 10, 20]
        assert stage.kinds() == {("u", "c", READINESS)}


async def test_the_probes_of_an_instance_are_a_scope_that_can_be_seen_while_it_runs(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", container("c", READINESS, LIVENESS)))
        await wait_all_tasks_blocked()
        assert sorted(probe_tasks()) == ["statuses for probes"]
        probes = ["Liveness probe of c", "Readiness probe of c", "probes of c", "statuses for probes"]
        stage.report(of, stage.running())
        await wait_all_tasks_blocked()
        assert sorted(probe_tasks()) == probes
        stage.report(of, stage.waiting())
        await wait_all_tasks_blocked()
        assert sorted(probe_tasks()) == ["statuses for probes"]
        stage.report(of, stage.running(number=2))
        await wait_all_tasks_blocked()
        assert sorted(probe_tasks()) == probes


# --- readiness reaches the status: TestUpdateReadiness ---


async def test_a_container_is_ready_when_its_probe_says_so_and_not_when_it_does_not(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.nursery.start_soon(stage.follow)
        of = stage.add(pod("u", container("c", READINESS)))
        stage.report(of, stage.running())
        await wait_all_tasks_blocked()
        assert stage.is_ready("u")
        stage.prober.answer = lambda target: False
        await trio.sleep(29)
        assert stage.is_ready("u")
        await trio.sleep(1.5)
        assert not stage.is_ready("u")


# --- results ---


async def test_a_liveness_failure_is_told_once_and_liveness_itself_never(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        updates = collect(stage.manager, stage.nursery)
        of = stage.add(pod("u", container("c", LIVENESS, every=probe(failure_threshold=2))))
        stage.report(of, stage.running())
        await trio.sleep(15)
        assert updates == []
        before = stage.manager.results.of_pod("u")
        assert before.plan.liveness == {container_id(): SUCCESS}
        stage.prober.answer = lambda target: False
        await trio.sleep(100)
        assert updates == [ProbeUpdate(ProbeKey("u", "c", LIVENESS), container_id(), FAILURE)]
        after = stage.manager.results.of_pod("u")
        assert after is not before
        assert after.plan.liveness == {container_id(): FAILURE}


async def test_what_a_look_finds_is_not_told(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        updates = collect(stage.manager, stage.nursery)
        of = stage.add(pod("u", container("c", *ALL, every=probe(initial_delay_seconds=1000))))
        stage.report(of, stage.running(started=False))
        await trio.sleep(1)
        stage.report(of, stage.ended())
        await trio.sleep(1)
        stage.report(of, stage.running(number=2, started=False))
        await wait_all_tasks_blocked()
        assert updates == []
        results = stage.manager.results.of_pod("u")
        assert results.plan.liveness == {container_id(2): SUCCESS}
        assert results.plan.startup == {container_id(2): ProbeResult.UNKNOWN}
        assert results.outcomes.readiness == {str(container_id(2)): False}


async def test_whoever_is_slow_receives_the_newest_result_of_each_probe(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        answers = {"a": iter([True, False, True]), "b": iter([True, True, False])}
        stage.prober.answer = lambda target: next(answers[target.container.name])
        every = probe(failure_threshold=1)
        of = stage.add(pod("u", container("a", READINESS, every=every), container("b", READINESS, every=every)))
        stage.report(of, stage.running("a"))
        await trio.sleep(1)
        stage.report(of, stage.running("a"), stage.running("b"))
        await trio.sleep(22)
        assert stage.manager.statistics().updates_waiting == 2
        with trio.move_on_after(0):
            await stage.manager.receive()
        assert await stage.manager.receive() == ProbeUpdate(
            ProbeKey("u", "a", READINESS), container_id(name="a"), SUCCESS
        )
        assert await stage.manager.receive() == ProbeUpdate(
            ProbeKey("u", "b", READINESS), container_id(name="b"), FAILURE
        )
        with trio.move_on_after(1) as patience:
            await stage.manager.receive()
        assert patience.cancelled_caught


async def test_results_that_nobody_received_go_with_their_worker(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.answer = lambda target: False
        of = stage.add(pod("u", container("c", LIVENESS, every=probe(failure_threshold=1))))
        stage.report(of, stage.running())
        await trio.sleep(11)
        assert stage.manager.statistics().updates_waiting == 1
        stage.stop_liveness_and_startup("u", "c")
        assert stage.manager.statistics().updates_waiting == 0


# --- after a restart of the agent ---


async def test_a_sidecar_that_has_started_says_so_before_the_first_sync_plans(autojump_clock: MockClock) -> None:
    async with probe_stage(age=1) as stage:
        of = with_sidecar(STARTUP)
        stage.pods.add_pod(of)
        stage.report(of, stage.running("main", ago=HOURS), stage.running("side", ago=HOURS))
        stage.sync(of)
        assert stage.manager.results.of_pod("u").plan.startup == {container_id(name="side"): SUCCESS}


async def test_a_container_that_outlived_the_agent_has_no_result_until_a_threshold(autojump_clock: MockClock) -> None:
    async with probe_stage(age=1) as stage:
        stage.nursery.start_soon(stage.follow)
        stage.prober.answer = lambda target: False
        of = pod("u", container("c", READINESS, LIVENESS))
        stage.pods.add_pod(of)
        stage.report(of, stage.running(ago=HOURS, ready=True))
        stage.sync(of)
        await trio.sleep(20)
        assert stage.is_ready("u")
        assert stage.manager.results.of_pod("u") is NO_RESULTS
        await trio.sleep(10)
        assert not stage.is_ready("u")
        assert stage.manager.results.of_pod("u").plan.liveness == {container_id(): FAILURE}


# --- the end of a pod ---


async def test_liveness_and_startup_end_first_then_a_sidecars_and_readiness_in_the_end(
    autojump_clock: MockClock,
) -> None:
    async with probe_stage() as stage:
        of = stage.add(with_sidecar(*ALL))
        stage.report(of, stage.running("main"), stage.running("side"))
        await trio.sleep(5)
        stage.stop_liveness_and_startup("u", "main")
        stage.stop_liveness_and_startup("u", "main")
        assert stage.kinds() == {("u", "main", READINESS), *(("u", "side", kind) for kind in ALL)}
        assert set(stage.manager.results.of_pod("u").plan.liveness) == {container_id(name="side")}
        stage.stop_liveness_and_startup("u", "side")
        assert stage.kinds() == {("u", "main", READINESS), ("u", "side", READINESS)}
        await trio.sleep(10)
        assert stage.times(LIVENESS) == stage.times(STARTUP) == []
        assert stage.times(READINESS, "main") == stage.times(READINESS, "side") == [0, 10]
        stage.end("u")
        assert len(stage.manager.results) == 0
        await trio.sleep(60)
        assert len(stage.times()) == 4


async def test_stopping_what_nobody_probes_is_fine(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.add(pod("u", container("c", *ALL)))
        stage.stop_liveness_and_startup("u", "another")
        assert len(stage.kinds()) == 3


async def test_a_hanging_answer_is_cut_short_and_says_nothing_any_more(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.seconds = lambda target: HOURS
        of = stage.add(pod("u", container("c", READINESS)))
        stage.report(of, stage.running())
        await trio.sleep(3)
        assert stage.manager.statistics().asking == 1
        stage.end("u")
        assert stage.manager.results.of_pod("u") is NO_RESULTS
        await wait_all_tasks_blocked()
        assert stage.now() == 3
        assert [time - stage.began for time in stage.prober.cancelled] == [3]
        assert stage.manager.statistics().asking == 0
        assert probe_tasks() == []


async def test_a_pod_that_comes_back_in_the_same_instant_finds_nothing_of_the_one_before(
    autojump_clock: MockClock,
) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", container("c", LIVENESS, READINESS, every=probe(failure_threshold=1))))
        stage.prober.answer = lambda target: False
        stage.report(of, stage.running())
        await trio.sleep(15)
        assert stage.manager.results.of_pod("u").plan.liveness == {container_id(): FAILURE}
        stage.end("u")
        stage.sync(of)
        assert stage.manager.results.of_pod("u").plan.liveness == {container_id(): SUCCESS}
        stage.prober.answer = lambda target: True
        await wait_all_tasks_blocked()
        assert stage.kinds() == {("u", "c", LIVENESS), ("u", "c", READINESS)}
        assert stage.times()[-2:] == [15, 15]
        assert stage.manager.results.of_pod("u").plan.liveness == {container_id(): SUCCESS}
        assert stage.manager.results.of_pod("u").outcomes.readiness == {str(container_id()): True}
        probes = ["Liveness probe of c", "Readiness probe of c", "probes of c", "statuses for probes"]
        assert sorted(probe_tasks()) == probes


async def test_a_pod_that_is_added_and_removed_at_once_leaves_no_task(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = stage.add(probed())
        stage.end("u")
        stage.sync(of)
        stage.end("u")
        await wait_all_tasks_blocked()
        assert probe_tasks() == []


async def test_a_worker_that_ended_is_made_again_for_a_pod_that_begins_anew(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", Container(name="main"), container("c", READINESS), restart="Never"))
        stage.report(of, stage.running())
        await trio.sleep(1)
        stage.report(of, stage.ended(exit_code=0))
        await wait_all_tasks_blocked()
        assert stage.kinds() == set()
        await trio.sleep(1)
        stage.statuses.remove_orphaned(())
        stage.report(of, stage.running(number=2))
        stage.sync(of)
        await wait_all_tasks_blocked()
        assert stage.times() == [0, 2]


async def test_statistics_say_what_the_workers_do(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.seconds = lambda target: 5.0
        of = stage.add(pod("u", container("c", READINESS, LIVENESS, STARTUP)))
        stage.report(of, stage.running())
        await trio.sleep(1)
        statistics = stage.manager.statistics()
        assert (statistics.pods, statistics.workers) == (1, 3)
        assert (statistics.resting, statistics.asking, statistics.asked) == (1, 1, 1)
        assert statistics.results == 3


def collect(manager: ProbeManager, nursery: trio.Nursery) -> list[ProbeUpdate]:
    """Everything that the manager tells from now on."""
    updates: list[ProbeUpdate] = []

    async def receive() -> None:
        while True:
            updates.append(await manager.receive())

    nursery.start_soon(receive)
    return updates
