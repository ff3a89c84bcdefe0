"""The lines that a person sees, from the journal's entries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trikubelet.agent.pod_lines import PodLines

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def entry(kind: str, what: str, seconds: float = 0.0, container: str = "", **facts: Any) -> dict[str, Any]:
    at = (BEGAN + timedelta(seconds=seconds)).isoformat()
    head = {"at": at, "uid": "u", "pod": "default/web", "kind": kind, "what": what}
    return head | ({"container": container} if container else {}) | facts


def event(reason: str, message: str, container: str = "", *, kind: str = "Warning") -> dict[str, Any]:
    return entry("event", reason, container=container, eventType=kind, message=message)


def told(*entries: dict[str, Any], node: str = "") -> list[list[str]]:
    """Each line in its parts."""
    lines = PodLines(node)
    return [[part for part in line.split("  ") if part] for one in entries for line in lines.entry(one)]


def stripped(*entries: dict[str, Any], node: str = "") -> list[list[str]]:
    return [[part.strip() for part in line] for line in told(*entries, node=node)]


@pytest.mark.parametrize(
    ("entries", "lines"),
    [
        (
            [entry("phase", "WaitingToStart"), entry("phase", "Syncing"), entry("ready", "Ready", 0.12)],
            [["web", "ready", "0.1 s"]],
        ),
        ([entry("ready", "Ready", 1), entry("ready", "Ready", 2)], [["web", "ready", "at once"]]),
        ([entry("ready", "NotReady")], []),
        ([entry("ready", "Ready"), entry("ready", "NotReady", 5)], [["web", "ready", "at once"], ["web", "not ready"]]),
        ([entry("ready", "Ready", 0, "main")], []),
        ([entry("container", "Started", 0, "main", restarts=0)], []),
        ([entry("container", "Started", 0, "main", restarts=3)], [["web", "main started again", "restart 3"]]),
        (
            [entry("container", "Ended", 2, "main", exitCode=3, startedAt=BEGAN.isoformat())],
            [["web", "main exited with code 3", "after 2.0 s"]],
        ),
        ([entry("container", "Ended", 0, "main", exitCode=0)], [["web", "main exited"]]),
        ([entry("container", "Ended", 0, "main", exitCode=137)], [["web", "main ended by SIGKILL"]]),
        ([entry("container", "Ended", 0, "main", exitCode=172)], [["web", "main ended by signal 44"]]),
        ([entry("container", "Ended", 0, "main", exitCode=250)], [["web", "main exited with code 250"]]),
        (
            [entry("container", "Ended", 0, "main", exitCode=137, reason="OOMKilled")],
            [["web", "main was out of memory"]],
        ),
        ([entry("phase", "Syncing"), entry("status", "Succeeded", 3)], [["web", "succeeded", "3.0 s"]]),
        (
            [entry("status", "Failed", reason="NodePorts", message="no port is free")],
            [["web", "failed: NodePorts: no port is free"]],
        ),
        ([entry("status", "Running")], []),
        (
            [
                entry("phase", "TerminationRequested", 5, askedBy=["manifest removed"], grace=30),
                entry("phase", "Terminating", 5, askedBy=["manifest removed"], grace=30),
                entry("phase", "Terminated", 7),
                entry("phase", "Finished", 7.5),
                entry("phase", "Gone", 8),
            ],
            [["web", "ending: manifest removed, up to 30 s of grace"], ["web", "gone", "2.5 s"]],
        ),
        # A pod that has run its course is not asked to end, and one whose agent was ended needs no word about it.
        ([entry("status", "Succeeded", 3), entry("phase", "Terminating", 3), entry("phase", "Finished", 3)], 1),
        (
            [
                entry("phase", "TerminationRequested", askedBy=["the agent ends, and its pods with it"], grace=30),
                entry("phase", "Finished", 1),
            ],
            [["web", "gone", "1.0 s"]],
        ),
        ([event("Pulling", 'Pulling image "busybox:1"', "main", kind="Normal")], [["web", "pulling", "busybox:1"]]),
        ([event("Created", "Container created", "main", kind="Normal")], []),
    ],
)
def test_a_change_is_a_line(entries: list[dict[str, Any]], lines: list[list[str]] | int) -> None:
    found = stripped(*entries)
    if isinstance(lines, int):
        assert len(found) == lines
    else:
        assert found == lines


def test_a_failure_is_one_line_until_something_else_goes_wrong_or_it_runs() -> None:
    failed = event("Failed", 'Failed to pull image "x": refused', "main")
    follows = [event("Failed", "Error: ErrImagePull", "main"), event("BackOff", "Back-off pulling", "main")]
    pulling = event("Pulling", 'Pulling image "x"', "main", kind="Normal")
    line = ["web", "cannot pull x: refused"]
    assert stripped(pulling, failed, *follows, pulling, failed, *follows) == [["web", "pulling", "x"], line]
    mount = event("FailedMount", "no such share")
    assert stripped(failed, *follows, mount, mount) == [line, ["web", "FailedMount: no such share"]]
    runs = entry("container", "Started", 1, "main", restarts=0)
    assert stripped(failed, runs, failed) == [line, line]


def test_a_crash_is_told_by_its_end_and_not_by_what_follows_from_it() -> None:
    assert stripped(
        entry("ready", "Ready"),
        entry("container", "Ended", 1, "main", exitCode=1),
        entry("ready", "NotReady", 1),
        event("BackOff", "Back-off restarting failed container", "main"),
    ) == [["web", "ready", "at once"], ["web", "main exited with code 1"]]


def test_what_is_ready_as_soon_as_it_was_restarted_is_told_once_and_a_slow_one_by_its_own_time() -> None:
    def crash(seconds: float) -> list[dict[str, Any]]:
        ended = entry("container", "Ended", seconds, "main", exitCode=1)
        return [ended, entry("ready", "NotReady", seconds), entry("container", "Started", 60, "main", restarts=1)]

    assert stripped(*crash(50), entry("ready", "Ready", 60.1))[1:] == [["web", "main started again", "restart 1"]]
    assert stripped(*crash(50), entry("ready", "Ready", 63))[2:] == [["web", "ready", "3.0 s"]]


def test_the_cause_of_a_failed_pull_comes_before_the_edge_of_the_terminal() -> None:
    why = "failed to pull image docker.io/library/busybox:1: registry-1.docker.io cannot be reached: no name"
    (line,) = PodLines().entry(event("Failed", f'Failed to pull image "busybox:1": {why}', "main"))
    assert line == f"{'web':<18} cannot pull busybox:1: registry-1.docker.io cannot be reached: no name"


def test_probes_of_what_is_not_ready_yet_are_no_news_but_those_of_what_was_are() -> None:
    readiness = event("Unhealthy", "Readiness probe failed: refused", "main")
    assert stripped(readiness) == []
    assert stripped(entry("ready", "Ready"), readiness)[-1] == [
        "web",
        "main: Unhealthy: Readiness probe failed: refused",
    ]
    assert stripped(event("Unhealthy", "Liveness probe failed: refused", "main")) != []


def test_what_ends_an_agent_s_pods_does_not_tell_what_had_ended_before() -> None:
    lines = PodLines(ends_since=BEGAN + timedelta(seconds=10))
    before, after = (entry("container", "Ended", seconds, "main", exitCode=0) for seconds in (5, 15))
    assert list(lines.entry(before)) == []
    assert len(list(lines.entry(after))) == 1


def test_pods_are_named_as_people_name_them() -> None:
    other = entry("ready", "Ready") | {"pod": "kube-system/dns-node-1"}
    assert stripped(other, node="node-1")[0][0] == "kube-system/dns"


def test_a_snapshot_tells_what_was_missed_and_nothing_twice() -> None:
    lines = PodLines()
    entries = [entry("phase", "Syncing"), entry("ready", "Ready", 1)]
    snapshot = {"type": "SNAPSHOT", "pods": [{"uid": "u", "pod": "default/web", "entries": entries}]}
    assert len(list(lines.snapshot(snapshot))) == 1
    assert list(lines.snapshot(snapshot)) == []
