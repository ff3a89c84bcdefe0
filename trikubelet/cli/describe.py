"""`trikubelet describe pod`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path


@click.group(short_help="Describe a pod.")
def describe() -> None:
    """Show everything about one object."""


@describe.command()
@click.argument("name")
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@agent_root_dir_option
def pod(name: str, namespace: str | None, root_dir: Path) -> None:
    """Show everything about the pod NAME, and what happened to it."""
    from trikubelet.cli.pod_description import describe_pod, waits_for_images
    from trikubelet.cli.why import why_lines

    client = AgentClient(root_dir)
    found = find_pod(client, name, namespace)
    events = client.get("/events", {"uid": found.metadata.uid})
    pulls = client.get("/images/pulls") if waits_for_images(found) else []
    click.echo(describe_pod(found, events, SystemClock().now(), pulls), nl=False)
    click.echo("Waits For:")
    life = client.get(f"/pods/{found.metadata.namespace}/{found.metadata.name}/why")
    for line in why_lines(life):
        click.echo(f"  {line}")
