"""Rates from counters: how many cores somebody used lately.

A rate needs two samples. The kubelet's eviction manager takes one every ten seconds and everybody else reads what it
found. Here every sample counts, for whatever request, and a rate goes back about ten seconds if there was a sample
then: asking every second gives a smooth rate and no jumpy one. After a silence of ten minutes the first sample gives
none, since an average over that long is no present rate (kubelet: `defaultCachePeriod`); nor does the first of all.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Hashable

SECOND: Final = 1_000_000_000
WINDOW: Final = 10 * SECOND
SPACING: Final = 2 * SECOND
"""Looks that come sooner after another are not kept."""
SHORTEST: Final = SECOND // 2
"""Over less than this a rate would be chance."""
FORGET: Final = 600 * SECOND


@frozen
class _Sample:
    at: int
    usage: int


class RateBook:
    """Past samples, by what was measured."""

    def __init__(self) -> None:
        self._samples: dict[Hashable, deque[_Sample]] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def rate(self, key: Hashable, at: int, usage: int) -> int | None:
        """Note a counter in nanoseconds, seen at a time in nanoseconds; returns its increase in billionths of a core.

        None when it was never seen before, only just now or long ago, or when it has started anew.
        """
        samples = self._samples.setdefault(key, deque())
        if samples and (usage < samples[-1].usage or at - samples[-1].at > FORGET):
            samples.clear()
        while len(samples) > 1 and at - samples[1].at >= WINDOW:
            samples.popleft()
        base = samples[0] if samples else None
        if base is None or at - samples[-1].at >= SPACING:
            samples.append(_Sample(at, usage))
        if base is None or at - base.at < SHORTEST:
            return None
        return (usage - base.usage) * SECOND // (at - base.at)

    def forget_before(self, at: int) -> None:
        """Forget what has no sample since."""
        gone = [key for key, samples in self._samples.items() if not samples or samples[-1].at < at]
        for key in gone:
            del self._samples[key]
