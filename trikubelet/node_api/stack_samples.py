"""Where the agent spends its time: what it is doing at each hundredth second of the processor that it uses.

A profiler that is called for every call (cProfile) makes the agent twice as slow while it runs. Looking from another
thread was tried: that thread gets its turn mostly when the agent waits, so waiting is what it sees. The kernel's timer
for used processor time (`ITIMER_PROF`) interrupts the agent where it works, in its own thread, and does nothing while
it waits.
"""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from types import FrameType

PERIOD: Final = 0.01
"""Seconds of processor time, of all threads together."""
MOST_STACKS: Final = 10_000
"""Different ones; more are counted together."""
_MOST_FRAMES: Final = 200


class SamplesInUseError(Exception):
    """Samples are being taken already."""


async def sample_stacks(seconds: float) -> str:
    """Lines `outermost;…;innermost COUNT`, which tools make flame graphs of. Raises SamplesInUseError.

    Only in the main thread, else ValueError. When cancelled, the sampling ends at once.
    """
    if signal.getitimer(signal.ITIMER_PROF)[1]:
        raise SamplesInUseError
    counts: Counter[str] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        stack = _stack(frame)
        counts[stack if stack in counts or len(counts) < MOST_STACKS else "other"] += 1

    signal.signal(signal.SIGPROF, sample)
    try:
        signal.setitimer(signal.ITIMER_PROF, PERIOD, PERIOD)
        await trio.sleep(seconds)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # One may be on its way still, and would end the process by itself.
        signal.signal(signal.SIGPROF, _ignore)
    return "".join(f"{stack} {count}\n" for stack, count in sorted(counts.items()))


def _ignore(_: int, __: FrameType | None) -> None:
    pass


def _stack(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < _MOST_FRAMES:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(names))
