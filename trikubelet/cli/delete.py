"""`trikubelet delete`: remove the manifest of a pod, and wait for the pod's end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.cli.wait import read_duration, time_limit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@click.command(short_help="End a pod for good.")
@click.argument("names", metavar="POD...", nargs=-1, required=True)
@click.option("-n", "--namespace", help="The pods' namespace, when their names are not enough.")
@click.option("--wait/--no-wait", "waits", default=True, help="Wait until the pod has ended.  [default: wait]")
@click.option("--timeout", default="0", help="How long to wait, such as 90s or 5m.  [default: as long as it takes]")
@agent_root_dir_option
def delete(names: tuple[str, ...], namespace: str | None, waits: bool, timeout: str, root_dir: Path) -> None:
    """Remove the manifests of the pods POD from the agent's folder, so that they end gracefully.

    Pods of a cluster are deleted with kubectl.
    """
    client = AgentClient(root_dir)
    seconds = read_duration(timeout)
    for name in names:
        metadata = find_pod(client, name, namespace).metadata
        pod = f"{metadata.namespace}/{metadata.name}"
        answer = client.delete(f"/pods/{pod}")
        click.echo(f"removed {answer['file']}", err=True)
        if not waits or _has_ended(client, answer["uid"], seconds):
            click.echo(f"pod/{pod} deleted")
            continue
        cause = client.get(f"/pods/{pod}/why")["cause"]
        raise CommandError(f"pod {pod} has not ended within {timeout}: {cause}")


def _has_ended(client: AgentClient, uid: str, seconds: float) -> bool:
    with time_limit(seconds):
        for line in client.lines("/journal", {"watch": True}):
            told = json.loads(line)
            entries = _entries_of(told, uid) if told["type"] == "SNAPSHOT" else [told]
            if any(_is_gone(entry, uid) for entry in entries[-1:]):
                return True
    return False


def _entries_of(snapshot: Mapping[str, Any], uid: str) -> list[dict[str, Any]]:
    """What was told of the phases of a pod."""
    entries = [entry for pod in snapshot["pods"] if pod["uid"] == uid for entry in pod["entries"]]
    return [entry for entry in entries if entry["kind"] == "phase"]


def _is_gone(entry: Mapping[str, Any], uid: str) -> bool:
    return (entry["uid"], entry["kind"], entry["what"]) == (uid, "phase", "Gone")
