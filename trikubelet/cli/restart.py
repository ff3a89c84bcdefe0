"""`trikubelet restart`: restart the containers of pods, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.find_pod import pod_among
from trikubelet.cli.output import echo
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.cli.waiting import Waiting, raise_together

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Restart pods' containers.")
@click.argument("names", metavar="POD...", nargs=-1, required=True)
@click.option("-c", "--container", help="Only this one.  [default: all]")
@click.option("-n", "--namespace", help="The pods' namespace, when their names are not enough.")
@agent_root_dir_option
def restart(names: tuple[str, ...], container: str | None, namespace: str | None, root_dir: Path) -> None:
    """End the containers of the pods POD gracefully, with their preStop hooks, and start them again.

    The pods stay: their sandboxes, their addresses and their volumes. A container in a back-off starts at once. Works
    for pods of a cluster too.
    """
    client = AgentClient(root_dir)
    items = client.get("/pods")["items"]
    waiting = Waiting(client)
    errors: list[CommandError] = []
    for name in names:
        try:
            metadata = pod_among(client, items, name, namespace).metadata
            waiting.pods[f"{metadata.namespace}/{metadata.name}"] = None
        except CommandError as error:
            errors.append(error)
    pods = list(waiting.pods)
    with waiting.shown():
        paths = [f"/pods/{pod}/restart" for pod in pods]
        for pod, answer in zip(pods, client.post_together(paths, {"container": container}, waiting.tick), strict=True):
            waiting.clear()
            del waiting.pods[pod]
            if isinstance(answer, CommandError):
                errors.append(answer)
            else:
                echo(f"pod/{pod} restarted: {', '.join(answer)}")
    raise_together(errors)
