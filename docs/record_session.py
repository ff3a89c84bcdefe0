"""Plays the first two minutes of somebody new, and records `docs/session.svg`: what the two terminals show.

    python docs/record_session.py [--wheel FILE] [--out FILE]

The wheel is installed into an empty environment, and somebody types what the steps say: into a shell in which the agent
runs, and into a second one. Both are real shells on pseudo-terminals, and all that is waited for are texts on their
screens. It fails with what is on the screen when an expected text does not come, when there are too many lines before
the first pod runs, or when a line is wider than the terminal. It needs root, for a network namespace and a host name of
its own, and nothing from a network: the wheel's dependencies are the packages of the environment that runs it.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyte
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = Path(__file__).with_name("session.svg")
WIDTH: Final = 100
HEIGHT: Final = 200
"""Lines: nothing scrolls away."""
PATIENCE: Final = 60.0 * float(os.environ.get("TESTS_SLOWER", "1"))
"""Seconds in which an expected text has to be there."""
MOST_LINES: Final = 15
"""On the screen before the first pod runs."""
PROMPT: Final = "$ "
OWN_MACHINE: Final = "ip link set lo up; echo node1 > /proc/sys/kernel/hostname; exec sh"
MANIFEST: Final = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, imge: localhost/host, command: [python3, -m, http.server]}]
"""
"""With the mistake that is found and mended."""
OTHER_AGENTS: Final = re.compile(r"^warning: pods run without cgroups .*\n(  .*\n)*", re.MULTILINE)
"""Said where another agent has the machine's cgroups for pods, as where tests run: nobody new has that."""
CLOCK: Final = "sh -c 'trap exit TERM; while date; do sleep 1; done'"


