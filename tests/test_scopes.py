"""A task beside a block: begun before it, over after it, and never left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from trikubelet.rpc.grpc import Channel
from trikubelet.scopes import leaves, running

if TYPE_CHECKING:
    from trio_typing import TaskStatus


class Task:
    def __init__(self) -> None:
        self.told: list[str] = []

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        try:
            self.told.append("begins")
            await trio.lowlevel.checkpoint()
            task_status.started()
            await trio.sleep_forever()
        finally:
            self.told.append("over")


async def test_the_task_runs_while_the_block_does() -> None:
    task = Task()
    async with running(task.run):
        assert task.told == ["begins"]
    assert task.told == ["begins", "over"]


async def test_what_the_block_raises_leaves_as_it_is() -> None:
    task = Task()
    with pytest.raises(ValueError, match="of the block"):
        async with running(task.run):
            raise ValueError("of the block")
    assert task.told == ["begins", "over"]


async def test_what_the_block_raises_leaves_as_it_is_when_it_is_being_cancelled_too() -> None:
    task = Task()

    async def fail_while_cancelled() -> None:
        async with running(task.run):
            scope.cancel()
            while task.told != ["begins", "over"]:
                await trio.lowlevel.cancel_shielded_checkpoint()
            raise ValueError("of the block")

    with trio.CancelScope() as scope:
        with pytest.raises(ValueError, match="of the block"):
            await fail_while_cancelled()
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_a_task_that_cannot_start_says_why() -> None:
    async def run(*, task_status: TaskStatus[None]) -> None:
        raise OSError("cannot start")

    with pytest.raises(OSError, match="cannot start"):
        async with running(run):
            raise AssertionError("the block is not to be entered")


async def test_being_cancelled_at_the_start_leaves_nothing_open() -> None:
    task = Task()
    open_before = [*trio.lowlevel.current_task().child_nurseries]
    with trio.CancelScope() as scope:
        scope.cancel()
        async with running(task.run):
            raise AssertionError("the block is not to be entered")
    assert scope.cancelled_caught
    assert trio.lowlevel.current_task().child_nurseries == open_before


async def _nowhere() -> trio.abc.Stream:
    raise OSError("nobody is there")


async def test_a_channel_that_is_cancelled_while_it_is_entered_leaves_nothing_open() -> None:
    open_before = [*trio.lowlevel.current_task().child_nurseries]
    with trio.CancelScope() as scope:
        scope.cancel()
        async with Channel(_nowhere):
            raise AssertionError("the block is not to be entered")
    assert scope.cancelled_caught
    assert trio.lowlevel.current_task().child_nurseries == open_before


def test_the_leaves_of_a_group_are_the_errors_in_all_its_groups() -> None:
    errors = [ValueError("a"), KeyError("b"), OSError("c")]
    group = ExceptionGroup("", [errors[0], ExceptionGroup("", [ExceptionGroup("", [errors[1]]), errors[2]])])
    assert list(leaves(group)) == errors


async def test_what_the_body_raises_while_all_is_cancelled_is_not_wrapped() -> None:
    async def run_with_tasks(*, task_status: TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            task_status.started()
            await trio.sleep_forever()

    caught = False
    with trio.CancelScope() as everything:
        try:
            async with running(run_with_tasks):
                everything.cancel()
                raise KeyError("body")
        except KeyError:
            caught = True
    assert caught
