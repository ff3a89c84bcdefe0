"""The stages of a pod: what it does, from when to when, for people who look at it. Pure.

The journal's entries tell of phases, containers, events and what is reported. A person wants to know which of a few
things a pod did, and when. Which stage an entry leads to depends on the entries before it, and of an event that comes
again the journal keeps only the last time. So the journal makes the stages when it notes the entries, and keeps them
apart. `ui` and the live page draw these stages, whenever they are opened.
"""

from __future__ import annotations

import enum
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api.timestamps import format_micro_time
from trikubelet.formats.values import define, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

STAGES_PER_POD: Final = 500
"""The newest."""


class Stage(enum.Enum):
    """What a pod does."""

    WAITING = "waiting"
    """For its turn."""
    STARTING = "starting"
    PULLING = "pulling"
    RUNNING = "running"
    """It runs, and is not ready."""
    READY = "ready"
    DOWN = "down"
    """Nothing of it runs, though it shall: a back-off, a failure."""
    ENDING = "ending"
    RELEASING = "releasing"
    """Nothing of it runs any more; what it held is being released."""
    ENDED = "ended"
    GONE = "gone"


_OF_PHASES: Final = {
    "WaitingToStart": Stage.WAITING,
    "Syncing": Stage.STARTING,
    "TerminationRequested": Stage.ENDING,
    "Terminating": Stage.ENDING,
    "Terminated": Stage.RELEASING,
    "Finished": Stage.ENDED,
    "Gone": Stage.GONE,
}
_OF_EVENTS: Final = {
    "Pulling": Stage.PULLING,
    "Pulled": Stage.STARTING,
    **dict.fromkeys(
        ("BackOff", "Failed", "ErrImageNeverPull", "InspectFailed", "FailedCreatePodSandBox", "FailedMount"), Stage.DOWN
    ),
}
_LAST: Final = (Stage.ENDING, Stage.RELEASING, Stage.ENDED, Stage.GONE)
"""Stages that only another phase ends."""
_NOT_UP: Final = (Stage.STARTING, Stage.PULLING, Stage.DOWN)
_ENDED: Final = ("Succeeded", "Failed")


@frozen
class Begun:
    """A stage and when it began; it lasts until the next one."""

    stage: Stage
    at: datetime

    def as_json(self) -> dict[str, Any]:
        """`what` and `at` (RFC 3339 with microseconds)."""
        return {"what": self.stage.value, "at": format_micro_time(self.at)}


@define
class Stages:
    """The stages of one pod, the oldest first."""

    begun: deque[Begun] = attrs.field(factory=lambda: deque(maxlen=STAGES_PER_POD))
    _running: set[str] = attrs.field(factory=set)
    """Ids of containers."""
    _ready: bool = False
    _up: bool = False
    """Its init containers have ended, says what is reported of it."""

    @property
    def now(self) -> Stage:
        return self.begun[-1].stage if self.begun else Stage.WAITING

    def take(self, kind: str, what: str, at: datetime, container: str, facts: Mapping[str, Any]) -> Begun | None:
        """Take what the next entry tells (`pods.journal.Entry`). Return the stage that began with it, if one did."""
        match kind, what:
            case "phase", phase if phase in _OF_PHASES:
                return self._go(_OF_PHASES[phase], at, phase=True)
            case "event", reason if reason in _OF_EVENTS and self.now in _NOT_UP and not self._running:
                return self._go(_OF_EVENTS[reason], at)
            case "container", "Started":
                self._running.add(facts["id"])
                return self._go(self._running_stage(), at) if self.now in _NOT_UP else None
            case "container", "Ended":
                self._running.discard(facts["id"])
                was_up = not self._running and self.now in (Stage.RUNNING, Stage.READY)
                return self._go(Stage.DOWN, at) if was_up else None
            case "status", _ if what in _ENDED:
                return self._go(Stage.ENDED, at)
            case "status", _:
                self._up = what == "Running"
                begins = self._up and self._running and self.now in _NOT_UP
                return self._go(self._running_stage(), at) if begins else None
            case "ready", _ if not container:
                self._ready = what == "Ready"
                if self._ready or self.now is Stage.READY:
                    return self._go(Stage.READY if self._ready else Stage.RUNNING, at)
        return None

    def _running_stage(self) -> Stage:
        if not self._up:
            return Stage.STARTING
        return Stage.READY if self._ready else Stage.RUNNING

    def _go(self, stage: Stage, at: datetime, *, phase: bool = False) -> Begun | None:
        if self.begun and (stage is self.now or (self.now in _LAST and not phase)):
            return None
        if self.begun:
            at = max(at, self.begun[-1].at)  # events and containers tell when it was, a moment ago
        self.begun.append(Begun(stage, at))
        return self.begun[-1]
