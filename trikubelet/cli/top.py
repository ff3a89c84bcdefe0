"""`trikubelet top`: what pods and the node use now, like `kubectl top`, and live."""

from __future__ import annotations

import os
import select
import shutil
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.output import column_widths, echo, format_row
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.cli.usage_rows import node_table, pods_table, rates_are_missing
from trikubelet.formats.terminal_text import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trikubelet.cli.usage_rows import SortKey

    Table = tuple[Sequence[str], Sequence[Sequence[str]]]

PERIOD: Final = 2.0
"""Seconds between two pictures."""
_SECOND_LOOK: Final = 1.1
"""Seconds between two looks for a rate. The agent gives the same answer for one second."""
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's second screen without a cursor, and back."""
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

_watch = click.option("-w", "--watch", is_flag=True, help="Keep running, and refresh every 2 seconds.")
_no_headers = click.option("--no-headers", is_flag=True, help="Leave out the header.")


@click.group(short_help="Show what pods and the node use.")
def top() -> None:
    """Show what is used now: processors in thousandths of a core, memory in MiB (the working set)."""


@top.command("pods")
@click.argument("name", required=False)
@click.option("-n", "--namespace", help="Only pods of this namespace.")
@click.option("--containers", is_flag=True, help="A line for each container.")
@click.option("--sort-by", type=click.Choice(["cpu", "memory"]), help="Highest first.  [default: by name]")
@click.option("--sum", "sum_up", is_flag=True, help="Add a line with the total.")
@_no_headers
@_watch
@agent_root_dir_option
def top_pods(
    name: str | None,
    namespace: str | None,
    containers: bool,
    sort_by: str | None,
    sum_up: bool,
    no_headers: bool,
    watch: bool,
    root_dir: Path,
) -> None:
    """Show what all pods use, or what the pod NAME uses."""
    client = AgentClient(root_dir)
    wanted = None
    if name is not None:
        found = find_pod(client, name, namespace)
        wanted = found.metadata.namespace, found.metadata.name

    def table(summary: dict[str, Any]) -> Table:
        if namespace is not None:
            pods = [pod for pod in summary["pods"] if pod["podRef"]["namespace"] == namespace]
            summary = {**summary, "pods": pods}
        key = cast("SortKey | None", sort_by)
        header, rows = pods_table(summary, containers=containers, sort_by=key, sum_up=sum_up, wanted=wanted)
        return () if no_headers else header, rows

    _show(client, table, watch=watch, nothing="No pods.")


@top.command("node")
@_no_headers
@_watch
@agent_root_dir_option
def top_node(no_headers: bool, watch: bool, root_dir: Path) -> None:
    """Show what the node uses, and how much of the machine that is."""

    def table(summary: dict[str, Any]) -> Table:
        header, rows = node_table(summary, os.cpu_count() or 1)
        return () if no_headers else header, rows

    _show(AgentClient(root_dir), table, watch=watch, nothing="")


def summary_with_rates(client: AgentClient, *, only_cpu_and_memory: bool) -> Any:
    """The summary; asks a second time if this was the first question, since rates need two looks."""
    query = {"only_cpu_and_memory": only_cpu_and_memory}
    summary = client.get("/stats/summary", query)
    if rates_are_missing(summary):
        _pause(_SECOND_LOOK)
        summary = client.get("/stats/summary", query)
    return summary


def _show(client: AgentClient, table: Callable[[dict[str, Any]], Table], *, watch: bool, nothing: str) -> None:
    summary = summary_with_rates(client, only_cpu_and_memory=True)
    if not watch:
        lines = _lines(*table(summary))
        echo(*(lines or [nothing]), err=not lines)
        return
    live = sys.stdout.isatty()
    try:
        if live:
            _put(_ENTER)
        while True:
            lines = _lines(*table(summary))
            _put(_picture(lines) if live else "\n".join([*lines, "", ""]))
            _pause(PERIOD)
            summary = client.get("/stats/summary", {"only_cpu_and_memory": True})
    finally:
        if live:
            _put(_LEAVE)


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    every = [row for row in (header, *rows) if row]
    if not rows:
        return []
    widths = column_widths(every[0], every)
    return [format_row(row, widths) for row in every]


def _picture(lines: Sequence[str]) -> str:
    """The screen, as far as the lines fit on it."""
    columns, rows = shutil.get_terminal_size()
    shown = [cut(line, columns) for line in lines[:rows]]
    return _HOME + "\n".join(line + _END_OF_LINE for line in shown) + _END_OF_SCREEN


def _put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _pause(seconds: float) -> None:
    select.select([], [], [], seconds)
