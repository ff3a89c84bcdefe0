"""Where in the source tasks are kept from ending each other, and which tasks come from there.

The source says it by its calls of `trikubelet.supervision`. While an agent runs, Trio tells an instrument of each task
that is begun, and by whom.
"""

from __future__ import annotations

import ast
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

import trikubelet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from trio.lowlevel import Task

PACKAGE: Final = Path(trikubelet.__file__).parent
SUPERVISION: Final = "trikubelet.supervision"
SUPERVISORS: Final = frozenset({"supervise", "contain", "follow", "begin_again"})
"""Its functions."""
ELSEWHERE: Final = ("cli", "embedded", "sim")
"""Packages of an agent with the embedded runtime (`tests/embedded/test_faults.py`), and of other programs."""


@attrs.frozen
class SupervisedPlace:
    """A place in the source where something runs under a supervisor."""

    file: str
    """Below the package."""
    what: str
    """As it is written there: `supervise self._watch`."""
    lines: range = attrs.field(eq=False)

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"

    def has(self, where: tuple[str, int]) -> bool:
        file, line = where
        return line in self.lines and Path(file) == PACKAGE / self.file


def supervised_places() -> list[SupervisedPlace]:
    """All of an agent's own process."""
    found: list[SupervisedPlace] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        below = path.relative_to(PACKAGE)
        if below.parts[0] not in ELSEWHERE and below.name != "supervision.py":
            found += _places_in(str(below), ast.parse(path.read_text()))
    return found


def _places_in(file: str, tree: ast.Module) -> Iterator[SupervisedPlace]:
    """It is called (`await supervise(run)`), or given to somebody who calls it (`start_soon(supervise, run)`)."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for one in imports if one.module == SUPERVISION for alias in one.names} & SUPERVISORS
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        words = [call.func, *call.args]
        for word, run in itertools.pairwise(words):
            if isinstance(word, ast.Name) and word.id in names:
                assert call.end_lineno is not None
                lines = range(call.lineno, call.end_lineno + 1)
                yield SupervisedPlace(file, f"{word.id} {ast.unparse(run)}", lines)


class Beginnings(trio.abc.Instrument):
    """Where tasks were begun."""

    def __init__(self) -> None:
        self._begun: dict[Task, tuple[str, int]] = {}

    def task_spawned(self, task: Task) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _is_trios(frame):
            frame = frame.f_back
        if frame is not None:
            self._begun[task] = frame.f_code.co_filename, frame.f_lineno

    def task_exited(self, task: Task) -> None:
        self._begun.pop(task, None)

    def of(self, task: Task) -> set[tuple[str, int]]:
        """Files and lines: where it was begun, and where it is in all that it waits in."""
        places = {(frame.f_code.co_filename, line) for frame, line in _frames(task)}
        return places | ({self._begun[task]} if task in self._begun else set())


def _is_trios(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("trio.")


def _frames(task: Task) -> Iterator[tuple[Any, int]]:
    for frame, line in task.iter_await_frames():
        yield frame, line or 0
