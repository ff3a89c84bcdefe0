"""The root folder: where the agent keeps its state, and where the other commands find it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

SOCKET_NAME: Final = "trikubelet.sock"
ENVIRONMENT: Final = "TRIKUBELET_ROOT"

F = TypeVar("F", bound=Callable[..., Any])


def default_root_dir(environ: Mapping[str, str] = os.environ, *, uid: int | None = None) -> Path:
    """`/var/lib/trikubelet` for root, else a folder in the user's state directory (XDG)."""
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/lib/trikubelet")
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".local" / "state"
    return base / "trikubelet"


def root_dir_option(function: F) -> F:
    """Adds `--root-dir`; the command gets `root_dir: Path`, absolute."""
    option = click.option(
        "--root-dir",
        type=click.Path(path_type=Path),
        envvar=ENVIRONMENT,
        callback=lambda _context, _parameter, value: Path.cwd() / value if value else default_root_dir(),
        help=f"The agent's state folder. [env: {ENVIRONMENT}; default: /var/lib/trikubelet as root, else "
        "~/.local/state/trikubelet]",
    )
    decorated: F = option(function)
    return decorated
