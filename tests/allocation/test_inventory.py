"""How many of the kubelet's rows are here: what the page for developers says is counted."""

from __future__ import annotations

import json
import math
import re
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
PAGE: Final = TESTS.parent / "docs/development.md"


def rows_of_the_page() -> list[tuple[str, int, int, str]]:
    """The kubelet's test, how many rows it has, how many are here, and where."""
    (section,) = re.findall(r"^## The kubelet's tables$(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [(name.strip(), int(there), int(here), places) for name, there, here, places, _ in lines]


def count(places: str) -> int:
    """The rows of tables and of parametrized tests. A name without a folder or a file is in those of the one before."""
    found, folder, module = 0, TESTS, ""
    for place in re.findall(r"`([^`]+)`", places):
        if place.endswith(".json"):
            path = TESTS / place if "/" in place else folder / place
            folder = path.parent
            found += len(json.loads(path.read_text()))
            continue
        file, _, test = place.partition("::")
        module = file.removesuffix(".py").replace("/", ".") if file else module
        marks = getattr(getattr(import_module(f"tests.{module}"), test), "pytestmark", [])
        found += math.prod(len(mark.args[1]) for mark in marks if mark.name == "parametrize")
    return found


@pytest.mark.parametrize(("name", "there", "here", "places"), rows_of_the_page())
def test_the_page_says_how_many_rows_are_here(name: str, there: int, here: int, places: str) -> None:
    more = places.count("(one more)")
    assert count(places) == here
    assert here - more <= there or "devicemanager" in name


def test_every_table_is_on_the_page() -> None:
    told = {name.rpartition("/")[2] for *_, places in rows_of_the_page() for name in re.findall(r"`([^`]+)`", places)}
    tables = {path.name for path in (TESTS / "allocation").glob("*/tables/*.json")}
    assert tables - told == {"topologies.json"}, "machines"
