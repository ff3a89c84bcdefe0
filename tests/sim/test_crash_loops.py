"""How long a container may wait after a crash, by what was seen of its runs."""

from __future__ import annotations

import math

from trikubelet.sim.crash_loops import CrashLoops

CALM = -math.inf


def crash(loops: CrashLoops, started_at: float, ended_at: float, *, calm_since: float = CALM) -> None:
    loops.started("one", "main", started_at, calm_since=calm_since)
    loops.ended("one", "main", ended_at)


def waits(loops: CrashLoops, *, calm_since: float = CALM) -> float:
    return loops.waits_until("one", calm_since=calm_since)


def test_a_container_that_never_ended_does_not_wait() -> None:
    loops = CrashLoops()
    assert waits(loops) == CALM
    loops.started("one", "main", 5, calm_since=CALM)
    assert waits(loops) == CALM


def test_each_crash_doubles_the_wait_and_the_first_costs_none() -> None:
    loops = CrashLoops()
    allowed, now = [], 0.0
    for _ in range(8):
        crash(loops, now, now + 1)
        allowed.append(waits(loops) - (now + 1))
        now = max(waits(loops), now + 1)
    assert allowed == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_long_run_makes_up_for_all_crashes() -> None:
    loops = CrashLoops()
    for now in (0, 10, 30):
        crash(loops, now, now + 1)
    assert waits(loops) == 31 + 20
    crash(loops, 51, 51 + 601)
    assert waits(loops) == 51 + 601


def test_of_several_containers_the_one_that_waits_longest_counts() -> None:
    loops = CrashLoops()
    crash(loops, 0, 1)
    crash(loops, 1, 2)
    loops.started("one", "other", 0, calm_since=CALM)
    loops.ended("one", "other", 5)
    assert waits(loops) == 12


def test_attempts_that_failed_unseen_may_have_doubled_the_wait_up_to_twice_the_time_they_took() -> None:
    loops = CrashLoops()
    crash(loops, 0, 1)
    assert waits(loops, calm_since=51) == 1 + 2 * 50
    crash(loops, 51, 52, calm_since=math.inf)
    assert waits(loops) == 52 + 2 * 50


def test_a_long_wait_of_an_agent_without_faults_does_not_justify_a_longer_one() -> None:
    loops = CrashLoops()
    crash(loops, 0, 1)
    crash(loops, 200, 201)
    assert waits(loops) == 201 + 10
