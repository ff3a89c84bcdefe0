"""What the terminal shows: the pure parts on a text stream, and a whole agent on a pseudo-terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trikubelet.agent.console import Terminal, name_some, short_name, short_path
from trikubelet.embedded.keeper.protocol import IDENTITY_NAME

PATIENCE = 120.0
COLUMNS = 80


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")


def test_no_line_is_longer_than_the_terminal_and_none_can_move_the_cursor() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.say("x" * 50)
    terminal.say("a\x1b[2Jb\nc")
    lines = out.getvalue().splitlines()
    assert lines == ["x" * 18 + "…", "a\N{REPLACEMENT CHARACTER}[2Jb c"]


def test_a_line_goes_above_the_status_which_stays() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.show("waiting")
    terminal.say("web gone")
    assert out.getvalue() == "waiting\r\x1b[Kweb gone\nwaiting"
    terminal.show("")
    assert out.getvalue().endswith("waiting\r\x1b[K")


def test_of_many_pods_some_are_named_as_people_name_them() -> None:
    names = [short_name(name, "node1") for name in ("web-node1_default", "dns-node1_kube-system", "db_default")]
    assert name_some(names) == "web, kube-system/dns, db"
    assert name_some([*names, "x", "y"]) == "web, kube-system/dns, db, and 2 more"


def test_paths_are_as_a_person_would_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "state/agent.log") == "state/agent.log"
    monkeypatch.chdir("/")
    assert short_path(tmp_path / "me/pods") == "~/pods"
    assert short_path(Path("/etc/kubernetes")) == "/etc/kubernetes"


def test_the_log_s_warnings_are_shown_once_but_for_those_of_pods() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    for _ in range(2):
        terminal.notice("warning", "disk", {"error": "full"})
        terminal.notice("warning", "container failed", {"pod": "web", "error": "x"})
    assert out.getvalue() == "warning: disk: full\n"


def test_what_to_do_about_a_warning_is_not_cut_off() -> None:
    out = io.StringIO()
    Terminal(out).notice("warning", "the disk is full: remove something", {})
    assert out.getvalue().splitlines() == ["warning: the disk", "  is full: remove", "  something"]


POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - {name: main, image: localhost/host, command: [sh, -c, "%s"]}
"""


@pytest.mark.root
def test_a_person_sees_the_pods_and_how_they_end(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "stubborn.yaml").write_text(POD % ("stubborn", "trap '' TERM; while :; do sleep 1; done"))
    (manifests / "fails.yaml").write_text(POD % ("fails", "exit 3"))
    master, slave = pty.openpty()
    command = ["run", f"--manifests={manifests}", f"--root-dir={tmp_path / 'root'}", "--runtime-endpoint=embedded"]
    program = "from trikubelet.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *command],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "COLUMNS": str(COLUMNS), "XDG_RUNTIME_DIR": str(tmp_path)},
    ) as process:
        os.close(slave)
        screen = _Screen(master)
        screen.until("fails +main exited with code 3")
        screen.until("stubborn +ready")
        # One press of Ctrl-C may come twice, to a group and from its parent.
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        screen.until("waiting for stubborn: [12] s of 2 s grace")
        screen.until("stubborn +gone")
        screen.until(None)
        assert process.wait(PATIENCE) == 0
    assert screen.text.rstrip().endswith("All pods have ended.")
    lines = re.split(r"[\r\n]+", screen.text)
    assert "Ctrl-C ends every pod" in screen.text
    assert all(len(line) <= COLUMNS for line in lines), max(lines, key=len)
    told = [line for line in lines if line.startswith(("fails ", "stubborn "))]
    assert len({line for line in told if "exited" not in line and "restart" not in line}) == len(
        [line for line in told if "exited" not in line and "restart" not in line]
    )
    assert "container started" in (tmp_path / "root" / "agent.log").read_text()


@pytest.mark.root
def test_a_terminal_that_closes_is_an_end_in_order(tmp_path: Path) -> None:
    """The kernel sends SIGHUP to the leader of the terminal's session, and all output fails from then on."""
    manifests, root = tmp_path / "manifests", tmp_path / "root"
    manifests.mkdir()
    (manifests / "stubborn.yaml").write_text(POD % ("stubborn", "trap '' TERM; while :; do sleep 1; done"))
    master, slave = pty.openpty()
    command = ["run", f"--manifests={manifests}", f"--root-dir={root}", "--runtime-endpoint=embedded"]
    program = "from tests.cli.command_line import main_on_terminal; main_on_terminal()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *command],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "COLUMNS": str(COLUMNS), "XDG_RUNTIME_DIR": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as process:
        os.close(slave)
        _Screen(master).until("stubborn +ready")
        keeper = os.pidfd_open(json.loads((root / "runtime" / IDENTITY_NAME).read_text())["pid"])
        os.close(master)
        _until_logged(root, "asked to end.*SIGHUP")
        process.send_signal(signal.SIGHUP)  # as the shell does, after the kernel
        assert process.wait(PATIENCE) == 0
    _until_logged(root, "ended .*exit_code=0")
    assert select.select([keeper], [], [], PATIENCE)[0], "it goes on, so its containers do"
    os.close(keeper)


def _until_logged(root: Path, pattern: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while re.search(pattern, text := (root / "agent.log").read_text()) is None:
        assert time.monotonic() < deadline, f"expected {pattern!r}, got:\n{text}"
        time.sleep(0.05)


class _Screen:
    """What came out of a pseudo-terminal."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.text = ""

    def until(self, pattern: str | None) -> None:
        """Read until the pattern is there, or the end."""
        deadline = time.monotonic() + PATIENCE
        while pattern is None or re.search(pattern, self.text) is None:
            ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"expected {pattern!r}, got:\n{self.text}"
            try:
                data = os.read(self._master, 65536)
            except OSError:  # its other end is closed
                data = b""
            if not data:
                os.close(self._master)
                assert pattern is None, f"expected {pattern!r}, got:\n{self.text}"
                return
            self.text += data.decode(errors="replace")
