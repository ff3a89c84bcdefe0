"""`--picture FILE` of the benchmarks: the tables that they print, as bars in a PNG and an SVG, once all is measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

INK: Final = "#333333"
BARS: Final = "#1b6ca8"
ROW_INCHES: Final = 0.32
HEAD_INCHES: Final = 1.1
"""Of a table's title and its axes."""
PANEL_INCHES: Final = 3.2
DPI: Final = 150
_NUMBER: Final = re.compile(r"[≤±]?\s*(-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)")
_NOTHING: Final = frozenset({"", "-", "—", "none"})
_KEY: Final = "benchmarks.picture"


class NoMatplotlibError(Exception):
    """Pictures need a library that is not installed."""

    def __init__(self) -> None:
        super().__init__("a picture needs matplotlib, which is not installed: pip install 'trikubelet[pictures]'")


def check_matplotlib() -> None:
    """Raises NoMatplotlibError, before anything is measured for a picture that cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise NoMatplotlibError from None


def save(figure: Any, path: Path) -> list[Path]:
    """Write a figure as PNG and as SVG beside each other; the files. Raises OSError."""
    from matplotlib import rc_context

    files = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    with rc_context({"svg.fonttype": "none"}):  # text stays text
        for file in files:
            figure.savefig(file, dpi=DPI)
    return files


@attrs.frozen
class Table:
    """What `print_table` prints."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    @property
    def measured(self) -> list[int]:
        """Indexes of the columns that hold numbers. The first one names the rows."""
        return [index for index in range(1, len(self.columns)) if _holds_numbers(row[index] for row in self.rows)]

    @property
    def names(self) -> list[str]:
        """Of the rows: all cells that are no numbers, and no remarks behind the numbers."""
        named = range(min(self.measured, default=len(self.columns)))
        return [", ".join(cell for index in named if (cell := row[index])) for row in self.rows]


def number(cell: str) -> float | None:
    """The one that a cell begins with; None when it begins with none."""
    found = _NUMBER.match(cell.strip())
    return None if found is None else float(found[1].replace(",", ""))


def _holds_numbers(cells: Iterable[str]) -> bool:
    said = [cell for cell in cells if cell.strip() not in _NOTHING]
    return bool(said) and all(number(cell) is not None for cell in said)


@attrs.define
class Picture:
    """The tables of one run."""

    path: Path
    tables: list[Table] = attrs.field(factory=list)

    def write(self) -> None:
        """Does nothing when nothing was measured."""
        tables = [table for table in self.tables if table.measured]
        if tables:
            click.echo(f"drawn: {', '.join(str(file) for file in save(draw(tables), self.path))}")


def draw(tables: list[Table]) -> Any:
    """A figure with a row of panels for each table, one for each of its columns: their units differ."""
    from matplotlib.figure import Figure

    heights = [HEAD_INCHES + ROW_INCHES * len(table.rows) for table in tables]
    width = PANEL_INCHES * (1 + max(len(table.measured) for table in tables))
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, table in zip(parts, tables, strict=True):
        part.suptitle(table.title, color=INK)
        panels = part.subplots(1, len(table.measured), squeeze=False, sharey=True)[0]
        for axes, index in zip(panels, table.measured, strict=True):
            _draw_column(axes, table, index)
    return figure


def _draw_column(axes: Any, table: Table, index: int) -> None:
    cells = [row[index] for row in table.rows]
    values = [number(cell) for cell in cells]
    bars = axes.barh(range(len(values)), [value or 0.0 for value in values], height=0.7, color=BARS)
    axes.bar_label(bars, cells, padding=3, fontsize="small", color=INK)
    axes.set_title(table.columns[index], fontsize="medium", color=INK)
    axes.set_yticks(range(len(values)), table.names, fontsize="small")
    axes.set_ylim(len(values) - 0.4, -0.6)  # as printed, the first one above
    axes.margins(x=0.3)
    axes.tick_params(axis="x", labelsize="small")
    axes.spines[["top", "right"]].set_visible(False)


def note(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Remember a table for the picture of the command that runs; without one nothing happens."""
    context = click.get_current_context(silent=True)
    picture: Picture | None = None if context is None else context.meta.get(_KEY)
    if picture is not None:
        picture.tables.append(Table(title, columns, rows))


def _asked(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        check_matplotlib()
    except NoMatplotlibError as error:
        raise click.ClickException(str(error)) from None
    picture = context.meta[_KEY] = Picture(path)
    context.call_on_close(picture.write)


picture_option: Final[Callable[[Any], Any]] = click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_asked,
    expose_value=False,
    help="Draw the tables, as .png and .svg (needs matplotlib).",
)
"""The option. What a command prints by `benchmarks.report` is drawn when it ends."""
