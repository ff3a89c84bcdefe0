"""Rates from counters: how many cores somebody used lately.

A rate needs two looks. The kubelet's eviction manager looks every ten seconds and everybody else reads what it found.
Here every look counts, for whatever request, and a rate goes back about ten seconds if there was a look then: asking
every second gives a smooth rate and no jumpy one. After a silence of ten minutes the first look gives none, since an
average over that long is no present rate (kubelet: `defaultCachePeriod`); nor does the first of all.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Hashable

SECOND: Final = 1_000_000_000
WINDOW: Final = 10 * SECOND
SPACING: Final = 2 * SECOND
"""Looks that come sooner after another are not kept."""
SHORTEST: Final = SECOND // 2
"""Over less than this a rate would be chance."""
FORGET: Final = 600 * SECOND


@attrs.frozen
class _Look:
    at: int
    usage: int


class RateBook:
    """Past looks, by whatever was looked at."""

    def __init__(self) -> None:
        self._looks: dict[Hashable, deque[_Look]] = {}

    def __len__(self) -> int:
        return len(self._looks)

    def rate(self, key: Hashable, at: int, usage: int) -> int | None:
        """Note a counter in nanoseconds, seen at a time in nanoseconds; returns its increase in billionths of a core.

        None when it was never seen before, only just now or long ago, or when it has started anew.
        """
        looks = self._looks.setdefault(key, deque())
        if looks and (usage < looks[-1].usage or at - looks[-1].at > FORGET):
            looks.clear()
        while len(looks) > 1 and at - looks[1].at >= WINDOW:
            looks.popleft()
        base = looks[0] if looks else None
        if base is None or at - looks[-1].at >= SPACING:
            looks.append(_Look(at, usage))
        if base is None or at - base.at < SHORTEST:
            return None
        return (usage - base.usage) * SECOND // (at - base.at)

    def forget_before(self, at: int) -> None:
        """Forget whatever was not looked at since."""
        gone = [key for key, looks in self._looks.items() if not looks or looks[-1].at < at]
        for key in gone:
            del self._looks[key]
