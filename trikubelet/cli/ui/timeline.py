"""What a pod went through, as the agent's journal tells it. Pure.

Its *stages* are made by the agent (`pods.stages`), which saw all of them: a snapshot has the newest, and an entry the
one that began with it. Here they get the sign and the word that a person sees.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api.timestamps import parse_time
from trikubelet.formats.values import define, frozen
from trikubelet.pods.stages import STAGES_PER_POD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
_OF_AGENT: Final = {
    "waiting": Stage.WAIT,
    "starting": Stage.START,
    "pulling": Stage.PULL,
    "running": Stage.RUN,
    "ready": Stage.READY,
    "down": Stage.DOWN,
    "ending": Stage.ENDING,
    "releasing": Stage.CLEANUP,
    "ended": Stage.DONE,
    "gone": Stage.DONE,
}
"""By the values of `pods.stages.Stage`."""


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
    grace: int | None = None
    """Seconds, while the pod is being ended."""
    until: datetime | None = None
    """When its grace is over."""
    asked_by: tuple[str, ...] = ()
    events: list[Happened] = attrs.field(factory=list)
    """The newest last."""
    gone: datetime | None = None
    """When the agent forgot it."""

    def begin(self, stage: Mapping[str, Any]) -> None:
        """Take the next stage (`pods.stages.Begun.as_json`); one that is not known changes nothing.

        Raises KeyError and ValueError for what is none.
        """
        known = _OF_AGENT.get(stage["what"])
        if known is not None and (known is not self.stage or not self.segments):
            self.segments = [*self.segments[1 - STAGES_PER_POD :], Segment(known, _time(stage["at"]))]

    def apply(self, entry: Mapping[str, Any], *, kept: bool = False) -> None:
        """Take the next entry (`pods.journal.Entry.as_json`); kinds that are not known change nothing.

        `kept`: from a snapshot, which has the stages apart. Raises KeyError and ValueError for what is no entry.
        """
        at = _time(entry["at"])
        match entry["kind"], entry["what"]:
            case "phase", what:
                self.grace, self.until = entry.get("grace"), parse_time(entry.get("until", ""))
                self.asked_by = tuple(entry.get("askedBy", self.asked_by))
                self.gone = at if what == "Gone" else None
            case "event", reason:
                self.events = [*self.events, Happened(at, reason, str(entry["message"]))][-EVENTS:]
        if not kept and (stage := entry.get("stage")) is not None:
            self.begin(stage)

    @property
    def stage(self) -> Stage:
        """The newest."""
        return self.segments[-1].stage if self.segments else Stage.WAIT


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
