"""Tests in forked workers: what they report, what they share, and what a worker's death costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import worker_machine
from tests.patience import PATIENCE
from tests.workers import units_of

PROJECT = Path(__file__).parents[1]


def run(folder: Path, *options: str, **modules: str) -> tuple[int, str]:
    """Run modules as a session of their own. Return its exit code and its output."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(
            f"import os, pathlib, pytest\nFOLDER = pathlib.Path({str(folder)!r})\n{text}"
        )
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = together\naddopts = -p tests.workers -p no:cacheprovider\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", f"--basetemp={folder / 'temp'}", "-c", "pytest.ini", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout + done.stderr


NOTE = """
def note(what):
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{what} {os.getpid()}\\n")
"""


def notes(folder: Path) -> list[tuple[str, str]]:
    return [(what, pid) for what, pid in map(str.split, (folder / "notes").read_text().splitlines())]


def test_each_test_is_reported_once_with_what_it_printed(tmp_path: Path) -> None:
    code, told = run(
        tmp_path,
        "--processes=3",
        test_a="def test_one():\n    print('said ' + 'aloud')\n    assert [1] == [2]",
        test_b="@pytest.mark.parametrize('number', range(50))\ndef test_many(number):\n    print('quiet')",
        test_c="def test_skipped():\n    pytest.skip('no need')\n\ndef test_error(nothing):\n    pass",
    )
    assert code == 1
    assert "1 failed, 50 passed, 1 skipped, 1 error" in told
    assert "said aloud" in told
    assert "assert [1] == [2]" in told  # the assertions were rewritten


def test_a_module_is_run_by_one_worker_and_its_fixtures_end_there(tmp_path: Path) -> None:
    module = NOTE + (
        "@pytest.fixture(scope='module')\ndef shared():\n    note('made')\n    yield\n    note('ended')\n\n"
        "@pytest.mark.parametrize('number', range(9))\ndef test_it(shared, number):\n    note('used')\n"
    )
    code, told = run(tmp_path, "--processes=2", test_a=module)
    assert code == 0, told
    assert [what for what, _ in notes(tmp_path)] == ["made", *["used"] * 9, "ended"]
    assert len({pid for _, pid in notes(tmp_path)}) == 1


def test_what_belongs_together_is_run_by_one_worker_with_one_fixture_of_its_session(tmp_path: Path) -> None:
    conftest = (
        NOTE + "@pytest.fixture(scope='session')\ndef machine():\n    note('made')\n    yield\n    note('ended')\n"
    )
    module = (
        "pytestmark = pytest.mark.together('machine')\ndef test_it(machine):\n    pass\ndef test_too(machine): pass\n"
    )
    others = {f"test_other{number}": "def test_it(): pass" for number in range(8)}
    code, told = run(tmp_path, "--processes=4", conftest=conftest, test_a=module, test_b=module, **others)
    assert code == 0, told
    assert [what for what, _ in notes(tmp_path)] == ["made", "ended"]


def test_a_worker_that_dies_fails_its_test_and_no_other(tmp_path: Path) -> None:
    module = (
        "@pytest.mark.parametrize('number', range(6))\ndef test_it(number):\n    if number == 2:\n        os._exit(9)"
    )
    code, told = run(tmp_path, "--processes=2", test_a=module, test_b="def test_it(): pass")
    assert code == 1
    assert "1 failed, 6 passed" in told
    assert re.search(r"FAILED test_a\.py::test_it\[2\]", told)
    assert "the worker ended (9) in this test" in told


def test_a_session_that_shall_end_at_the_first_failure_leaves_no_worker(tmp_path: Path) -> None:
    waiting = "import time\ndef test_it():\n    (FOLDER / 'pid').write_text(str(os.getpid()))\n    time.sleep(1000)"
    failing = "def test_it():\n    while not (FOLDER / 'pid').exists(): pass\n    assert False"
    code, told = run(tmp_path, "--processes=2", "-x", test_a=waiting, test_b=failing)
    assert code == 1
    assert "stopping after 1 failures" in told
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_an_error_of_collection_is_told_and_no_test_runs(tmp_path: Path) -> None:
    code, told = run(tmp_path, "--processes=2", test_a="import nothing_of_that_name", test_b="def test_it(): pass")
    assert code == 2
    assert "nothing_of_that_name" in told


def test_warnings_are_told(tmp_path: Path) -> None:
    code, told = run(
        tmp_path, "--processes=2", test_a="import warnings\ndef test_it():\n    warnings.warn('odd ' + 'thing')"
    )
    assert code == 0
    assert "1 passed, 1 warning" in told
    assert "odd thing" in told


class Item:
    """A test as `units_of` looks at it."""

    def __init__(self, nodeid: str, together: pytest.Mark | None) -> None:
        self.nodeid = nodeid
        self._together = together

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._together if name == "together" else None


