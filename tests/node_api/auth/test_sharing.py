from __future__ import annotations

import pytest
import trio
import trio.testing

from trikubelet.node_api.auth.reviews import ReviewError
from trikubelet.node_api.auth.sharing import SharedLookups


class Slow:
    def __init__(self, result: str | Exception = "found") -> None:
        self.begun = self.ended = 0
        self._result = result

    async def __call__(self) -> str:
        self.begun += 1
        await trio.sleep(10)
        self.ended += 1
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


async def running(nursery: trio.Nursery) -> SharedLookups[str]:
    lookups: SharedLookups[str] = SharedLookups()
    await nursery.start(lookups.run)
    return lookups


async def test_all_who_ask_meanwhile_share_one_lookup(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    lookups, slow = await running(nursery), Slow()
    results = []

    async def ask(key: bytes) -> None:
        results.append(await lookups.get(key, slow))

    async with trio.open_nursery() as askers:
        for _ in range(5):
            askers.start_soon(ask, b"one")
        askers.start_soon(ask, b"other")
    assert results == ["found"] * 6
    assert slow.begun == 2
    await ask(b"one")
    assert slow.begun == 3
    assert len(lookups) == 0


async def test_who_gives_up_first_does_not_end_it_for_the_others(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    lookups, slow = await running(nursery), Slow()
    results = []

    async def ask(patience: float) -> None:
        with trio.move_on_after(patience):
            results.append(await lookups.get(b"one", slow))

    async with trio.open_nursery() as askers:
        askers.start_soon(ask, 5)
        askers.start_soon(ask, 50)
    assert results == ["found"]
    assert slow.begun == 1


async def test_a_lookup_that_nobody_waits_for_is_cancelled(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    lookups, slow = await running(nursery), Slow()
    with trio.move_on_after(5):
        await lookups.get(b"one", slow)
    assert len(lookups) == 0
    assert await lookups.get(b"one", slow) == "found"
    await trio.sleep(60)
    assert (slow.begun, slow.ended) == (2, 1)


async def test_a_failure_is_everybodys_and_ends_nothing_else(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    lookups = await running(nursery)
    with pytest.raises(ReviewError, match="server is away"):
        await lookups.get(b"one", Slow(ReviewError("server is away")))
    with pytest.raises(ReviewError, match="failed unexpectedly"):
        await lookups.get(b"one", Slow(ZeroDivisionError()))
    assert await lookups.get(b"one", Slow()) == "found"


async def test_nothing_is_looked_up_before_the_start_or_after_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lookups: SharedLookups[str] = SharedLookups()
    slow = Slow()
    with pytest.raises(ReviewError, match="starting or stopping"):
        await lookups.get(b"one", slow)

    async def refused() -> None:
        with pytest.raises(ReviewError, match="cancelled"):
            await lookups.get(b"one", slow)

    async with trio.open_nursery() as askers:
        async with trio.open_nursery() as owner:
            await owner.start(lookups.run)
            askers.start_soon(refused)
            await trio.sleep(1)
            owner.cancel_scope.cancel()
    with pytest.raises(ReviewError, match="starting or stopping"):
        await lookups.get(b"one", slow)
    assert slow.ended == 0
