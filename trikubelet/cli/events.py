"""`trikubelet events`: what happened to the pods and to the node, like `kubectl events`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.output import column_widths, echo, format_row, print_json
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from pathlib import Path

_HEADER = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
_LEAST = (9, 7, 12, 24, 0)


@click.command(short_help="Show what happened to pods and to the node.")
@click.argument("name", metavar="[POD]", required=False)
@click.option("-n", "--namespace", help="Only pods of this namespace.")
@click.option("-w", "--watch", is_flag=True, help="Keep running, and print events as they happen.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print events as JSON, one per line with --watch.")
@agent_root_dir_option
def events(name: str | None, namespace: str | None, watch: bool, output: str | None, root_dir: Path) -> None:
    """Show what happened to all pods and to the node, or to the pod POD, the oldest first."""
    client = AgentClient(root_dir)
    uid = ""
    if name is not None:
        from trikubelet.cli.find_pod import find_pod

        uid = find_pod(client, name, namespace).metadata.uid

    def wanted(event: Mapping[str, Any]) -> bool:
        return (not uid or event.get("uid") == uid) and namespace in (None, event.get("namespace"))

    if not watch:
        _print([event for event in client.get("/events") if wanted(event)], output)
        return
    widths = list(_LEAST[:-1])
    if output is None:
        echo(format_row(_HEADER, _LEAST))
    for line in client.lines("/events", {"watch": True}):
        event = json.loads(line)
        if not wanted(event):
            continue
        if output == "json":
            print_json(event, indent=None)
        else:
            cells = _cells(event, None)
            *widths, _ = [max(pair) for pair in zip((*widths, 0), column_widths(cells, []), strict=True)]
            echo(format_row(cells, (*widths, 0)))
        sys.stdout.flush()


def _print(found: Iterable[Mapping[str, Any]], output: str | None) -> None:
    from trikubelet.clock import SystemClock

    if output == "json":
        print_json(list(found))
        return
    now = SystemClock().now()
    rows = [_cells(event, now) for event in found]
    if not rows:
        echo("No events.", err=True)
        return
    widths = column_widths(_HEADER, rows)
    for row in (_HEADER, *rows):
        echo(format_row(row, widths))


def _cells(event: Mapping[str, Any], now: datetime | None) -> tuple[str, ...]:
    """`now`: None shows the time itself, since a line that stays grows older."""
    from trikubelet.api.timestamps import parse_time
    from trikubelet.cli.pod_columns import human_duration

    moment = parse_time(str(event["lastSeen"]))
    if moment is None:
        when = "<unknown>"
    elif now is None:
        when = moment.astimezone().strftime("%H:%M:%S")
    else:
        when = human_duration(now - moment)
    count = int(event.get("count", 1))
    about = "node" if "name" not in event else f"pod/{event['namespace']}/{event['name']}"
    where = f"{event['fieldPath']}: " if event.get("fieldPath") else ""
    times = f" (x{count})" if count > 1 else ""
    message = " ".join(f"{where}{event['message']}{times}".split())
    return when, str(event["type"]), str(event["reason"]), about, message
