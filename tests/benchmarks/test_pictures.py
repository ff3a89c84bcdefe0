"""Every benchmark draws what it prints."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks.picture import Table, number, picture_option
from benchmarks.report import Result, print_table, report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def commands() -> Iterator[tuple[str, click.Command]]:
    """Those that measure; the others are started by them."""
    for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        main = getattr(importlib.import_module(found.name), "main", None)
        if isinstance(main, click.Command) and any(option.name == "json_file" for option in main.params):
            yield found.name, main


def test_every_benchmark_has_pictures() -> None:
    found = dict(commands())
    assert len(found) >= 18
    without = [name for name, main in found.items() if "picture" not in {option.name for option in main.params}]
    assert without == []


@click.command()
@picture_option
def measure() -> None:
    print_table("Milliseconds", ["step", "who", "p50", "share", "met"], [["start", "agent", "1.5 (1.2)", "", "yes"]])
    report([Result("first pod's process", "s", 0.5, 1.0)], None)
    sys.exit(1)


def test_the_tables_are_drawn_as_png_and_as_svg_whatever_came_of_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    done = CliRunner().invoke(measure, [f"--picture={tmp_path / 'end.png'}"])
    assert done.exit_code == 1
    assert f"drawn: {tmp_path}/end.png, {tmp_path}/end.svg" in done.output.replace("\n", "")
    assert (tmp_path / "end.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "end.svg").read_text()
    for text in ("Milliseconds", "start, agent", "1.5 (1.2)", "Aims", "first pod's process", "50 %"):
        assert text in drawn


def test_without_being_asked_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(measure).exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_a_picture_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(measure, [f"--picture={tmp_path / 'end.png'}"])
    assert "trikubelet[pictures]" in done.output
    assert "Milliseconds" not in done.output


def test_columns_of_numbers_are_bars_and_those_before_them_name_the_rows() -> None:
    rows = [["start", "agent", "1,200.5 ms", "-", "no"], ["end", "", "2e-3", "7", "no"]]
    table = Table("", ["step", "who", "a", "b", "c"], rows)
    assert table.measured == [2, 3]
    assert table.names == ["start, agent", "end"]


@pytest.mark.parametrize(
    ("cell", "value"), [("1,200.5 ms", 1200.5), ("≤ 10", 10.0), ("± 3 %", 3.0), ("yes", None), ("", None), ("-2", -2.0)]
)
def test_the_number_that_a_cell_begins_with(cell: str, value: float | None) -> None:
    assert number(cell) == value
