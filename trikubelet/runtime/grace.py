"""How long a container gets to end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.runtime.plan import KillReason

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod

MINIMUM_GRACE_PERIOD: Final = 2
"""Seconds that every container gets, however little is left of its pod's grace period."""


def termination_grace_period(pod: Pod, container: Container, reason: KillReason) -> int:
    """Seconds of grace for a container that is killed (kubelet: `setTerminationGracePeriod`).

    A pod that is being deleted has its own; else a failed probe's, else the pod's.
    """
    if pod.metadata.deletion_grace_period_seconds is not None:
        return pod.metadata.deletion_grace_period_seconds
    of_pod = pod.spec.termination_grace_period_seconds
    if of_pod is None:
        return MINIMUM_GRACE_PERIOD
    probe = None
    if reason is KillReason.STARTUP_PROBE:
        probe = container.startup_probe
    elif reason is KillReason.LIVENESS_PROBE:
        probe = container.liveness_probe
    if probe is not None and probe.termination_grace_period_seconds is not None:
        return probe.termination_grace_period_seconds
    return of_pod
