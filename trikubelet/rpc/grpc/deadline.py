"""Deadlines on Trio's clock."""

from __future__ import annotations

import math

import grpclib.metadata
import trio


class Deadline(grpclib.metadata.Deadline):
    """grpclib's `Deadline`, told by Trio's clock, so that it follows a `MockClock`."""

    def time_remaining(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._timestamp - trio.current_time())

    @property
    def at(self) -> float:
        """The deadline in Trio time."""
        return self._timestamp


def earliest(timeout: float | None, deadline: grpclib.metadata.Deadline | None) -> float:
    """The Trio time at which the sooner of both ends; infinity without either. Takes grpclib's own `Deadline` too."""
    at = math.inf
    if timeout is not None:
        at = trio.current_time() + timeout
    if deadline is not None:
        at = min(at, trio.current_time() + deadline.time_remaining())
    return at
