"""The one way in which a part says that something has changed."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trikubelet.broadcast import Broadcast, BroadcastStatistics
from trikubelet.supervision import follow


async def test_waiting_wakes_all_who_wait() -> None:
    changes: Broadcast[int] = Broadcast()
    woken: list[str] = []

    async def wait(name: str) -> None:
        await changes.wait()
        woken.append(name)

    async with trio.open_nursery() as nursery:
        for name in ("one", "other"):
            nursery.start_soon(wait, name)
        await wait_all_tasks_blocked()
        changes.send(1)
    assert sorted(woken) == ["one", "other"]


async def test_who_waits_after_a_value_waits_for_the_next(autojump_clock: trio.testing.MockClock) -> None:
    changes: Broadcast[int] = Broadcast()
    changes.send(1)
    with trio.move_on_after(1) as scope:
        await changes.wait()
    assert scope.cancelled_caught


async def test_a_subscriber_gets_what_was_sent_since_it_subscribed_in_order() -> None:
    changes: Broadcast[str] = Broadcast()
    changes.send("before")
    with changes.subscribe() as subscription:
        for value in ("b", "a", "c"):
            changes.send(value)
        assert [await subscription.receive() for _ in range(3)] == ["b", "a", "c"]
        assert len(subscription) == 0


async def test_equal_values_are_received_once() -> None:
    changes: Broadcast[str] = Broadcast()
    with changes.subscribe() as subscription:
        for value in ("a", "b", "a"):
            changes.send(value)
        assert [await subscription.receive() for _ in range(len(subscription))] == ["a", "b"]


async def test_of_values_with_one_key_the_newest_is_kept_in_the_place_of_the_oldest() -> None:
    changes: Broadcast[tuple[str, int]] = Broadcast()
    with changes.subscribe(key=lambda value: value[0]) as subscription:
        for value in (("a", 1), ("b", 1), ("a", 2)):
            changes.send(value)
        assert [await subscription.receive() for _ in range(len(subscription))] == [("a", 2), ("b", 1)]


async def test_each_subscriber_gets_every_value() -> None:
    changes: Broadcast[int] = Broadcast()
    with changes.subscribe() as one, changes.subscribe() as other:
        changes.send(1)
        assert (await one.receive(), await other.receive()) == (1, 1)


async def test_one_subscription_may_listen_to_several() -> None:
    some: Broadcast[int] = Broadcast()
    others: Broadcast[int] = Broadcast()
    with some.subscribe().also(others) as subscription:
        others.send(2)
        some.send(1)
        assert [await subscription.receive(), await subscription.receive()] == [2, 1]
    assert others.statistics().subscriptions == some.statistics().subscriptions == 0


async def test_following_handles_each_value_in_turn(nursery: trio.Nursery) -> None:
    changes: Broadcast[int] = Broadcast()
    handled: list[int] = []
    nursery.start_soon(follow, changes.subscribe(), handled.append)
    changes.send(1)
    changes.send(2)
    await wait_all_tasks_blocked()
    assert handled == [1, 2]


async def test_a_pending_value_can_be_dropped() -> None:
    changes: Broadcast[int] = Broadcast()
    with changes.subscribe() as subscription:
        changes.send(1)
        changes.send(2)
        subscription.drop(1)
        subscription.drop(3)
        assert await subscription.receive() == 2


async def test_closing_ends_who_iterates() -> None:
    changes: Broadcast[int] = Broadcast()
    subscription = changes.subscribe()
    received: list[int] = []

    async def iterate() -> None:
        async for value in subscription:
            received.append(value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(iterate)
        changes.send(1)
        await wait_all_tasks_blocked()
        subscription.close()
    changes.send(2)
    assert received == [1]
    with pytest.raises(trio.EndOfChannel):
        await subscription.receive()


async def test_cancelling_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    changes: Broadcast[int] = Broadcast()
    with changes.subscribe() as subscription:
        with trio.move_on_after(1):
            await subscription.receive()
        changes.send(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await subscription.receive()
        assert await subscription.receive() == 1


async def test_a_value_that_comes_as_its_receiver_is_cancelled_is_kept() -> None:
    changes: Broadcast[int] = Broadcast()
    with changes.subscribe() as subscription:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscription.receive)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            changes.send(1)
        assert await subscription.receive() == 1


async def test_two_tasks_that_share_a_subscription_each_get_a_value() -> None:
    changes: Broadcast[int] = Broadcast()
    received: list[int] = []
    with changes.subscribe() as subscription:

        async def take() -> None:
            received.append(await subscription.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            nursery.start_soon(take)
            await wait_all_tasks_blocked()
            changes.send(1)
            changes.send(2)
    assert sorted(received) == [1, 2]


async def test_it_counts_who_listens() -> None:
    changes: Broadcast[int] = Broadcast()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(changes.wait)
        await wait_all_tasks_blocked()
        with changes.subscribe(), changes.subscribe() as other:
            changes.send(1)
            await other.receive()
            assert changes.statistics() == BroadcastStatistics(waiting=0, subscriptions=2, pending=1)
    assert changes.statistics() == BroadcastStatistics(waiting=0, subscriptions=0, pending=0)
