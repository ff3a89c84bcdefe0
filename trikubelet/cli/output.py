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


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, status_column: int | None = None, headers: bool = True
) -> None:
    """Columns as wide as they need to be, however narrow the terminal is. On one, the status column is coloured."""
    widths = column_widths(header, rows)
    coloured = sys.stdout.isatty() and status_column is not None
    if headers:
        line = format_row(header, widths)
        click.echo(click.style(line, bold=True) if coloured else line)
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if coloured and status_column is not None:
            cells[status_column] = click.style(cells[status_column], fg=colour_of_status(row[status_column]))
        click.echo("   ".join(cells).rstrip())


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
