"""`trikubelet ui`: the command."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Watch pods live on the terminal.")
@click.option("--web", is_flag=True, help="In a browser instead, as `trikubelet web` does.")
@agent_root_dir_option
def ui(web: bool, root_dir: Path) -> None:
    """Show pods with their timelines, live, with keys for logs, why they wait, shells and restarts.

    `?` shows the keys. It needs no colours (NO_COLOR), and goes on when the agent is started again.
    """
    if web:
        from trikubelet.cli.web import show

        sys.exit(show(root_dir, port=0, browser=None))
    if not (os.isatty(0) and sys.stdout.isatty()) or os.environ.get("TERM", "") in ("", "dumb"):
        raise CommandError("this is no terminal that can show it: `trikubelet pods -w` prints the changes of pods")
    client = AgentClient(root_dir)
    client.get("/version")
    import trio

    from trikubelet.cli.ui.app import App
    from trikubelet.clock import SystemClock

    if code := trio.run(App(client.socket, SystemClock()).run):
        sys.exit(code)
