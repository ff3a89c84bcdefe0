"""No text of a container, an image or a manifest steers the terminal of who looks at it."""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cli.conftest import StandInAgent, a_pod, run_command
from tests.cli.test_stats import FULL
from tests.cli.test_why import ANSWER, EVENTS, LOG
from trikubelet.cli import output
from trikubelet.cli.failures import CommandError
from trikubelet.cli.main import main
from trikubelet.formats.terminal_text import plain, width

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDS = 30
FORGED = "\n2026-01-01T00:00:00Z [error    ] forged"
STEERING = ("\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\x7f", "\r", FORGED, "\u2028", "\u202e", "\u0085", "\t", "日本")
EXACT = frozenset(
    "uid name namespace pod type phase what kind status at end until since startedAt finishedAt firstSeen lastSeen "  # noqa: SIM905
    "creationTimestamp apiVersion restartPolicy startTime".split()
)
"""What the API keeps to its own forms, or the agent writes itself."""
POD: dict[str, Any] = {
    **a_pod(
        podIP="10.0.0.1",
        podIPs=[{"ip": "10.0.0.1"}],
        reason="Evicted",
        message="what the node says",
        conditions=[{"type": "Ready", "status": "False", "reason": "why", "message": "more"}],
        initContainerStatuses=[
            {"name": "set-up", "image": "x:1", "imageID": "sha256:1", "containerID": "c://1", "ready": True}
            | {"state": {"terminated": {"exitCode": 0, "reason": "Completed", "message": "done\nwell"}}}
        ],
        containerStatuses=[
            {"name": "main", "image": "x:1", "imageID": "sha256:1", "containerID": "c://2", "restartCount": 3}
            | {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "it backs off"}}}
            | {"lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "last words"}}}
        ],
    ),
    "metadata": {
        **a_pod()["metadata"],
        "labels": {"app": "web"},
        "annotations": {"note": "of the image"},
    },
    "spec": {
        "nodeName": "node",
        "initContainers": [{"name": "set-up", "image": "x:1"}],
        "containers": [
            {
                "name": "main",
                "image": "x:1",
                "command": ["sh", "-c", "exit 3"],
                "args": ["more"],
                "env": [{"name": "A", "value": "text"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "livenessProbe": {"exec": {"command": ["true"]}},
            }
        ],
        "volumes": [{"name": "data", "hostPath": {"path": "/srv"}}],
    },
}
IMAGES = [{"id": "sha256:1", "repo_tags": ["x:1"], "repo_digests": [], "size": 3, "pinned": False}]
APPLIED = {"problems": ["web.yaml:1: it is wrong"], "warnings": [], "before": None, "file": "web.yaml", "pods": []}
CONFIGURED = {"warnings": ["odd"], "before": "old\nlines\n", "file": "web.yaml", "pods": ["default/web"]}
COMMANDS = (
    "pods",
    "pods -o wide",
    "pods -o name",
    "pods -o custom-columns=N:.metadata.annotations.note,M:.status.message",
    "get pod web",
    "describe web",
    "why web",
    "events",
    "events web",
    "stats",
    "top pods --containers",
    "top node",
    "images",
    "apply wrong.yaml",
    "apply right.yaml",
    "delete refused",
    "restart web",
    "logs web -c missing",
    "wait web --for condition=Ready --timeout 1ms",
    "validate wrong.yaml right.yaml quoted.yaml",
)


def text(chance: random.Random) -> str:
    """Bytes as a container prints them, and what a terminal obeys."""
    parts = [*chance.choices(STEERING, k=2), chance.randbytes(6).decode(errors="replace"), "é", "word"]
    return "".join(chance.sample(parts, k=len(parts)))


def hostile(data: Any, chance: random.Random) -> Any:
    """The same with texts of a container wherever one may come from."""
    if isinstance(data, dict):
        return {key: value if key in EXACT else hostile(value, chance) for key, value in data.items()}
    if isinstance(data, list):
        return [hostile(item, chance) for item in data]
    return data + text(chance) if isinstance(data, str) else data


@pytest.fixture(params=range(ROUNDS))
def told(request: pytest.FixtureRequest, agent: StandInAgent, tmp_path: Path) -> StandInAgent:
    """An agent that passes on what hostile containers say."""
    chance = random.Random(request.param)
    answers: Mapping[str, Any] = {
        "GET /pods/default/web-node/why": ANSWER,
        "GET /events": EVENTS,
        "GET /events?uid=uid-default-web-node": EVENTS,
        "GET /stats/summary": FULL,
        "GET /stats/summary?only_cpu_and_memory=true": FULL,
        "GET /images": IMAGES,
        "GET /images/pulls": [],
        "GET /version": {"runtime_name": "containerd"},
        "PUT /manifests/wrong.yaml": APPLIED,
        "PUT /manifests/right.yaml": CONFIGURED,
        "POST /pods/default/web-node/restart": {"ended": ["main"]},
    }
    for question, data in answers.items():
        agent.will_answer(question, hostile(data, chance))
    agent.has_pods(hostile(POD, chance), hostile(a_pod("refused-node"), chance))
    agent.will_answer(LOG, text(chance).encode())
    agent.will_answer("DELETE /pods/default/refused-node", text(chance).encode(), 400)
    for name in ("wrong.yaml", "right.yaml"):
        (tmp_path / name).write_bytes(text(chance).encode())
    (tmp_path / "quoted.yaml").write_text(json.dumps(hostile(POD | {text(chance): 1}, chance)))
    return agent


def test_no_command_passes_a_control_character_on(
    told: StandInAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        where = () if command.startswith("validate") else ("--root-dir", str(told.root_dir))
        monkeypatch.setattr(sys, "argv", ["trikubelet", *command.split(), *where])
        with pytest.raises(SystemExit):
            main()
        said = "".join(capsys.readouterr())
        assert said, command
        wrong = [each for each in said if each != "\n" and not each.isprintable()]
        assert not wrong, f"{command}: {wrong} in {said!r}"
        assert not [line for line in said.split("\n") if line.startswith(FORGED.strip())], f"{command}: {said}"


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    CommandError(f"the probe said \x1b[2J{FORGED}\u202e").show()
    bad = "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().err == f"Error: the probe said {bad}[2J {FORGED.strip()}{bad}\n"


@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_documents_are_exact_and_steer_nothing(told: StandInAgent, kind: str) -> None:
    out = run_command("pods", "-o", kind, "--root-dir", told.root_dir).out
    read = json.loads(out) if kind == "json" else yaml.safe_load(out)
    assert read == json.loads(told.answers["GET /pods"][1])
    assert not [each for each in out if each != "\n" and not each.isprintable()]


def test_a_template_is_exact_for_programs(agent: StandInAgent) -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {"note": "a\x1b[2J\tb"}
    agent.has_pods(pod)
    asked = run_command("pods", "web", "-o", "jsonpath={.metadata.annotations.note}", "--root-dir", agent.root_dir)
    assert asked.out == "a\x1b[2J\tb\n"


def test_tables_stay_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("日本\x1b[31m", "one"), ("e\u0301", "two"), ("plain", "three")]
    output.print_table(("NAME", "B"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert [width(re.match(r"(.*   )\w+$", line)[1]) for line in lines] == [12] * 4  # type: ignore[index]
    assert lines[1].startswith(plain("日本\x1b[31m"))


def test_a_message_of_several_lines_stays_below_its_label(agent: StandInAgent) -> None:
    agent.has_pods(POD)
    agent.will_answer("GET /events?uid=uid-default-web-node", [])
    agent.will_answer("GET /images/pulls", [])
    agent.will_answer("GET /pods/default/web-node/why", ANSWER)
    out = run_command("describe", "web", "--root-dir", agent.root_dir).out
    assert "      Message:        done\n                      well\n" in out


WRITERS = {"output.py", "completion.py"}
"""`output` is the edge, and a completion script is a program."""


def test_commands_write_through_one_module() -> None:
    folder = Path(output.__file__).parent
    found = set()
    for file in folder.rglob("*.py"):
        name = str(file.relative_to(folder))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "click.secho", "print"):
                found.add(name)
    assert found - WRITERS <= {"ui/app.py"}, "use `output.echo`"
