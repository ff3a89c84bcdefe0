"""Which tests `make quick` chooses, and what it says of the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.quick import BEYOND, Links, Plan, Record, means_the_same, plan, told, why_not

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def links(
    importers: Mapping[str, Collection[str]],
    texts: Mapping[str, str] | None = None,
    quoted: Mapping[str, Collection[str]] | None = None,
) -> Links:
    names = {*importers, *(each for found in importers.values() for each in found)}
    return Links(importers, quoted or {}, dict.fromkeys(names, "") | dict(texts or {}))


SMALL_PROJECT = {
    "trikubelet/pods/machine.py": {"trikubelet/pods/life.py", "tests/pods/test_machine.py", "tests/sim/test_it.py"},
    "trikubelet/pods/life.py": {"trikubelet/agent/run.py", "tests/pods/test_life.py"},
    "trikubelet/agent/run.py": {"tests/agent/test_run.py"},
    "trikubelet/backoff.py": {"tests/test_backoff.py"},
}


def test_tests_are_as_far_as_there_are_imports_between() -> None:
    assert links(SMALL_PROJECT).distances(["trikubelet/pods/machine.py"]) == {
        "tests/pods/test_machine.py": 1,
        "tests/sim/test_it.py": 1,
        "tests/pods/test_life.py": 2,
        "tests/agent/test_run.py": 3,
    }


def test_the_nearest_of_several_changes_counts() -> None:
    changed = ["trikubelet/pods/machine.py", "trikubelet/agent/run.py", "tests/test_backoff.py"]
    found = links(SMALL_PROJECT).distances(changed)
    assert (found["tests/agent/test_run.py"], found["tests/test_backoff.py"]) == (1, 0)


def test_circles_of_imports_end() -> None:
    circle = {"trikubelet/a.py": {"trikubelet/b.py", "tests/test_a.py"}, "trikubelet/b.py": {"trikubelet/a.py"}}
    assert links(circle).distances(["trikubelet/b.py"]) == {"tests/test_a.py": 2}


@pytest.mark.parametrize(
    ("changed", "text", "test"),
    [
        ("trikubelet/cli/port_forward.py", "run('port-forward', pod)", "tests/cli/test_ways.py"),
        ("docs/development.md", "(DOCS / 'development.md').read_text()", "tests/pods/test_mutants.py"),
        ("docs/faq.md", "", "tests/docs/test_site.py"),
        ("tests/allocation/cpus/tables/take.json", "table('take')", "tests/allocation/cpus/test_take.py"),
        ("trikubelet/node_api/ui/static/page.js", "folder / 'static'", "tests/node_api/ui/test_ui.py"),
        ("trikubelet/node_api/ui/static/page.js", "name = 'static/page.js'", "tests/agent/test_ui.py"),
        ("trikubelet/embedded/keeper/child.py", "", "tests/embedded/test_unprivileged.py"),
        ("tests/embedded/conftest.py", "async def test_it(node): pass", "tests/embedded/test_exec.py"),
    ],
)
def test_what_no_import_shows(changed: str, text: str, test: str) -> None:
    fixture = "@pytest.fixture\nasync def node(tmp_path): ..."
    others = {"tests/other/test_x.py": "'other'", "tests/embedded/conftest.py": fixture}
    assert list(links({}, {test: text, **others}).distances([changed])) == [test]


def test_a_program_that_is_named_by_its_file() -> None:
    found = links({"trikubelet/c.py": {"tests/test_c.py"}}, quoted={"keeper_main.py": {"trikubelet/c.py"}})
    assert found.distances(["trikubelet/embedded/keeper/keeper_main.py"]) == {"tests/test_c.py": 2}


def test_a_fixture_that_reaches_a_change_counts_where_it_is_named() -> None:
    project = {"trikubelet/a.py": {"tests/conftest.py"}}
    texts = {
        "tests/conftest.py": "@pytest.fixture\ndef made(): ...",
        "tests/test_a.py": "def test_it(made): ...",
        "tests/test_b.py": "def test_it(): ...",
    }
    assert links(project, texts).distances(["trikubelet/a.py"]) == {"tests/test_a.py": 2}
    assert links(project, texts).distances(["tests/conftest.py"]) == {"tests/test_a.py": 1, "tests/test_b.py": 1}


def test_the_test_of_the_same_name_is_first_then_the_nearest_then_the_shortest() -> None:
    distances = {
        "tests/agent/test_run.py": 1,
        "tests/agent/test_end.py": 1,
        "tests/pods/test_life.py": 1,
        "tests/pods/test_machine_properties.py": 4,
        "tests/sim/test_it.py": 0,
        "tests/sim/test_far.py": 2,
    }
    record = Record({"tests/agent/test_run.py": 0.9, "tests/agent/test_end.py": 1.9})
    chosen = plan(["trikubelet/pods/machine.py", "tests/sim/test_it.py"], distances, record).chosen
    assert chosen == [
        "tests/pods/test_machine_properties.py",
        "tests/sim/test_it.py",
        "tests/pods/test_life.py",
        "tests/agent/test_run.py",
        "tests/agent/test_end.py",
        "tests/sim/test_far.py",
    ]


def test_what_has_no_room_is_left_out_and_shorter_ones_further_away_are_not() -> None:
    distances = {"tests/test_a.py": 1, "tests/test_b.py": 2, "tests/test_c.py": 3, "tests/test_d.py": 1}
    record = Record({"tests/test_a.py": 3.0, "tests/test_b.py": 3.0}, impossible={"tests/test_d.py": "root"})
    found = plan(["trikubelet/a.py"], distances, record, budget=5.0)
    assert found == Plan(["tests/test_a.py", "tests/test_c.py"], {"tests/test_b.py": BEYOND, "tests/test_d.py": "root"})


def test_a_test_that_was_changed_may_have_another_marker_now() -> None:
    record = Record(impossible={"tests/test_d.py": "root"})
    assert plan(["tests/test_d.py"], {"tests/test_d.py": 0}, record).chosen == ["tests/test_d.py"]


def test_comments_and_layout_mean_nothing_and_all_else_does() -> None:
    assert means_the_same("a = 1  # one\n", "# the first\n\na = (1)\n")
    assert not means_the_same("a = 1\n", "a = 2\n")
    assert not means_the_same('"""A text for people."""\n', '"""A text."""\n')
    assert not means_the_same("a = 1\n", "a = \n")


def test_what_is_recorded_of_a_run() -> None:
    took = {
        "tests/test_a.py::test_one[1]": 0.9,
        "tests/test_a.py::test_one[2]": 0.9,
        "tests/test_a.py::test_two": 0.4,
        "tests/test_a.py::test_three": 0.4,
        "tests/test_b.py::test_one": 30.0,
        "tests/test_c.py::test_one": 0.01,
    }
    reasons = dict.fromkeys(took) | {
        "tests/test_a.py::test_four": "root",
        "tests/test_b.py::test_two": "slow",
        "tests/test_d.py::test_one": "fuzz",
        "tests/test_d.py::test_two": "root",
        "tests/test_d.py::test_three": "root",
    }
    assert Record.of(took, reasons) == Record(
        seconds={"tests/test_a.py": 0.8},
        slow={"tests/test_a.py::test_one": 1.8, "tests/test_b.py::test_one": 30.0},
        impossible={"tests/test_b.py": "slow", "tests/test_d.py": "root"},
    )


class _Item:
    def __init__(self, *markers: str) -> None:
        self.nodeid, self._markers = "tests/test_a.py::test_it[1]", markers

    def get_closest_marker(self, name: str) -> bool:
        return name in self._markers


@pytest.mark.parametrize(
    ("markers", "slow", "reason"),
    [
        ((), (), None),
        (("hypothesis", "together"), (), None),
        (("root",), (), "root"),
        (("root", "containerd"), (), "containerd"),
        (("fuzz",), (), "fuzz"),
        (("night",), (), "night"),
        ((), ("tests/test_a.py::test_it",), "slow"),
        ((), ("tests/test_a.py::test_it_too",), None),
    ],
)
def test_why_a_test_is_left_out(markers: tuple[str, ...], slow: tuple[str, ...], reason: str | None) -> None:
    assert why_not(_Item(*markers), slow) == reason  # type: ignore[arg-type]  # what is asked of an item


def test_what_was_not_run_is_told_in_a_few_lines() -> None:
    left_out = {"tests/test_b.py": BEYOND, "tests/test_c.py": BEYOND, "tests/test_d.py": "root"}
    assert told(Plan(["tests/test_a.py"], left_out), Counter({"slow": 7, "root": 1})).splitlines() == [
        "The change may break tests in 4 modules; of 1 tests were run.",
        "Not of the others: 2 beyond the budget, 1 root.",
        "Tests that were left out of those modules: 7 slow, 1 root.",
        "Everything: make test",
    ]
    assert told(Plan([], {}), {}) == "The change can break no test that imports or names tell of. Everything: make test"
