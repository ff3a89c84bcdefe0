"""Where a mutant lives: a copy of the package and of its tests, edited, and the processes that test it.

All copies are made of one model, a copy of the working tree on which the tests have passed once. That proves that they
pass without an edit, and it leaves compiled modules behind, so that a mutant only has the edited module to compile.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from tests.mutants import observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.mutants.catalogue import Mutant

PROJECT: Final = Path(__file__).parents[2]
PACKAGE: Final = Path("trikubelet")

TIMEOUT: Final = 240.0
"""Seconds for one set of tests, some ten times what it takes."""

FACTS: Final = (
    "tests/pods/test_termination.py",
    "tests/pods/test_registry.py",
    "tests/pods/test_machine.py",
)
LIFE_FACTS: Final = (
    "tests/pods/test_lives_and_faults.py",
    "tests/pods/test_life.py",
)
SYNCER_FACTS: Final = (
    "tests/pods/test_syncer_ends.py",
    "tests/pods/test_syncer.py",
)
CONTAINER_FACTS: Final = (
    "tests/runtime/containers/test_life.py",
    "tests/runtime/test_pre_stop.py",
    "tests/runtime/test_manager_kills.py",
)
FACTS_OF_FILES: Final = {
    "pods/life.py": LIFE_FACTS,
    "pods/workers.py": LIFE_FACTS,
    "supervision.py": LIFE_FACTS,
    "pods/syncer.py": SYNCER_FACTS,
    "runtime/containers/life.py": CONTAINER_FACTS,
    "runtime/kill.py": CONTAINER_FACTS,
}
"""What is not pure has facts of its own."""
MACHINE: Final = ("tests/pods/test_machine_properties.py",)

_PASSED, _FAILED = 0, 1


class EditError(Exception):
    """An edit does not fit the source that it was written for."""

    def __init__(self, mutant: Mutant, found: int) -> None:
        super().__init__(
            f"{mutant.name!r}: its text must be in {PACKAGE / mutant.file} once and was found {found} times; "
            f"move the edit in tests/mutants/catalogue.py to where the guard is now:\n{mutant.old}"
        )
        self.mutant = mutant
        self.found = found


class RunError(Exception):
    """The tests neither passed nor failed: the mutant is no program, or the tests took too long."""

    def __init__(self, what: str, output: str) -> None:
        super().__init__(f"the tests of {what} neither passed nor failed:\n{output}")
        self.what = what


@attrs.frozen
class Failure:
    """What caught a mutant."""

    test: str
    check: str
    """The innermost function of a test file on the way to the failure."""
    message: str

    def __str__(self) -> str:
        said = "" if self.message.startswith("assert") else self.message
        return said or self.check


def edited(mutant: Mutant, source: str) -> str:
    """The source without the guard. Raises EditError unless the edit fits exactly once."""
    found = source.count(mutant.old)
    if found != 1:
        raise EditError(mutant, found)
    return source.replace(mutant.old, mutant.new)


def facts_of(mutant: Mutant) -> tuple[str, ...]:
    """The tests that say in words what the mutant breaks."""
    return FACTS_OF_FILES.get(mutant.file, FACTS)


def is_pure(mutant: Mutant) -> bool:
    """Whether the property machine runs what the mutant changes."""
    return mutant.file not in FACTS_OF_FILES


def apply(mutant: Mutant, root: Path) -> None:
    """Edit the file below `root`. Raises EditError and leaves it alone when the edit does not fit."""
    path = root / PACKAGE / mutant.file
    source = edited(mutant, path.read_text(encoding="utf-8"))
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
        stale.unlink()
    path.unlink()  # The model has the same file.
    path.write_text(source, encoding="utf-8")


def copy_project(root: Path) -> None:
    """What the tests need, as it stands in the working tree."""
    without_caches = shutil.ignore_patterns("__pycache__")
    for name in ("trikubelet", "tests"):
        shutil.copytree(PROJECT / name, root / name, ignore=without_caches)
    shutil.copy(PROJECT / "pyproject.toml", root)


def copy_model(model: Path, root: Path) -> None:
    """A tree of its own whose files are the model's, until `apply` puts another one in the place of one."""
    shutil.copytree(model, root, copy_function=os.link)


async def make_model(root: Path, mutants: Sequence[Mutant]) -> None:
    """Copy the project into `root` and let the tests pass on it that these mutants need. Raises RunError when they do
    not."""
    copy_project(root)
    tests = dict.fromkeys(test for mutant in mutants for test in facts_of(mutant))
    if any(is_pure(mutant) for mutant in mutants):
        tests |= dict.fromkeys(MACHINE)
    failure = await run_tests(root, tuple(tests), "the unchanged package", compile_modules=True)
    if failure is not None:
        raise RunError("the unchanged package", f"{failure.test}: {failure}")


async def run_tests(root: Path, tests: tuple[str, ...], what: str, *, compile_modules: bool = False) -> Failure | None:
    """Run tests on the copy until one fails. None when all pass.

    `compile_modules`: leave what was compiled beside the modules. Raises RunError when they could not be run or took
    longer than TIMEOUT. Cancelling it ends the process.
    """
    with tempfile.TemporaryDirectory(prefix="trikubelet-mutant-") as directory:
        report = Path(directory) / "report.json"
        environment = {
            **os.environ,
            observer.REPORT: str(report),
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "" if compile_modules else "1",
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            observer.__name__,
            "-p",
            "no:cacheprovider",
            *tests,
        ]
        with trio.move_on_after(TIMEOUT) as deadline:
            ended = await trio.run_process(
                command, cwd=root, env=environment, capture_stdout=True, capture_stderr=True, check=False
            )
        if deadline.cancelled_caught:
            raise RunError(what, f"they took longer than {TIMEOUT:g} seconds")
        if ended.returncode == _PASSED:
            return None
        if ended.returncode != _FAILED or not report.exists():
            raise RunError(what, (ended.stdout + ended.stderr).decode(errors="replace")[-2000:])
        return Failure(**json.loads(report.read_text(encoding="utf-8")))
