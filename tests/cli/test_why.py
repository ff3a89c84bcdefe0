"""`why`, `events` and `wait`, against an agent that answers what a test says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.conftest import StandInAgent, a_pod, run_command
from trikubelet.cli.wait import read_condition, read_duration
from trikubelet.cli.why import exit_words

ANSWER: dict[str, Any] = {
    "uid": "uid-default-web-node",
    "pod": "default/web-node",
    "phase": "Terminating",
    "cause": "StopContainer of `db`: 21 of 30 s of grace; asked by: manifest removed",
    "waits": [
        {"text": "StopContainer of `db`: 21 of 30 s of grace", "since": "2026-01-01T00:00:40.000000Z"},
        {"text": "StopContainer of `web`: 21 of 30 s of grace"},
    ],
    "askedBy": ["manifest removed", "evicted: too much"],
    "phases": [
        {"phase": "Syncing", "at": "2026-01-01T00:00:00.000000Z", "end": "2026-01-01T00:00:40.000000Z"},
        {
            "phase": "Terminating",
            "at": "2026-01-01T00:00:40.000000Z",
            "end": "2026-01-01T00:00:50.000000Z",
            "grace": 60,
            "until": "2026-01-01T00:01:40.000000Z",
        },
        {
            "phase": "Terminating",
            "at": "2026-01-01T00:00:50.000000Z",
            "end": "2026-01-01T00:01:01.500000Z",
            "grace": 30,
            "until": "2026-01-01T00:01:10.000000Z",
        },
    ],
    "runs": [
        {"container": "db", "id": "aaa", "what": "Started", "at": "2026-01-01T00:00:01.000000Z"},
        {"container": "db", "id": "aaa", "what": "Ended", "at": "2026-01-01T00:00:02.000000Z", "exitCode": 137}
        | {"reason": "OOMKilled"},
        {"container": "db", "id": "ab0", "what": "Ended", "at": "2026-01-01T00:00:02.500000Z", "exitCode": 128}
        | {"reason": "StartError", "message": "exec: /absent: not there"},
        {"container": "db", "id": "bbb", "what": "Started", "at": "2026-01-01T00:00:03.000000Z"},
    ],
}
LOG = "GET /containerLogs/default/web-node/db?tailLines=5"
WATCH = "GET /pods?watch=true"


def lines_of(*snapshots: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps({"type": "SNAPSHOT", "pods": pods}).encode() + b"\n" for pods in snapshots)


@pytest.fixture
def web(agent: StandInAgent, monkeypatch: pytest.MonkeyPatch) -> StandInAgent:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    agent.has_pods(a_pod())
    agent.will_answer("GET /pods/default/web-node/why", ANSWER)
    agent.will_answer(LOG, b"out of memory\n\x1b[2Jgone\tnow\x07\r\n")
    return agent


def test_the_first_line_is_the_cause_and_the_rest_tells_how_it_came_to_that(web: StandInAgent) -> None:
    outcome = run_command("why", "web", "--root-dir", web.root_dir)
    lines = outcome.out.splitlines()
    assert lines[:2] == [
        "default/web-node: StopContainer of `db`: 21 of 30 s of grace; asked by: manifest removed",
        "  and StopContainer of `web`: 21 of 30 s of grace",
    ]
    assert [line.split()[0] for line in lines[2:5]] == ["Phases:", "Syncing", "Terminating"]
    assert " 40.0 s" in lines[3]
    assert lines[4].endswith(" 21.5 s  grace 30 s, until 00:01:10"), "hastened, it is one phase"
    assert lines[6] == "  db  aaa  2026-01-01T00:00:01Z  ran 1.0 s: signal 9 (exit code 137) (OOMKilled)"
    assert lines[7] == "  db  ab0  <unknown>             exit code 128 (StartError): exec: /absent: not there"
    assert lines[8] == "  db  bbb  2026-01-01T00:00:03Z  runs"
    assert lines[9:] == [
        "Log of db:",
        "  out of memory",
        "  \N{REPLACEMENT CHARACTER}[2Jgone      now\N{REPLACEMENT CHARACTER}",
    ]


def test_a_pod_that_is_gone_is_found_in_the_journal(web: StandInAgent) -> None:
    web.has_pods()
    web.will_answer(
        "GET /journal", {"pods": [{"uid": "1", "pod": "default/other"}, {"uid": "2", "pod": "default/web-node"}]}
    )
    assert run_command("why", "web", "--root-dir", web.root_dir).out.startswith("default/web-node: StopContainer")
    missing = run_command("why", "nobody", "--root-dir", web.root_dir)
    assert (missing.code, missing.err) == (1, "the agent has no pod nobody: it has none")


def test_the_answer_is_to_be_had_as_it_is(web: StandInAgent) -> None:
    assert json.loads(run_command("why", "web", "-o", "json", "--root-dir", web.root_dir).out) == ANSWER


def test_a_description_ends_with_it(web: StandInAgent) -> None:
    web.will_answer("GET /events?uid=uid-default-web-node", [])
    out = run_command("describe", "pod", "web", "--root-dir", web.root_dir).out
    assert "Waits For:\n  default/web-node: StopContainer of `db`" in out
    assert "2026-01-01T00:00:40Z" in out
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:", out) is None, "times are written in one way"


def test_exit_codes_are_for_people() -> None:
    assert [exit_words(code) for code in (0, 1, 128, 143)] == [
        "exit code 0",
        "exit code 1",
        "exit code 128",
        "signal 15 (exit code 143)",
    ]


EVENTS: list[dict[str, Any]] = [
    {
        "uid": "uid-default-web-node",
        "namespace": "default",
        "name": "web-node",
        "fieldPath": "spec.containers{main}",
        "type": "Warning",
        "reason": "BackOff",
        "message": "back-off\nrestarting",
        "firstSeen": "2026-01-01T00:00:00.000000Z",
        "lastSeen": "2026-01-01T00:01:00.000000Z",
        "count": 3,
    },
    {
        "type": "Normal",
        "reason": "Starting",
        "message": "Starting kubelet.",
        "firstSeen": "2026-01-01T00:00:00.000000Z",
        "lastSeen": "2026-01-01T00:02:00.000000Z",
        "count": 1,
    },
]


def test_events_are_a_table_of_all_pods_and_the_node(web: StandInAgent) -> None:
    web.will_answer("GET /events", EVENTS)
    lines = run_command("events", "--root-dir", web.root_dir).out.splitlines()
    assert lines[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert lines[1].split()[1:4] == ["Warning", "BackOff", "pod/default/web-node"]
    assert lines[1].endswith("spec.containers{main}: back-off restarting (x3)")
    assert lines[2].split()[1:4] == ["Normal", "Starting", "node"]
    of_pod = run_command("events", "web", "-o", "json", "--root-dir", web.root_dir).out
    assert json.loads(of_pod) == EVENTS[:1]


def test_events_are_followed(web: StandInAgent) -> None:
    web.will_answer("GET /events?watch=true", b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS))
    lines = run_command("events", "-w", "--root-dir", web.root_dir).out.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["BackOff", "Starting"]


READY: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]}


def test_a_condition_is_waited_for(web: StandInAgent) -> None:
    web.will_answer(WATCH, lines_of([], [a_pod()], [a_pod(**READY)]))
    outcome = run_command("wait", "web", "--for=condition=ready", "--root-dir", web.root_dir)
    assert (outcome.code, outcome.out) == (0, "pod/default/web-node condition met\n")


def test_a_deletion_and_a_path_are_waited_for(web: StandInAgent) -> None:
    web.will_answer(WATCH, lines_of([a_pod()], [a_pod(phase="Failed")], []))
    deleted = run_command("wait", "web", "--for", "delete", "--root-dir", web.root_dir)
    assert deleted.out == "pod/default/web-node deleted\n"
    failed = run_command("wait", "web", "--for", "jsonpath={.status.phase}=Failed", "--root-dir", web.root_dir)
    assert failed.out == "pod/default/web-node condition met\n"


def test_a_pod_that_is_replaced_is_not_deleted(web: StandInAgent) -> None:
    going, wanted = a_pod(), a_pod(phase="Pending")
    going["metadata"] |= {"uid": "uid-1", "deletionTimestamp": "2026-01-31T12:00:00Z"}
    web.will_answer(WATCH, lines_of([going, wanted]))
    outcome = run_command("wait", "web", "--for=delete", "--timeout=0", "--root-dir", web.root_dir)
    assert (outcome.code, outcome.out) == (1, "")
    web.will_answer(WATCH, lines_of([going, wanted], [wanted]))
    assert run_command("wait", "uid-1", "--for=delete", "--root-dir", web.root_dir).code == 0


def test_it_is_not_guessed_which_pod_is_waited_for(web: StandInAgent) -> None:
    web.will_answer(WATCH, lines_of([a_pod(), a_pod(namespace="other")]))
    outcome = run_command("wait", "web", "--for=delete", "--root-dir", web.root_dir)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "web may be any of default/web-node, other/web-node: say which"


def test_who_waits_in_vain_is_told_what_the_pod_waits_for(web: StandInAgent) -> None:
    web.will_answer(WATCH, lines_of([a_pod()]))
    outcome = run_command("wait", "web", "--for=condition=Ready", "--timeout=0", "--root-dir", web.root_dir)
    assert outcome.code == 1
    assert outcome.err == (
        "timed out waiting for condition=Ready of pod default/web-node: "
        "StopContainer of `db`: 21 of 30 s of grace; asked by: manifest removed"
    )


@pytest.mark.parametrize(
    ("text", "pod", "met"),
    [
        ("condition=Ready", a_pod(**READY), True),
        ("condition=Ready=False", a_pod(**READY), False),
        ("condition=Initialized", a_pod(**READY), False),
        ("delete", None, True),
        ("delete", a_pod(), False),
        ("jsonpath={.status.conditions[0].status}=True", a_pod(**READY), True),
        ("jsonpath={.status.podIP}", a_pod(), False),
        ("jsonpath={.status.podIP}", a_pod(podIP="10.0.0.1"), True),
        ("jsonpath={.metadata['name']}=web-node", a_pod(), True),
        ("jsonpath={.status.conditions[7].status}=True", a_pod(**READY), False),
        ("jsonpath={.status.conditions[?(@.type=='Ready')].status}=True", a_pod(**READY), True),
        ("jsonpath={.status.conditions[?(@.type=='Initialized')].status}=True", a_pod(**READY), False),
        ("jsonpath={.status.podIP}", None, False),
        ("jsonpath={.status.podIP}=", a_pod(), False),
        ("jsonpath={.status.podIP}", a_pod(podIP=None), False),
    ],
)
def test_conditions_mean_what_kubectl_means(text: str, pod: dict[str, Any] | None, met: bool) -> None:
    assert read_condition(text)(pod) is met


@pytest.mark.parametrize("text", ["", "ready", "condition=", "jsonpath=.status", "jsonpath={.a b}", "jsonpath={.a}b"])
def test_what_cannot_be_waited_for_is_refused(text: str, web: StandInAgent) -> None:
    outcome = run_command("wait", "web", f"--for={text}", "--root-dir", web.root_dir)
    assert outcome.code == 1
    assert outcome.err.startswith("expected ")
    assert text.removeprefix("jsonpath=") in outcome.err


def test_durations() -> None:
    assert [read_duration(text) for text in ("90s", "5m", "1h30m", "45")] == [90, 300, 5400, 45]
