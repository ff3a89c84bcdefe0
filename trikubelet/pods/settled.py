"""Whether a pod's sync can be skipped, since the last one found nothing to do and nothing has changed since.

A pod is looked at again every minute, and the API server sends it again with each status that the agent writes. Most of
the time a sync would find nothing to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.api import Pod, PodCondition, PodStatus
from trikubelet.api.pod_kinds import has_ended
from trikubelet.container.model import PodRuntimeStatus
from trikubelet.formats.values import frozen
from trikubelet.probes.results import PodResults
from trikubelet.status.container_statuses import ResourceHealthOf, shows_health

if TYPE_CHECKING:
    from trikubelet.api import ObjectMeta


@frozen
class Settled:
    """The input of a sync that found nothing to do."""

    pod: Pod
    observed: PodRuntimeStatus
    reported: PodStatus | None
    probed: PodResults
    resizes: tuple[PodCondition, ...]

    def still_holds(
        self,
        pod: Pod,
        observed: PodRuntimeStatus,
        reported: PodStatus | None,
        probed: PodResults,
        resizes: tuple[PodCondition, ...],
        health: ResourceHealthOf,
    ) -> bool:
        """Whether another sync would have the same input."""
        if self.reported is not reported or self.probed is not probed or self.resizes is not resizes:
            return False
        if not _asks_the_same(self.pod, pod):
            return False
        if reported is not None and not shows_health(reported, health):
            return False
        same_time = attrs.evolve(observed, observed_at=self.observed.observed_at)
        return same_time == self.observed


def _asks_the_same(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod give a sync the same to do.

    What the API server says in the status matters when it has ended the pod, and for what others set: readiness gates
    and resource claims.
    """
    if one is other:
        return True
    old, new = one.status, other.status
    if old.phase != new.phase and has_ended(new):
        return False
    if one.spec.readiness_gates and old.conditions != new.conditions:
        return False
    return (
        one.spec == other.spec
        and _without_version(one.metadata) == _without_version(other.metadata)
        and old.resource_claim_statuses == new.resource_claim_statuses
        and old.extended_resource_claim_status == new.extended_resource_claim_status
    )


def _without_version(metadata: ObjectMeta) -> ObjectMeta:
    return attrs.evolve(metadata, resource_version="", managed_fields=())
