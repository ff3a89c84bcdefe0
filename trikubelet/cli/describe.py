"""`trikubelet describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.completion import complete_pods
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.get import POD_KINDS, pod_names
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Describe pods.")
@click.argument("names", nargs=-1, required=True, metavar="[pod] NAME...", shell_complete=complete_pods)
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@agent_root_dir_option
def describe(names: tuple[str, ...], namespace: str | None, root_dir: Path) -> None:
    """Show everything about pods, and what happened to them: describe NAME, describe pod NAME, describe pod/NAME."""
    from trikubelet.cli.output import echo, echo_wrapped
    from trikubelet.cli.pod_description import describe_pod, waits_for_images
    from trikubelet.cli.why import why_lines

    client = AgentClient(root_dir)
    first, *rest = names
    if first.lower() in POD_KINDS and rest:
        names = tuple(rest)
    for number, name in enumerate(names):
        kind, slash, _ = name.partition("/")
        if slash and kind.lower() in POD_KINDS:
            (name,) = pod_names(name, ())
        found = find_pod(client, name, namespace)
        events = client.get("/events", {"uid": found.metadata.uid})
        pulls = client.get("/images/pulls") if waits_for_images(found) else []
        if number:
            echo("", "")
        echo(*describe_pod(found, events, SystemClock().now(), pulls).splitlines())
        echo("Waits For:")
        life = client.get(f"/pods/{found.metadata.namespace}/{found.metadata.name}/why")
        for line in why_lines(life):
            echo_wrapped(f"  {line}")
