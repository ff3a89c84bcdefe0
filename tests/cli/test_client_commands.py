from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.cli.conftest import StandInAgent, a_pod, run_command
from trikubelet.cli.pods import pod_changes

if TYPE_CHECKING:
    from pathlib import Path

RUNNING = {"name": "main", "image": "x:1", "imageID": "", "ready": True, "restartCount": 2, "state": {"running": {}}}


@pytest.mark.parametrize(
    "command",
    [["pods"], ["pods", "-w"], ["logs", "web"], ["describe", "pod", "web"], ["images", "list"]],
)
def test_without_an_agent_there_is_one_clear_sentence(command: list[str], root_dir: Path) -> None:
    outcome = run_command(*command, "--root-dir", root_dir)
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err == (
        f"no agent answers on {root_dir}/trikubelet.sock: is `trikubelet run` running with this --root-dir?"
    )


def test_a_socket_without_a_listener_is_no_agent(root_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(root_dir / "trikubelet.sock"))
    assert "no agent answers" in run_command("pods", "--root-dir", root_dir).err


def test_the_root_folder_may_come_from_the_environment(agent: StandInAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIKUBELET_ROOT", str(agent.root_dir))
    agent.has_pods(a_pod())
    assert run_command("pods").code == 0


def test_pods_are_a_table(agent: StandInAgent) -> None:
    agent.has_pods(a_pod(containerStatuses=[RUNNING]), a_pod("b-node", "other", phase="Pending"))
    outcome = run_command("pods", "--root-dir", agent.root_dir)
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[0] == ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert lines[1] == ["default", "web-node", "1/1", "Running", "2", "<unknown>"]
    assert lines[2] == ["other", "b-node", "0/1", "Pending", "0", "<unknown>"]


def test_wide_pods_have_their_address_and_node(agent: StandInAgent) -> None:
    agent.has_pods(a_pod(podIP="10.0.0.7"))
    assert run_command("pods", "-o", "wide", "--root-dir", agent.root_dir).out.splitlines()[1].split()[-2:] == [
        "10.0.0.7",
        "node",
    ]


def test_pods_are_whole_objects_when_asked(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    as_json = json.loads(run_command("pods", "-o", "json", "--root-dir", agent.root_dir).out)
    as_yaml = yaml.safe_load(run_command("pods", "-o", "yaml", "--root-dir", agent.root_dir).out)
    assert as_json == as_yaml
    assert as_json["items"] == [a_pod()]


def test_no_pods_is_said_on_stderr(agent: StandInAgent) -> None:
    agent.has_pods()
    outcome = run_command("pods", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "No pods.\n")


def test_a_watch_prints_a_line_for_each_change(agent: StandInAgent) -> None:
    snapshots = [[a_pod("a"), a_pod("b")], [a_pod("a", phase="Failed"), a_pod("b")], [a_pod("b")]]
    body = b"".join(json.dumps({"type": "SNAPSHOT", "pods": pods}).encode() + b"\n" for pods in snapshots)
    agent.will_answer("GET /pods?watch=true", body)
    outcome = run_command("pods", "-w", "--root-dir", agent.root_dir)
    lines = [line.split()[1:4:2] for line in outcome.out.splitlines()[1:]]
    assert lines == [["a", "Running"], ["b", "Running"], ["a", "Failed"], ["a", "Deleted"]]


def test_a_watch_whose_agent_goes_fails_in_words(agent: StandInAgent) -> None:
    agent.streams["GET /pods?watch=true"] = json.dumps({"type": "SNAPSHOT", "pods": [a_pod("a")]}).encode() + b"\n"
    outcome = run_command("pods", "-w", "--root-dir", agent.root_dir)
    assert outcome.out.splitlines()[1].split()[1] == "a"
    assert outcome.code == 1
    assert outcome.err.startswith(f"the agent on {agent.root_dir}/trikubelet.sock has gone")


def test_logs_whose_agent_goes_are_printed_as_far_as_they_came_and_fail(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    agent.streams["GET /containerLogs/default/web-node/main?follow=true"] = b"one\ntwo\n"
    outcome = run_command("logs", "-f", "web", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out) == (1, "one\ntwo\n")
    assert outcome.err.startswith(f"the agent on {agent.root_dir}/trikubelet.sock has gone")


def test_changes_are_told_as_watch_events() -> None:
    before = {"1": a_pod("a"), "2": a_pod("b")}
    now = {"2": a_pod("b", phase="Failed"), "3": a_pod("c")}
    changes = [(change["type"], change["object"]["metadata"]["name"]) for change in pod_changes(before, now)]
    assert changes == [("DELETED", "a"), ("MODIFIED", "b"), ("ADDED", "c")]


@pytest.mark.parametrize("name", ["web-node", "web", "default/web-node", "default/web"])
def test_logs_are_those_of_the_pod_that_is_meant(agent: StandInAgent, name: str) -> None:
    agent.has_pods(a_pod(), a_pod("other-node"))
    agent.will_answer("GET /containerLogs/default/web-node/main", b"hello\nworld\n")
    outcome = run_command("logs", name, "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out) == (0, "hello\nworld\n")


def test_log_options_reach_the_agent(agent: StandInAgent) -> None:
    pod = a_pod()
    pod["spec"]["containers"].append({"name": "side", "image": "x:1"})
    agent.has_pods(pod)
    query = "follow=true&tailLines=5&sinceSeconds=90&previous=true&timestamps=true"
    agent.will_answer(f"GET /containerLogs/default/web-node/side?{query}", b"x\n")
    options = ["-c", "side", "-f", "--tail", "5", "--since", "1m30s", "-p", "--timestamps"]
    assert run_command("logs", "web", *options, "--root-dir", agent.root_dir).out == "x\n"


def test_what_the_agent_refuses_is_told_in_its_words(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    agent.will_answer("GET /containerLogs/default/web-node/main", b"container is waiting to start\n", 400)
    outcome = run_command("logs", "web", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.err) == (1, "container is waiting to start")


def test_an_unknown_pod_is_named_beside_those_that_exist(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    outcome = run_command("logs", "nobody", "--root-dir", agent.root_dir)
    assert outcome.err == "the agent has no pod nobody: it has default/web-node"


def test_of_a_pod_and_its_predecessor_the_wanted_one_is_meant(agent: StandInAgent) -> None:
    going, wanted = a_pod(), a_pod(phase="Pending")
    going["metadata"] |= {"uid": "uid-1", "deletionTimestamp": "2026-01-31T12:00:00Z"}
    wanted["metadata"]["uid"] = "uid-2"
    agent.has_pods(going, wanted)
    for uid in ("uid-1", "uid-2"):
        agent.will_answer(f"GET /events?uid={uid}", [])
    for name, uid in (("web", "uid-2"), ("default/web-node", "uid-2"), ("uid-1", "uid-1"), ("uid-2", "uid-2")):
        out = run_command("describe", "pod", name, "--root-dir", agent.root_dir).out
        assert f" {uid}\n" in out, name


def test_a_name_in_two_namespaces_needs_one(agent: StandInAgent) -> None:
    agent.has_pods(a_pod(), a_pod(namespace="other"))
    outcome = run_command("logs", "web", "--root-dir", agent.root_dir)
    assert outcome.err == "web may be any of default/web-node, other/web-node: say which"
    agent.will_answer("GET /containerLogs/other/web-node/main", b"x\n")
    assert run_command("logs", "web", "-n", "other", "--root-dir", agent.root_dir).code == 0


@pytest.mark.parametrize("since", ["5", "-5m", "soon"])
def test_a_wrong_since_is_refused(since: str) -> None:
    outcome = run_command("logs", "web", f"--since={since}")
    assert outcome.code == 2
    assert "expected a duration" in outcome.err


def test_describe_shows_the_pod_and_its_events(agent: StandInAgent) -> None:
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    ended = {"terminated": {"exitCode": 3, "reason": "Error"}}
    agent.has_pods(a_pod(containerStatuses=[{**RUNNING, "state": state, "lastState": ended, "ready": False}]))
    event = {
        "type": "Warning",
        "reason": "BackOff",
        "message": "Back-off restarting",
        "fieldPath": "spec.containers{main}",
        "firstSeen": "2026-01-01T00:00:00.000000Z",
        "lastSeen": "2026-01-01T00:00:10.000000Z",
        "count": 4,
    }
    agent.will_answer("GET /events?uid=uid-default-web-node", [event])
    life = {"pod": "default/web-node", "cause": "CrashLoopBackOff of `main`", "waits": [], "askedBy": [], "phases": []}
    agent.will_answer("GET /pods/default/web-node/why", life | {"runs": []})
    outcome = run_command("describe", "pod", "web", "--root-dir", agent.root_dir)
    assert outcome.code == 0
    for fragment in (
        "CrashLoopBackOff",
        "Waits For:\n  default/web-node: CrashLoopBackOff of `main`\n",
        "Exit Code:",
        "back-off 10s",
        "BackOff",
        "(x4 over",
        "spec.containers{main}: ",
    ):
        assert fragment in outcome.out


def test_all_times_of_a_description_have_one_format(agent: StandInAgent) -> None:
    begun, ended = "2026-01-31T12:00:00Z", "2026-01-31T12:00:07Z"
    last = {"terminated": {"exitCode": 1, "startedAt": begun, "finishedAt": ended}}
    status = {**RUNNING, "state": {"running": {"startedAt": ended}}, "lastState": last}
    agent.has_pods(a_pod(startTime=begun, containerStatuses=[status]))
    agent.will_answer("GET /events?uid=uid-default-web-node", [])
    lines = run_command("describe", "pod", "web", "--root-dir", agent.root_dir).out.splitlines()
    times = [line.split()[-1] for line in lines if line.lstrip().startswith(("Start Time", "Started", "Finished"))]
    assert times == [begun, ended, begun, ended]


@pytest.mark.parametrize(("pod_ip", "said"), [("10.88.0.2", False), ("192.0.2.7", True)])
def test_a_description_tells_of_host_ports_that_lead_nowhere(agent: StandInAgent, pod_ip: str, said: bool) -> None:
    pod = a_pod(podIPs=[{"ip": pod_ip}], hostIPs=[{"ip": "192.0.2.7"}])
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 9}]
    agent.has_pods(pod)
    agent.will_answer("GET /events?uid=uid-default-web-node", [])
    agent.will_answer("GET /images/pulls", [])
    out = run_command("describe", "pod", "web", "--root-dir", agent.root_dir).out
    [line] = [line for line in out.splitlines() if line.strip().startswith("Host Ports:")]
    assert "8080/TCP" in line
    assert ("leads nowhere" in line) is said


def test_images_are_listed_and_imported(agent: StandInAgent, tmp_path: Path) -> None:
    image = {"id": "sha256:0123456789abcdef", "repo_tags": ["a:1"], "size": 1536}
    agent.will_answer("GET /images", [image, {"id": "x", "size": 5}])
    lines = run_command("images", "list", "--root-dir", agent.root_dir).out.splitlines()
    assert lines[1].split() == ["a:1", "0123456789ab", "1.5KiB"]
    assert lines[2].split() == ["<none>", "x", "5B"]
    archive = tmp_path / "my image.tar"
    archive.write_bytes(b"")
    path = str(archive).replace("/", "%2F").replace(" ", "+")
    agent.will_answer(f"POST /images/import?path={path}", ["a:1", "a:2"])
    outcome = run_command("images", "import", archive, "--root-dir", agent.root_dir)
    assert outcome.out == "imported a:1\nimported a:2\n"


def test_a_description_tells_how_far_the_pull_of_a_waiting_containers_image_is(agent: StandInAgent) -> None:
    waiting = {"name": "main", "image": "x:1", "imageID": "", "state": {"waiting": {"reason": "ContainerCreating"}}}
    agent.will_answer("GET /pods", {"items": [a_pod("web-node", phase="Pending", containerStatuses=[waiting])]})
    agent.will_answer("GET /events?uid=uid-default-web-node", [])
    agent.will_answer("GET /images/pulls", [{"reference": "docker.io/library/x:1", "progress": "1.0MiB of 2.0MiB"}])
    outcome = run_command("describe", "pod", "web", "--root-dir", agent.root_dir)
    assert ["Pulling:", "1.0MiB", "of", "2.0MiB"] in [line.split() for line in outcome.out.splitlines()]
