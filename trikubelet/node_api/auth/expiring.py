"""A bounded cache whose entries end at a time of their own."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from trikubelet.formats.values import frozen

V = TypeVar("V")


@frozen
class _Entry(Generic[V]):
    value: V
    expires: float


class ExpiringCache(Generic[V]):
    """Keeps at most `capacity` values, those used last. Knows no clock: `now` is in seconds and does not go back.

    Keys are digests, so that neither secrets nor long texts are kept.
    """

    def __init__(self, capacity: int) -> None:
        """Raises ValueError for a capacity below 1."""
        if capacity < 1:
            raise ValueError(f"expected a capacity of at least 1, got {capacity}")
        self._capacity = capacity
        self._entries: OrderedDict[bytes, _Entry[V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes, now: float) -> V | None:
        """The value, unless its time is over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= now:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: bytes, value: V, now: float, ttl: float) -> None:
        """Keep a value for `ttl` seconds; not at all when that is nothing."""
        if ttl <= 0:
            return
        self._entries[key] = _Entry(value, now + ttl)
        self._entries.move_to_end(key)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def discard(self, key: bytes) -> None:
        self._entries.pop(key, None)
