"""`trikubelet get`: what kubectl's `get` shows of what an agent has."""

from __future__ import annotations

from typing import Any, Final

import click

from trikubelet.cli.completion import complete_pods
from trikubelet.cli.failures import CommandError
from trikubelet.cli.pods import pods_options, show_pods

POD_KINDS: Final = ("pods", "pod", "po")


@click.command(short_help="List pods, as kubectl's get.")
@click.argument("kind", metavar="pods|pod/NAME")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_pods)
@pods_options
def get(kind: str, names: tuple[str, ...], **options: Any) -> None:
    """List pods: trikubelet get pods [NAME]..., trikubelet get pod/NAME."""
    show_pods(pod_names(kind, names), **options)


def pod_names(kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names that are asked for; none: all pods. Raises CommandError for another kind than pods."""
    kind, slash, name = kind.partition("/")
    if kind.lower() not in POD_KINDS:
        raise CommandError(
            f"an agent has pods only, got the kind {kind!r}; other objects are the API server's: use kubectl"
        )
    return (name, *names) if slash else names