class Terminal:
    """A shell on a pseudo-terminal, and what a person sees of it."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self.shell = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # else Ctrl-C would reach nobody
        )
        os.close(slave)
        self.home = environment["HOME"]
        self.printed = b""
        self.screen: Any = pyte.Screen(WIDTH, HEIGHT)
        self._stream: Any = pyte.ByteStream(self.screen)

    def lines(self) -> list[str]:
        """Those that are used."""
        shown = [line.rstrip() for line in self.screen.display]
        return shown[: self.screen.cursor.y + 1]

    def text(self, since: int = 0) -> str:
        return "\n".join(self.lines()[since:])

    def until(self, pattern: str, since: int = 0) -> None:
        """Wait for a text below the line `since`. Raises AssertionError with the screen."""
        self._until(lambda: re.search(pattern, self.text(since), re.MULTILINE) is not None, repr(pattern))

    def until_prompt(self, since: int = -1) -> None:
        """Until the shell waits for a command, below that line."""
        self._until(lambda: self.screen.cursor.y > since and self._is_at_prompt(), "a prompt")

    def _until(self, seen: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not seen():
            assert self._read(deadline - time.monotonic()), f"expected {what} on the screen, got:\n{self.text()}"

    def _read(self, seconds: float) -> bool:
        """Whether anything came."""
        ready, _, _ = select.select([self._master], [], [], max(seconds, 0.0))
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:  # the other end is closed
            data = b""
        self.printed += data
        self._stream.feed(data)
        return bool(data)

    def type(self, command: str) -> None:
        """A whole line, once the shell waits for one."""
        self.until_prompt()
        os.write(self._master, command.encode() + b"\n")

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def _is_at_prompt(self) -> bool:
        cursor = self.screen.cursor
        return bool(cursor.x == len(PROMPT) and self.screen.display[cursor.y].startswith(PROMPT))

    def say(self, command: str, *expected: str) -> None:
        """Type a command, and see what it must print before the next prompt."""
        self.until_prompt()
        row = self.screen.cursor.y
        self.type(command)
        self.until_prompt(row)
        for pattern in expected:
            self.until(pattern, row + 1)

    def close(self) -> int:
        """End the shell with the status of its last command, which is returned."""
        self.type("exit")
        code = self.shell.wait(PATIENCE)
        os.close(self._master)
        return code

    def kill(self) -> None:
        """After a failure."""
        if self.shell.poll() is None:
            self.shell.kill()
            self.shell.wait()
            os.close(self._master)


def empty_environment(folder: Path) -> Path:
    """A new virtual environment, with the packages of this one but for ours; its folder of programs."""
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "trikubelet" not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (own,) = (folder / "venv/lib").glob("python3*/site-packages")
    (own / "packages.pth").write_text(f"{packages}\n")
    return folder / "venv/bin"


def play(wheel: Path, folder: Path) -> tuple[Terminal, Terminal, str]:
    """The two terminals after all of it, and the measures. Raises AssertionError when a step fails."""
    home = folder / "home"
    home.mkdir()
    (home / wheel.name).symlink_to(wheel.resolve())
    (home / "web.yaml").write_text(MANIFEST)
    programs = empty_environment(folder)
    environment = {
        "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(home),
        "TRIKUBELET_ROOT": str(home / "state"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PS1": PROMPT,
        "PIP_NO_INDEX": "1",
        "PIP_NO_COMPILE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    first = Terminal(["unshare", "--net", "--uts", "sh", "-c", OWN_MACHINE], home, environment)
    second = Terminal(["sh"], home, environment)
    try:
        measures = two_minutes(first, second, wheel.name)
    except BaseException:
        subprocess.run([programs / "trikubelet", "stop"], env=environment, check=False, timeout=PATIENCE)
        first.kill()
        second.kill()
        raise
    return first, second, measures


def two_minutes(first: Terminal, second: Terminal, wheel: str) -> str:
    """Install, run, look, break something, see why, stop. What it took, in a line."""
    # Install and run.
    began = time.monotonic()
    first.say(f"python -m pip install --quiet {wheel}")
    installed = time.monotonic()
    first.type("trikubelet run")
    first.until("Ctrl-C ends every pod")
    first.until(r"nothing to run: state/manifests holds no pod[^`]*`trikubelet run IMAGE`")
    second.say(f"trikubelet run localhost/host --name clock -- {CLOCK}", "^pod/default/clock-node1 created$")
    first.until(r"^clock +ready")
    runs = time.monotonic()
    lines = len(re.findall(".+", OTHER_AGENTS.sub("", f"{first.text()}\n{second.text()}")))
    # Look.
    second.say("trikubelet pods", r"^default +clock-node1 +1/1 +Running +0 ")
    second.say("trikubelet logs clock --tail 1", r"^\w+ \w+ +\d+ \d+:\d+:\d+")
    second.say("trikubelet exec clock -- hostname", "^clock-node1$")
    # Break something, and see why.
    second.say("trikubelet run localhost/hots --name typo", "^pod/default/typo-node1 created$")
    first.until(r"^typo +cannot pull localhost/hots: ")
    second.say(
        "trikubelet why typo", r"^default/typo-node1: (ErrImagePull|ImagePullBackOff) of `main`, tried again in "
    )
    second.say("trikubelet delete typo", "^pod/default/typo-node1 deleted$")
    second.say("tail -n 1 web.yaml")
    second.say(
        "trikubelet apply -f web.yaml",
        r"^web.yaml:6: spec.containers\[0\].imge: unknown field, it has no effect \(warning\)$",
        r"^web.yaml:6: spec.containers\[0\].image: Required value$",
    )
    second.say("sed -i s/imge/image/ web.yaml")
    second.say("trikubelet apply -f web.yaml", "^pod/default/web-node1 created$")
    first.until(r"^web +ready")
    # Stop.
    first.press(b"\x03")
    first.until(r"^\^C?Ending\. Ctrl-C again leaves pods running\.$")
    first.until(r"^clock +gone")
    first.until(r"^web +gone")
    first.until_prompt()
    first.say('echo "$?"', "^0$")
    second.say("trikubelet pods", "no agent answers")
    widest = max((line for terminal in (first, second) for line in printed_lines(terminal)), key=len)
    assert lines <= MOST_LINES, f"expected at most {MOST_LINES} lines before the first pod runs, got {lines}"
    assert len(widest) <= WIDTH, f"expected lines of at most {WIDTH} columns, got {widest!r}"
    return (
        f"3 commands to the first running pod, {runs - began:.1f} s with {installed - began:.1f} s of installing; "
        f"{lines} lines on the screen, the widest {len(widest)} columns"
    )


def printed_lines(terminal: Terminal) -> list[str]:
    """As programs printed them, before the terminal broke any; without what was typed, in a home with a short name."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.printed.decode()).replace(terminal.home, "~")
    return [line for line in re.split(r"[\r\n]+", text) if not line.startswith(PROMPT)]


def draw(terminals: dict[str, Terminal]) -> str:
    """As an SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for title, terminal in terminals.items():
        console.print(Text(title, "dim"))
        for row in range(terminal.screen.cursor.y + 1):
            line = _line(terminal, row)
            if line.plain not in ("", "$", "$ exit", '$ echo "$?"', "0"):
                console.print(line)
        console.print()
    svg = console.export_svg(title="trikubelet", unique_id="session")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")


def _line(terminal: Terminal, row: int) -> Text:
    """With the colours that programs gave it, what was typed in bold, and the home folder as people write it."""
    line = Text()
    for column in range(WIDTH):
        cell = terminal.screen.buffer[row][column]
        colour = {"default": "", "brown": "yellow"}.get(cell.fg, cell.fg.replace("bright", "bright_"))
        line.append(cell.data, f"{'bold ' if cell.bold else ''}{colour}".strip())
    line.rstrip()
    if terminal.home in line.plain:
        line = Text(line.plain.replace(terminal.home, "~"))
    if line.plain.startswith(PROMPT):
        line = Text(PROMPT, "bold green") + Text(line.plain.removeprefix(PROMPT), "bold")
    return line


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, str(ROOT / "packaging/build.py"), "wheel", f"--out={folder}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="what to install (default: one that is built)")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the recording (default: docs/session.svg)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="two-minutes-") as name:
        first, second, measures = play(arguments.wheel or build_wheel(Path(name)), Path(name))
        for terminal in (first, second):
            terminal.close()
    arguments.out.write_text(draw({"one terminal": first, "another one": second}), encoding="utf-8")
    print(measures)


if __name__ == "__main__":
    main()
