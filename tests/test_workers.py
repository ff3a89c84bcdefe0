"""Tests in forked workers: what they report, what they share, and what a worker's death costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

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
