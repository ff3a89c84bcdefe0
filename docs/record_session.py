"""Records `docs/session.svg`: what somebody sees who starts the agent on the example pods and looks at them.

    python docs/record_session.py

The agent and the commands are the real ones, in a folder and a network namespace of their own, so it needs root. What
the commands print is drawn as a terminal.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = Path(__file__).with_name("session.svg")
PROGRAM: Final = Path(sys.executable).with_name("trikubelet")
WIDTH: Final = 96
START_TIMEOUT: Final = 60.0
"""Seconds in which the agent has to have its pods running."""
COMMANDS: Final = (
    "trikubelet pods",
    "trikubelet logs hello -c reader --tail 2",
    "trikubelet why crash",
    "trikubelet exec hello -c reader -- cat /shared/greeting",
    "trikubelet restart hello -c reader",
    "trikubelet delete stubborn",
    "trikubelet pods",
)


class Session:
    """An agent on copies of the example pods, and the commands beside it."""

    def __init__(self, folder: Path) -> None:
        self.environment = {**os.environ, "TRIKUBELET_ROOT": str(folder / "state"), "COLUMNS": str(WIDTH)}
        shutil.copytree(ROOT / "examples/pods", folder / "pods")
        # Its image would have to come from a registry.
        (folder / "pods/pulled.yaml").unlink()
        self.log = (folder / "log").open("wb")
        command = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", str(PROGRAM), "run"]
        command += ["--manifests", str(folder / "pods"), "--node-name", "node1"]
        self.agent = subprocess.Popen(command, env=self.environment, stdout=self.log, stderr=self.log)

    def say(self, command: str) -> str:
        """What a command prints, on either stream."""
        words = [PROGRAM, *command.split()[1:]]
        done = subprocess.run(
            words, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
        )
        return done.stdout

    def wait_until_it_runs(self) -> None:
        """Until the greeting is there and a container has crashed. Raises TimeoutError."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            pods = self.say("trikubelet pods")
            if "2/2" in pods and pods.count("1/1") == 3 and "CrashLoopBackOff" in pods:
                return
            time.sleep(0.5)
        raise TimeoutError(pods)

    def end(self) -> None:
        self.agent.send_signal(signal.SIGINT)
        self.agent.wait(60)
        self.log.close()


def record() -> Console:
    """The commands with what they print."""
    screen = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder))
        try:
            session.wait_until_it_runs()
            for command in COMMANDS:
                screen.print(Text("$ ", "bold green") + Text(command, "bold"))
                screen.print(Text.from_ansi(session.say(command).rstrip("\n").replace(f"{folder}/", "")))
                screen.print()
        finally:
            session.end()
    return screen


def draw(screen: Console) -> str:
    """As an SVG that loads nothing from elsewhere."""
    svg = screen.export_svg(title="trikubelet", unique_id="session")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")


if __name__ == "__main__":
    PICTURE.write_text(draw(record()), encoding="utf-8")
