"""What the benchmark computes from what it saw."""

from __future__ import annotations

import json
import os
from typing import Any

import attrs
import pytest

from benchmarks.detect.__main__ import crash_results, idle_results
from benchmarks.detect.crash import Crash, Crashes, decisions, percentile, with_decision
from benchmarks.detect.idle import Idle, cpu_seconds, memory_mib

MILLISECOND = 1_000_000
CRASH = Crash(
    killed=0,
    dead=1 * MILLISECOND,
    known=60 * MILLISECOND,
    decided=60 * MILLISECOND,
    created=90 * MILLISECOND,
    running=140 * MILLISECOND,
)
IDLE = Idle("sim", 100, cpu=1.5, runtime_cpu=3.0, resident=80.0, proportional=70.0)


def _line(event: str, at: str, **fields: Any) -> str:
    return json.dumps({"event": event, "timestamp": f"2026-01-01T00:00:{at}Z", **fields})


def test_a_percentile_is_one_of_the_values() -> None:
    values = [30.0, 10.0, 20.0, 40.0]
    assert [percentile(values, share) for share in (0.0, 0.25, 0.5, 0.51, 0.99, 1.0)] == [10, 10, 20, 30, 40, 40]


def test_one_value_is_all_its_percentiles() -> None:
    assert percentile([7.0], 0.5) == percentile([7.0], 0.99) == 7


def test_decisions_are_the_plans_of_each_pod_in_the_log() -> None:
    lines = [
        "Traceback, which is no JSON",
        _line("pod planned", "01.000001", pod="crash-1-node_default", plan="one"),
        _line("container started", "01.5", pod="crash-1-node_default"),
        _line("pod planned", "02.25", pod="crash-2-node_default", plan="two"),
        _line("pod planned", "03", pod="crash-1-node_default", plan="three"),
    ]
    assert decisions(lines) == {
        "crash-1-node": [1_767_225_601_000_001_000, 1_767_225_603_000_000_000],
        "crash-2-node": [1_767_225_602_250_000_000],
    }


def test_the_last_plan_before_the_new_container_is_the_decision() -> None:
    planned = [-5 * MILLISECOND, 2 * MILLISECOND, 75 * MILLISECOND, 120 * MILLISECOND]
    assert with_decision(CRASH, planned).milliseconds("known", "decided") == 15


def test_a_crash_without_a_plan_afterwards_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no plan between"):
        with_decision(CRASH, [-5 * MILLISECOND, 120 * MILLISECOND])


def test_a_crash_aims_at_decisions_within_a_tenth_of_a_second() -> None:
    slow = attrs.evolve(CRASH, decided=161 * MILLISECOND)
    median, slowest = crash_results(Crashes("containerd", agent=[CRASH, CRASH, slow], floor=[]))
    assert (median.value, median.met) == (0, True)
    assert (slowest.value, slowest.goal, slowest.met) == (101, 100, False)


def test_cpu_time_is_read_behind_a_name_with_spaces_and_brackets() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = f"42 (python -c (x) ) S 1 42 42 0 -1 4194560 9 0 0 0 {2 * ticks} {ticks} 77 88 20 0 3 0 5 6 7"
    assert cpu_seconds(stat) == 3


def test_memory_is_read_from_the_sum_of_all_mappings() -> None:
    rollup = "5581c0-7ffd [rollup]\nRss:               51200 kB\nPss:               30720 kB\nPss_Anon:  1 kB\n"
    assert memory_mib(rollup) == (50, 30)


@pytest.mark.parametrize(
    ("runtime", "pods", "goals"),
    [
        ("sim", 100, {"MiB": 100}),
        ("sim", 500, {"% of a core": 2}),
        ("containerd", 100, {"% of a core": 1, "MiB": 100}),
        ("containerd", 50, {}),
        ("sim", 0, {}),
    ],
)
def test_only_some_sizes_have_aims(runtime: str, pods: int, goals: dict[str, float]) -> None:
    idle = attrs.evolve(IDLE, runtime=runtime, pods=pods)
    assert {result.unit: result.goal for result in idle_results(idle)} == goals
