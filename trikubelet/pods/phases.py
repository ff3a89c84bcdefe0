"""The six phases of a pod's worker, one class each, with exactly what is known in that phase.

What cannot be together cannot be built: a pod that never started has no sync in flight, one whose containers have ended
has no kill, one that has finished has nothing pending. Which phase may follow which is `machine`'s table.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from trikubelet.pods.types import PodStatusFn
from trikubelet.pods.work import ConfigUpdate, Update


@attrs.frozen
class Identity:
    """What never changes while a worker knows a pod."""

    uid: str
    full_name: str
    static: bool
    first_seen: float


@attrs.frozen
class Ending:
    """How it came to the pod's end."""

    asked_at: float
    deleted: bool = False
    """Marked for deletion, or gone from its source."""
    evicted: bool = False
    restart_requested: bool = False
    """A pod with this UID was created anew: forget this one as soon as it has finished."""


@attrs.frozen
class Kill:
    """How the containers are to be ended."""

    grace_period: int
    """Seconds; only ever shrinks."""
    deadline: float
    """The end of the grace period in Trio time; only ever moves closer."""
    status_fn: PodStatusFn | None = None
    """Of the last kill that brought one."""


@attrs.frozen(kw_only=True)
class WaitingToStart:
    """Known, and not yet allowed to touch the runtime."""

    identity: Identity
    pending: ConfigUpdate


@attrs.frozen(kw_only=True)
class Syncing:
    """Set up and kept running."""

    identity: Identity
    started_at: float
    active: ConfigUpdate
    pending: ConfigUpdate | None = None
    in_flight: bool = False


@attrs.frozen(kw_only=True)
class TerminationRequested:
    """Asked to end. A sync may still be in flight, so containers may still start."""

    identity: Identity
    ending: Ending
    kill: Kill
    active: ConfigUpdate | None
    """None for a pod that never started."""
    pending: Update
    in_flight: bool = False
    """Of the sync that is being cancelled."""
    observed_runtime: bool = False
    """The runtime was seen to hold this pod."""


@attrs.frozen(kw_only=True)
class Terminating:
    """Being ended. No container of it starts any more."""

    identity: Identity
    ending: Ending
    kill: Kill
    active: Update
    pending: Update | None = None
    in_flight: bool = False


@attrs.frozen(kw_only=True)
class Terminated:
    """Nothing of it runs; what it held is being released."""

    identity: Identity
    ending: Ending
    terminated_at: float
    active: ConfigUpdate
    pending: ConfigUpdate | None = None
    in_flight: bool = False


@attrs.frozen(kw_only=True)
class Finished:
    """History. There is no worker any more."""

    identity: Identity
    ending: Ending
    terminated_at: float
    has_config: bool
    """False for a pod that never started."""


Phase: TypeAlias = WaitingToStart | Syncing | TerminationRequested | Terminating | Terminated | Finished
