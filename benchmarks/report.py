"""How benchmarks report: tables for people, drawn too with `--picture FILE`, and with `--json FILE` for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from benchmarks.picture import note

if TYPE_CHECKING:
    from pathlib import Path


@attrs.frozen
class Result:
    """One measured aim."""

    aim: str
    """What was measured, as one reads it."""
    unit: str
    value: float
    goal: float
    """The value must not be above it."""

    @property
    def met(self) -> bool:
        return self.value <= self.goal


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print measurements; the first column is text, the others are numbers."""
    note(title, columns, rows)
    _print(title, columns, rows)


def _print(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def report(results: list[Result], json_file: Path | None) -> bool:
    """Print the aims, write them to `json_file` if there is one; returns whether all were met."""
    rows = [
        [result.aim, f"{result.value:.3g} {result.unit}", f"≤ {result.goal:.3g}", "yes" if result.met else "NO"]
        for result in results
    ]
    _print("Aims", ["aim", "measured", "goal", "met"], rows)
    # In a picture their units differ from bar to bar.
    shares = [[result.aim, f"{100 * result.value / result.goal:.0f} %"] for result in results if result.goal]
    note("Aims: what was measured, of what it may be", ["aim", "percent of the goal"], shares)
    write_aims(results, json_file)
    return all(result.met for result in results)


def write_aims(results: list[Result], json_file: Path | None) -> None:
    """Write the aims to `json_file`, if there is one."""
    if json_file is not None:
        content = [{**attrs.asdict(result), "met": result.met} for result in results]
        json_file.write_text(json.dumps(content, indent=2) + "\n")
