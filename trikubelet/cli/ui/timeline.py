"""What a pod went through, made of the entries of the agent's journal. Pure.

The journal tells of phases of the pod's life, of its containers and of what is reported of it. A person wants to know
which of a few things the pod did, and when: its *stages*. Which stage an entry leads to depends on what was before it,
so entries are taken one after the other.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api.timestamps import parse_time
from trikubelet.formats.values import define, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SEGMENTS: Final = 500
"""The newest that are kept of a pod."""
EVENTS: Final = 3
"""The newest that are kept of a pod."""


class Stage(enum.Enum):
    """What a pod does, with the sign for it. Where a cell of a picture has several, the first of these is shown."""

    ENDING = "!"
    DOWN = "x"
    """Nothing of it runs, though it shall: a back-off, a failure."""
    START = ">"
    PULL = "v"
    WAIT = "."
    CLEANUP = "~"
    """Nothing of it runs any more; what it held is being released."""
    RUN = "-"
    """It runs, and is not ready."""
    READY = "="
    DONE = " "

    @property
    def word(self) -> str:
        return _WORDS[self]


_WORDS: Final = {
    Stage.ENDING: "terminating",
    Stage.DOWN: "down",
    Stage.START: "start",
    Stage.PULL: "pull",
    Stage.WAIT: "wait",
    Stage.CLEANUP: "clean up",
    Stage.RUN: "not ready",
    Stage.READY: "ready",
    Stage.DONE: "ended",
}
_RANK: Final = {stage: rank for rank, stage in enumerate(Stage)}
_PHASES: Final = {
    "WaitingToStart": Stage.WAIT,
    "Syncing": Stage.START,
    "TerminationRequested": Stage.ENDING,
    "Terminating": Stage.ENDING,
    "Terminated": Stage.CLEANUP,
    "Finished": Stage.DONE,
    "Gone": Stage.DONE,
}
_LAST: Final = (Stage.ENDING, Stage.CLEANUP, Stage.DONE)
"""Stages that only another phase ends."""
_NOT_UP: Final = (Stage.START, Stage.PULL, Stage.DOWN)
_EVENTS: Final = {
    "Pulling": Stage.PULL,
    "Pulled": Stage.START,
    "BackOff": Stage.DOWN,
    "Failed": Stage.DOWN,
    "ErrImageNeverPull": Stage.DOWN,
}
_ENDED: Final = ("Succeeded", "Failed")


@frozen
class Segment:
    """A stage and when it began; it lasts until the next one."""

    stage: Stage
    start: datetime


@frozen
class Happened:
    """An event, for people."""

    at: datetime
    reason: str
    message: str


@define
class Timeline:
    """The stages of one pod, the oldest first."""

    segments: list[Segment] = attrs.field(factory=list)
    running: set[str] = attrs.field(factory=set)
    """Ids of containers."""
    ready: bool = False
    up: bool = False
    """Its init containers have ended, says what is reported of it."""
    grace: int | None = None
    """Seconds, while the pod is being ended."""
    until: datetime | None = None
    """When its grace is over."""
    asked_by: tuple[str, ...] = ()
    events: list[Happened] = attrs.field(factory=list)
    """The newest last."""
    gone: datetime | None = None
    """When the agent forgot it."""

    def apply(self, entry: Mapping[str, Any], *, kept: bool = False) -> None:
        """Take the next entry (`pods.journal.Entry.as_json`); kinds that are not known change nothing.

        `kept`: by the journal, which keeps of an event that came several times the last only. What it tells of has
        been so since the first. Raises KeyError and ValueError for what is no entry.
        """
        at = _time(entry["at"])
        match entry["kind"], entry["what"]:
            case "phase", what:
                self._phase(what, at, entry)
            case "event", reason:
                self.events = [*self.events, Happened(at, reason, str(entry["message"]))][-EVENTS:]
                stage = _EVENTS.get(reason)
                if stage is not None and self.stage in _NOT_UP and not self.running:
                    # An image that is there is told at each start: only the last time is still news.
                    since_the_first = kept and reason != "Pulled"
                    self._go(stage, _time(entry.get("firstSeen", entry["at"])) if since_the_first else at)
            case "container", "Started":
                self.running.add(entry["id"])
                if self.stage in _NOT_UP:
                    self._go(self._running_stage(), at)
            case "container", "Ended":
                self.running.discard(entry["id"])
                if not self.running and self.stage in (Stage.RUN, Stage.READY):
                    self._go(Stage.DOWN, at)
            case "status", what if what in _ENDED:
                self._go(Stage.DONE, at)
            case "status", what:
                self.up = what == "Running"
                if self.up and self.running and self.stage in _NOT_UP:
                    self._go(self._running_stage(), at)
            case "ready", what if not entry.get("container"):
                self.ready = what == "Ready"
                if self.ready:
                    self._go(Stage.READY, at)
                elif self.stage is Stage.READY:
                    self._go(Stage.RUN, at)

    @property
    def stage(self) -> Stage:
        """The newest."""
        return self.segments[-1].stage if self.segments else Stage.WAIT

    def _running_stage(self) -> Stage:
        if not self.up:
            return Stage.START
        return Stage.READY if self.ready else Stage.RUN

    def _phase(self, what: str, at: datetime, entry: Mapping[str, Any]) -> None:
        if (stage := _PHASES.get(what)) is None:
            return
        self.grace, self.until = entry.get("grace"), parse_time(entry.get("until", ""))
        self.asked_by = tuple(entry.get("askedBy", self.asked_by))
        self.gone = at if what == "Gone" else None
        self._go(stage, at, phase=True)

    def _go(self, stage: Stage, at: datetime, *, phase: bool = False) -> None:
        if stage is self.stage and self.segments:
            return
        if self.segments:
            if self.stage in _LAST and not phase:
                return
            at = max(at, self.segments[-1].start)  # events and containers tell when it was, a moment ago
        self.segments = [*self.segments[1 - SEGMENTS :], Segment(stage, at)]


def cells(timeline: Timeline, now: datetime, span: float, width: int) -> list[Stage | None]:
    """The last `span` seconds in `width` cells, the newest last; None where the pod was not known.

    The edges of cells are the same for all pods, and stay where they are until the next cell begins: pictures move by
    whole cells.
    """
    each = span / width
    end = (now.timestamp() // each + 1) * each
    found: list[Stage | None] = [None] * width
    starts = [segment.start.timestamp() - end for segment in timeline.segments]
    for segment, start, following in zip(timeline.segments, starts, [*starts[1:], 0.0], strict=False):
        first = int(start // each) + width
        behind = min(width, width - int(-following // each))  # the one that begins where it is over, or later
        for index in range(max(first, 0), behind if following > start else 0):
            known = found[index]
            if known is None or _RANK[segment.stage] < _RANK[known]:
                found[index] = segment.stage
    return found


def lasted(timeline: Timeline, now: datetime) -> list[tuple[Stage, timedelta]]:
    """Each stage with how long it was, or is."""
    return [(segment.stage, following - segment.start) for segment, following in _spans(timeline.segments, now)]


def _spans(segments: Sequence[Segment], now: datetime) -> list[tuple[Segment, datetime]]:
    ends = [*(segment.start for segment in segments[1:]), max(now, segments[-1].start)] if segments else []
    return list(zip(segments, ends, strict=True))


def _time(text: str) -> datetime:
    found = parse_time(text)
    if found is None:
        raise ValueError(f"expected a time from the agent, got {text!r}")
    return found
