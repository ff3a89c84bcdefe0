"""Faults out of nowhere: what a task waits for raises, as if the task had been cancelled there."""

from __future__ import annotations

import inspect
import itertools
from typing import TYPE_CHECKING

import trio

from trikubelet.supervision import begin_again

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.lowlevel import Task


class ThrownError(Exception):
    """What nobody thought of."""


def tree(root: Task) -> Iterator[tuple[tuple[str, ...], Task]]:
    def within(task: Task, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Task]]:
        path = (*above, task.name)
        yield path, task
        for nursery in task.child_nurseries:
            for child in sorted(nursery.child_tasks, key=lambda child: child._counter):
                yield from within(child, path)

    return within(root, ())


def is_ours(task: Task) -> bool:
    file = inspect.getsourcefile(task.coro.cr_code) or ""
    return "/trikubelet/sim/" not in file and "/tests/" not in file


def may_fail(task: Task) -> bool:
    """Whether it does something: not when it waits for its children only, or to be begun again."""
    return not (_only_waits_for_children(task) or _waits_to_begin_again(task))


def _only_waits_for_children(task: Task) -> bool:
    return any(nursery._parent_waiting_in_aexit for nursery in task.child_nurseries)


def _waits_to_begin_again(task: Task) -> bool:
    names = [frame.f_code.co_name for frame, _ in task.iter_await_frames()]
    return (begin_again.__name__, trio.sleep.__name__) in itertools.pairwise(names)


def throw_into(task: Task) -> None:
    """Have what the task waits for raise."""

    def throw() -> None:
        raise ThrownError(f"thrown into {task.name}")

    task._attempt_abort(throw)
