"""Tables and documents on stdout: coloured for people, plain for programs.

Every command writes through this module, so no text of a container reaches a terminal as it is: `echo` and the tables
pass it through `formats.terminal_text`, and documents escape it. Only the bytes that `logs`, `exec`, `attach`, `cp` and
`port-forward` pass on go another way, and a template's (`-o jsonpath`) to a pipe.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Final

import click

from trikubelet.formats.terminal_text import padded, plain, plain_json, plain_lines, width

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


def echo(*lines: str, err: bool = False, nl: bool = True, fg: str | None = None) -> None:
    """Write lines, an empty one for none, coloured on a terminal. A line feed inside of one becomes a space."""
    for line in map(plain, lines or ("",)):
        click.echo(click.style(line, fg=fg) if fg else line, err=err, nl=nl)


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
        cells = _cells(row, widths)
        if coloured and status_column is not None:
            cells[status_column] = click.style(cells[status_column], fg=colour_of_status(row[status_column]))
        click.echo("   ".join(cells).rstrip())


def column_widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Columns of a terminal that each column of the table needs."""
    return [max(width(plain(row[index])) for row in (header, *rows)) for index in range(len(header))]


def format_row(row: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table with columns of given (least) widths."""
    return "   ".join(_cells(row, widths)).rstrip()


def _cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [padded(plain(cell), columns) for cell, columns in zip(row, widths, strict=True)]


def echo_wrapped(line: str, *, err: bool = False) -> None:
    """A sentence: on a terminal broken between words, elsewhere one line for programs. `err`: on stderr."""
    line = plain(line)
    if not (sys.stderr if err else sys.stdout).isatty():
        click.echo(line, err=err)
        return
    columns = min(shutil.get_terminal_size().columns, WIDEST)
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    for part in textwrap.wrap(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False):
        click.echo(part, err=err)


def print_json(data: Any, indent: int | None = 4) -> None:
    """A document; on one line without `indent`."""
    click.echo(plain_json(json.dumps(data, indent=indent)))


def print_yaml(data: Any) -> None:
    import yaml

    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    if text != plain_lines(text):  # YAML leaves a few control characters as they are
        text = yaml.safe_dump(data, sort_keys=False)
    click.echo(text, nl=False)


def print_template(text: str) -> None:
    """What a template of the user's made of an object: exact for programs, plain on a terminal."""
    click.echo(plain_lines(text) if sys.stdout.isatty() else text, color=True)  # else click takes colours out
