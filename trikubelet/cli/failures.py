"""How a command fails: one clear sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

from typing import IO, Any

import click

from trikubelet.cli.output import echo_wrapped


class CommandError(click.ClickException):
    """What went wrong and what to do, in one sentence."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from instances too

    def show(self, file: IO[Any] | None = None) -> None:
        echo_wrapped(f"Error: {self.format_message()}", err=True)
