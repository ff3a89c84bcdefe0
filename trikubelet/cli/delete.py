"""`trikubelet delete`: remove the manifest of a pod, and wait for the pod's end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.find_pod import pod_among
from trikubelet.cli.output import echo
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.cli.wait import read_duration, time_limit
from trikubelet.cli.waiting import Waiting, raise_together

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@click.command(short_help="End a pod for good.")
@click.argument("names", metavar="POD...", nargs=-1, required=True)
@click.option("-n", "--namespace", help="The pods' namespace, when their names are not enough.")
@click.option("--wait/--no-wait", "waits", default=True, help="Wait until the pod has ended.  [default: wait]")
@click.option("--timeout", default="0", help="How long to wait, such as 90s or 5m.  [default: as long as it takes]")
@click.option("--remove-file", is_flag=True, help="Also if the manifest is yours: it moves to ROOT/removed.")
@click.option("--with-others", is_flag=True, help="Also if the manifest holds other pods: they end too.")
@agent_root_dir_option
def delete(
    names: tuple[str, ...],
    namespace: str | None,
    waits: bool,
    timeout: str,
    remove_file: bool,
    with_others: bool,
    root_dir: Path,
) -> None:
    """Remove the manifests of the pods POD, so that they end gracefully.

    A manifest that `apply` or `run` wrote is removed. A manifest of yours stays unless you give --remove-file. Pods of
    a cluster are deleted with kubectl.
    """
    client = AgentClient(root_dir)
    seconds = read_duration(timeout)
    items = client.get("/pods")["items"]
    asked: dict[str, str] = {}
    others: set[str] = set()
    """Pods that end with the files of those that were asked to end."""
    errors: list[CommandError] = []
    for name in names:
        pod = ""
        try:
            metadata = pod_among(client, items, name, namespace).metadata
            pod = f"{metadata.namespace}/{metadata.name}"
            answer = client.delete(f"/pods/{pod}", {"removeFile": remove_file, "withOthers": with_others})
        except CommandError as error:
            if pod in others and _is_no_more(client, metadata.uid):
                echo(f"pod/{pod} deleted")
            else:
                errors.append(error)
            continue
        tell_what_was_removed(answer)
        others.update(answer.get("others", ()))
        asked[answer["uid"]] = pod
    if waits:
        try:
            _wait_for_ends(client, asked, seconds)
            for pod in asked.values():
                cause = client.get(f"/pods/{pod}/why")["cause"]
                errors.append(CommandError(f"pod {pod} has not ended within {timeout}: {cause}"))
        except CommandError as error:
            errors.append(error)  # the agent has gone
    else:
        for pod in asked.values():
            echo(f"pod/{pod} deleted")
    raise_together(errors)


def tell_what_was_removed(answer: Mapping[str, Any]) -> None:
    """Print what became of the file of a pod, and which other pods end."""
    moved: Mapping[str, str] = answer.get("moved", {})
    for file, to in moved.items():
        echo(f"moved {file} to {to}", err=True)
    if answer["file"] is not None and answer["file"] not in moved:
        echo(f"removed {answer['file']}", err=True)
    for other in answer.get("others", ()):
        echo(f"pod/{other} ends too", err=True)


def _is_no_more(client: AgentClient, uid: str) -> bool:
    try:
        return not client.get("/pods", {"uid": uid})["items"]
    except CommandError:
        return False


def _wait_for_ends(client: AgentClient, asked: dict[str, str], seconds: float) -> None:
    """Take each pod out of `asked` when it has ended, until none is left or the time is over."""
    waiting = Waiting(client)
    waiting.pods.update(dict.fromkeys(asked.values()))
    with waiting.shown(), time_limit(seconds):
        for line in client.lines("/journal", {"watch": True}, waiting.tick) if asked else ():
            told = json.loads(line)
            for uid in [uid for uid in asked if _has_ended(told, uid)]:
                waiting.clear()
                echo(f"pod/{asked[uid]} deleted")
                del waiting.pods[asked.pop(uid)]
            if not asked:
                return


def _has_ended(told: Mapping[str, Any], uid: str) -> bool:
    entries = _entries_of(told, uid) if told["type"] == "SNAPSHOT" else [told]
    return any(_is_gone(entry, uid) for entry in entries[-1:])


def _entries_of(snapshot: Mapping[str, Any], uid: str) -> list[dict[str, Any]]:
    """What was told of the phases of a pod."""
    entries = [entry for pod in snapshot["pods"] if pod["uid"] == uid for entry in pod["entries"]]
    return [entry for entry in entries if entry["kind"] == "phase"]


def _is_gone(entry: Mapping[str, Any], uid: str) -> bool:
    return (entry["uid"], entry["kind"], entry["what"]) == (uid, "phase", "Gone")
