"""`trikubelet web`: the pods live, in a browser."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Show the pods live in a browser.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where to listen.  [default: any that is free]")
@click.option(
    "--browser/--no-browser", default=None, help="Whether to open a browser.  [default: where there is a display]"
)
@agent_root_dir_option
def web(port: int, browser: bool | None, root_dir: Path) -> int:
    """Show the pods live in a browser, until it is interrupted.

    Prints a link that can be opened once. The page is for this machine only; from elsewhere, forward the port, as with
    ssh -L 8080:127.0.0.1:8080. It goes on when the agent is restarted. An agent that serves the page itself (run --ui)
    is asked for a link to it instead.
    """
    return show(root_dir, port, browser)


def show(root_dir: Path, port: int, browser: bool | None) -> int:
    """Serve the page, or give a link to the agent's own; the exit code. Raises CommandError."""
    client = AgentClient(root_dir)
    client.get("/version")  # that nobody answers is worth more as a message than as an empty page
    opens = has_display() if browser is None else browser
    own = None if port else _link_of_agent(client)
    if own is not None:
        echo(own)
        if opens:
            _open(own)
        return 0

    from functools import partial

    import trio

    from trikubelet.cli.web_server import serve

    number = trio.run(partial(serve, client.socket, port, partial(_told, opens), (signal.SIGINT, signal.SIGTERM)))
    return 128 + number


def has_display() -> bool:
    """Whether a browser would have a screen."""
    return bool(os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY"))


def _link_of_agent(client: AgentClient) -> str | None:
    """None when the agent serves no page."""
    try:
        url: str = client.post("/ui/link")["url"]
    except CommandError:
        return None
    return url


def _told(opens: bool, url: str) -> None:
    echo(url, "Good for one browser, within ten minutes. Ctrl-C ends it.")
    if opens:
        _open(url)


def _open(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        echo("No browser could be started: open the link yourself.", err=True)
