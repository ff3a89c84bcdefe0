"""The table of published holes names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS.parents[1] / "docs" / "embedded-advisories.md"


def test_every_test_that_the_table_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", TABLE.read_text()))
    there = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    assert len(named) > 30
    assert named - there == set()


def test_every_line_says_where_it_is_tried_or_why_it_cannot_be() -> None:
    lines = [line.split("|") for line in TABLE.read_text().splitlines() if line.startswith(("| CVE-", "| GHSA-"))]
    assert len(lines) > 40
    assert all(len(line) == 5 and all(cell.strip() for cell in line[1:4]) for line in lines)
