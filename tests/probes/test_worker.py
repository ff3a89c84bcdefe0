"""When a probe asks: its grid, what moves it, and what it sleeps through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.probes.stage import (
    LIVENESS,
    READINESS,
    STARTUP,
    Stage,
    container,
    container_id,
    pod,
    probe,
    probe_stage,
)
from trikubelet.container.probe_results import ProbeResult

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.probes.types import ProbeKind

DAY = 86400.0


async def started(stage: Stage, *kinds: ProbeKind, after: float = 0.5, ago: float = 0.0, **fields: object) -> None:
    """A pod with these probes, whose container starts so many seconds later, or did so `ago` before that."""
    of = stage.add(pod("u", container("c", *kinds, **fields)))
    await trio.sleep(after)
    stage.report(of, stage.running(ago=ago))


# --- the grid ---


async def test_a_container_that_runs_already_is_asked_at_once_and_then_each_period(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = pod("u", container("c", LIVENESS))
        stage.pods.add_pod(of)
        stage.report(of, stage.running())
        stage.sync(of)
        await trio.sleep(35)
        assert stage.times() == [0, 10, 20, 30]


async def test_liveness_stays_on_the_grid_of_the_pods_first_sync(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        await started(stage, LIVENESS, after=13, every=probe(success_threshold=5))
        await trio.sleep(30)
        assert stage.times() == [20, 30, 40]


async def test_a_thousand_periods_do_not_drift_whatever_the_answers_take(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.seconds = lambda target: 0.3
        await started(stage, LIVENESS, every=probe(period_seconds=1))
        await trio.sleep(1000)
        assert stage.times() == [float(second) for second in range(1, 1001)]


async def test_a_probe_that_takes_longer_than_its_period_is_followed_by_one_at_once(autojump_clock: MockClock) -> None:
    durations = iter([25.0])
    async with probe_stage() as stage:
        stage.prober.seconds = lambda target: next(durations, 0.0)
        await started(stage, LIVENESS)
        await trio.sleep(60)
        # Asked at 10 and until 35: the points 20 and 30 make one probe, at 35.
        assert stage.times() == [10, 35, 40, 50, 60]


async def test_a_probe_without_a_period_asks_every_second(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        await started(stage, LIVENESS, every=probe(period_seconds=0))
        await trio.sleep(3)
        assert stage.times() == [1, 2, 3]


# --- the initial delay ---


@pytest.mark.parametrize(("kind", "times"), [(LIVENESS, [20, 30]), (READINESS, [12, 22, 32])])
async def test_after_the_initial_delay_liveness_waits_for_its_grid_and_readiness_does_not(
    kind: ProbeKind, times: list[float], autojump_clock: MockClock
) -> None:
    async with probe_stage() as stage:
        await started(stage, kind, after=5, every=probe(initial_delay_seconds=7))
        await trio.sleep(30)
        assert stage.times() == times


async def test_an_initial_delay_that_ends_on_the_grid_is_over_there(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        await started(stage, LIVENESS, after=0, every=probe(initial_delay_seconds=20))
        await trio.sleep(25)
        assert stage.times() == [20]


@pytest.mark.parametrize("moment", [3.3333333, 3.3333337])
async def test_dates_without_nanoseconds_cost_no_period_where_the_initial_delay_ends_on_the_grid(
    moment: float, autojump_clock: MockClock
) -> None:
    async with probe_stage() as stage:
        await started(stage, LIVENESS, after=moment, ago=moment, every=probe(initial_delay_seconds=20))
        await trio.sleep(25 - moment)
        assert stage.times() == [20]


async def test_a_container_that_dies_within_its_initial_delay_is_not_asked(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", container("c", READINESS, every=probe(initial_delay_seconds=20))))
        stage.report(of, stage.running())
        await trio.sleep(15)
        stage.report(of, stage.ended())
        await trio.sleep(15)
        assert stage.times() == []
        stage.report(of, stage.running(number=2))
        await trio.sleep(25)
        assert stage.times() == [50]


# --- startup before its turn ---


async def starting(stage: Stage, after: float, **fields: int) -> Pod:
    """A pod with a startup probe, whose container starts so many seconds after its first sync."""
    of = stage.add(pod("u", container("c", STARTUP, every=probe(**fields))))
    await trio.sleep(after)
    stage.report(of, stage.running(started=False))
    return of


async def test_startup_is_asked_when_the_container_starts(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        await starting(stage, 0.5)
        await trio.sleep(30)
        assert stage.times() == [0.5]
        assert stage.manager.results.get("u", STARTUP, container_id()) is ProbeResult.SUCCESS


async def test_a_failure_before_its_turn_uses_up_nothing(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.answer = lambda target: False
        await starting(stage, 3, failure_threshold=2)
        await trio.sleep(16)
        assert stage.times() == [3, 10]
        assert stage.manager.results.get("u", STARTUP, container_id()) is ProbeResult.UNKNOWN
        await trio.sleep(20)
        assert stage.times() == [3, 10, 20]
        assert stage.manager.results.get("u", STARTUP, container_id()) is ProbeResult.FAILURE
        assert [target.early for _, target in stage.prober.asked] == [True, False, False]


async def test_a_container_that_starts_on_the_grid_is_asked_once_there(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.answer = lambda target: False
        await starting(stage, 10)
        await trio.sleep(15)
        assert stage.times() == [10, 20]
        assert [target.early for _, target in stage.prober.asked] == [False, False]


async def test_startup_is_asked_when_its_initial_delay_is_over_and_then_on_its_grid(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.answer = lambda target: False
        await starting(stage, 5, initial_delay_seconds=7)
        await trio.sleep(30)
        assert stage.times() == [12, 20, 30]


async def test_startup_of_a_container_that_outlived_the_agent_is_asked_at_once(autojump_clock: MockClock) -> None:
    async with probe_stage(age=1) as stage:
        of = pod("u", container("c", STARTUP))
        stage.pods.add_pod(of)
        stage.report(of, stage.running(started=False, ago=3600))
        stage.sync(of)
        await trio.sleep(30)
        assert stage.times() == [0]
        assert stage.manager.results.get("u", STARTUP, container_id()) is ProbeResult.SUCCESS


# --- readiness at once ---


async def test_readiness_is_asked_when_the_container_has_started_and_its_grid_begins_there(
    autojump_clock: MockClock,
) -> None:
    async with probe_stage() as stage:
        await started(stage, READINESS, after=3.25)
        await trio.sleep(25)
        assert stage.times() == [3.25, 13.25, 23.25]


async def test_readiness_is_asked_when_the_startup_probe_is_through(autojump_clock: MockClock) -> None:
    answers = iter([False, True])
    async with probe_stage() as stage:
        stage.prober.answer = lambda target: next(answers) if target.kind is STARTUP else True
        stage.prober.seconds = lambda target: 0.5 if target.kind is STARTUP else 0.0
        stage.nursery.start_soon(stage.follow)
        of = stage.add(pod("u", container("c", STARTUP, READINESS, LIVENESS)))
        await trio.sleep(3)
        stage.report(of, stage.running(started=False))
        await trio.sleep(30)
        assert stage.times(STARTUP) == [3, 10]
        assert stage.times(READINESS) == [10.5, 20.5, 30.5]
        assert stage.times(LIVENESS) == [20, 30]
        assert stage.is_ready("u")


async def test_readiness_is_asked_at_once_again_after_a_restart_of_the_container(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", container("c", READINESS)))
        stage.report(of, stage.running())
        await trio.sleep(12)
        stage.report(of, stage.ended())
        await trio.sleep(15)
        stage.report(of, stage.running(number=2))
        await trio.sleep(11)
        assert stage.times() == [0, 10, 27, 37]
        assert [target.container_id for _, target in stage.prober.asked[2:]] == [container_id(2)] * 2


async def test_each_of_many_containers_that_follow_each_other_without_a_pause_is_asked_at_once(
    autojump_clock: MockClock,
) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", container("c", READINESS)))
        for number in range(50):
            stage.report(of, stage.running(number=number))
            await trio.sleep(3)
            assert stage.manager.results.get("u", READINESS, container_id(number)) is ProbeResult.SUCCESS
        assert stage.times() == [3 * number for number in range(50)]


async def test_a_container_that_was_replaced_while_it_was_asked_is_not_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with probe_stage() as stage:
        stage.prober.seconds = lambda target: 4.0
        of = stage.add(pod("u", container("c", READINESS)))
        stage.report(of, stage.running())
        await trio.sleep(2)
        stage.report(of, stage.running(number=2))
        await trio.sleep(9)
        assert stage.times() == [0, 2]
        assert [time - stage.began for time in stage.prober.cancelled] == [2]
        results = stage.manager.results
        assert results.get("u", READINESS, container_id(1)) is None
        assert results.get("u", READINESS, container_id(2)) is ProbeResult.SUCCESS


async def test_other_changes_of_the_status_ask_nobody(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.answer = lambda target: False
        of = stage.add(pod("u", container("c", READINESS, LIVENESS), container("other")))
        stage.report(of, stage.running())
        for number in range(1, 10):
            await trio.sleep(1)
            stage.report(of, stage.running(), stage.running("other", number))
        await trio.sleep(0.5)
        assert stage.times() == [0]


# --- the first delay ---


async def test_the_first_probes_after_an_agents_start_are_spread_over_their_period(autojump_clock: MockClock) -> None:
    async with probe_stage(age=1) as stage:
        pods = [pod(f"u{number}", container("c", LIVENESS, READINESS)) for number in range(50)]
        for of in pods:
            stage.pods.add_pod(of)
            stage.report(of, stage.running(ago=DAY))
            stage.sync(of)
        await trio.sleep(9.99)
        times = stage.times()
        assert len(set(times)) == len(times) == 100
        assert min(times) < 1
        assert max(times) > 9
        await trio.sleep(10)
        assert stage.times()[100:] == pytest.approx([time + 10 for time in times])


async def test_an_agent_that_is_older_than_the_period_makes_nobody_wait(autojump_clock: MockClock) -> None:
    async with probe_stage(age=11) as stage:
        of = pod("u", container("c", READINESS))
        stage.pods.add_pod(of)
        stage.report(of, stage.running(ago=DAY))
        stage.sync(of)
        await wait_all_tasks_blocked()
        assert stage.times() == [0]


async def test_a_container_that_starts_within_the_first_delay_is_asked_for_readiness_at_once(
    autojump_clock: MockClock,
) -> None:
    async with probe_stage(age=1, seed=1) as stage:
        of = stage.add(pod("u", container("c", READINESS, every=probe(period_seconds=1000))))
        await trio.sleep(2)
        stage.report(of, stage.running())
        await wait_all_tasks_blocked()
        assert stage.times() == [2]


async def test_the_first_delay_can_be_cancelled(autojump_clock: MockClock) -> None:
    async with probe_stage(age=1) as stage:
        of = pod("u", container("c", LIVENESS))
        stage.pods.add_pod(of)
        stage.report(of, stage.running(ago=DAY))
        stage.sync(of)
        await wait_all_tasks_blocked()
        stage.end("u")
        await trio.sleep(20)
        assert stage.times() == []


# --- idle workers ---


async def test_workers_with_nobody_to_ask_do_not_wake(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.answer = lambda target: target.kind is STARTUP
        waits = stage.add(pod("waits", container("c", LIVENESS, READINESS, STARTUP)))
        unhealthy = stage.add(pod("unhealthy", container("c", LIVENESS, every=probe(failure_threshold=1))))
        through = stage.add(pod("through", container("c", STARTUP)))
        stage.report(waits, stage.waiting())
        stage.report(unhealthy, stage.running())
        stage.report(through, stage.running(started=False))
        await trio.sleep(60)
        assert len(stage.times()) == 2
        looks = stage.manager.statistics().looks
        assert stage.manager.statistics().resting == 5
        await trio.sleep(DAY)
        assert stage.manager.statistics().looks == looks


async def test_a_hold_ends_with_a_new_container(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        stage.prober.answer = lambda target: target.container_id == container_id(2)
        of = stage.add(pod("u", container("c", LIVENESS, every=probe(failure_threshold=2))))
        stage.report(of, stage.running())
        await trio.sleep(55)
        assert stage.times() == [10, 20]
        stage.report(of, stage.running(number=2))
        await trio.sleep(20)
        assert stage.times() == [10, 20, 60, 70]
        assert stage.manager.results.get("u", LIVENESS, container_id(1)) is None
        assert stage.manager.results.get("u", LIVENESS, container_id(2)) is ProbeResult.SUCCESS


# --- answers ---


async def test_the_target_is_what_the_status_names(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        await started(stage, READINESS)
        await wait_all_tasks_blocked()
        ((_, target),) = stage.prober.asked
        assert (target.pod.metadata.uid, target.container.name, target.pod_ip) == ("u", "c", "10.0.0.7")
        assert target.container_id == container_id(1)
        assert target.kind is READINESS


async def test_an_answer_that_is_thrown_away_counts_for_nothing(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        answers = iter([False, False, None, False])
        stage.prober.answer = lambda target: next(answers, None)
        await started(stage, LIVENESS)
        await trio.sleep(35)
        assert stage.manager.results.get("u", LIVENESS, container_id()) is ProbeResult.SUCCESS
        await trio.sleep(10)
        assert stage.manager.results.get("u", LIVENESS, container_id()) is ProbeResult.FAILURE
        totals = stage.manager.metrics.samples().totals
        assert [(total.labels["result"], total.value) for total in totals] == [("failed", 3)]


async def test_a_prober_that_raises_is_asked_again_at_the_next_point(autojump_clock: MockClock) -> None:
    def answer(target: object) -> bool:
        raise RuntimeError("a bug")

    async with probe_stage() as stage:
        stage.prober.answer = answer
        await started(stage, LIVENESS, every=probe(failure_threshold=1))
        await trio.sleep(25)
        assert stage.times() == [10, 20]
        assert stage.manager.results.get("u", LIVENESS, container_id()) is ProbeResult.SUCCESS
        assert stage.manager.statistics().asking == 0


async def test_probes_are_counted_and_the_time_of_the_good_ones(autojump_clock: MockClock) -> None:
    answers = iter([True, False, True])
    async with probe_stage() as stage:
        stage.prober.answer = lambda target: next(answers)
        stage.prober.seconds = lambda target: 0.3
        await started(stage, READINESS)
        await trio.sleep(25)
        samples = stage.manager.metrics.samples()
        assert {total.labels["result"]: total.value for total in samples.totals} == {"successful": 2, "failed": 1}
        (durations,) = samples.durations
        assert durations.count == 2
        assert durations.sum == pytest.approx(0.6)
        assert durations.labels["pod"] == "pod-u"
        stage.end("u")
        assert stage.manager.metrics.samples().totals == ()


async def test_a_pod_that_is_being_deleted_is_not_restarted_for_its_health(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", container("c", LIVENESS, READINESS)))
        stage.report(of, stage.running())
        await trio.sleep(5)
        deleted = attrs.evolve(of, metadata=attrs.evolve(of.metadata, deletion_timestamp=stage.clock.now()))
        stage.pods.update_pod(deleted)
        await trio.sleep(20)
        assert stage.times(LIVENESS) == []
        assert stage.times(READINESS) == [0, 10, 20]
        assert stage.kinds() == {("u", "c", READINESS)}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_is_over_has_no_workers_left(phase: str, autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", container("c", LIVENESS, READINESS, STARTUP), restart="Never"))
        stage.report(of, stage.running())
        await trio.sleep(15)
        stage.report(of, stage.ended(), phase=phase)
        await wait_all_tasks_blocked()
        assert stage.kinds() == set()
        assert len(stage.manager.results) == 0
        assert stage.manager.statistics().pods == 0
        stage.sync(of)
        assert stage.kinds() == set()


async def test_a_container_that_is_over_has_no_workers_left_beside_one_that_runs(autojump_clock: MockClock) -> None:
    async with probe_stage() as stage:
        of = stage.add(pod("u", container("a", READINESS), container("b", READINESS), restart="Never"))
        stage.report(of, stage.running("a"), stage.running("b"))
        await trio.sleep(1)
        stage.report(of, stage.ended("a", exit_code=0), stage.running("b"))
        await wait_all_tasks_blocked()
        stage.sync(of)
        assert stage.kinds() == {("u", "b", READINESS)}
        await trio.sleep(10)
        assert stage.times(name="a") == [0]
        assert stage.times(name="b") == [0, 10]
