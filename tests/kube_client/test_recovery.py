"""Pauses between attempts, and what ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.kube_client.health import ConnectionHealth
from trikubelet.kube_client.recovery import GrowingPauses, until_recovery

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trio.testing import MockClock


def lost_server() -> ConnectionHealth:
    health = ConnectionHealth("https://x")
    health.lost("refused")
    return health


async def seconds_of(waiting: Awaitable[None]) -> float:
    begin = trio.current_time()
    await waiting
    return round(trio.current_time() - begin, 3)


async def after(seconds: float, then: object) -> None:
    await trio.sleep(seconds)
    assert callable(then)
    then()


async def test_pauses_grow_to_their_limit_and_begin_anew_after_a_success(autojump_clock: MockClock) -> None:
    pauses = GrowingPauses(lost_server(), 0.5, 3.0)
    assert [await seconds_of(pauses.after_failure()) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    pauses.succeeded()
    assert pauses.next == 0.5
    assert await seconds_of(pauses.after_failure()) == 0.5


async def test_pauses_may_grow_faster_and_vary_around_their_plan(autojump_clock: MockClock) -> None:
    chances = iter((0.75, 1.25, 1.0))
    pauses = GrowingPauses(lost_server(), 0.1, 60.0, factor=8, vary=lambda: next(chances))
    assert [await seconds_of(pauses.after_failure()) for _ in range(3)] == [0.075, 1.0, 6.4]


async def test_a_recovery_ends_a_pause(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    health = lost_server()
    pauses = GrowingPauses(health, 100.0, 100.0, spread=lambda: 0.25)
    pauses.attempt()
    nursery.start_soon(after, 7.0, health.answered)
    assert await seconds_of(pauses.after_failure()) == 7.25


async def test_a_recovery_during_the_attempt_leaves_no_pause(autojump_clock: MockClock) -> None:
    health = lost_server()
    pauses = GrowingPauses(health, 100.0, 100.0)
    pauses.attempt()
    health.answered()
    assert await seconds_of(pauses.after_failure()) == 0.0
    pauses.attempt()
    assert await seconds_of(pauses.after_failure()) == 100.0, "each recovery counts once"


async def test_what_is_missing_may_come_before_the_pause_is_over(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    pauses = GrowingPauses(lost_server(), 4.0, 100.0)
    assert await seconds_of(pauses.until(trio.sleep_forever)) == 4.0
    come = trio.Event()
    nursery.start_soon(after, 2.0, come.set)
    assert await seconds_of(pauses.until(come.wait)) == 2.0
    assert pauses.next == 16.0


async def test_a_wait_can_be_ended_sooner_and_its_end_is_spread_like_others(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    sooner = trio.CancelScope()
    nursery.start_soon(after, 3.0, sooner.cancel)
    assert await seconds_of(until_recovery(lost_server(), 0, 60.0, sooner=sooner, spread=lambda: 0.5)) == 3.5


async def test_nobody_stays_longer_than_the_pause(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    health = lost_server()
    nursery.start_soon(after, 9.9, health.answered)
    assert await seconds_of(until_recovery(health, 0, 10.0, spread=lambda: 5.0)) == 10.0
