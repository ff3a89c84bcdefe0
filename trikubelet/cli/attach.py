"""`trikubelet attach`: the first process of a container, like `kubectl attach`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.completion import complete_pods
from trikubelet.cli.exec import NO_TERMINAL, container_target, exit_code, run_session
from trikubelet.cli.failures import CommandError
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.output import echo
from trikubelet.cli.pod_containers import chosen_container, refuse_ended_pod
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import Container, Pod


@click.command(short_help="Attach to what a container runs.")
@click.argument("pod", shell_complete=complete_pods)
@click.option("-c", "--container", help="Which container.  [default: the pod's first]")
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@click.option("-i", "--stdin", is_flag=True, help="Pass stdin to the container.")
@click.option("-t", "--tty", is_flag=True, help="Expect a terminal. The container decides whether it has one.")
@click.option("-q", "--quiet", is_flag=True, help="Print only what the container prints.")
@click.option(
    "--detach-keys", default="ctrl-p,ctrl-q", show_default=True, help="With -i and a terminal: leave it running."
)
@agent_root_dir_option
def attach(
    pod: str,
    container: str | None,
    namespace: str | None,
    stdin: bool,
    tty: bool,
    quiet: bool,
    detach_keys: str,
    root_dir: Path,
) -> int:
    """Show what a container of POD prints from now on, and with -i type to it.

    POD is a name, with or without its -NODE ending, or NAMESPACE/NAME. Ctrl-C ends this command; with a terminal it
    goes to the container, and the detach keys end this command.
    """
    client = AgentClient(root_dir)
    found = find_pod(client, pod, namespace)
    refuse_ended_pod(found, "attach")
    chosen = chosen_container(found, container, quiet=quiet)
    raw = stdin and chosen.tty and os.isatty(0)
    if not quiet:
        _warn(chosen, tty=tty, stdin=stdin, raw=raw)
    from trikubelet.cli.terminal import DetachKeys
    from trikubelet.http.streaming.command import CommandStreams, Failed

    keys = DetachKeys(detach_keys)
    streams = CommandStreams(stdin=stdin, stdout=True, stderr=not chosen.tty, tty=chosen.tty)
    target = container_target(client, "attach", found, chosen.name, streams)
    outcome = run_session(target, found, raw=raw, redraw=True, detach=keys if raw else None)
    if isinstance(outcome, Failed):
        raise CommandError(outcome.message)
    if raw and not quiet:
        echo(_how_to_return(found, chosen), err=True)
    return exit_code(outcome)


def _warn(container: Container, *, tty: bool, stdin: bool, raw: bool) -> None:
    if tty and not container.tty:
        echo(f"error: Unable to use a TTY - container {container.name} did not allocate one", err=True)
    elif container.tty and stdin and not raw:
        echo(NO_TERMINAL, err=True)
    echo("If you don't see a command prompt, try pressing enter.", err=True)


def _how_to_return(pod: Pod, container: Container) -> str:
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return f"Session ended, resume using 'trikubelet attach {name} -c {container.name} -i -t' command"
