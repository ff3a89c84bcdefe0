"""How long to wait before the next attempt: doubling waits, forgotten after a quiet time.

The rules are those of client-go's `flowcontrol.Backoff`. Pure: time comes in as seconds of whatever clock the caller
uses for one `KeyedBackoff`. Two moments matter to each question: when the thing ended or failed (`event`), and when the
entry was last touched.
"""

from __future__ import annotations

from typing import Final

import attrs

from trikubelet.backoff import Backoff

CONTAINER_INITIAL: Final = 10.0
CONTAINER_MAXIMUM: Final = 300.0
CONTAINER_RESET: Final = 600.0
"""A container that ran this long before it ended starts over, whatever the maximum is."""
IMAGE_INITIAL: Final = 10.0
IMAGE_MAXIMUM: Final = 300.0


@attrs.frozen
class _Entry:
    wait: float
    updated: float


@attrs.define
class KeyedBackoff:
    """Waits per key. Seconds throughout."""

    waits: Backoff
    reset_after: float | None = None
    """Quiet seconds after which a key is as new; twice the maximum by default."""
    _entries: dict[str, _Entry] = attrs.field(factory=dict, init=False)

    @classmethod
    def for_containers(cls, maximum: float = CONTAINER_MAXIMUM) -> KeyedBackoff:
        """CrashLoopBackOff (kubelet: `newCrashLoopBackOff`)."""
        return cls(Backoff(min(CONTAINER_INITIAL, maximum), maximum), CONTAINER_RESET)

    @classmethod
    def for_images(cls) -> KeyedBackoff:
        """ImagePullBackOff."""
        return cls(Backoff(IMAGE_INITIAL, IMAGE_MAXIMUM))

    def wait_of(self, key: str) -> float:
        """The wait that is now in force for the key, 0 for an unknown one."""
        entry = self._entries.get(key)
        return 0.0 if entry is None else entry.wait

    def advance(self, key: str, event: float, now: float) -> None:
        """Note one more failure: the first wait for a new or expired key, else twice the last, up to the maximum."""
        entry = self._entries.get(key)
        fresh = entry is None or self._expired(entry, event)
        wait = self.waits.first if entry is None or fresh else self.waits.after(entry.wait)
        self._entries[key] = _Entry(wait, now)

    def in_backoff_since(self, key: str, event: float, now: float) -> bool:
        """Whether the wait that began at `event` is still running."""
        entry = self._entries.get(key)
        return entry is not None and not self._expired(entry, event) and now - event < entry.wait

    def in_backoff_since_update(self, key: str, now: float) -> bool:
        """Whether the wait that began with the last `advance` is still running."""
        entry = self._entries.get(key)
        return entry is not None and not self._expired(entry, now) and now - entry.updated < entry.wait

    def expires_at(self, key: str) -> float:
        """When the wait that began with the last `advance` ends. KeyError for an unknown key."""
        entry = self._entries[key]
        return entry.updated + entry.wait

    def reset(self, key: str) -> None:
        """Forget a key."""
        self._entries.pop(key, None)

    def collect(self, now: float) -> None:
        """Forget every expired key, so that the table cannot grow for ever."""
        for key in [key for key, entry in self._entries.items() if self._expired(entry, now)]:
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)

    def _expired(self, entry: _Entry, event: float) -> bool:
        quiet = 2 * self.waits.longest if self.reset_after is None else self.reset_after
        return event - entry.updated > quiet
