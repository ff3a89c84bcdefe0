from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.termination.phases import (
    FLOOR,
    OURS,
    Batch,
    Measurements,
    Percentiles,
    Phase,
    PodTimes,
    aims,
    percentile,
)
from benchmarks.termination.pods import Behaviour

EXITS = Behaviour.EXITS_ON_TERM


def pod(gone: float, *, asked: float = 100.0, signal: float = 0.01, dead: float = 0.02) -> PodTimes:
    """Its phases, in seconds after it was asked."""
    moments = {Phase.FIRST_SIGNAL: signal, Phase.PROCESS_DEAD: dead, Phase.SANDBOX_GONE: gone}
    return PodTimes("pod", asked, {phase: asked + seconds for phase, seconds in moments.items()})


def measured(ours: list[list[float]], floor: list[list[float]], cpu: float | None = None) -> Measurements:
    """Batches by when each pod's sandbox was gone."""
    found = Measurements()
    for name, batches in ((OURS, ours), (FLOOR, floor)):
        for batch in batches:
            found.add(EXITS, name, Batch([pod(gone) for gone in batch], cpu))
    return found


def test_percentiles_are_values_that_were_measured() -> None:
    found = Percentiles.of([float(value) for value in range(100, 0, -1)])
    assert found == Percentiles(100, p50=50, p90=90, p99=99, max=100)


def test_of_few_values_the_99th_percentile_is_the_worst() -> None:
    assert percentile([1.0, 2.0, 9.0], 99) == 9.0


def test_no_values_have_no_percentiles() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Percentiles.of([])


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    enough = share / 100 * len(values) * (1 - 1e-9)
    assert sum(value <= found for value in values) >= enough
    assert sum(value < found for value in values) < max(enough, 1) + 1e-6


def test_a_moment_before_the_pod_was_asked_has_no_latency() -> None:
    shortened = pod(gone=1.2, signal=-3.0)
    assert shortened.after(Phase.FIRST_SIGNAL) is None
    assert shortened.after(Phase.SANDBOX_GONE) == pytest.approx(1.2)
    assert shortened.after(Phase.WORKER_FINISHED) is None


def test_the_overhead_leaves_out_what_the_process_takes_to_exit() -> None:
    assert pod(gone=0.5, signal=0.1, dead=0.4).overhead == pytest.approx(0.2)


def test_a_batch_is_over_with_its_last_pod_and_begins_with_the_first_that_was_asked() -> None:
    batch = Batch([pod(1.0, asked=10.0), pod(1.0, asked=10.5)])
    assert batch.last(Phase.SANDBOX_GONE) == pytest.approx(1.5)


def test_a_batch_with_a_pod_of_which_a_phase_is_not_known_has_no_last_one() -> None:
    assert Batch([pod(1.0), PodTimes("other", 100.0, {})]).last(Phase.SANDBOX_GONE) is None


def test_the_floor_is_the_bare_client_whose_batches_were_over_first() -> None:
    found = Measurements()
    for name, gone in ((f"{FLOOR}, 1 at once", 9.0), (f"{FLOOR}, 10 at once", 5.0), (OURS, 6.0)):
        found.add(EXITS, name, Batch([pod(gone)]))
    best = found.with_best_floor()
    assert best.contestants(EXITS) == [FLOOR, OURS]
    assert best.lasts(EXITS, FLOOR) == pytest.approx([5.0])


def test_single_pods_on_containerd_are_held_against_the_floor_and_its_cpu() -> None:
    results = aims("containerd", 1, measured([[0.12], [0.13], [0.3]], [[0.1], [0.1], [0.1]], cpu=0.03))
    assert [(result.unit, result.goal, result.met) for result in results] == [
        ("times", 1.25, False),
        ("times", 1.6, False),
        ("ms", 40, True),
    ]
    assert [result.value for result in results] == pytest.approx([1.3, 3.0, 30.0])


def test_of_many_pods_the_last_counts_and_the_cpu_of_each() -> None:
    results = aims("containerd", 2, measured([[1.0, 2.0], [1.0, 2.4], [1.0, 2.2]], [[1.0, 2.0]], cpu=0.1))
    assert [result.value for result in results] == pytest.approx([1.1, 50.0])
    assert [result.met for result in results] == [True, False]


def test_the_embedded_runtime_is_held_against_the_processes_own_exit() -> None:
    results = aims("embedded", 1, measured([[0.05], [0.07]], [[0.01]]))
    assert [result.value for result in results] == pytest.approx([40.0, 60.0])
    assert [result.met for result in results] == [True, False]


def test_other_behaviours_have_no_aims() -> None:
    found = Measurements()
    found.add(Behaviour.IGNORES_TERM, OURS, Batch([pod(5.0)]))
    found.add(Behaviour.IGNORES_TERM, FLOOR, Batch([pod(5.0)]))
    assert aims("containerd", 1, found) == []