def items(*modules: str, together: pytest.MarkDecorator | None = None) -> list[Item]:
    mark = None if together is None else together.mark
    return [Item(f"{module}::test_{number}", mark) for module in modules for number in range(2)]


def units(found: list[Item], seconds: dict[str, float]) -> list[tuple[str, list[int]]]:
    return [(unit.name, list(unit.left)) for unit in units_of(found, seconds)]  # type: ignore[arg-type]


def test_each_module_is_a_unit_and_the_longest_is_the_first() -> None:
    assert units(items("a", "b", "c"), {"b": 5.0, "c": 9.0}) == [("c", [4, 5]), ("b", [2, 3]), ("a", [0, 1])]


def test_what_belongs_together_is_one_unit_as_long_as_its_modules() -> None:
    found = items("a", "b", together=pytest.mark.together("one")) + items("c")
    assert units(found, {"a": 3.0, "b": 3.0, "c": 5.0}) == [("one", [0, 1, 2, 3]), ("c", [4, 5])]


@pytest.mark.parametrize(
    ("seconds", "parts"),
    [
        ({"a": 9.0, "b": 4.0, "c": 3.0, "d": 2.0}, [[0, 1], [2, 3, 4, 5, 6, 7]]),
        ({}, [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ],
)
def test_a_group_that_may_be_cut_is_cut_between_modules(seconds: dict[str, float], parts: list[list[int]]) -> None:
    found = items("a", "b", "c", "d", together=pytest.mark.together("many", parts=2))
    assert units(found, seconds) == [("many", part) for part in parts]
    assert [part for _, part in units(found[:2], seconds)] == [[0, 1]], "no unit without tests"


OF_MACHINE = "pytestmark = pytest.mark.together('machine')\n"
ON_MACHINES = """
def network():
    return os.readlink("/proc/self/ns/net")
"""


@pytest.mark.root
def test_workers_but_the_first_have_machines_of_their_own(tmp_path: Path) -> None:
    if not worker_machine.possible():
        pytest.skip("no cgroup v1")
    waiting = "import time\ndef test_it():\n    note(network())\n    while len(notes()) < 3: time.sleep(0.01)\n"
    tell = "def notes():\n    return (FOLDER / 'notes').read_text().splitlines()\n"
    module = NOTE + ON_MACHINES + tell + waiting
    code, told = run(
        tmp_path,
        "--processes=3",
        test_a=OF_MACHINE + module,
        test_b=module,
        test_c=module,
    )
    assert code == 0, told
    networks = {what for what, _ in notes(tmp_path)}
    assert len(networks) == 3
    assert str(Path("/proc/self/ns/net").readlink()) in networks


@pytest.mark.night
@pytest.mark.root
def test_what_runs_on_when_a_worker_ends_is_told_and_ended(tmp_path: Path) -> None:
    if not worker_machine.possible():
        pytest.skip("no cgroup v1")
    leaving = (
        "import subprocess\nfrom pathlib import Path\ndef test_it():\n"
        "    started = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "    Path('/sys/fs/cgroup/memory/trikubelet-left').mkdir()\n"
        "    (FOLDER / 'pid').write_text(str(started.pid))\n"
    )
    waiting = "def test_it():\n    while not (FOLDER / 'pid').exists(): pass"
    plugin = ("-p", "tests.conftest")
    code, told = run(
        tmp_path,
        "--processes=2",
        *plugin,
        test_a=OF_MACHINE + waiting,
        test_b=leaving,
    )
    assert code == 1, told
    assert "2 passed" in told
    pid = (tmp_path / "pid").read_text()
    assert f"process {pid}: sleep 1000" in told
    assert re.search(r"cgroup /sys/fs/cgroup/\S*/trikubelet-left", told)
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or " Z " in state.read_text(), "only init has still to take notice of its end"
    assert not list(Path("/sys/fs/cgroup").glob("memory/**/trikubelet-left"))


@pytest.mark.root
def test_what_a_killed_session_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    if not worker_machine.possible():
        pytest.skip("no cgroup v1")
    ended = subprocess.Popen(["true"])
    ended.wait()
    machine = worker_machine.WorkerMachine(f"tests-{ended.pid}-1")
    machine.make()
    with subprocess.Popen(["sleep", "1000"]) as left:
        for each in machine.hierarchies:
            if each.kind == "cgroup":
                (each.here / machine.name / "cgroup.procs").write_text(str(left.pid))
        code, told = run(tmp_path, "--processes=1", test_a="def test_it(): pass")
        assert code == 0, told
        assert left.wait() == -9
    assert not [each for each in machine.hierarchies if (each.here / machine.name).exists()]
