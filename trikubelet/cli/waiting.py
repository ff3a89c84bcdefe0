"""What a command shows on stderr while it waits for pods: the agent's reasons, as `trikubelet why` tells them.

On a terminal a line at the bottom follows them each second. Elsewhere a line is written when a reason changes, and its
figures alone are no change.
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.agent.console import Terminal
    from trikubelet.cli.client import AgentClient

LEAST_PAUSE: Final = 5.0
"""Seconds between two lines where there is no terminal."""
MOST_ASKED: Final = 3
"""Pods whose reasons are shown."""
_FIGURES: Final = re.compile(r"\d+(\.\d+)?")


class Waiting:
    """Shows for what the pods are waited. `tick` it each second."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self.pods: dict[str, None] = {}
        """Those that are waited for, as `namespace/name`, in order."""
        self._terminal: Terminal | None = None
        self._told = ""
        self._told_at = float("-inf")

    def tick(self) -> None:
        """Ask for the reasons, and show them. Raises no CommandError: the command itself notices a lost agent."""
        from trikubelet.agent.console import Terminal, name_some  # what ends within a second spares it

        reasons = list(self._reasons())
        rest = list(self.pods)[len(reasons) :]
        shown = [text.removeprefix("default/") for text in (*reasons, *rest)]
        text = f"waiting for {name_some(shown)}" if reasons else ""
        if sys.stderr.isatty():
            self._terminal = self._terminal or Terminal(sys.stderr)
            self._terminal.show(text)
        elif text and time.monotonic() - self._told_at >= LEAST_PAUSE:
            reason = _FIGURES.sub("", text)
            if reason != self._told:
                self._told, self._told_at = reason, time.monotonic()
                echo(text, err=True)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Take the line at the bottom away at the end of the block."""
        try:
            yield
        finally:
            self.clear()

    def clear(self) -> None:
        """Take the line at the bottom away, before something else is written."""
        if self._terminal is not None:
            self._terminal.show("")

    def _reasons(self) -> Iterator[str]:
        """Yield the first pods, each with what it waits for, if it waits for anything."""
        for pod in list(self.pods)[:MOST_ASKED]:
            with suppress(CommandError):
                waits = self._client.get(f"/pods/{pod}/why")["waits"]
                yield f"{pod}: {waits[0]['text']}" if waits else pod


def raise_together(errors: list[CommandError]) -> None:
    """Show all errors but the last, which is raised; so a command does what it can, and exits 1."""
    for error in errors[:-1]:
        error.show()
    if errors:
        raise errors[-1]
