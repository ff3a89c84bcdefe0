"""What the agent tells becomes rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import a_pod
from tests.cli.test_top import pod as pod_usage
from tests.cli.test_top import summary, usage
from tests.cli.ui.entries import START, at, entry, line, snapshot
from trikubelet.cli.ui.model import GONE_SHOWN, Model, PodView
from trikubelet.cli.usage_rows import Usage


def model(*entries: dict[str, Any]) -> Model:
    made = Model()
    made.take(snapshot(*(entries or START)))
    return made


def web(of: Model) -> PodView:
    return of.pods["uid-default/web"]


def reported(**status: Any) -> dict[str, Any]:
    item = a_pod("web", **status)
    item["metadata"]["uid"] = "uid-default/web"
    return item


RUNS = {
    "containerStatuses": [
        {"name": "main", "ready": True, "restartCount": 3, "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}}
    ],
    "startTime": "2026-01-01T00:00:00Z",
}


def test_a_row_has_kubectls_columns() -> None:
    made = model()
    made.take_pods(["uid-default/web"], [reported(**RUNS)])
    row = web(made).row(at(100))
    assert (row.ready, row.status, row.restarts, row.age) == ("1/1", "Running", "3", "100s")
    assert made.node == "node"


def test_before_its_object_is_known_a_row_has_what_the_journal_tells() -> None:
    row = web(model()).row(at(100))
    assert (row.ready, row.status, row.restarts, row.age) == ("-", "ready", "-", "100s")


@pytest.mark.parametrize(("now", "status"), [(10, "Terminating 30s"), (39.6, "Terminating 0s"), (50, "Terminating 0s")])
def test_the_grace_runs_down_in_the_status(now: float, status: str) -> None:
    made = model(*START, entry(10, "phase", "Terminating", grace=30, until=at(40)))
    made.take_pods(["uid-default/web"], [reported(**RUNS)])
    assert web(made).row(at(now)).status == status


def test_pods_to_which_something_happened_are_to_be_read() -> None:
    made = model()
    assert made.unread == {"uid-default/web"}, "all of a snapshot"
    made.unread.clear()
    made.take(line(9, "event", "Unhealthy"))
    assert made.unread == set(), "events change no object"
    made.take(line(9, "ready", "NotReady"))
    made.take(line(9, "phase", "Syncing", "default/other"))
    assert made.unread == {"uid-default/web", "uid-default/other"}


def test_a_new_snapshot_replaces_what_was_told_and_keeps_what_was_read() -> None:
    made = model(*START, entry(1, "phase", "Syncing", "default/old"))
    made.take_pods(["uid-default/web"], [reported(**RUNS)])
    made.take_usage(summary(pod_usage("web", main=usage(1_000_000, 2**20))))
    made.take(snapshot(entry(50, "phase", "Syncing")))
    assert list(made.pods) == ["uid-default/web"]
    assert web(made).pod is not None
    assert web(made).usage == Usage(1_000_000, 2**20)
    assert len(web(made).timeline.segments) == 1


def test_a_pod_that_is_gone_stays_for_a_moment() -> None:
    made = model(*START, entry(20, "phase", "Gone"))
    assert web(made).row(at(21)).status == "Gone"
    assert made.shown(at(20) + GONE_SHOWN / 2) == [web(made)]
    assert made.shown(at(20) + GONE_SHOWN) == []
    made.take(line(100, "phase", "Gone", "default/other"))
    assert list(made.pods) == ["uid-default/other"], "and is forgotten then"


def test_pods_are_sorted_by_name_and_those_of_one_name_by_age() -> None:
    made = Model()
    for uid, pod, seconds in (("3", "default/b", 1), ("2", "default/a", 9), ("1", "default/a", 2)):
        made.take({**line(seconds, "phase", "Syncing", pod), "uid": uid})
    assert [view.uid for view in made.shown(at(10))] == ["1", "2", "3"]


def test_usage_that_is_told_no_more_is_not_known() -> None:
    made = model()
    made.take_usage(summary(pod_usage("web", main=usage(1_000_000, 2**20))))
    made.take_usage(summary())
    assert web(made).usage == Usage()


def test_a_pod_whose_object_is_no_more_has_none() -> None:
    made = model()
    made.take_pods(["uid-default/web"], [reported(**RUNS)])
    made.take_pods(["uid-default/web", "uid-of-nobody"], [])
    assert web(made).pod is None


def test_trouble_is_since_it_began() -> None:
    made = Model()
    made.fails("", at(0))
    made.fails("gone", at(5))
    made.fails("gone, still", at(7))
    assert (made.trouble, made.since) == ("gone, still", at(5))
    made.fails("", at(9))
    made.fails("gone", at(11))
    assert made.since == at(11)


@pytest.mark.parametrize(
    "broken",
    [{}, [], {"type": "SNAPSHOT"}, {"type": "SNAPSHOT", "pods": [3]}, {"type": "ENTRY", "uid": "a", "pod": "b"}],
)
def test_what_is_no_line_of_the_journal_is_refused(broken: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Model().take(broken)


def test_kinds_of_lines_that_nobody_knows_are_left_out() -> None:
    made = model()
    made.take({"type": "BOOKMARK"})
    assert list(made.pods) == ["uid-default/web"]
