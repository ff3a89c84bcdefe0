"""Entries of the journal become stages, and stages a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.ui.entries import START, at, entry, staged
from trikubelet.cli.ui.timeline import Stage, Timeline, cells, lasted
from trikubelet.pods.stages import STAGES_PER_POD

if TYPE_CHECKING:
    from collections.abc import Iterable


def timeline(entries: Iterable[dict[str, Any]]) -> Timeline:
    made = Timeline()
    for one in staged(entries):
        made.apply(one)
    return made


def drawn(made: Timeline, now: float, span: float = 20, width: int = 20) -> str:
    return "".join(" " if stage is None else stage.value for stage in cells(made, at(now), span, width))


ENDED = entry(12, "container", "Ended", container="main", id="a", restarts=0, exitCode=1)
KILL: dict[str, Any] = {"grace": 30, "until": at(45), "askedBy": ["manifest removed"]}

STORIES = {
    "a pod waits, pulls, starts, runs and is ready": (START, ".>vv>---==========="),
    "one without a readiness probe is ready at once": (
        [*START[:5], entry(5, "status", "Running"), entry(5, "ready", "Ready")],
        ".>vv>==============",
    ),
    "its init containers are part of its start": (
        [*START[:5], entry(7, "container", "Ended", container="init", id="a", restarts=0, exitCode=0)],
        ".>vv>>>>>>>>>>>>>>>",
    ),
    "a container that has ended is down, whatever the runs before": (
        [*START, ENDED, entry(12, "ready", "NotReady"), entry(13, "event", "BackOff")],
        ".>vv>---====xxxxxxx",
    ),
    "when it starts again it is not ready until a probe says so": (
        [
            *START,
            ENDED,
            entry(12, "ready", "NotReady"),
            entry(14, "event", "Pulled"),
            entry(15, "container", "Started", container="main", id="b", restarts=1),
        ],
        ".>vv>---====xx>----",
    ),
    "while another container runs it is not down": (
        [*START, entry(9, "container", "Started", container="side", id="c", restarts=0), ENDED],
        ".>vv>---===========",
    ),
    "an image that cannot be pulled has it down, and it pulls again": (
        [*START[:3], entry(5, "event", "Failed"), entry(9, "event", "Pulling"), entry(11, "event", "BackOff")],
        ".>vvvxxxxvvxxxxxxxx",
    ),
    "a pull beside containers that run changes nothing": (
        [*START, entry(10, "event", "Pulling")],
        ".>vv>---===========",
    ),
    "it ends, and nothing else counts from then on": (
        [
            *START,
            entry(10, "phase", "TerminationRequested", **KILL),
            entry(10, "phase", "Terminating", **KILL),
            entry(11, "ready", "NotReady"),
            ENDED,
            entry(13, "status", "Succeeded"),
            entry(14, "phase", "Terminated"),
            entry(16, "phase", "Finished"),
            entry(17, "phase", "Gone"),
        ],
        ".>vv>---==!!!!~~   ",
    ),
    "one that has run its course has ended": ([*START, ENDED, entry(14, "status", "Succeeded")], ".>vv>---====xx     "),
    "what was a moment ago is never before what came first": (
        [*START[:2], entry(0.5, "event", "Pulling"), entry(3, "event", "Pulled")],
        ".vv>>>>>>>>>>>>>>>>",
    ),
    "kinds, phases and reasons that nobody knows are left out": (
        [*START, entry(9, "phase", "Hibernating"), entry(9, "weather", "Rain"), entry(9, "event", "Sneezed")],
        ".>vv>---===========",
    ),
}


@pytest.mark.parametrize(("entries", "expected"), STORIES.values(), ids=STORIES)
def test_stories(entries: list[dict[str, Any]], expected: str) -> None:
    assert drawn(timeline(entries), 18.5) == " " + expected


def test_one_who_comes_late_sees_what_was() -> None:
    live, late = timeline(START), Timeline()
    for one in staged([*START, entry(50, "event", "BackOff", count=9, firstSeen=at(6))]):
        if "stage" in one:
            late.begin(one["stage"])
        late.apply(one, kept=True)
    assert late.segments == live.segments


def test_a_stage_that_nobody_knows_is_left_out() -> None:
    made = timeline(START)
    before = list(made.segments)
    made.begin({"what": "hibernating", "at": "2026-01-01T00:00:30Z"})
    assert made.segments == before


def test_the_grace_is_the_one_that_counts_now() -> None:
    made = timeline([*START, entry(10, "phase", "Terminating", **KILL)])
    assert (made.grace, made.until, made.asked_by) == (30, at(45), ("manifest removed",))
    hastened: dict[str, Any] = {"grace": 5, "until": at(20), "askedBy": ["manifest removed", "evicted"]}
    made.apply(entry(15, "phase", "Terminating", **hastened))
    assert (made.grace, made.until, made.asked_by) == (5, at(20), ("manifest removed", "evicted"))
    made.apply(entry(19, "phase", "Terminated"))
    assert (made.grace, made.until, made.asked_by) == (None, None, ("manifest removed", "evicted"))


def test_durations_are_those_of_the_stages() -> None:
    told = [(stage, duration.total_seconds()) for stage, duration in lasted(timeline(START), at(20))]
    assert told == [
        (Stage.WAIT, 1),
        (Stage.START, 1),
        (Stage.PULL, 2),
        (Stage.START, 1),
        (Stage.RUN, 3),
        (Stage.READY, 12),
    ]


def test_a_cell_with_several_stages_shows_the_rarest() -> None:
    assert drawn(timeline(START), 19.9, span=20, width=2) == ">="
    assert drawn(timeline(START), 19.9, span=20, width=1) == ">"


def test_cells_move_by_whole_cells_and_what_was_before_is_not_shown() -> None:
    made = timeline(START)
    assert drawn(made, 18.0) == drawn(made, 18.9) != drawn(made, 19.0)
    assert drawn(made, 1000) == "=" * 20
    assert drawn(Timeline(), 5) == " " * 20
    assert cells(made, at(-5), 20, 20).count(Stage.WAIT) <= 1, "a clock that was set back does no harm"


def test_a_pod_that_restarts_for_ever_does_not_fill_the_memory() -> None:
    told = [*START]
    for index in range(2 * STAGES_PER_POD):
        told.append(entry(20 + index, "ready", "Ready" if index % 2 else "NotReady"))
        told.append(entry(20 + index, "event", "BackOff", message="again"))
    made = timeline(told)
    assert len(made.segments) == STAGES_PER_POD
    assert len(made.events) == 3


@pytest.mark.parametrize("broken", [{}, {"at": "yesterday", "kind": "phase", "what": "Syncing"}])
def test_what_is_no_entry_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        Timeline().apply(broken)
