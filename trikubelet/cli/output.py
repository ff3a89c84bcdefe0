"""Tables and documents on stdout: coloured for people, plain for programs."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDEST: Final = 120
"""Columns: a longer line is hard to read."""
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


def echo_wrapped(line: str, *, err: bool = False) -> None:
    """A sentence: on a terminal broken between words, elsewhere one line for programs. `err`: on stderr."""
    if not (sys.stderr if err else sys.stdout).isatty():
        click.echo(line, err=err)
        return
    width = min(shutil.get_terminal_size().columns, WIDEST)
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    for part in textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False):
        click.echo(part, err=err)


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=4))


def print_yaml(data: Any) -> None:
    import yaml

    click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
