"""When probes are due, on a grid of points in time instead of one pause after the other, so that they do not drift.

A worker's grid begins with its first look, and anew with each look out of turn. All times are seconds of one clock.
"""

from __future__ import annotations

import math
from typing import Final

ROUNDING: Final = 0.001
"""Seconds by which a moment may be missed: the wall clock, which tells of delays, is exact to a microsecond only."""


def first_delay(period: float, agent_age: float, chance: float) -> float:
    """Seconds to wait before a worker's first look (kubelet: prober `worker.run`).

    No probe is delayed, but for the time of one period after the agent's start: the probes of all pods that it found
    would come at the same moment. `agent_age` is how long ago the agent started, `chance` is from 0 to 1.
    """
    return chance * period if period > agent_age else 0.0


def next_tick(anchor: float, period: float, began: float) -> float:
    """The first point of the grid after the look that `began`, or after any other moment.

    A look that took longer than the period finds its next tick in the past: the next look follows at once, and the one
    after that is on the grid again. Points that passed in between are left out.
    """
    steps = math.floor((began - anchor) / period) + 1
    tick = anchor + steps * period
    # A look that begins on the point itself must not find it again, however the division was rounded.
    return tick if tick > began else anchor + (steps + 1) * period


def tick_from(anchor: float, period: float, moment: float) -> float:
    """The first point of the grid that is not before the moment (but for `ROUNDING`), nor before the grid's begin."""
    return max(anchor, next_tick(anchor, period, moment - ROUNDING))
