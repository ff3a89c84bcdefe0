"""The condition of pods that the node has ended for its own sake: whoever counts disruptions sees it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import CONDITION_TRUE, DISRUPTION_TARGET, PodCondition

if TYPE_CHECKING:
    from trikubelet.api import PodStatus

TERMINATION_BY_KUBELET: Final = "TerminationByKubelet"


def as_disrupted(status: PodStatus, message: str, generation: int) -> PodStatus:
    """The status with that condition; `generation`: of the pod's spec."""
    disrupted = PodCondition(
        type=DISRUPTION_TARGET,
        status=CONDITION_TRUE,
        observed_generation=generation,
        reason=TERMINATION_BY_KUBELET,
        message=message,
    )
    others = (condition for condition in status.conditions if condition.type != DISRUPTION_TARGET)
    return attrs.evolve(status, conditions=(*others, disrupted))
