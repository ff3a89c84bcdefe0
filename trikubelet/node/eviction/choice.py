"""Which pod is ended when nothing else frees enough, with how much time and with which words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import is_critical_pod
from trikubelet.formats.values import frozen
from trikubelet.node.eviction.messages import eviction_message
from trikubelet.node.eviction.ranking import rank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.config.eviction_values import EvictionConfig, Threshold
    from trikubelet.node.eviction.model import Measurement
    from trikubelet.node.eviction.rounds import Round

HARD_GRACE: Final = 1
"""Seconds that a pod has when there is no time."""


@frozen(kw_only=True)
class Eviction:
    """One pod to be ended for the node's sake."""

    pod: Pod
    grace: int
    """Seconds."""
    message: str
    annotations: Mapping[str, str]
    """Of the event."""


def choose(config: EvictionConfig, found: Round, measured: Measurement, pods: Iterable[Pod]) -> Eviction | None:
    """The first of the pods in order of eviction that is not critical; None when there is none, or no need."""
    target = found.target
    if target is None:
        return None
    for pod in rank(target.signal, pods, measured.pods, measured.layout):
        if is_critical_pod(pod):
            continue
        usage, observations = measured.pods.get(pod.metadata.uid), measured.observations
        message, annotations = eviction_message(target.signal.resource, pod, usage, found.thresholds, observations)
        grace = grace_period(config, target, pod)
        return Eviction(pod=pod, grace=grace, message=message, annotations=annotations)
    return None


def grace_period(config: EvictionConfig, target: Threshold, pod: Pod) -> int:
    """Seconds that a pod has to end: what it wants, as far as a soft threshold leaves it."""
    if target.hard:
        return HARD_GRACE
    own = pod.spec.termination_grace_period_seconds
    return config.max_pod_grace if own is None else min(config.max_pod_grace, own)
