from __future__ import annotations

from itertools import count

import trio
import trio.testing

from trikubelet.kube_client.health import ConnectionHealth


async def test_only_changes_are_told() -> None:
    health = ConnectionHealth("https://x")
    number = count()
    changes = health.changes.subscribe(lambda _: next(number))
    assert health.reachable
    health.answered()
    health.lost("refused")
    health.lost("refused")
    health.answered()
    health.answered()
    assert [await changes.receive() for _ in range(len(changes))] == [False, True]
    assert health.recoveries == 1


async def test_a_recovery_before_the_wait_is_not_missed_and_not_met_twice() -> None:
    health = ConnectionHealth("https://x")
    seen = health.recoveries
    health.lost("refused")
    health.answered()
    await health.wait_recovery(seen)
    seen = health.recoveries
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_when_blocked, scope)
            await health.wait_recovery(seen)
        assert scope.cancelled_caught


async def test_a_recovery_wakes_all_who_wait() -> None:
    health = ConnectionHealth("https://x")
    health.lost("refused")
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(health.wait_recovery, 0)
        await trio.testing.wait_all_tasks_blocked()
        health.answered()
        health.lost("again")
    assert not health.reachable


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()
