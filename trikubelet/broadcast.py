"""Sending news of changes: `Inbox` for one receiver, `Broadcast` for any number of subscribers.

Trio's memory channels queue every value. These two are for news of which only the newest matters: of values that are
equal under a `key` an inbox keeps the last one, so what it holds is bounded by the number of keys, and a sender
never waits.

A broadcast keeps nothing itself. Current subscribers get the value; a later subscriber has missed it and asks
the fact's owner when it begins to listen. A trio.Event that is set and replaced by hand does half of this, a list of
callbacks the other half; the first is easily replaced one step too early, and the second runs other people's code in
the middle of one's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

import trio

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType

T = TypeVar("T")


@frozen
class BroadcastStatistics:
    """For debugging."""

    waiting: int
    """Tasks in `wait`."""
    subscriptions: int
    pending: int
    """Values that subscribers have not received yet."""


class Broadcast(Generic[T]):
    """Hands values of one kind to all subscribers."""

    def __init__(self) -> None:
        self._next = trio.lowlevel.ParkingLot()
        self._subscriptions: list[Subscription[T]] = []

    def send(self, value: T) -> None:
        """Wake all waiting tasks and put the value into all subscriptions, in the order in which they came."""
        self._next.unpark_all()
        for subscription in self._subscriptions:
            subscription.put(value)

    async def wait(self) -> None:
        """Return after the next `send`. May be cancelled freely."""
        await self._next.park()

    def subscribe(self, key: Callable[[T], Hashable] | None = None) -> Subscription[T]:
        """Listen from now on; `key` as for an `Inbox`. Use it as a context manager."""
        return Subscription(key).also(self)

    def statistics(self) -> BroadcastStatistics:
        return BroadcastStatistics(
            waiting=len(self._next),
            subscriptions=len(self._subscriptions),
            pending=sum(len(subscription) for subscription in self._subscriptions),
        )

    def _unsubscribe(self, subscription: Subscription[T]) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)


class Inbox(Generic[T]):
    """Values on their way to one receiver. Of those for which `key` gives the same the newest is kept, in the place of
    the oldest; without a key, equal values are one. Iterating it ends when it is closed."""

    def __init__(self, key: Callable[[T], Hashable] | None = None) -> None:
        self._key = key
        self._pending: dict[Hashable, T] = {}
        self._arrived = trio.lowlevel.ParkingLot()
        self._closed = False

    def put(self, value: T) -> None:
        """Never waits. Nothing happens once it is closed."""
        if not self._closed:
            self._pending[value if self._key is None else self._key(value)] = value
            self._arrived.unpark()

    async def receive(self) -> T:
        """The next value. Raises trio.EndOfChannel once closed. Cancelling it loses nothing."""
        if self._pending or self._closed:
            await trio.lowlevel.checkpoint()
        while not self._pending:
            if self._closed:
                raise trio.EndOfChannel
            await self._arrived.park()
        return self._pending.pop(next(iter(self._pending)))

    def drop(self, key: Hashable) -> None:
        """Forget the pending value with this key, if there is one."""
        self._pending.pop(key, None)

    def close(self) -> None:
        """Forget what is pending. Tasks in `receive` get trio.EndOfChannel."""
        self._pending.clear()
        self._closed = True
        self._arrived.unpark_all()

    def __len__(self) -> int:
        return len(self._pending)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Subscription(Inbox[T]):
    """What one or more broadcasts have sent since the last `receive`."""

    def __init__(self, key: Callable[[T], Hashable] | None = None) -> None:
        super().__init__(key)
        self._broadcasts: list[Broadcast[T]] = []

    def also(self, broadcast: Broadcast[T]) -> Self:
        """Listen to another broadcast too, from now on."""
        self._broadcasts.append(broadcast)
        broadcast._subscriptions.append(self)
        return self

    def close(self) -> None:
        """Listen no more."""
        for broadcast in self._broadcasts:
            broadcast._unsubscribe(self)
        self._broadcasts.clear()
        super().close()
