"""What users see of a resize (facts: `TestPodResizeConditions`, `TestBackfillPodResizeConditions`)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from trikubelet.allocation.conditions import (
    DEFERRED,
    ERROR,
    INFEASIBLE,
    NONE,
    ResizeConditions,
    granted,
    is_news,
    reported,
)
from trikubelet.api import POD_RESIZE_IN_PROGRESS, POD_RESIZE_PENDING, PodCondition

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(minutes=1)


def said(conditions: ResizeConditions) -> list[tuple[str, str, str, str, int]]:
    return [
        (one.type.removeprefix("PodResize"), one.status, one.reason, one.message, one.observed_generation)
        for one in conditions.listed
    ]


def test_a_pod_without_a_resize_has_no_conditions() -> None:
    assert NONE.listed == ()
    assert not NONE.deferred
    assert not NONE.infeasible


def test_a_resize_in_progress_keeps_its_reason_its_message_and_its_generation() -> None:
    conditions = NONE.with_in_progress(1, START, reason="some-reason", message="some-message")
    assert said(conditions) == [("InProgress", "True", "some-reason", "some-message", 1)]
    assert conditions.with_in_progress(1, LATER) is conditions
    assert conditions.with_in_progress(2, LATER) is conditions


def test_what_is_granted_anew_takes_the_place_of_what_is_in_progress_and_of_what_waits() -> None:
    failed = NONE.with_in_progress(1, START, reason=ERROR, message="no").with_pending("OutOfcpu", "full", 2, START)
    assert len(failed.listed) == 2
    assert said(granted(3, LATER)) == [("InProgress", "True", "", "", 3)]


def test_an_error_and_the_next_error_of_a_resize_are_told() -> None:
    conditions = NONE.with_in_progress(1, START).with_in_progress(2, LATER, reason=ERROR, message="no")
    assert said(conditions) == [("InProgress", "True", ERROR, "no", 1)]
    assert said(conditions.with_in_progress(2, LATER, reason=ERROR, message="never")) == [
        ("InProgress", "True", ERROR, "never", 1)
    ]
    assert conditions.with_in_progress(2, LATER, reason=ERROR, message="no") is conditions


def test_every_refusal_but_one_is_shown_as_deferred() -> None:
    deferred = NONE.with_in_progress(2, START).with_pending("some-reason", "some-message", 1, START)
    assert said(deferred) == [
        ("Pending", "True", DEFERRED, "some-message", 1),
        ("InProgress", "True", "", "", 2),
    ]
    assert deferred.deferred
    assert not deferred.infeasible
    infeasible = deferred.with_pending(INFEASIBLE, "some-message", 3, START)
    assert said(infeasible)[0] == ("Pending", "True", INFEASIBLE, "some-message", 3)
    assert infeasible.infeasible
    assert not infeasible.deferred


@pytest.mark.parametrize(
    ("reason", "message", "generation", "news"),
    [
        ("OutOfcpu", "some-message", 1, False),
        ("OutOfcpu", "some-other-message", 1, False),
        ("OutOfmemory", "some-message", 1, False),
        ("OutOfcpu", "some-message", 2, True),
        (INFEASIBLE, "some-message", 1, True),
    ],
)
def test_another_reason_or_generation_is_news(reason: str, message: str, generation: int, news: bool) -> None:
    before = NONE.with_pending("OutOfcpu", "some-message", 1, START)
    assert is_news(NONE, before)
    after = before.with_pending(reason, message, generation, LATER)
    assert is_news(before, after) == news
    assert said(after)[0][3] == message


def test_that_nothing_waits_any_more_is_no_news() -> None:
    assert not is_news(NONE.with_pending("OutOfcpu", "", 1, START), NONE)


def test_the_time_of_transition_is_that_of_the_reason() -> None:
    first = NONE.with_pending("OutOfcpu", "a", 1, START)
    second = first.with_pending("OutOfcpu", "b", 2, LATER)
    third = second.with_pending(INFEASIBLE, "b", 2, LATER)
    times = [(one.listed[0].last_transition_time, one.listed[0].last_probe_time) for one in (first, second, third)]
    assert times == [(START, START), (START, LATER), (LATER, LATER)]


def test_without_news_a_condition_stays_the_same_object() -> None:
    conditions = NONE.with_pending("OutOfcpu", "full", 1, START).with_in_progress(1, START)
    again = conditions.with_pending("OutOfmemory", "full", 1, LATER).with_in_progress(1, LATER)
    assert again is conditions
    assert again.listed is conditions.listed


def test_conditions_go_one_by_one() -> None:
    both = NONE.with_pending("OutOfcpu", "full", 1, START).with_in_progress(2, START)
    assert said(both.without_pending()) == [("InProgress", "True", "", "", 2)]
    assert said(both.without_in_progress()) == [("Pending", "True", DEFERRED, "full", 1)]
    assert both.without_in_progress().without_pending() == NONE
    assert NONE.without_pending() is NONE
    assert NONE.without_in_progress() is NONE


IN_PROGRESS = PodCondition(type=POD_RESIZE_IN_PROGRESS, status="True", observed_generation=1)
WITH_ERROR = PodCondition(
    type=POD_RESIZE_IN_PROGRESS, status="True", observed_generation=1, reason=ERROR, message="error-message"
)
PENDING = PodCondition(
    type=POD_RESIZE_PENDING, status="True", observed_generation=1, reason=DEFERRED, last_transition_time=START
)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ((IN_PROGRESS,), ResizeConditions(None, IN_PROGRESS)),
        ((WITH_ERROR,), ResizeConditions(None, WITH_ERROR)),
        ((IN_PROGRESS, PENDING), ResizeConditions(PENDING, IN_PROGRESS)),
        ((PENDING,), ResizeConditions(PENDING)),
        ((PodCondition(type="PodScheduled", status="True"),), NONE),
        ((PodCondition(type=POD_RESIZE_PENDING, status="False"),), NONE),
    ],
)
def test_an_agent_takes_over_what_is_reported(status: tuple[PodCondition, ...], expected: ResizeConditions) -> None:
    assert reported(status) == expected
