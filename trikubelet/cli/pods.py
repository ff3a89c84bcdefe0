"""`trikubelet pods`: the pods of the agent, like `kubectl get pods`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from trikubelet.cli.client import AgentClient, agent_gone
from trikubelet.cli.output import column_widths, format_row, print_json, print_table, print_yaml
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_HEADER = ("NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE")
_WIDE = (*_HEADER, "IP", "NODE")
_STATUS_COLUMN = 3


@click.command(short_help="List pods.")
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml"]), help="More columns, or whole objects.")
@click.option("-w", "--watch", is_flag=True, help="Keep running, and print every change.")
@agent_root_dir_option
def pods(output: str | None, watch: bool, root_dir: Path) -> None:
    """List the agent's pods and what state they are in."""
    client = AgentClient(root_dir)
    if watch:
        _watch(client, output)
        return
    answer = client.get("/pods")
    if output == "json":
        print_json(answer)
    elif output == "yaml":
        print_yaml(answer)
    elif not answer["items"]:
        click.echo("No pods.", err=True)
    else:
        rows = [_cells(item, output) for item in answer["items"]]
        print_table(_header(output), rows, status_column=_STATUS_COLUMN)


def _header(output: str | None) -> tuple[str, ...]:
    return _WIDE if output == "wide" else _HEADER


def _cells(item: dict[str, Any], output: str | None) -> tuple[str, ...]:
    from trikubelet.api import pod_from_dict
    from trikubelet.cli.pod_columns import pod_row

    row = pod_row(pod_from_dict(item), SystemClock().now())
    cells = (row.namespace, row.name, row.ready, row.status, row.restarts, row.age)
    return (*cells, row.ip, row.node) if output == "wide" else cells


def _watch(client: AgentClient, output: str | None) -> None:
    show: Callable[[dict[str, Any]], None] | None = None
    known: dict[str, dict[str, Any]] = {}
    for line in client.lines("/pods", {"watch": True}):
        if show is None:
            show = _line_printer(output)
        pods = {item["metadata"]["uid"]: item for item in json.loads(line)["pods"]}
        for change in pod_changes(known, pods):
            show(change)
        sys.stdout.flush()
        known = pods
    raise agent_gone(client.socket)  # a watch has no end of its own


def pod_changes(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What happened between two states of the agent's pods (by UID), as Kubernetes' watch events."""
    for uid, item in before.items():
        if uid not in now:
            yield {"type": "DELETED", "object": item}
    for uid, item in now.items():
        if uid not in before:
            yield {"type": "ADDED", "object": item}
        elif before[uid] != item:
            yield {"type": "MODIFIED", "object": item}


def _line_printer(output: str | None) -> Callable[[dict[str, Any]], None]:
    if output == "json":
        return print_json
    if output == "yaml":

        def document(change: dict[str, Any]) -> None:
            click.echo("---")
            print_yaml(change)

        return document
    widths = [max(len(name), least) for name, least in zip(_header(output), (9, 30, 5, 18, 13, 5, 15, 9), strict=False)]
    click.echo(format_row(_header(output), widths))

    def row(change: dict[str, Any]) -> None:
        cells = list(_cells(change["object"], output))
        if change["type"] == "DELETED":
            cells[_STATUS_COLUMN] = "Deleted"
        for index, width in enumerate(column_widths(cells, [])):
            widths[index] = max(widths[index], width)
        click.echo(format_row(cells, widths))

    return row
