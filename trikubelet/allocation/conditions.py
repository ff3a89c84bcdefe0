"""What users see of a resize: two conditions, which are there or not (kubelet: `status_manager`). Pure.

    PodResizePending     the spec asks for what the pod was not given: reason Deferred (it may be later), or Infeasible
    PodResizeInProgress  the pod was given what the runtime does not do yet; with reason Error when it failed to

Both may be there: one resize on its way, the next one waiting. The time of transition changes with the reason alone.
A condition about which nothing is new stays the same object, times included: the kubelet gives it a new probe time at
every sync, and would write a status for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import CONDITION_TRUE, POD_RESIZE_IN_PROGRESS, POD_RESIZE_PENDING, PodCondition
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"
ERROR: Final = "Error"


@frozen
class ResizeConditions:
    """The conditions of one pod; without either it has nothing to do with a resize."""

    pending: PodCondition | None = None
    in_progress: PodCondition | None = None
    listed: tuple[PodCondition, ...] = attrs.field(init=False, eq=False)
    """Those that are there, the pending one first; as long as the value lives, one object."""

    @listed.default
    def _list(self) -> tuple[PodCondition, ...]:
        return tuple(condition for condition in (self.pending, self.in_progress) if condition is not None)

    @property
    def deferred(self) -> bool:
        return self.pending is not None and self.pending.reason == DEFERRED

    @property
    def infeasible(self) -> bool:
        return self.pending is not None and self.pending.reason == INFEASIBLE

    def with_pending(self, reason: str, message: str, generation: int, now: datetime) -> ResizeConditions:
        """The spec's resize cannot be granted. All reasons but INFEASIBLE may go away, and are shown as DEFERRED."""
        shown = reason if reason == INFEASIBLE else DEFERRED
        condition = _condition(POD_RESIZE_PENDING, self.pending, shown, message, generation, now)
        return self if condition is self.pending else attrs.evolve(self, pending=condition)

    def without_pending(self) -> ResizeConditions:
        return self if self.pending is None else attrs.evolve(self, pending=None)

    def with_in_progress(
        self, generation: int, now: datetime, *, reason: str = "", message: str = ""
    ) -> ResizeConditions:
        """The runtime does not do yet what was granted.

        Of a resize that is in progress already the generation stays that of the spec it was granted for, and without a
        reason and a message those that it has stay.
        """
        before = self.in_progress
        if before is not None:
            generation = before.observed_generation
            if not reason and not message:
                reason, message = before.reason, before.message
        condition = _condition(POD_RESIZE_IN_PROGRESS, before, reason, message, generation, now)
        return self if condition is before else attrs.evolve(self, in_progress=condition)

    def without_in_progress(self) -> ResizeConditions:
        return self if self.in_progress is None else attrs.evolve(self, in_progress=None)


NONE: Final = ResizeConditions()


def granted(generation: int, now: datetime) -> ResizeConditions:
    """A resize was granted: nothing waits, and what was in progress, with its error, makes way for the new one."""
    return NONE.with_in_progress(generation, now)


def is_news(before: ResizeConditions, after: ResizeConditions) -> bool:
    """Whether there is an event for the pending condition: it is new, for another reason or of another spec."""
    old, new = before.pending, after.pending
    if new is None:
        return False
    return old is None or (old.reason, old.observed_generation) != (new.reason, new.observed_generation)


def reported(conditions: Iterable[PodCondition]) -> ResizeConditions:
    """The conditions that a pod's status already has, when an agent starts (kubelet: `BackfillPodResizeConditions`)."""
    by_type = {condition.type: condition for condition in conditions if condition.status == CONDITION_TRUE}
    return ResizeConditions(by_type.get(POD_RESIZE_PENDING), by_type.get(POD_RESIZE_IN_PROGRESS))


def _condition(
    type_: str, before: PodCondition | None, reason: str, message: str, generation: int, now: datetime
) -> PodCondition:
    said = (reason, message, generation)
    if before is not None and (before.reason, before.message, before.observed_generation) == said:
        return before
    same_reason = before is not None and before.reason == reason
    return PodCondition(
        type=type_,
        observed_generation=generation,
        status=CONDITION_TRUE,
        last_probe_time=now,
        last_transition_time=before.last_transition_time if before is not None and same_reason else now,
        reason=reason,
        message=message,
    )
