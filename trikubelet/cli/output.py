"""Tables and documents on stdout: coloured for people, plain for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLOURS = {
    "Running": "green",
    "Completed": "bright_black",
    "Succeeded": "bright_black",
    "Pending": "yellow",
    "ContainerCreating": "yellow",
    "PodInitializing": "yellow",
    "Terminating": "yellow",
}


def colour_of_status(word: str) -> str:
    """Green is well, yellow is on its way, red wants somebody."""
    return _COLOURS.get(word, "yellow" if word.startswith("Init:") and "/" in word else "red")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, status_column: int | None = None) -> None:
    """Columns as wide as they need to be. On a terminal, the status column is coloured."""
    if not sys.stdout.isatty():
        widths = column_widths(header, rows)
        for row in (header, *rows):
            click.echo(format_row(row, widths))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, no_wrap=True)
    for row in rows:
        cells = [Text(cell) for cell in row]
        if status_column is not None:
            cells[status_column].stylize(colour_of_status(row[status_column]))
        table.add_row(*cells)
    Console().print(table, soft_wrap=True)


def column_widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]


def format_row(row: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table with columns of given (least) widths."""
    return "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=4))


def print_yaml(data: Any) -> None:
    import yaml

    click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
