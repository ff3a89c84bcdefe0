"""When a status is told that says nothing new."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import trio

from trikubelet.node.reporting import ReportClock

if TYPE_CHECKING:
    from trio.testing import MockClock


async def until_due(clock: ReportClock) -> float:
    began = trio.current_time()
    while not clock.due():
        await trio.sleep(1)
    return trio.current_time() - began


async def test_the_first_report_is_due_at_once(autojump_clock: MockClock) -> None:
    assert ReportClock(300, Random(1)).due()


async def test_after_a_change_the_next_is_due_between_half_a_period_and_one_and_a_half(
    autojump_clock: MockClock,
) -> None:
    waits = []
    for seed in range(20):
        clock = ReportClock(300, Random(seed))
        clock.reported(changed=True)
        waits.append(await until_due(clock))
    assert 150 <= min(waits) < 200
    assert 400 < max(waits) <= 451


async def test_after_a_periodic_report_the_next_is_due_in_one_period(autojump_clock: MockClock) -> None:
    clock = ReportClock(300, Random(1))
    clock.reported(changed=False)
    await until_due(clock)
    clock.reported(changed=False)
    assert await until_due(clock) == 300
