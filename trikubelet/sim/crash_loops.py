"""How long each container may be kept waiting after it crashed, by what was seen of its runs.

An agent doubles the wait with every attempt to start a container again, from 10 s to 300 s, and starts over when a run
lasted for ten minutes. Where nothing fails there is one attempt for each start. Where something does there may be
more, but each of them only when the wait before it was over: so the wait after the last is at most twice as long as
the time since the container's end. That gives an upper bound without a look into the agent. An agent that is new, or a
container that is new in its pod, may be quicker.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final

from trikubelet.formats.values import define

FIRST_WAIT: Final = 10.0
LONGEST_WAIT: Final = 300.0
FORGIVEN_AFTER: Final = 600.0
"""Seconds that a container runs after which its crashes are forgotten (all as in `runtime.backoff`)."""
SETTLING: Final = 60.0
"""Seconds after the last fault in which an attempt may still fail: what the fault left behind is in its way."""


@define
class _Crashes:
    """Of one container of one pod. The wait counts from the last end."""

    started_at: float = -math.inf
    ended_at: float = -math.inf
    wait: float = 0.0


class CrashLoops:
    """Of all containers there ever were, by pod UID and container name: a UID may come again."""

    def __init__(self) -> None:
        self._pods: defaultdict[str, dict[str, _Crashes]] = defaultdict(dict)

    def started(self, uid: str, name: str, time: float, *, calm_since: float) -> None:
        """A run began. `calm_since`: see `waits_until`."""
        crashes = self._pods[uid].setdefault(name, _Crashes())
        crashes.started_at = time
        if crashes.ended_at > -math.inf:
            waited = 0.0 if crashes.ended_at > calm_since + SETTLING else time - crashes.ended_at
            crashes.wait = min(max(FIRST_WAIT, 2 * crashes.wait, 2 * waited), LONGEST_WAIT)

    def ended(self, uid: str, name: str, time: float) -> None:
        """A run ended, or failed to begin."""
        crashes = self._pods[uid].setdefault(name, _Crashes())
        crashes.ended_at = time
        if time - crashes.started_at > FORGIVEN_AFTER:
            crashes.wait = 0.0

    def waits_until(self, uid: str, *, calm_since: float) -> float:
        """When the last wait of the pod's containers is over. `calm_since`: since when nothing fails."""
        return max((_waits_until(each, calm_since) for each in self._pods.get(uid, {}).values()), default=-math.inf)


def _waits_until(crashes: _Crashes, calm_since: float) -> float:
    if crashes.ended_at < crashes.started_at:
        return -math.inf
    tried_for = max(calm_since - crashes.ended_at, 0.0)
    return crashes.ended_at + min(max(crashes.wait, 2 * tried_for), LONGEST_WAIT)
