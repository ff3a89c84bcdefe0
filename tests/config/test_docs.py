"""The page that users read must not fall behind the fields that the agent acts on."""

from __future__ import annotations

import re
from pathlib import Path

from trikubelet.cli.kubelet_flags import MEANINGLESS
from trikubelet.config.feature_gates import Effect
from trikubelet.config.flags import CONFIG_FLAGS
from trikubelet.config.gate_table import GATES
from trikubelet.config.kubelet_configuration import SUPPORTED

PAGE = (Path(__file__).parents[2] / "docs" / "configuring.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Fields that have an effect")[2].partition("\n## ")[0]
FIRST_CELLS = [line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `")]
NAMED = {name for cell in FIRST_CELLS for name in re.findall(r"`([^`]+)`", cell)}


def test_the_supported_fields_have_a_line_each_and_no_other_has_one() -> None:
    assert len(SUPPORTED) > 100
    assert NAMED == SUPPORTED


def test_every_supported_feature_gate_is_explained() -> None:
    switched = [name for name, gate in GATES.items() if gate.effect is Effect.SWITCHED]
    assert len(switched) > 50
    assert [name for name in switched if f"| `{name}` |" not in PAGE] == []


def test_every_flag_that_the_page_gives_as_an_example_exists() -> None:
    section = PAGE.partition("## The kubelet's flags")[2]
    named = {flag.removeprefix("--") for flag in re.findall(r"--[a-z][a-z0-9-]*", section)} - {"help"}
    assert len(named) > 10
    assert named <= {flag.name for flag in CONFIG_FLAGS} | {*MEANINGLESS}


def test_the_page_says_which_flags_are_not_deprecated() -> None:
    sentence = " ".join(PAGE.partition("Not deprecated are")[2].partition(". ")[0].split())
    named = set(re.findall(r"`--([a-z0-9-]+)`", sentence))
    assert named == {flag.name for flag in CONFIG_FLAGS if not flag.deprecated}
