"""What a person sees where the agent runs: a banner, a line for each change of a pod, and what its end waits for.

The full log goes to a file meanwhile. Of its lines only warnings and errors that concern no pod are shown, each once:
what concerns pods comes from the journal (`pod_lines`).
"""

from __future__ import annotations

import os
import shutil
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet import __version__
from trikubelet.agent.pod_lines import PodLines, name_for_people
from trikubelet.formats.terminal_text import cut, plain, width
from trikubelet.pods.phases import Terminating, TerminationRequested
from trikubelet.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

    from trikubelet.agent.agent import Agent
    from trikubelet.agent.options import AgentOptions
    from trikubelet.pods.journal import Viewer
    from trikubelet.pods.registry import PodStates
    from trikubelet.pods.types import Kill

LOG_FILE: Final = "agent.log"
LARGEST_LOG: Final = 10 * 1024 * 1024
"""Bytes. A log that is larger when an agent starts becomes `agent.log.1`, in the place of the one before."""
MOST_NAMED: Final = 3
"""Pods that are named at once; of the others it is said how many they are."""
_OF_PODS: Final = frozenset({"pod", "pods", "uid", "uids", "reason"})
"""Fields of log lines that concern pods, or are events."""
_CLEAR: Final = "\r\x1b[K"


class Terminal:
    """Writes lines, and below them one that says what is going on now. No line is longer than the terminal is wide."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._status = ""
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        self._write(f"{_CLEAR if self._status else ''}{self._cut(line)}\n{self._status}")

    def show(self, status: str) -> None:
        """Replace the last line; nothing is shown there any more when it is empty."""
        before, self._status = self._status, self._cut(status)
        if before != self._status:
            self._write(f"{_CLEAR if before else ''}{self._status}")

    def notice(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        """A warning or an error of the log; see `configure_logging`."""
        if fields.keys().isdisjoint(_OF_PODS):
            details = ", ".join(str(fields[name]) for name in ("error", "problem") if name in fields)
            line = f"{level}: {event}" + (f": {details}" if details else "")
            if line not in self._said:
                self._said.add(line)
                # It ends with what to do, which must not be cut off.
                columns = shutil.get_terminal_size().columns - 1
                for part in textwrap.wrap(line, columns, subsequent_indent="  ", break_on_hyphens=False):
                    self.say(part)

    def _cut(self, line: str) -> str:
        columns = shutil.get_terminal_size().columns
        shown = plain(line)
        return shown if width(shown) < columns else f"{cut(shown, columns - 2)}…"

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:
            # The terminal has gone; the pods have not. What is buffered may go: at Python's exit it would be an error.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:  # noqa: PTH123
                os.dup2(nothing.fileno(), self._out.fileno())


def log_to_file(options: AgentOptions, terminal: Terminal) -> None:
    """Write the log to a file in the root folder from now on, and its notices to the terminal."""
    path = options.root_dir / LOG_FILE
    if path.exists() and path.stat().st_size > LARGEST_LOG:
        path.rename(path.with_name(f"{LOG_FILE}.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    file = os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    configure_logging("text", options.configuration.logging.verbosity, file=file, notice=terminal.notice)


class Console:
    """Tells of one agent on a terminal."""

    def __init__(self, agent: Agent, terminal: Terminal) -> None:
        self._agent = agent
        self._terminal = terminal
        ends_since = agent.clock.now() if agent.options.only_ends else None
        self._lines = PodLines(agent.options.node_name, ends_since=ends_since)

    def banner(self) -> None:
        """What runs, where its log is, and what to do next."""
        options = self._agent.options
        parts = [f"node {options.node_name}", f"runtime {options.runtime_endpoint}"]
        if options.cluster is not None:
            parts.append(f"kubeconfig {short_path(options.cluster.kubeconfig)}")
        if options.manifests is not None:
            parts.append(f"manifests in {short_path(options.manifests)}")
        end = "ends every pod" if options.drains else "ends the agent; pods run on"
        self._terminal.say(f"trikubelet {__version__}: {', '.join(parts)}")
        self._terminal.say("  trikubelet ui              what runs, live")
        self._terminal.say("  trikubelet logs POD -f     what a pod says")
        self._terminal.say("  trikubelet why POD         what it waits for, and how it got there")
        self._terminal.say(f"Ctrl-C {end}. The full log is in {short_path(options.root_dir / LOG_FILE)}.")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell of pods, until cancelled."""
        with self._agent.journal.view() as viewer:
            task_status.started()
            try:
                while True:
                    self._tell(await viewer.receive())
            finally:
                self._tell_the_rest(viewer)

    def _tell(self, news: Mapping[str, object]) -> None:
        lines = self._lines.snapshot if news["type"] == "SNAPSHOT" else self._lines.entry
        for line in lines(news):
            self._terminal.say(line)

    def _tell_the_rest(self, viewer: Viewer) -> None:
        while (news := viewer.receive_nowait()) is not None:
            self._tell(news)


async def show_ending(asked: trio.Event, progress: Callable[[], str], terminal: Terminal, again: str) -> None:
    """From the moment at which the end is asked for, show each second what it waits for, until cancelled."""
    await asked.wait()
    terminal.show("")
    terminal.say(f"Ending. Ctrl-C again {again}.")
    try:
        while True:
            terminal.show(progress())
            await trio.sleep(1)
    finally:
        terminal.show("")


def pods_waited_for(states: PodStates, node_name: str) -> str:
    """The pods that are being ended, with what is left of their grace; those that have the longest come first."""
    now = trio.current_time()
    ending = [phase for phase in states.phases().values() if isinstance(phase, TerminationRequested | Terminating)]
    ending.sort(key=lambda phase: -phase.kill.deadline)
    waits = [f"{short_name(phase.identity.full_name, node_name)}: {_left(phase.kill, now)}" for phase in ending]
    return f"waiting for {name_some(waits)}" if waits else ""


def name_some(names: list[str]) -> str:
    """Names, or what begins with them, in a line."""
    more = len(names) - MOST_NAMED
    return f"{', '.join(names[:MOST_NAMED])}{f', and {more} more' if more > 0 else ''}"


def _left(kill: Kill, now: float) -> str:
    seconds = kill.deadline - now
    if seconds <= 0:
        return f"{kill.grace_period} s of grace are over"
    return f"{seconds:.0f} s of {kill.grace_period} s grace"


def short_name(full_name: str, node_name: str) -> str:
    """Of `name_namespace`, as people name a pod of this node."""
    name, _, namespace = full_name.rpartition("_")
    return name_for_people(f"{namespace}/{name}", node_name)


def short_path(path: Path) -> str:
    """As a person would write it."""
    for folder, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(folder) and path != folder and folder != Path("/"):
            return f"{prefix}{path.relative_to(folder)}"
    return str(path)
