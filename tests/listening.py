"""A listener that keeps all it is told, for tests that look at the list."""

from typing import TypeVar

from trikubelet.broadcast import Broadcast, Subscription

T = TypeVar("T")


def told_by(broadcast: Broadcast[T]) -> list[T]:
    """A list that grows with each value that is sent from now on, before `send` returns."""
    values: list[T] = []

    class Listener(Subscription[T]):
        def put(self, value: T) -> None:
            values.append(value)

    Listener(None).also(broadcast)
    return values
