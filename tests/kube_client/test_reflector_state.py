"""The table of client-go's reflector tests: what is asked next after what happened."""

from __future__ import annotations

import attrs
import pytest

from tests.kube_client.scripted_client import lost, status_error
from trikubelet.kube_client.errors import CredentialsError
from trikubelet.kube_client.reflector_state import (
    Ended,
    Outcome,
    Pauses,
    Position,
    Request,
    Silent,
    Step,
    after,
    listed,
    next_request,
    seen,
)

NEW = Position()
CURRENT = Position("7", current=True)
STALE = Position("7")
EXPIRED = status_error(410, "Expired", "too old resource version: 7 (90)")
TOO_LARGE = status_error(504, "Timeout", "Too large resource version: 7, current: 3")
TOO_MANY = status_error(429, "TooManyRequests", retry_after=3)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (NEW, Request(Step.WATCH_LIST, "")),
        (CURRENT, Request(Step.WATCH, "7")),
        (STALE, Request(Step.WATCH_LIST, "7")),
        (attrs.evolve(STALE, version_lost=True), Request(Step.WATCH_LIST, "")),
        (attrs.evolve(NEW, list_next=True), Request(Step.LIST, "0", paged=True)),
        (attrs.evolve(NEW, understands_watch_lists=False), Request(Step.LIST, "0", paged=True)),
        (attrs.evolve(STALE, list_next=True), Request(Step.LIST, "7")),
        (attrs.evolve(STALE, list_next=True, version_lost=True), Request(Step.LIST, "")),
    ],
)
def test_the_next_request(position: Position, expected: Request) -> None:
    assert next_request(position) == expected


@pytest.mark.parametrize(
    ("position", "step", "outcome", "expected", "wait"),
    [
        # A watch goes on where it ended, unless the server has forgotten, or watches do not work at all.
        (CURRENT, Step.WATCH, Ended(400, 0), CURRENT, False),
        (CURRENT, Step.WATCH, Ended(0.1, 1), CURRENT, False),
        (CURRENT, Step.WATCH, Ended(0.1, 0), STALE, True),
        (CURRENT, Step.WATCH, EXPIRED, STALE, False),
        (CURRENT, Step.WATCH, TOO_LARGE, STALE, False),
        (CURRENT, Step.WATCH, TOO_MANY, CURRENT, True),
        (CURRENT, Step.WATCH, lost(), CURRENT, True),
        (CURRENT, Step.WATCH, status_error(500, "InternalError"), CURRENT, True),
        (CURRENT, Step.WATCH, status_error(403, "Forbidden"), CURRENT, True),
        (CURRENT, Step.WATCH, status_error(401, "Unauthorized"), CURRENT, True),
        (CURRENT, Step.WATCH, status_error(400, "BadRequest"), attrs.evolve(STALE, version_lost=True), True),
        (CURRENT, Step.WATCH, CredentialsError("GET /", "no token"), CURRENT, True),
        # A watch list that is refused becomes a list.
        (NEW, Step.WATCH_LIST, status_error(422, "Invalid"), attrs.evolve(NEW, list_next=True), False),
        (NEW, Step.WATCH_LIST, status_error(400, "BadRequest"), attrs.evolve(NEW, list_next=True), False),
        (NEW, Step.WATCH_LIST, status_error(403, "Forbidden"), attrs.evolve(NEW, list_next=True), False),
        (NEW, Step.WATCH_LIST, status_error(500, "InternalError"), attrs.evolve(NEW, list_next=True), False),
        (NEW, Step.WATCH_LIST, TOO_MANY, NEW, True),
        (NEW, Step.WATCH_LIST, lost(), NEW, True),
        (NEW, Step.WATCH_LIST, Ended(2, 5), NEW, True),
        (NEW, Step.WATCH_LIST, Silent(), attrs.evolve(NEW, understands_watch_lists=False), False),
        (STALE, Step.WATCH_LIST, EXPIRED, attrs.evolve(STALE, version_lost=True), False),
        (STALE, Step.WATCH_LIST, TOO_LARGE, attrs.evolve(STALE, version_lost=True), False),
        # A list that asks for too much asks for the newest, once without a pause.
        (STALE, Step.LIST, TOO_LARGE, attrs.evolve(STALE, version_lost=True), False),
        (attrs.evolve(STALE, version_lost=True), Step.LIST, EXPIRED, attrs.evolve(STALE, version_lost=True), True),
        (attrs.evolve(NEW, list_next=True), Step.LIST, status_error(500), NEW, True),
    ],
)
def test_what_follows_from_an_outcome(
    position: Position, step: Step, outcome: Outcome, expected: Position, wait: bool
) -> None:
    reaction = after(position, step, outcome)
    assert (reaction.position, reaction.wait) == (expected, wait)


def test_a_pause_that_the_server_asks_for_is_respected() -> None:
    assert after(CURRENT, Step.WATCH, TOO_MANY).at_least == 3


def test_a_list_makes_the_copy_current_and_forgets_the_troubles_before() -> None:
    troubled = Position("7", version_lost=True, list_next=True)
    assert listed(troubled, "90") == Position("90", current=True)


def test_events_move_the_version_and_those_without_one_do_not() -> None:
    assert seen(CURRENT, "8").version == "8"
    assert seen(CURRENT, "").version == "7"


def test_pauses_double_up_to_a_limit_and_begin_anew_after_peace() -> None:
    pauses, seconds, now = Pauses(), [], 0.0
    for _ in range(8):
        pauses, pause = pauses.failed(now, 0.0)
        seconds.append(pause)
        now += pause
    assert seconds == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert pauses.failed(now + 121, 0.0)[1] == 0.8
    assert pauses.failed(now, 0.5)[1] == 45.0
