"""A run that stands still between steps."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import trio

from tests.sim.held_run import HeldRun

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def run() -> Iterator[HeldRun]:
    run = HeldRun(seed=1)
    yield run
    run.close()


async def an_hour() -> None:
    await trio.sleep(3599)


def test_time_passes_in_steps_only_and_costs_none(run: HeldRun) -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await trio.sleep(1000)
            ticks.append(trio.current_time())

    began, threads = time.perf_counter(), set(threading.enumerate())
    run.start_soon(tick)
    assert trio.current_time() == 0
    run.do(an_hour)
    assert trio.current_time() == trio.current_time() == 3599
    run.do(an_hour)
    assert ticks == [1000, 2000, 3000, 4000, 5000, 6000, 7000]
    assert time.perf_counter() - began < 60
    assert set(threading.enumerate()) <= threads


def test_a_step_that_fails_tells_the_caller_and_the_run_goes_on(run: HeldRun) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise KeyError("step")

    with pytest.raises(KeyError, match="step"):
        run.do(fail)
    run.do(an_hour)
    assert trio.current_time() == 3600


def test_a_step_that_never_ends_fails(run: HeldRun) -> None:
    with pytest.raises(trio.TooSlowError):
        run.do(trio.sleep_forever)


def test_what_fails_beside_a_step_fails_the_step(run: HeldRun) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise KeyError("beside")

    run.start_soon(fail)
    with pytest.raises(ExceptionGroup) as info:
        run.do(an_hour)
    assert info.group_contains(KeyError, match="beside")


def test_two_runs_of_one_seed_choose_alike() -> None:
    def order() -> list[int]:
        run, woken = HeldRun(seed=7), list[int]()

        async def wake(number: int) -> None:
            await trio.sleep(1)
            woken.append(number)

        for number in range(20):
            run.start_soon(lambda number=number: wake(number))  # type: ignore[misc]
        run.do(an_hour)
        run.close()
        return woken

    assert order() == order()
