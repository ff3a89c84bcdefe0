"""How a command fails: one clear sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

import click


class CommandError(click.ClickException):
    """What went wrong and what to do, in one sentence."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from instances too
