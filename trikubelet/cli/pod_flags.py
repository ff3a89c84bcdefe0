"""The options of `run` that describe a pod: they mean something with an IMAGE only, and those of the agent without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

POD_ARGUMENTS: Final = frozenset({"image", "command", "name", "namespace", "env", "restart", "replace", "dry_run"})
_BOTH: Final = POD_ARGUMENTS | {"root_dir"}


def pod_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them, and the arguments IMAGE and COMMAND."""
    for add in (
        click.argument("command", nargs=-1, metavar="[-- COMMAND...]"),
        click.argument("image", required=False),
        click.option("--dry-run", is_flag=True, help="With IMAGE: check the pod, and write nothing."),
        click.option("--replace", is_flag=True, help="With IMAGE: replace the pod of this name, if there is one."),
        click.option(
            "--restart",
            type=click.Choice(["Always", "OnFailure", "Never"]),
            default="Always",
            help="With IMAGE: when the container starts again.  [default: Always]",
        ),
        click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="With IMAGE: an environment variable."),
        click.option("-n", "--namespace", help="With IMAGE: the pod's namespace.  [default: default]"),
        click.option("--name", help="With IMAGE: the pod's name.  [default: the image's]"),
    ):
        function = add(function)
    return function


def check_flags(context: click.Context) -> None:
    """Raises CommandError for flags that mean nothing beside the others."""
    given = {
        param.name: next((flag for flag in param.opts if flag.startswith("--")), param.opts[0])
        for param in context.command.params
        if param.name and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    }
    if context.params["image"]:
        if others := sorted(flag for name, flag in given.items() if name not in _BOTH):
            raise CommandError(f"{', '.join(others)}: for the agent, which `run` starts without an IMAGE")
    elif others := sorted(flag for name, flag in given.items() if name in POD_ARGUMENTS):
        raise CommandError(f"{', '.join(others)}: for a pod, which `run` makes of an IMAGE")
