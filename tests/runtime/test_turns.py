"""Turns of calls that make something, on a mock clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from trikubelet.runtime.turns import LONGEST_TURN, CallKind, Turns

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_so_many_go_on_at_a_time_and_the_first_to_come_first(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    turns = Turns(3)
    began: dict[int, float] = {}

    async def make(number: int) -> None:
        async with turns.take(CallKind.RUN_SANDBOX):
            began[number] = trio.current_time()
            await trio.sleep(1)

    for number in range(9):
        nursery.start_soon(make, number)
        await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(5)
    assert [round(began[number]) for number in range(9)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert turns.waiting == 0


async def test_what_is_nearest_to_a_running_container_goes_first(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    turns = Turns(1)
    order: list[CallKind] = []

    async def make(kind: CallKind) -> None:
        async with turns.take(kind):
            order.append(kind)
            await trio.sleep(1)

    wishes = [CallKind.RUN_SANDBOX, CallKind.RUN_SANDBOX, CallKind.CREATE_CONTAINER, CallKind.START_CONTAINER]
    for kind in wishes:
        nursery.start_soon(make, kind)
        await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(5)
    assert order == [CallKind.RUN_SANDBOX, *sorted(wishes[1:])]


async def test_calls_that_hang_hold_up_the_others_for_a_while_only(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    turns = Turns(2)
    began: list[float] = []

    async def make(seconds: float) -> None:
        async with turns.take(CallKind.RUN_SANDBOX):
            began.append(trio.current_time())
            await trio.sleep(seconds)

    for _ in range(2):
        nursery.start_soon(make, 1000)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(3):
        nursery.start_soon(make, 0.5)
    await trio.sleep(LONGEST_TURN + 2)
    assert began[2:] == [pytest.approx(LONGEST_TURN + wait) for wait in (0, 0, 0.5)]


async def test_a_cancelled_wait_and_a_failed_call_give_their_turn_back(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    turns = Turns(1)

    async def take(seconds: float) -> None:
        async with turns.take(CallKind.CREATE_CONTAINER):
            await trio.sleep(seconds)

    nursery.start_soon(take, 1)
    await trio.testing.wait_all_tasks_blocked()
    with trio.move_on_after(0.5):
        await take(0)
    assert turns.waiting == 0
    with trio.move_on_after(1.0) as scope:
        await take(10)
    assert scope.cancelled_caught
    with pytest.raises(RuntimeError):
        async with turns.take(CallKind.CREATE_CONTAINER):
            raise RuntimeError
    with trio.fail_after(0.1):
        await take(0)


async def test_a_turn_may_end_between_two_looks_at_the_clock(
    autojump_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(1)
    now = trio.current_time

    async def make() -> None:
        async with turns.take(CallKind.RUN_SANDBOX):
            await trio.sleep(1000)

    def slow_look() -> float:
        seen = now()
        autojump_clock.jump(0.001)
        return seen

    nursery.start_soon(make)
    await trio.sleep(LONGEST_TURN - 0.0005)
    monkeypatch.setattr(trio, "current_time", slow_look)
    with trio.fail_after(1):
        async with turns.take(CallKind.RUN_SANDBOX):
            pass
    nursery.cancel_scope.cancel()
