"""`trikubelet restart`: have the containers of a pod begin anew, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Restart a pod's containers.")
@click.argument("name", metavar="POD")
@click.option("-c", "--container", help="Only this one.  [default: all]")
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@agent_root_dir_option
def restart(name: str, container: str | None, namespace: str | None, root_dir: Path) -> None:
    """End the containers of the pod POD gracefully, with their preStop hooks, and start them again.

    The pod stays: its sandbox, its address and its volumes. A container in a back-off starts at once. Works for pods of
    a cluster too.
    """
    client = AgentClient(root_dir)
    metadata = find_pod(client, name, namespace).metadata
    pod = f"{metadata.namespace}/{metadata.name}"
    ended = client.post(f"/pods/{pod}/restart", {"container": container})
    click.echo(f"pod/{pod} restarted: {', '.join(ended)}")
