"""`apply`, `delete`, `restart`, `run IMAGE` and `stop`, against an agent that answers what a test says."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click.testing
import pytest
import yaml

from tests.cli.conftest import StandInAgent, a_pod, run_command
from trikubelet.cli import client, stop, waiting
from trikubelet.cli.apply import file_name
from trikubelet.cli.main import cli
from trikubelet.cli.root_dir import agent_pid
from trikubelet.cli.run import KUBELET_RUNTIME
from trikubelet.cli.run_pod import pod_name
from trikubelet.cli.stop import end_agent, end_process, stopping_options
from trikubelet.node.start_checks import StartCheckError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.agent.options import AgentOptions

PATIENCE = 30.0
MANIFEST = "apiVersion: v1\nkind: Pod\nmetadata:\n  labels: {a: b}\n  name: web\nspec: {}\n"


def accepts(agent: StandInAgent, file: str, *, before: str | None = None, query: str = "") -> None:
    answer = {"file": f"/m/{file}", "pods": ["default/web-node"], "before": before, "warnings": ["web.yaml:3: odd"]}
    agent.will_answer(f"PUT /manifests/{file}{query}", answer)


def test_a_manifest_is_handed_to_the_agent_as_it_is(agent: StandInAgent, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(MANIFEST)
    accepts(agent, "web.yaml")
    outcome = run_command("apply", "-f", tmp_path / "web.yaml", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out) == (0, "pod/default/web-node created\n")
    assert outcome.err == "web.yaml:3: odd (warning)\n"
    assert agent.bodies == [MANIFEST.encode()]


def test_what_changes_is_shown(agent: StandInAgent, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(MANIFEST)
    accepts(agent, "web.yaml", before=MANIFEST.replace("a: b", "a: c"), query="?dryRun=true")
    out = run_command("apply", "-f", tmp_path, "--dry-run", "--root-dir", agent.root_dir).out.splitlines()
    assert out[0] == "--- /m/web.yaml"
    assert "-  labels: {a: c}" in out
    assert "+  labels: {a: b}" in out
    assert out[-1] == "pod/default/web-node configured (dry run)"
    accepts(agent, "web.yaml", before=MANIFEST)
    unchanged = run_command("apply", "-f", tmp_path, "--root-dir", agent.root_dir)
    assert unchanged.out == "pod/default/web-node unchanged\n"


def test_problems_are_told_one_a_line_and_the_other_manifests_are_applied(agent: StandInAgent, tmp_path: Path) -> None:
    for name in ("bad.yaml", "web.yaml", ".hidden"):
        (tmp_path / name).write_text(MANIFEST)
    agent.will_answer("PUT /manifests/bad.yaml", {"problems": ["bad.yaml:1: no", "bad.yaml:2: never"]})
    accepts(agent, "web.yaml")
    outcome = run_command("apply", "-f", tmp_path, "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out) == (1, "pod/default/web-node created\n")
    assert outcome.err.startswith("bad.yaml:1: no\nbad.yaml:2: never\n")


def test_a_manifest_on_standard_input_is_called_as_its_pod(agent: StandInAgent) -> None:
    accepts(agent, "web.yaml")
    arguments = ["apply", "-f", "-", "--root-dir", str(agent.root_dir)]
    result = click.testing.CliRunner().invoke(cli, arguments, input=MANIFEST)
    assert result.stdout == "pod/default/web-node created\n"


def test_a_manifest_is_fetched(agent: StandInAgent) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.startswith("/pods/web.yaml")
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(MANIFEST.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Tests want no log."""

    accepts(agent, "web.yaml")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/pods/"
        found = run_command("apply", "-f", f"{url}web.yaml?raw=1", "--root-dir", agent.root_dir)
        missing = run_command("apply", "-f", f"{url}none.yaml", "--root-dir", agent.root_dir)
        server.shutdown()
        thread.join()
    assert found.out == "pod/default/web-node created\n"
    assert (missing.code, missing.err) == (1, f"{url}none.yaml cannot be read: Not Found")


