"""What the answers come to, by the tables of the kubelet's prober worker and beyond them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.workers import (
    FAILURE,
    INITIAL,
    LIVENESS,
    READINESS,
    STARTUP,
    SUCCESS,
    UNKNOWN,
    Worker,
    each_kind,
    ended,
    in_turn,
    probe,
    running,
    status_of,
    waiting,
    worker,
)
from trikubelet.container.model import ContainerID
from trikubelet.probes.decisions import Next, counted
from trikubelet.probes.types import ProbeKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.api import PodStatus
    from trikubelet.container.probe_results import ProbeResult


def test_readiness_fails_and_comes_back_at_its_thresholds() -> None:
    """TestFailureThreshold."""
    one = worker(READINESS, in_turn(READINESS), probe(failure_threshold=3))
    for _ in range(2):
        for answer, expected in ((True, [SUCCESS] * 3), (False, [SUCCESS, SUCCESS, FAILURE, FAILURE, FAILURE])):
            one.answer = answer
            assert list(results_of(one, len(expected))) == expected


def test_readiness_succeeds_at_its_threshold_and_fails_at_once() -> None:
    """TestSuccessThreshold."""
    one = worker(READINESS, in_turn(READINESS), probe(success_threshold=3))
    one.look()
    for _ in range(2):
        one.answer = True
        assert list(results_of(one, 5)) == [FAILURE, FAILURE, SUCCESS, SUCCESS, SUCCESS]
        one.answer = False
        assert list(results_of(one, 1)) == [FAILURE]


def results_of(one: Worker, rounds: int) -> Iterator[ProbeResult | None]:
    for _ in range(rounds):
        assert one.probe()
        yield one.result


def test_a_startup_probe_that_succeeds_is_on_hold() -> None:
    """TestStartupProbeSuccessThreshold."""
    one = worker(STARTUP, in_turn(STARTUP), probe(failure_threshold=3))
    assert not one.state.on_hold
    assert list(results_of(one, 3)) == [SUCCESS] * 3
    assert one.asked == 1
    assert (one.state.on_hold, one.state.run) == (True, 0)


def test_a_startup_probe_that_fails_is_on_hold_at_its_threshold() -> None:
    """TestStartupProbeFailureThreshold, TestResultRunOnStartupCheckFailure."""
    one = worker(STARTUP, in_turn(STARTUP), probe(failure_threshold=3))
    one.answer = False
    for expected, run, on_hold in ((UNKNOWN, 1, False), (UNKNOWN, 2, False), (FAILURE, 0, True), (FAILURE, 0, True)):
        assert one.probe()
        assert (one.result, one.state.run, one.state.on_hold) == (expected, run, on_hold)
    assert one.asked == 3


def test_a_liveness_failure_starts_the_count_anew() -> None:
    """TestResultRunOnLivenessCheckFailure."""
    one = worker(LIVENESS, in_turn(LIVENESS), probe(failure_threshold=3))
    for answer, expected, run in ((True, SUCCESS, 1), (False, SUCCESS, 1), (False, SUCCESS, 2), (False, FAILURE, 0)):
        one.answer = answer
        assert one.probe()
        assert (one.result, one.state.run) == (expected, run)


def test_failures_of_a_container_that_ended_below_the_threshold_count_for_the_next() -> None:
    one = worker(LIVENESS, in_turn(LIVENESS), probe(failure_threshold=3))
    one.answer = False
    assert list(results_of(one, 2)) == [SUCCESS, SUCCESS]
    one.status = in_turn(LIVENESS, id_="test://2")
    assert one.probe()
    assert one.results == {ContainerID("test", "2"): FAILURE}


def test_an_answer_of_nobody_is_refused() -> None:
    one = worker(LIVENESS)
    with pytest.raises(ValueError, match="got one of none"):
        counted(one.spec, one.state, True)


def test_with_thresholds_of_zero_the_first_answer_counts() -> None:
    one = worker(READINESS, in_turn(READINESS), probe(failure_threshold=0, success_threshold=0))
    assert list(results_of(one, 1)) == [SUCCESS]
    one.answer = False
    assert list(results_of(one, 1)) == [FAILURE]


# --- holds and whose turn it is ---


@pytest.mark.parametrize("kind", [LIVENESS, STARTUP])
def test_a_failed_container_is_left_alone_until_there_is_a_new_one(kind: ProbeKind) -> None:
    """TestOnHoldOnLivenessOrStartupCheckFailure."""
    one = worker(kind, in_turn(kind))
    one.answer = False
    assert list(results_of(one, 1)) == [FAILURE]
    one.answer = True
    assert one.look().next is Next.REST
    assert list(results_of(one, 1)) == [FAILURE]

    one.status = in_turn(kind, id_="test://2")
    assert one.probe()
    assert one.results == {ContainerID("test", "2"): SUCCESS}
    assert one.state.on_hold is (kind is STARTUP)


def test_readiness_is_never_on_hold() -> None:
    one = worker(READINESS, in_turn(READINESS))
    one.answer = False
    assert list(results_of(one, 2)) == [FAILURE] * 2
    assert one.asked == 2


@each_kind
def test_a_container_on_hold_that_ends_has_still_the_result_it_came_to(kind: ProbeKind) -> None:
    one = worker(kind, in_turn(kind))
    one.probe()
    one.status = status_of(ended())
    assert one.probe() is (kind is STARTUP)
    assert one.result is (SUCCESS if kind is STARTUP else FAILURE)


@pytest.mark.parametrize("kind", [LIVENESS, READINESS])
@pytest.mark.parametrize("started", [False, None])
def test_the_others_wait_for_startup(kind: ProbeKind, started: bool | None) -> None:
    """TestLivenessProbeDisabledByStarted."""
    one = worker(kind, status_of(running(started=started)))
    one.answer = False
    assert one.look().next is Next.REST
    assert one.result is INITIAL[kind]

    one.status = status_of(running())
    assert one.probe()
    assert one.result is FAILURE


def test_startup_is_not_asked_of_a_container_that_has_started() -> None:
    """TestStartupProbeDisabledByStarted."""
    one = worker(STARTUP, in_turn(STARTUP), probe(failure_threshold=2))
    one.answer = False
    assert list(results_of(one, 1)) == [UNKNOWN]
    one.answer = True
    assert list(results_of(one, 1)) == [SUCCESS]
    one.status = status_of(running())
    one.answer = False
    assert list(results_of(one, 1)) == [SUCCESS]

    other = worker(STARTUP, status_of(running()))
    assert other.look().next is Next.REST


# --- whatever happens ---

moments = st.one_of(
    st.booleans(),
    st.builds(
        lambda id_, started: status_of(running(id_=f"test://{id_}", started=started)),
        st.integers(1, 3),
        st.booleans(),
    ),
    st.sampled_from([None, status_of(waiting()), status_of(ended(1))]),
)


@given(kind=st.sampled_from(ProbeKind), thresholds=st.tuples(*[st.integers(1, 3)] * 2), story=st.lists(moments))
def test_runs_stay_below_the_threshold_and_holds_last_until_there_is_a_new_container(
    kind: ProbeKind, thresholds: tuple[int, int], story: list[bool | PodStatus | None]
) -> None:
    """A story is what the container answers when asked, and how its status changes in between."""
    asks = probe(success_threshold=thresholds[0], failure_threshold=thresholds[1])
    one = worker(kind, None, asks, restart_policy="Always")
    for moment in story:
        before, asked = one.state, one.asked
        if isinstance(moment, bool):
            one.answer = moment
        else:
            one.status = moment
        assert one.probe()
        assert 0 <= one.state.run <= thresholds[one.state.last is FAILURE]
        assert set(one.results) <= {one.state.container_id}
        if before.on_hold and before.container_id == one.state.container_id:
            assert one.state.on_hold
            assert one.asked == asked
        if one.state.on_hold:
            assert one.state.run == 0
            assert kind is STARTUP or (kind is LIVENESS and one.state.last is FAILURE)


@given(answers=st.lists(st.booleans(), max_size=20), thresholds=st.tuples(*[st.integers(1, 4)] * 2))
def test_readiness_is_what_the_last_long_enough_run_of_answers_said(
    answers: list[bool], thresholds: tuple[int, int]
) -> None:
    one = worker(READINESS, in_turn(READINESS), probe(success_threshold=thresholds[0], failure_threshold=thresholds[1]))
    expected = FAILURE
    for count, answer in enumerate(answers, 1):
        one.answer = answer
        one.probe()
        needed = thresholds[not answer]
        if answers[max(0, count - needed) : count] == [answer] * needed:
            expected = SUCCESS if answer else FAILURE
        assert one.result is expected
