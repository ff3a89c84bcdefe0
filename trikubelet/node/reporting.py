"""When the node's status is reported though nothing changed, and which of its changes make events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.node.status import status_event_message
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from random import Random

    from trikubelet.api import Node
    from trikubelet.node.status import NextNode
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("node")

REBOOTED: Final = "Rebooted"


class ReportClock:
    """Reports that say nothing new are made once a period. After a change, and after the start, the next is due between
    half a period and one and a half, so that nodes that changed together do not report together for ever after."""

    def __init__(self, period: float, rng: Random) -> None:
        """`period` in seconds."""
        self._period = period
        self._rng = rng
        self._last: float | None = None
        self._delay = 0.0

    def due(self) -> bool:
        return self._last is None or trio.current_time() - self._last >= self._period + self._delay

    def reported(self, *, changed: bool) -> None:
        """A report has been made now, because of a change or because it was due."""
        first = self._last is None
        self._last = trio.current_time()
        self._delay = self._period * (self._rng.random() - 0.5) if changed or first else 0.0


class StatusEvents:
    """Tells each change once, however often the report of it has to be tried."""

    def __init__(self, node_name: str, recorder: EventRecorder) -> None:
        self._name = node_name
        self._recorder = recorder
        self._recorded: dict[str, str] = {}
        self._problem: str | None = None
        self._unschedulable = False

    def record(self, following: NextNode) -> None:
        """Record the events of a change that is about to be reported, and log what is unknown."""
        for event in following.events:
            subject = REBOOTED if event.reason == REBOOTED else _subject(event.reason)
            if self._recorded.get(subject) == event.reason:
                continue
            self._recorded[subject] = event.reason
            self._recorder.node_event(event.type, event.reason, event.message)
        if following.problem != self._problem:
            self._problem = following.problem
            if following.problem is not None:
                log.error("Failed to set some node status fields", node=self._name, error=following.problem)

    def record_schedulable(self, node: Node) -> None:
        """Record that the node was taken out of scheduling, or back."""
        if node.spec.unschedulable == self._unschedulable:
            return
        self._unschedulable = node.spec.unschedulable
        reason = "NodeNotSchedulable" if self._unschedulable else "NodeSchedulable"
        self._recorder.node_event(EventType.NORMAL, reason, status_event_message(self._name, reason))


_SUBJECTS: Final = ("Memory", "Disk", "PID", "Ready")


def _subject(reason: str) -> str:
    """The condition that an event is about."""
    return next(subject for subject in _SUBJECTS if subject in reason)
