"""`trikubelet exec`: a command in a container, like `kubectl exec`."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.completion import complete_pods
from trikubelet.cli.failures import CommandError
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.output import echo
from trikubelet.cli.pod_containers import chosen_container, refuse_ended_pod, why_not_running
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import Pod
    from trikubelet.cli.command_session import Outcome, Target
    from trikubelet.cli.terminal import DetachKeys
    from trikubelet.http.streaming.command import CommandStreams

NO_TERMINAL: Final = "Unable to use a TTY - input is not a terminal or the right kind of file"
_NOT_FOUND: Final = re.compile(r"\bexec: .*(executable file not found|no such file or directory)", re.DOTALL)
_NOT_EXECUTABLE: Final = re.compile(r"\bexec: .*(permission denied|is a directory|exec format error)", re.DOTALL)
_DASHES: Final = "trikubelet.dashes"


class _ExecCommand(click.Command):
    """Remembers whether there was a `--`: without it, options of the command would be taken for ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_DASHES] = "--" in args
        return super().parse_args(ctx, args)


@click.command("exec", cls=_ExecCommand, short_help="Run a command in a container.")
@click.argument("pod", shell_complete=complete_pods)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-c", "--container", help="Which container.  [default: the pod's first]")
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@click.option("-i", "--stdin", is_flag=True, help="Pass stdin to the command.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal. Needs -i.")
@click.option("-q", "--quiet", is_flag=True, help="Print only what the command prints.")
@agent_root_dir_option
@click.pass_context
def exec_(
    ctx: click.Context,
    pod: str,
    command: tuple[str, ...],
    container: str | None,
    namespace: str | None,
    stdin: bool,
    tty: bool,
    quiet: bool,
    root_dir: Path,
) -> int:
    """Run COMMAND in a container of POD: trikubelet exec POD -- COMMAND [ARGUMENT]...

    POD is a name, with or without its -NODE ending, or NAMESPACE/NAME. The exit code is the command's; 126 if it cannot
    be run, 127 if it does not exist.
    """
    if command and not ctx.meta[_DASHES]:
        raise click.UsageError("expected -- before the command: trikubelet exec POD -- COMMAND [ARGUMENT]...")
    if not command:
        raise click.UsageError("you must specify at least one command for the container")
    client = AgentClient(root_dir)
    found = find_pod(client, pod, namespace)
    refuse_ended_pod(found, "exec into")
    chosen = chosen_container(found, container, quiet=quiet)
    raw = stdin and tty and os.isatty(0)
    if stdin and tty and not raw and not quiet:
        echo(NO_TERMINAL, err=True)
    from trikubelet.http.streaming.command import CommandStreams, Failed

    streams = CommandStreams(stdin=stdin, stdout=True, stderr=not raw, tty=raw)
    outcome = run_session(container_target(client, "exec", found, chosen.name, streams, command), found, raw=raw)
    if isinstance(outcome, Failed):
        raise command_failure(outcome.message)
    return exit_code(outcome)


def container_target(
    client: AgentClient, verb: str, pod: Pod, container: str, streams: CommandStreams, command: tuple[str, ...] = ()
) -> Target:
    """`verb`: exec or attach."""
    from trikubelet.cli.command_session import Target

    path = f"/{verb}/{pod.metadata.namespace}/{pod.metadata.name}/{container}"
    return Target(client.socket, path, streams, command)


def run_session(
    target: Target, pod: Pod, *, raw: bool, redraw: bool = False, detach: DetachKeys | None = None
) -> Outcome:
    """Returns how it ended (`interact`). Raises CommandError when it did not begin."""
    import trio

    from trikubelet.cli.command_session import interact

    try:
        return trio.run(partial(interact, target, raw=raw, redraw=redraw, detach=detach))
    except CommandError as error:
        raise explained(error, pod, target.path.rpartition("/")[2]) from None


def explained(error: CommandError, pod: Pod, container: str) -> CommandError:
    """The same, with what the container's status says where the agent only said that it finds none that runs."""
    if "not found" not in error.message or not (why := why_not_running(pod, container)):
        return error
    return CommandError(f"{error.message}: {why}")


def command_failure(message: str) -> CommandError:
    """A command that did not run, with the exit codes of shells."""
    if _NOT_FOUND.search(message):
        return CommandError(message, 127)
    return CommandError(message, 126 if _NOT_EXECUTABLE.search(message) else 1)


def exit_code(outcome: Outcome) -> int:
    """This process's; a failure of the command goes to stderr, as kubectl does."""
    from trikubelet.cli.command_session import Interrupted
    from trikubelet.http.streaming.command import Exited

    if isinstance(outcome, Interrupted):
        return 128 + outcome.number
    if isinstance(outcome, Exited) and outcome.code:
        echo(f"command terminated with exit code {outcome.code}", err=True)
        return outcome.code
    return 0
