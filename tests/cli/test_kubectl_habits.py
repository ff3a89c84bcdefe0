"""What people type who know kubectl."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.shell_completion import ShellComplete

from tests.cli.conftest import StandInAgent, a_pod, run_command
from trikubelet import __version__
from trikubelet.cli.completion import script_path
from trikubelet.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Outcome


def two_containers(**status: Any) -> dict[str, Any]:
    pod = a_pod(**status)
    pod["metadata"]["labels"] = {"app": "web"}
    pod["spec"]["containers"].append({"name": "side", "image": "x:2"})
    return pod


@pytest.fixture
def node(agent: StandInAgent) -> StandInAgent:
    """An agent with two pods."""
    agent.has_pods(two_containers(), a_pod("db-node", "data", phase="Pending"))
    for place in ("default/web-node", "data/db-node"):
        agent.will_answer(f"GET /events?uid=uid-{place.replace('/', '-')}", [])
        life: dict[str, Any] = {"pod": place, "cause": "", "waits": [], "askedBy": [], "phases": [], "runs": []}
        agent.will_answer(f"GET /pods/{place}/why", life)
    return agent


def ask(agent: StandInAgent, *command: str) -> Outcome:
    return run_command(*command, "--root-dir", agent.root_dir)


def first_words(outcome: Outcome) -> list[str]:
    """The names in a table."""
    return [line.split()[1] for line in outcome.out.splitlines()[1:]]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("pods", ["web-node", "db-node"]),
        ("get pods", ["web-node", "db-node"]),
        ("get po -A", ["web-node", "db-node"]),
        ("get pod web", ["web-node"]),
        ("get pods/web-node", ["web-node"]),
        ("pods web db", ["web-node", "db-node"]),
        ("pods -n data", ["db-node"]),
        ("pods -n data -A", ["web-node", "db-node"]),
        ("pods -l app=web", ["web-node"]),
        ("pods -l !app", ["db-node"]),
        ("pods --field-selector status.phase!=Running", ["db-node"]),
    ],
)
def test_pods_are_chosen_as_kubectl_chooses_them(node: StandInAgent, command: str, names: list[str]) -> None:
    assert first_words(ask(node, *command.split())) == names


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("name", "pod/web-node\npod/db-node\n"),
        ("jsonpath={.items[*].metadata.name}", "web-node db-node\n"),
        ('jsonpath={range .items[*]}{.metadata.name}{"\\n"}{end}', "web-node\ndb-node\n\n"),
        (
            "custom-columns=N:.metadata.name,I:.spec.containers[*].image,X:.absent",
            "N I X web-node x:1,x:2 <none> db-node x:1 <none>",
        ),
    ],
)
def test_pods_are_shown_as_asked(node: StandInAgent, output: str, text: str) -> None:
    shown = ask(node, "pods", "-o", output).out
    assert shown == text or shown.split() == text.split()


def test_one_named_pod_is_an_object_and_not_a_list(node: StandInAgent) -> None:
    assert json.loads(ask(node, "get", "pod", "web", "-o", "json").out)["metadata"]["name"] == "web-node"
    assert json.loads(ask(node, "get", "pods", "-o", "json").out)["kind"] == "PodList"


def test_the_first_line_can_be_left_out(node: StandInAgent) -> None:
    assert len(ask(node, "pods", "--no-headers").out.splitlines()) == 2


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("pods wbe", "the agent has no pod wbe; did you mean web-node?"),
        ("pods nothing-like-it", "the agent has no pod nothing-like-it: it has db-node, web-node"),
        ("pods -l a=b=c", "unable to parse 'a=b=c'"),
        ("pods -o jsonpath={.a", "error parsing jsonpath {.a, unclosed action"),
        ("pods -o custom-columns=NAME", "expected custom-columns=NAME:PATH"),
        ("pods -o xml", "expected wide, json, yaml, name"),
        ("get nodes", "an agent has pods only, got the kind 'nodes'"),
        ("logs web nobody", "container nobody is not valid for pod web-node out of: main, side"),
        ("logs web main -c side", "only one of -c or an inline [CONTAINER] arg is allowed"),
        ("logs web main --all-containers", "should not be specified with a container name"),
        ("lgos web", "No such command 'lgos'; did you mean logs?"),
        ("ps", "`trikubelet pods` lists what runs"),
    ],
)
def test_what_cannot_be_done_says_why(node: StandInAgent, command: str, error: str) -> None:
    outcome = ask(node, *command.split())
    assert outcome.code != 0
    assert error in outcome.err
    assert "?." not in outcome.err


@pytest.mark.parametrize("command", ["describe web", "describe pod web", "describe pod/web", "describe pods web-node"])
def test_a_pod_is_described_however_it_is_named(node: StandInAgent, command: str) -> None:
    assert ask(node, *command.split()).out.splitlines()[0].split() == ["Name:", "web-node"]


def test_several_pods_are_described(node: StandInAgent) -> None:
    text = ask(node, "describe", "web", "data/db").out
    assert [line.split()[1] for line in text.splitlines() if line.startswith("Name:")] == ["web-node", "db-node"]


def test_logs_say_which_container_they_are_of(node: StandInAgent) -> None:
    node.will_answer("GET /containerLogs/default/web-node/main", b"1\n")
    outcome = ask(node, "logs", "web", "--tail=-1")
    assert (outcome.out, outcome.err) == ("1\n", 'Defaulted container "main" out of: main, side\n')
    outcome = ask(node, "logs", "pod/web", "main")
    assert (outcome.out, outcome.err) == ("1\n", "")


def test_logs_of_all_containers_are_told_apart(agent: StandInAgent) -> None:
    statuses = [
        {"name": name, "image": "", "imageID": "", "ready": True, "restartCount": 0, "containerID": f"x://{name}"}
        for name in ("main", "side")
    ]
    agent.has_pods(two_containers(containerStatuses=statuses))
    agent.will_answer("GET /containerLogs/default/web-node/main", b"1\n2\n")
    agent.will_answer("GET /containerLogs/default/web-node/side", b"3\n")
    assert ask(agent, "logs", "web", "--all-containers").out == "1\n2\n3\n"
    assert ask(agent, "logs", "web", "--all-containers", "--prefix").out == (
        "[pod/web-node/main] 1\n[pod/web-node/main] 2\n[pod/web-node/side] 3\n"
    )
    agent.will_answer("GET /containerLogs/default/web-node/main?follow=true", b"1\n2\n")
    agent.will_answer("GET /containerLogs/default/web-node/side?follow=true", b"3\n")
    followed = ask(agent, "logs", "web", "--all-containers", "-f").out
    assert sorted(followed.split()) == ["1", "2", "3"]


def test_times_and_sizes_reach_the_agent(node: StandInAgent) -> None:
    query = "sinceTime=2026-01-31T12%3A00%3A00Z&limitBytes=10"
    node.will_answer(f"GET /containerLogs/default/web-node/main?{query}", b"x")
    assert ask(node, "logs", "web", "main", "--since-time", "2026-01-31T12:00:00Z", "--limit-bytes", "10").out == "x"


def test_the_version_is_told_in_every_way() -> None:
    assert run_command("--version").out == f"trikubelet {__version__}\n"
    assert json.loads(run_command("version", "-o", "json").out)["version"] == __version__


def test_manifests_may_come_by_stdin() -> None:
    manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: m, image: x}]}\n"
    done = click.testing.CliRunner().invoke(cli, ["validate", "-"], input=manifest, standalone_mode=False)
    assert done.output.startswith("-: ok: default/web")
    done = click.testing.CliRunner().invoke(cli, ["validate", "-"], input=manifest[:-3], standalone_mode=False)
    assert done.output.startswith("stdin:")
    assert done.return_value == 1


# --- Completion ------------------------------------------------------------------------------------------------------


def completed(agent: StandInAgent, *words: str) -> list[str]:
    """What a shell offers for the last word."""
    *before, last = words
    completion = ShellComplete(cli, {}, "trikubelet", "_TRIKUBELET_COMPLETE")
    arguments = [before[0], "--root-dir", str(agent.root_dir), *before[1:]] if before else []
    return [item.value for item in completion.get_completions(arguments, last)]


def test_commands_pods_and_containers_are_completed(node: StandInAgent) -> None:
    assert {"pods", "port-forward"} <= set(completed(node, "po"))
    assert completed(node, "logs", "w") == ["web"]
    assert completed(node, "logs", "web", "") == ["main", "side"]
    assert completed(node, "logs", "web", "-c", "s") == ["side"]
    assert completed(node, "exec", "") == ["db", "web"]
    assert "custom-columns=" in completed(node, "pods", "-o", "c")


def test_without_an_agent_nothing_is_completed_and_nothing_is_said(
    root_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(StandInAgent(root_dir), "logs", "w") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("shell", "path"),
    [
        ("bash", ".local/share/bash-completion/completions/trikubelet"),
        ("zsh", ".local/share/zsh/site-functions/_trikubelet"),
        ("fish", ".config/fish/completions/trikubelet.fish"),
    ],
)
def test_completion_is_installed_where_the_shell_looks(
    shell: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    outcome = run_command("completion", shell, "--install")
    assert outcome.code == 0, outcome.err
    assert "_TRIKUBELET_COMPLETE" in (tmp_path / path).read_text()
    assert script_path(shell, tmp_path, {}) == tmp_path / path
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "name your shell" in run_command("completion").err
