"""What is wrong with manifests, where a person looks for pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import StandInAgent, a_pod, run_command
from trikubelet.cli.manifest_problems import MOST_FILES, problem_lines

if TYPE_CHECKING:
    from pathlib import Path

PROBLEM = {"line": 8, "field": "spec.containers[0].image", "message": "Required value"}


def manifest(name: str, pods: list[str], *, names: list[str] | None = None, problems: int = 1) -> dict[str, Any]:
    return {
        "file": f"/m/{name}",
        "pods": pods,
        "names": pods if names is None else names,
        "problems": [PROBLEM] * problems,
        "broken": problems > 0,
    }


@pytest.fixture
def node(agent: StandInAgent) -> StandInAgent:
    """An agent with a pod whose file is broken now, one whose file is well, and a file that was never well."""
    agent.has_pods(a_pod(), a_pod("db-node"))
    agent.will_answer("GET /journal", {"type": "SNAPSHOT", "pods": []})
    edited = manifest("web.yaml", ["default/web-node"], names=[])
    fresh = manifest("fresh.yaml", [], names=["default/new-node"], problems=7)
    well = manifest("db.json", ["default/db-node"], problems=0)
    agent.will_answer("GET /manifests", [edited, fresh, well])
    agent.will_answer("GET /manifests?problems=true", [edited, fresh])
    for pod in ("web", "db"):
        life = {"pod": f"default/{pod}-node", "cause": "nothing", "waits": [], "phases": [], "runs": []}
        more = {"manifest": edited} if pod == "web" else {}
        agent.will_answer(f"GET /pods/default/{pod}-node/why", life | more)
    return agent


def ask(agent: StandInAgent, *command: str) -> Any:
    return run_command(*command, "--root-dir", agent.root_dir)


EDITED = [
    "manifest /m/web.yaml has a problem; of its last good version default/web-node runs on",
    "  line 8: spec.containers[0].image: Required value",
]


def test_pods_ends_with_the_manifests_that_have_problems(node: StandInAgent) -> None:
    outcome = ask(node, "pods")
    assert len(outcome.out.splitlines()) == 3
    assert outcome.err.splitlines() == [
        *EDITED,
        "manifest /m/fresh.yaml has 7 problems",
        *["  line 8: spec.containers[0].image: Required value"] * 5,
        "  and 2 more: trikubelet why /m/fresh.yaml",
    ]
    assert ask(node, "pods", "-o", "name").err == ""
    assert ask(node, "pods", "web").err == ""


def test_the_block_is_there_without_pods(node: StandInAgent) -> None:
    node.has_pods()
    assert ask(node, "pods").err.splitlines()[:3] == ["No pods.", *EDITED]


def test_an_agent_that_does_not_tell_of_manifests_is_none_with_problems(agent: StandInAgent) -> None:
    agent.has_pods(a_pod())
    assert ask(agent, "pods").err == ""


def test_why_says_that_a_running_pod_is_of_an_older_version(node: StandInAgent) -> None:
    outcome = ask(node, "why", "web")
    assert outcome.out.splitlines() == ["default/web-node: nothing", *(f"  {line}" for line in EDITED)]


@pytest.mark.parametrize("name", ["new", "new-node", "default/new", "fresh", "fresh.yaml", "/m/fresh.yaml"])
def test_why_answers_for_a_pod_that_never_was_and_for_its_file(node: StandInAgent, name: str) -> None:
    outcome = ask(node, "why", name)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "manifest /m/fresh.yaml has 7 problems",
        *["  line 8: spec.containers[0].image: Required value"] * 7,
    ]


def test_why_of_a_file_goes_on_to_its_pods(node: StandInAgent) -> None:
    assert ask(node, "why", "/m/db.json").out == "default/db-node: nothing\n"
    assert ask(node, "why", "web.yaml").out.splitlines()[:3] == [*EDITED, "default/web-node: nothing"]


def test_why_of_a_file_that_the_agent_does_not_read(node: StandInAgent, tmp_path: Path) -> None:
    outcome = ask(node, "why", f"{tmp_path}/web.txt")
    assert (outcome.code, outcome.err) == (
        1,
        f"the agent reads no manifest {tmp_path}/web.txt: `trikubelet validate {tmp_path}/web.txt` checks it",
    )


@pytest.mark.parametrize("command", [("describe", "new"), ("pods", "new"), ("delete", "new"), ("restart", "new")])
def test_a_command_for_a_pod_that_is_not_there_names_its_manifest(node: StandInAgent, command: tuple[str, ...]) -> None:
    outcome = ask(node, *command)
    assert outcome.code == 1
    assert outcome.err.startswith("the agent has no pod new: manifest /m/fresh.yaml has 7 problems\n  line 8: spec")


@pytest.mark.parametrize("name", ["ne", "default/fres", "web-api", "other/new", "new-n"])
def test_a_file_is_not_blamed_for_pods_of_longer_names(node: StandInAgent, name: str) -> None:
    outcome = ask(node, "why", name)
    assert outcome.code == 1
    assert outcome.err.startswith("the agent has no pod ")
    assert "manifest" not in outcome.err


def test_a_pod_is_not_taken_for_one_of_a_longer_name(agent: StandInAgent) -> None:
    agent.has_pods()
    broken = manifest("api.yaml", [], names=["default/web-api-node"])
    agent.will_answer("GET /manifests?problems=true", [broken])
    agent.will_answer("GET /journal", {"pods": [{"uid": "1", "pod": "default/web-db-node"}]})
    assert ask(agent, "why", "web").err == "the agent has no pod web: it has none"
    assert ask(agent, "why", "web-api").out.startswith("manifest /m/api.yaml has a problem")


def test_why_of_a_well_file_without_pods_says_so(node: StandInAgent) -> None:
    node.will_answer("GET /manifests", [manifest("empty.yaml", [], problems=0)])
    outcome = ask(node, "why", "empty.yaml")
    assert (outcome.code, outcome.out) == (0, "manifest /m/empty.yaml has no problems, and no pods\n")


def test_another_unknown_pod_is_answered_as_ever(node: StandInAgent) -> None:
    assert ask(node, "why", "nobody").err == "the agent has no pod nobody: it has default/db-node, default/web-node"


def test_many_files_and_hostile_texts_are_bounded_and_shown_in_lines() -> None:
    hostile = manifest("a\x1b[2J\nb", ["default/x\ny"]) | {
        "problems": [{"line": 1, "field": "a\nb", "message": "got \x1b]0;x\x07\n" + "x" * 10_000}]
    }
    lines = [*problem_lines([hostile] * 1000)]
    assert len(lines) == 2 * MOST_FILES + 1
    assert lines[-1] == f"and {1000 - MOST_FILES} more manifests with problems"
    assert all(line.isprintable() and len(line) < 5000 for line in lines)
