"""Tasks that are begun again after a fault, and those whose fault is their end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from tests.captured_logs import capture_logs
from trikubelet.broadcast import Broadcast
from trikubelet.supervision import FAULTS, contain, faults, follow, supervise

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from trio.testing import MockClock

    Supervisor: TypeAlias = Callable[..., Awaitable[None]]


class Part:
    """Runs until it is told to fail, or to end."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.asked: Broadcast[None] = Broadcast()
        self.error: BaseException | None = None

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        self.begun.append(trio.current_time())
        task_status.started("value")
        await self.asked.wait()
        if self.error is not None:
            raise self.error

    async def fail(self, error: BaseException) -> None:
        self.error = error
        self.asked.send(None)
        await trio.testing.wait_all_tasks_blocked()


async def test_what_fails_is_begun_again_later_each_time(autojump_clock: MockClock) -> None:
    part = Part()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise, part.run)
        for number in range(1, 9):
            while len(part.begun) < number:
                await trio.sleep(0.5)
            await part.fail(RuntimeError("nobody thought of that"))
        nursery.cancel_scope.cancel()
    pauses = [later - earlier for earlier, later in zip(part.begun, part.begun[1:], strict=False)]
    assert pauses == pytest.approx([FAULTS.delay(number) for number in range(1, 8)], abs=0.6)


async def test_what_ran_for_long_has_recovered(autojump_clock: MockClock) -> None:
    part = Part()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise, part.run)
        for _ in range(5):
            await trio.sleep(FAULTS.longest + 2)
            failed_at = trio.current_time()
            await part.fail(RuntimeError())
            await trio.sleep(FAULTS.first)
            await trio.testing.wait_all_tasks_blocked()
            assert part.begun[-1] == pytest.approx(failed_at + FAULTS.first)
        nursery.cancel_scope.cancel()


async def test_a_fault_is_told_and_counted(autojump_clock: MockClock) -> None:
    part, before = Part(), faults["Part.run",]
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, part.run)
            await trio.testing.wait_all_tasks_blocked()
            await part.fail(ValueError("odd"))
            nursery.cancel_scope.cancel()
    assert faults["Part.run",] == before + 1
    [told] = lines
    assert (told["log_level"], told["task"], told["error"]) == ("error", "Part.run", "ValueError('odd')")
    assert told["exc_info"] is part.error


async def test_the_end_is_the_end(autojump_clock: MockClock) -> None:
    part = Part()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise, part.run)
        await trio.testing.wait_all_tasks_blocked()
        part.asked.send(None)
    assert len(part.begun) == 1


async def test_before_the_start_a_fault_is_the_starters(autojump_clock: MockClock) -> None:
    async def run(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        raise ValueError("cannot begin")

    async with trio.open_nursery() as nursery:
        for by in (supervise, contain):
            with pytest.raises(ValueError, match="cannot begin"):
                await nursery.start(by, run)


async def test_after_the_start_it_is_begun_again(autojump_clock: MockClock) -> None:
    part = Part()
    async with trio.open_nursery() as nursery:
        assert await nursery.start(supervise, part.run) == "value"
        await part.fail(RuntimeError())
        await trio.sleep(FAULTS.first + 0.1)
        assert len(part.begun) == 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("by", [supervise, contain])
async def test_what_is_no_exception_goes_on(autojump_clock: MockClock, by: Supervisor) -> None:
    async def run() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await by(run)


@pytest.mark.parametrize("by", [supervise, contain])
async def test_a_cancellation_that_comes_with_a_fault_ends_it(autojump_clock: MockClock, by: Supervisor) -> None:
    begun = 0

    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while it was cancelled")

    async def run() -> None:
        nonlocal begun
        begun += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_at_the_end)
            nursery.start_soon(trio.sleep_forever)

    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(by, run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert begun == 1
    assert "while it was cancelled" in str(lines[0]["error"])


async def test_what_is_contained_ends_alone(autojump_clock: MockClock) -> None:
    part, other = Part(), Part()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(contain, part.run)
        nursery.start_soon(contain, other.run)
        await trio.testing.wait_all_tasks_blocked()
        await part.fail(RuntimeError())
        await trio.sleep(100)
        assert len(part.begun) == 1
        assert len(nursery.child_tasks) == 1
        nursery.cancel_scope.cancel()


async def test_a_follower_goes_on_with_the_next_value(autojump_clock: MockClock) -> None:
    values: Broadcast[int] = Broadcast()
    handled: list[int] = []

    def handle(value: int) -> None:
        handled.append(100 // value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, values.subscribe(), handle)
        for value in (1, 0, 2):
            values.send(value)
        await trio.sleep(FAULTS.first + 0.1)
        assert handled == [100, 50]
        assert values.statistics().subscriptions == 1
        nursery.cancel_scope.cancel()
    assert values.statistics().subscriptions == 0


async def test_tasks_are_called_as_without_a_supervisor(autojump_clock: MockClock) -> None:
    part = Part()
    async with trio.open_nursery() as nursery:
        for by in (supervise, contain):
            nursery.start_soon(by, part.run)
            nursery.start_soon(by, partial(part.run))
        await trio.testing.wait_all_tasks_blocked()
        assert {task.name for task in nursery.child_tasks} == {f"{__name__}.Part.run"}
        nursery.cancel_scope.cancel()
