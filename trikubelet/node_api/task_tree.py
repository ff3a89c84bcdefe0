"""The running tasks as a tree of nurseries, with what each task waits for: where the agent is, at this moment.

Trio's introspection gives all of it: a task knows its nurseries, a nursery its tasks, and a suspended task its stack.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

MAX_TASKS: Final = 5000


@define
class _Budget:
    tasks: int = MAX_TASKS


def task_tree() -> dict[str, Any]:
    """The root task and all below it, as JSON values.

    A task is `{"name", "waits_at": "module.function:line", "waits_in": "trio.Event.wait", "nurseries": […]}`;
    `waits_at` is the innermost frame that is not a library's, `waits_in` the innermost of all. A nursery is
    `{"tasks": […]}`, with `"cancelled": true` and `"deadline_in": seconds` where that says something. Beyond 5000 tasks
    the rest is cut off, marked `"cut": true`. Raises RuntimeError outside `trio.run`.
    """
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return _task(root, _Budget())


def pod_tree(uid: str) -> dict[str, Any] | None:
    """The same for the task of one pod's life, and all that runs for it; None when there is none.

    Only the tasks of this pod are looked at closely, so it costs little.
    """
    root = trio.lowlevel.current_root_task()
    assert root is not None
    tasks = [root]
    for task in tasks:  # it grows
        if task.name.startswith("pod ") and task.name.endswith(f" {uid}"):
            return _task(task, _Budget())
        tasks += (child for nursery in task.child_nurseries for child in nursery.child_tasks)
    return None


def tree_text(tree: dict[str, Any]) -> str:
    """A tree for people: a task a line, indented below its nursery."""
    return "".join(f"{line}\n" for line in _lines(tree, ""))


def _lines(task: dict[str, Any], indent: str) -> Iterator[str]:
    waits = [task[name] for name in ("waits_in", "waits_at") if name in task]
    yield f"{indent}{task['name']}" + (f": {', '.join(dict.fromkeys(waits))}" if waits else "")
    for nursery in task.get("nurseries", ()):
        facts = ["cancelled"] if "cancelled" in nursery else []
        if "deadline_in" in nursery:
            facts.append(f"{nursery['deadline_in']:g} s left")
        yield f"{indent}  nursery" + (f" ({', '.join(facts)})" if facts else "")
        for child in nursery["tasks"]:
            yield from _lines(child, indent + "    ")
        if "cut" in nursery:
            yield f"{indent}    and more"


def _task(task: trio.lowlevel.Task, budget: _Budget) -> dict[str, Any]:
    budget.tasks -= 1
    result: dict[str, Any] = {"name": task.name}
    if task is trio.lowlevel.current_task():
        result["waits_at"] = result["waits_in"] = "this request"
    else:
        result.update(_waits(task))
    if task.child_nurseries:
        result["nurseries"] = [_nursery(nursery, budget) for nursery in task.child_nurseries]
    return result


def _nursery(nursery: trio.Nursery, budget: _Budget) -> dict[str, Any]:
    result: dict[str, Any] = {}
    scope = nursery.cancel_scope
    if scope.cancel_called:
        result["cancelled"] = True
    if not math.isinf(scope.deadline):
        result["deadline_in"] = round(scope.deadline - trio.current_time(), 3)
    tasks = sorted(nursery.child_tasks, key=lambda task: task.name)
    result["tasks"] = []
    for task in tasks:
        if budget.tasks <= 0:
            result["cut"] = True
            break
        result["tasks"].append(_task(task, budget))
    return result


def _waits(task: trio.lowlevel.Task) -> dict[str, str]:
    frames = list(_frames(task))
    if not frames:
        return {}
    ours = [frame for frame in frames if not frame[0].f_code.co_filename.startswith(_others_code())]
    result = {"waits_in": _innermost(frames)}
    if ours:
        frame, line = ours[-1]
        result["waits_at"] = f"{_name(frame)}:{line}"
    return result


@cache
def _others_code() -> tuple[str, ...]:
    """The folders of Python and of libraries."""
    import sysconfig  # with all that Python was built with

    paths = sysconfig.get_paths()
    return paths["purelib"], paths["stdlib"]


def _frames(task: trio.lowlevel.Task) -> Iterator[tuple[FrameType, int]]:
    for frame, line in task.iter_await_frames():
        if frame is not None:
            yield frame, line or 0


def _innermost(frames: list[tuple[FrameType, int]]) -> str:
    """The function that waits, without the last steps into Trio's machinery, which are the same for all."""
    names = [_name(frame) for frame, _ in frames]
    informative = [name for name in names if not name.startswith(("trio._core._traps.", "trio._core._generated_"))]
    return (informative or names)[-1]


def _name(frame: FrameType) -> str:
    module = frame.f_globals.get("__name__") or Path(frame.f_code.co_filename).stem
    return f"{module}.{frame.f_code.co_qualname}"