def test_a_file_that_is_not_there(agent: StandInAgent, tmp_path: Path) -> None:
    outcome = run_command("apply", "-f", tmp_path / "no.yaml", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.err) == (1, f"{tmp_path}/no.yaml cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("text", "name"),
    [("web.yaml", "web.yaml"), ("my pod", "my-pod.yaml"), ("../x.json", "x.json"), ("", "pod.yaml"), ("é", "pod.yaml")],
)
def test_names_of_files_are_such_as_the_agent_takes(text: str, name: str) -> None:
    assert file_name(text) == name


def gone(uid: str) -> dict[str, Any]:
    return {"type": "ENTRY", "uid": uid, "kind": "phase", "what": "Gone"}


def test_a_pod_is_deleted_when_it_has_ended(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    agent.will_answer("DELETE /pods/default/web-node", {"file": "/m/web.yaml", "uid": "1"})
    running = {"uid": "1", "kind": "phase", "what": "Terminating"}
    snapshot = {"type": "SNAPSHOT", "pods": [{"uid": "1", "entries": [running]}]}
    lines = [snapshot, gone("2"), {**gone("1"), "what": "Terminated"}, gone("1")]
    agent.will_answer("GET /journal?watch=true", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    outcome = run_command("delete", "web", "--root-dir", agent.root_dir)
    assert (outcome.out, outcome.err) == ("pod/default/web-node deleted\n", "removed /m/web.yaml\n")


def test_a_pod_that_does_not_end_in_time_is_told_with_its_cause(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    agent.will_answer("DELETE /pods/default/web-node", {"file": "/m/web.yaml", "uid": "1"})
    agent.will_answer("GET /journal?watch=true", b'{"type": "SNAPSHOT", "pods": []}\n')
    agent.will_answer("GET /pods/default/web-node/why", {"cause": "StopContainer of `db`"})
    outcome = run_command("delete", "web", "--timeout=5", "--root-dir", agent.root_dir)
    assert outcome.code == 1
    assert outcome.err.endswith("pod default/web-node has not ended within 5: StopContainer of `db`")
    assert run_command("delete", "web", "--no-wait", "--root-dir", agent.root_dir).out.endswith("deleted\n")


def test_pods_are_deleted_together_and_an_unknown_name_keeps_none(agent: StandInAgent) -> None:
    agent.has_pods(a_pod("web-node"), a_pod("db-node"))
    for uid, name in (("1", "web"), ("2", "db")):
        agent.will_answer(f"DELETE /pods/default/{name}-node", {"file": f"/m/{name}.yaml", "uid": uid})
    lines = [{"type": "SNAPSHOT", "pods": []}, gone("2"), gone("1")]
    agent.will_answer("GET /journal?watch=true", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    outcome = run_command("delete", "web", "no", "db", "--root-dir", agent.root_dir)
    assert outcome.code == 1
    assert outcome.out == "pod/default/db-node deleted\npod/default/web-node deleted\n"
    assert outcome.err.endswith("the agent has no pod no: it has default/db-node, default/web-node")
    deletes = [request.split()[0] for request in agent.requests if "/manifests" not in request]
    assert deletes == ["GET", "DELETE", "DELETE", "GET"], "both are asked to end before the first is waited for"


def test_what_was_wrong_is_told_also_when_the_agent_goes_away(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    agent.will_answer("DELETE /pods/default/web-node", {"file": "/m/web.yaml", "uid": "1"})
    agent.streams["GET /journal?watch=true"] = b'{"type": "SNAPSHOT", "pods": []}\n'
    outcome = run_command("delete", "no", "web", "--root-dir", agent.root_dir)
    assert outcome.code == 1
    unknown, lost = outcome.err.splitlines()[-2:]
    assert unknown == "Error: the agent has no pod no: it has default/web-node"
    assert lost.endswith("has gone, so nothing more can be told: start this command again")


def test_who_waits_in_vain_is_told_of_each_pod_though_the_agent_answers_for_one_only(agent: StandInAgent) -> None:
    agent.will_answer("GET /pods?watch=true", json.dumps({"pods": [a_pod("web-node"), a_pod("db-node")]}).encode())
    agent.will_answer("GET /pods/default/web-node/why", {"cause": "cause of web"})
    agent.will_answer("GET /pods/default/db-node/why", b"it is gone", status=404)
    outcome = run_command("wait", "db", "web", "--for=delete", "--timeout=0", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.err.splitlines()) == (
        1,
        ["Error: it is gone", "timed out waiting for delete of pod default/web-node: cause of web"],
    )


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_pod_that_ended_with_the_file_of_another_is_deleted(agent: StandInAgent, is_gone: bool) -> None:
    agent.has_pods(a_pod("web-node"), a_pod("db-node"))
    query = "withOthers=true"
    answer = {"file": "/m/all.yaml", "uid": "1", "others": ["default/db-node"]}
    agent.will_answer(f"DELETE /pods/default/web-node?{query}", answer)
    agent.will_answer(f"DELETE /pods/default/db-node?{query}", b"the agent has no pod default/db-node", status=409)
    agent.will_answer("GET /pods?uid=uid-default-db-node", {"items": [] if is_gone else [a_pod("db-node")]})
    outcome = run_command("delete", "web", "db", "--with-others", "--no-wait", "--root-dir", agent.root_dir)
    if is_gone:
        assert (outcome.code, outcome.out) == (0, "pod/default/db-node deleted\npod/default/web-node deleted\n")
    else:
        assert (outcome.code, outcome.out) == (1, "pod/default/web-node deleted\n")
        assert outcome.err.endswith("the agent has no pod default/db-node")


def test_hundreds_of_pods_are_restarted_on_any_descriptors(
    agent: StandInAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than a hundred connections are open at once, and their descriptors may be above 1023."""
    monkeypatch.setattr(client, "MOST_TOGETHER", 2)
    names = [f"p{number}-node" for number in range(5)]
    agent.has_pods(*map(a_pod, names))
    for name in names:
        agent.will_answer(f"POST /pods/default/{name}/restart", ["main"])
    at_once: list[int] = []
    sent = client.AgentClient._sent

    @contextmanager
    def counted(*arguments: Any) -> Iterator[Any]:
        at_once.append(at_once[-1] + 1 if at_once else 1)
        try:
            with sent(*arguments) as connection:
                yield connection
        finally:
            at_once.append(at_once[-1] - 1)

    monkeypatch.setattr(client.AgentClient, "_sent", counted)
    with descriptors_taken(1024):
        outcome = run_command("restart", *names, "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out.count("restarted: main")) == (0, 5), outcome
    assert max(at_once) == 2


@contextmanager
def descriptors_taken(below: int) -> Iterator[None]:
    """Take every descriptor below this one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = below + 200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < below:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_pods_are_restarted_together_and_an_unknown_name_keeps_none(agent: StandInAgent) -> None:
    agent.has_pods(a_pod("web-node"), a_pod("db-node"))
    both = threading.Barrier(2)
    agent.before["POST /pods/default/web-node/restart"] = lambda: both.wait(PATIENCE)
    agent.before["POST /pods/default/db-node/restart"] = lambda: both.wait(PATIENCE)
    agent.will_answer("POST /pods/default/web-node/restart", ["main"])
    agent.will_answer("POST /pods/default/db-node/restart", b"policy Never", status=409)
    outcome = run_command("restart", "no", "web", "db", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out) == (1, "pod/default/web-node restarted: main\n")
    assert outcome.err.splitlines() == [
        "Error: the agent has no pod no: it has default/db-node, default/web-node",
        "policy Never",
    ]


@pytest.mark.parametrize(
    ("command", "request_"),
    [
        (["restart", "web"], "POST /pods/default/web-node/restart"),
        (["delete", "web"], "GET /journal?watch=true"),
        (["wait", "web", "--for=delete"], "GET /pods?watch=true"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_that_waits_says_for_what(
    command: list[str], request_: str, agent: StandInAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes when the reason has been asked for several times; its figures alone are no news."""
    monkeypatch.setattr(client, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "LEAST_PAUSE", 0.0)
    asked = threading.Semaphore(0)
    reasons = [f"StopContainer of `main`: {second} of 30 s of grace" for second in range(3)]
    agent.has_pods(a_pod())
    why = "GET /pods/default/web-node/why"

    def tell() -> None:
        reason = reasons.pop(0) if reasons else "UnmountVolume"
        agent.will_answer(why, {"cause": "", "waits": [{"text": reason}]})
        asked.release()

    def end() -> None:
        for _ in range(5):
            assert asked.acquire(timeout=PATIENCE)

    agent.before[why] = tell
    agent.will_answer("DELETE /pods/default/web-node", {"file": "/m/web.yaml", "uid": "1"})
    if command[0] == "wait":
        agent.beginnings[request_] = json.dumps({"pods": [a_pod()]}).encode() + b"\n"
    agent.before[request_] = end
    ends = {"restart": ["main"], "delete": {"type": "ENTRY", **gone("1")}, "wait": {"pods": []}}
    agent.will_answer(request_, json.dumps(ends[command[0]]).encode() + b"\n")
    outcome = run_command(*command, "--root-dir", agent.root_dir)
    assert outcome.code == 0, outcome
    told = [line for line in outcome.err.splitlines() if line.startswith("waiting")]
    assert told == [
        "waiting for web-node: StopContainer of `main`: 0 of 30 s of grace",
        "waiting for web-node: UnmountVolume",
    ]


def test_several_pods_are_waited_for_together(agent: StandInAgent) -> None:
    web, db = a_pod("web-node"), a_pod("db-node")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    states = [[web, db], [web, {**db, "status": ready}], [{**web, "status": ready}, db]]
    lines = b"".join(json.dumps({"pods": pods}).encode() + b"\n" for pods in states)
    agent.will_answer("GET /pods?watch=true", lines)
    outcome = run_command("wait", "web", "db", "--for=condition=Ready", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "pod/default/db-node condition met\npod/default/web-node condition met\n"
    for name in ("web", "db"):
        agent.will_answer(f"GET /pods/default/{name}-node/why", {"cause": f"cause of {name}"})
    outcome = run_command("wait", "web", "no", "db", "--for=delete", "--timeout=0", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out) == (1, "pod/no deleted\n")
    assert outcome.err.splitlines() == [
        "Error: timed out waiting for delete of pod default/web-node: cause of web",
        "timed out waiting for delete of pod default/db-node: cause of db",
    ]


def test_containers_are_restarted(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    agent.will_answer("POST /pods/default/web-node/restart?container=main", ["main"])
    outcome = run_command("restart", "web", "-c", "main", "--root-dir", agent.root_dir)
    assert outcome.out == "pod/default/web-node restarted: main\n"


def test_files_of_a_person_are_moved_when_told_to_and_what_goes_with_them_is_told(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    request = "DELETE /pods/default/web-node"
    agent.will_answer(request, b"the pod is in /m/web.yaml, a file of yours\n", 409)
    refused = run_command("delete", "web", "--root-dir", agent.root_dir)
    assert (refused.code, refused.err) == (1, "the pod is in /m/web.yaml, a file of yours")
    answer = {"file": "/m/web.yaml", "moved": {"/m/web.yaml": "/r/web.yaml"}, "others": ["default/db"], "uid": "1"}
    agent.will_answer(f"{request}?removeFile=true&withOthers=true", answer)
    flags = ("--remove-file", "--with-others", "--no-wait")
    outcome = run_command("delete", "web", *flags, "--root-dir", agent.root_dir)
    assert outcome.err == "moved /m/web.yaml to /r/web.yaml\npod/default/db ends too\n"
    agent.will_answer(request, {"file": None, "moved": {}, "others": [], "uid": "1"})
    outcome = run_command("delete", "web", "--no-wait", "--root-dir", agent.root_dir)
    assert (outcome.out, outcome.err) == ("pod/default/web-node deleted\n", "")


def test_a_pod_that_exists_is_replaced_when_told_to(agent: StandInAgent) -> None:
    agent.will_answer("PUT /manifests/nginx.yaml?mustBeNew=true", {"problems": ["the pod exists"]})
    refused = run_command("run", "--root-dir", agent.root_dir, "nginx")
    assert (refused.code, refused.err) == (1, "the pod exists\n")
    accepts(agent, "nginx.yaml", before="")
    assert run_command("run", "--root-dir", agent.root_dir, "nginx", "--replace").code == 0


def test_an_image_becomes_a_pod(agent: StandInAgent) -> None:
    accepts(agent, "nginx.yaml", query="?mustBeNew=true")
    arguments = ["docker.io/library/nginx:1.27", "-e", "A=b=c", "--restart=Never", "-n", "web", "--", "sh", "-c", "x"]
    outcome = run_command("run", "--root-dir", agent.root_dir, *arguments)
    assert (outcome.code, outcome.out) == (0, "pod/default/web-node created\n")
    assert yaml.safe_load(agent.bodies[0]) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "nginx", "namespace": "web"},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "docker.io/library/nginx:1.27",
                    "command": ["sh", "-c", "x"],
                    "env": [{"name": "A", "value": "b=c"}],
                }
            ],
            "restartPolicy": "Never",
        },
    }


def test_flags_of_the_agent_and_of_a_pod_are_not_mixed(agent: StandInAgent) -> None:
    mixed = run_command("run", "nginx", "--node-name=n", "--root-dir", agent.root_dir)
    assert mixed.err == "--node-name: for the agent, which `run` starts without an IMAGE"
    no_image = run_command("run", "--env", "A=b", "--root-dir", agent.root_dir)
    assert no_image.err == "--env: for a pod, which `run` makes of an IMAGE"
    assert agent.requests == []


@pytest.mark.parametrize(
    ("image", "name"),
    [("nginx", "nginx"), ("x.io:5000/a/My_App:1@sha256:00", "my-app"), ("localhost/host", "host")],
)
def test_pods_are_called_as_their_images(image: str, name: str) -> None:
    assert pod_name(image) == name


def test_where_nothing_runs_there_is_nothing_to_stop(root_dir: Path) -> None:
    outcome = run_command("stop", "--root-dir", root_dir)
    assert (outcome.code, outcome.err) == (0, "Nothing runs.\n")


def test_pods_on_nobody_knows_which_runtime_are_not_taken_for_none(root_dir: Path) -> None:
    (root_dir / "pods/uid-1").mkdir(parents=True)
    file = configuration_in(root_dir)
    outcome = run_command("stop", "--root-dir", root_dir, "--config", file)
    assert outcome.code == 1
    assert f"{root_dir / 'pods'}: expected to be told which runtime" in outcome.err
    assert "--runtime-endpoint" in outcome.err
    assert "--kubeconfig" in outcome.err
    outcome = run_command("stop", "--root-dir", root_dir, "--config", file, "--runtime-endpoint", "embedded")
    assert (outcome.code, outcome.err) == (0, "Nothing runs.\n")
    (root_dir / "pods/uid-1").rmdir()
    outcome = run_command("stop", "--root-dir", root_dir, "--config", file)
    assert (outcome.code, outcome.err) == (0, "Nothing runs.\n")


def test_a_folder_of_pods_that_cannot_be_read_is_told(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("trikubelet.volumes.folders.names_in", broken)
    outcome = run_command("stop", "--root-dir", root_dir)
    assert (outcome.code, outcome.err) == (1, f"{root_dir / 'pods'} cannot be read: Input/output error")


def test_who_stops_a_node_of_a_cluster_asks_the_runtime_that_it_ran_on(root_dir: Path) -> None:
    file = configuration_in(root_dir)
    options = stopping_options(root_dir, None, file, root_dir / "kubelet.conf")
    assert (options.runtime_endpoint, options.cluster) == (KUBELET_RUNTIME, None)
    assert stopping_options(root_dir, None, None, root_dir / "kubelet.conf").runtime_endpoint == "embedded"
    file = configuration_in(root_dir, "containerRuntimeEndpoint: /run/x.sock")
    assert stopping_options(root_dir, None, file, Path("in-cluster")).runtime_endpoint == "unix:///run/x.sock"


def configuration_in(folder: Path, *more: str) -> Path:
    file = folder / "config.yaml"
    fields = ", ".join(("apiVersion: kubelet.config.k8s.io/v1beta1", "kind: KubeletConfiguration", *more))
    file.write_text(f"{{{fields}}}")
    return file


def test_who_stops_wants_no_pods_and_ends_what_is_there(root_dir: Path) -> None:
    (root_dir / "manifests").mkdir()
    options = stopping_options(root_dir, None, None)
    assert (options.manifests, options.only_ends, options.drains) == (None, True, True)
    assert options.configuration.healthz_port == 0


@pytest.mark.root
def test_a_machine_that_the_configuration_refuses_can_be_left(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swap and cgroup v1 keep an agent from running pods, not from ending them: else nobody could leave the cluster."""

    def refuses(*_: object) -> None:
        raise StartCheckError("swap is on")

    monkeypatch.setattr("trikubelet.agent.run.check_machine", refuses)
    file = root_dir / "config.yaml"
    file.write_text(
        "{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, failCgroupV1: true,"
        " cgroupsPerQOS: false, enforceNodeAllocatable: [], makeIPTablesUtilChains: false, protectKernelDefaults: true}"
    )
    assert not stopping_options(root_dir, None, file).configuration.fail_cgroup_v1
    (root_dir / "runtime").mkdir()
    (root_dir / "pods/uid-1").mkdir(parents=True)
    outcome = run_command("stop", "--root-dir", root_dir, "--config", file)
    assert (outcome.code, outcome.out) == (0, "No pod runs any more.\n"), outcome.err
    assert not (root_dir / "pods/uid-1").exists()


@pytest.mark.parametrize("folder", ["runtime/containers", "runtime/sandboxes", "pods"])
def test_an_agent_is_started_to_end_something_only_where_there_is_something(
    folder: str, root_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[AgentOptions] = []

    def run_agent(options: AgentOptions) -> int:
        started.append(options)
        return 0

    monkeypatch.setattr("trikubelet.agent.run.run_agent", run_agent)
    for kept in ("runtime/containers", "runtime/sandboxes", "runtime/images", "pods"):
        (root_dir / kept).mkdir(parents=True)
    outcome = run_command("stop", "--root-dir", root_dir)
    assert (outcome.code, outcome.err, started) == (0, "Nothing runs.\n", [])
    (root_dir / folder / "1").mkdir()
    assert run_command("stop", "--root-dir", root_dir).out == "No pod runs any more.\n"
    assert len(started) == 1


def test_a_keeper_without_an_agent_is_ended(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trikubelet.agent.run.run_agent", lambda options: 7)
    (root_dir / "runtime").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
        keeper.bind(str(root_dir / "runtime/keeper.sock"))
        keeper.listen()
        assert run_command("stop", "--root-dir", root_dir).code == 7
    assert run_command("stop", "--root-dir", root_dir).err == "Nothing runs.\n"


def test_a_listening_process_is_found_and_ended(root_dir: Path) -> None:
    program = (
        "import socket, sys, time; listening = socket.socket(socket.AF_UNIX); listening.bind(sys.argv[1]);"
        "listening.listen(); print('here', flush=True); time.sleep(3600)"
    )
    assert agent_pid(root_dir) is None
    path = str(root_dir / "trikubelet.sock")
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert agent_pid(root_dir) == process.pid
        end_process(process.pid)
        assert process.wait() == -15
    assert agent_pid(root_dir) is None, "a socket without a listener"


def test_who_stops_an_agent_sees_what_it_waits_for(
    agent: StandInAgent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stop, "TICK_SECONDS", 0.01)
    ending = {**a_pod("web-node")["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    agent.has_pods(a_pod("db-node"), {**a_pod("web-node"), "metadata": ending})
    why = "GET /pods/default/web-node/why"
    agent.will_answer(why, {"waits": [{"text": "preStop hook of `main`: 2.0 s"}], "cause": ""})
    program = "import signal, sys; signal.signal(15, lambda *_: None); print('here', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        agent.before[why] = process.stdin.close
        end_agent(agent.root_dir, process.pid)
        assert process.wait(PATIENCE) == 0
    assert capsys.readouterr().err == "waiting for web-node: preStop hook of `main`: 2.0 s\n"
