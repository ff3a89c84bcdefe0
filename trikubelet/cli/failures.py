"""How a command fails: one clear sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

import click


class CommandError(click.ClickException):
    """What went wrong and what to do, in one sentence. Exits with 1."""
