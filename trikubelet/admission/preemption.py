"""The choice of pods to end for a critical one (kubelet: `preemption/preemption.go`). Pure.

A critical pod is not refused for want of resources: others make room. Pods that asked for guarantees are spared as far
as possible, then those that asked for anything, and of each kind as few as possible go. What the pods together cannot
give is not taken at all: then no pod is ended, and the critical pod is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from trikubelet.admission.resources import Demand
from trikubelet.api import QOS_BEST_EFFORT, QOS_BURSTABLE, QOS_GUARANTEED, Pod, qos_class
from trikubelet.api.pod_kinds import is_critical_pod
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.admission.resources import Insufficient

Missing = Mapping[str, int]
"""Amounts that have to become free, by resource, each more than 0."""


@frozen
class NotEnoughToPreemptError(Exception):
    """All pods that may be ended together do not free what is missing."""

    missing: Missing

    def __str__(self) -> str:
        # The blank and the comma at the end are Kubernetes' own.
        rest = "".join(f"(res: {name}, q: {amount}), " for name, amount in self.missing.items())
        return f"no set of running pods found to reclaim resources: [{rest}]"


@frozen
class _Candidate:
    pod: Pod
    amounts: Mapping[str, int]

    def distance(self, missing: Missing) -> float:
        """How much is still missing without it; every resource counts the same, whatever its unit."""
        rest = {name: max(0, amount - self.amounts.get(name, 0)) for name, amount in missing.items()}
        return float(sum((rest[name] / amount) ** 2 for name, amount in missing.items()))

    def cost(self, missing: Missing) -> tuple[float, int, int]:
        """The best to end is the nearest to what is missing, then the one that requests less."""
        return self.distance(missing), self.amounts.get("memory", 0), self.amounts.get("cpu", 0)


def is_preemptable(preemptor: Pod, pod: Pod) -> bool:
    """Whether `pod` may be ended for `preemptor`: only that one is critical, or it is of higher priority."""
    if is_critical_pod(preemptor) and not is_critical_pod(pod):
        return True
    mine, other = preemptor.spec.priority, pod.spec.priority
    return mine is not None and other is not None and mine > other


def pods_to_preempt(preemptor: Pod, pods: Sequence[Pod], shortages: Iterable[Insufficient]) -> tuple[Pod, ...]:
    """The pods to end, in this order. Raises NotEnoughToPreemptError."""
    missing = {shortage.resource: shortage.missing for shortage in shortages}
    by_quality: dict[str, list[_Candidate]] = {QOS_BEST_EFFORT: [], QOS_BURSTABLE: [], QOS_GUARANTEED: []}
    for pod in pods:
        quality = qos_class(pod)  # of a static pod, whatever its manifest says
        if quality in by_quality and is_preemptable(preemptor, pod):
            by_quality[quality].append(_Candidate(pod, Demand.of(pod).amounts))
    best_effort, burstable, guaranteed = by_quality.values()
    rest = _still_missing(missing, [*best_effort, *burstable, *guaranteed])
    if rest:
        raise NotEnoughToPreemptError(rest)
    # Of the better kinds only what all lesser ones cannot free; so the lesser ones are chosen last.
    from_guaranteed = _nearest(guaranteed, _still_missing(missing, [*best_effort, *burstable]))
    from_burstable = _nearest(burstable, _still_missing(missing, [*best_effort, *from_guaranteed]))
    from_best_effort = _nearest(best_effort, _still_missing(missing, [*from_burstable, *from_guaranteed]))
    return tuple(candidate.pod for candidate in (*from_best_effort, *from_burstable, *from_guaranteed))


def _still_missing(missing: Missing, ended: Sequence[_Candidate]) -> Missing:
    rest = {
        name: amount - sum(candidate.amounts.get(name, 0) for candidate in ended) for name, amount in missing.items()
    }
    return {name: amount for name, amount in rest.items() if amount > 0}


def _nearest(candidates: Sequence[_Candidate], missing: Missing) -> list[_Candidate]:
    """Few of the candidates that together free what is missing, which they can."""
    left, chosen = list(candidates), list[_Candidate]()
    while missing:
        best = min(range(len(left)), key=lambda index: left[index].cost(missing))
        chosen.append(left.pop(best))
        missing = _still_missing(missing, chosen[-1:])
    return chosen
