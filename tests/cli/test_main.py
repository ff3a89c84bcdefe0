from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import run_command
from trikubelet import __version__

if TYPE_CHECKING:
    from pathlib import Path

POD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: main\n    image: x:1\n"
COMMANDS = [
    "run",
    "pods",
    "describe",
    "logs",
    "exec",
    "attach",
    "port-forward",
    "cp",
    "top",
    "stats",
    "validate",
    "images",
    "check",
    "runtime",
    "version",
]


def trikubelet(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    program = "from trikubelet.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


def test_help_names_every_command() -> None:
    outcome = trikubelet("--help")
    assert outcome.returncode == 0
    assert all(f"\n  {command} " in outcome.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert run_command(command, "--help").code == 0


def test_an_error_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    outcome = trikubelet("pods", "--root-dir", str(tmp_path))
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("Error: no agent answers on ")
    assert outcome.stderr.count("\n") == 1


def test_an_unknown_command_is_a_usage_error() -> None:
    outcome = trikubelet("nonsense")
    assert outcome.returncode == 2
    assert "No such command" in outcome.stderr


def test_a_reader_that_goes_away_makes_no_noise() -> None:
    read, write = os.pipe()
    os.close(read)
    program = "import sys; from trikubelet.cli.main import main; sys.argv[1:] = ['version']; main()"
    outcome = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert outcome.stderr == b""


def test_the_version_is_the_packages() -> None:
    assert run_command("version").out.splitlines()[0] == f"trikubelet {__version__}"


def test_light_commands_import_nothing_heavy() -> None:
    program = (
        "import sys\nfrom trikubelet.cli.main import cli\ncli(['version'], standalone_mode=False)\n"
        "heavy = {'trio', 'rich', 'httpx', 'yaml', 'trikubelet.api', 'betterproto'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


def test_good_manifests_are_ok(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POD.format(name="a"))
    outcome = run_command("validate", tmp_path / "a.yaml", "--node-name", "n")
    assert (outcome.code, outcome.out) == (0, f"{tmp_path}/a.yaml: ok: default/a-n\n")


@pytest.mark.parametrize("on_machines", [True, False])
def test_host_ports_that_would_lead_nowhere_are_warned_of(
    on_machines: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikubelet.cli.validate._is_on_machines_network", lambda: on_machines)
    (tmp_path / "a.yaml").write_text(POD.format(name="a") + "    ports: [{containerPort: 80, hostPort: 8080}]\n")
    outcome = run_command("validate", tmp_path / "a.yaml", "--node-name", "n")
    assert (outcome.code, outcome.out) == (0, f"{tmp_path}/a.yaml: ok: default/a-n\n")
    place = f"{tmp_path}/a.yaml:1: spec.containers[0].ports[0].hostPort: host port 8080 does not lead to port 80"
    assert outcome.err.startswith(place) is on_machines


def test_problems_have_file_line_and_field(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POD.format(name="a"))
    (tmp_path / "b.yaml").write_text(POD.format(name="b").replace("image: x:1", "image: ''"))
    (tmp_path / "c.yaml").write_text(POD.format(name="a"))
    (tmp_path / "d.yaml").write_text(POD.format(name="d") + "    imagee: x\n")
    (tmp_path / ".hidden").write_text("nonsense")
    outcome = run_command("validate", tmp_path, tmp_path / "none.yaml", "--node-name", "n")
    assert outcome.code == 1
    assert outcome.out.splitlines() == [
        f"{tmp_path}/a.yaml: ok: default/a-n",
        f"{tmp_path}/b.yaml:8: spec.containers[0].image: Required value",
        f"{tmp_path}/c.yaml:1: metadata: the pod a-n_default is taken by {tmp_path}/a.yaml",
        f"{tmp_path}/d.yaml: ok: default/d-n",
        f"{tmp_path}/none.yaml: cannot be read: No such file or directory",
    ]
    warning = f"{tmp_path}/d.yaml:9: spec.containers[0].imagee: unknown field, it has no effect (warning)\n"
    assert outcome.err == warning


def test_a_runtime_needs_a_unix_socket() -> None:
    outcome = run_command("runtime", "serve", "--listen", "tcp://x")
    assert outcome.err == "--listen: expected unix:///PATH, got 'tcp://x'"
