"""The page that users read must not fall behind the fields that the agent acts on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trikubelet.config.flags import CONFIG_FLAGS
from trikubelet.config.kubelet_configuration import SUPPORTED, SUPPORTED_FEATURE_GATES

PAGE = (Path(__file__).parents[2] / "docs" / "configuring.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Fields that have an effect")[2].partition("\n## ")[0]
FIRST_CELLS = [line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `")]
NAMED = {name for cell in FIRST_CELLS for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("field", sorted(SUPPORTED))
def test_every_supported_field_has_its_line(field: str) -> None:
    assert field in NAMED


def test_no_line_names_a_field_that_is_not_supported() -> None:
    assert NAMED <= SUPPORTED


@pytest.mark.parametrize("gate", sorted(SUPPORTED_FEATURE_GATES))
def test_every_supported_feature_gate_is_explained(gate: str) -> None:
    assert f"| `{gate}` |" in PAGE


def test_every_flag_that_the_page_gives_as_an_example_exists() -> None:
    section = PAGE.partition("## Deprecated flags")[2]
    named = {flag.removeprefix("--") for flag in re.findall(r"--[a-z][a-z-]+", section)} - {"help"}
    assert named
    assert named <= {flag.name for flag in CONFIG_FLAGS}
