from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from trikubelet.node_api import task_tree as module
from trikubelet.node_api.task_tree import pod_tree, task_tree

if TYPE_CHECKING:
    import pytest


def tasks(tree: dict[str, Any]) -> list[dict[str, Any]]:
    found = [tree]
    for nursery in tree.get("nurseries", ()):
        for task in nursery["tasks"]:
            found += tasks(task)
    return found


async def test_a_task_is_shown_below_its_nursery_with_what_it_waits_for(autojump_clock: trio.abc.Clock) -> None:
    event = trio.Event()

    async def waiter() -> None:
        await event.wait()

    async def parent() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as inner:
                inner.cancel_scope.deadline = trio.current_time() + 10
                inner.start_soon(waiter, name="child")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(parent, name="parent")
        await trio.testing.wait_all_tasks_blocked()
        tree = task_tree()
        nursery.cancel_scope.cancel()
    (found,) = [task for task in tasks(tree) if task["name"] == "parent"]
    (inner,) = found["nurseries"]
    assert inner["deadline_in"] == 10
    (child,) = inner["tasks"]
    assert child["name"] == "child"
    assert child["waits_at"].startswith(f"{__name__}.")
    assert "waiter:" in child["waits_at"]
    assert "Event.wait" in child["waits_in"]


async def test_a_cancelled_nursery_is_marked(autojump_clock: trio.abc.Clock) -> None:
    async def stubborn() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stubborn)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        tree = task_tree()
    assert any(n.get("cancelled") for task in tasks(tree) for n in task.get("nurseries", ()))


async def test_a_tree_that_is_too_large_is_cut(monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock) -> None:
    monkeypatch.setattr(module._Budget.__init__, "__defaults__", (20,))
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        tree = task_tree()
        nursery.cancel_scope.cancel()
    assert len(tasks(tree)) == 20
    assert any(n.get("cut") for task in tasks(tree) for n in task.get("nurseries", ()))


async def test_the_tasks_of_one_pod_are_found_by_its_uid(autojump_clock: trio.abc.Clock) -> None:
    async def life() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever, name="container main")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(life, name="pod web_default uid-1")
        nursery.start_soon(life, name="pod other_default uid-11")
        await trio.testing.wait_all_tasks_blocked()
        tree = pod_tree("uid-1")
        nothing = pod_tree("id-1")
        nursery.cancel_scope.cancel()
    assert tree is not None
    assert [task["name"] for task in tasks(tree)] == ["pod web_default uid-1", "container main"]
    assert nothing is None
