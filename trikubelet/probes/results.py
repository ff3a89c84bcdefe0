"""What the probes say now: written by the workers, read by a pod's sync.

Results are kept by container id and never by name: what was said of a container that failed says nothing of the one
that replaces it. Readers get a value that does not change under them, and get the same object again for as long as
nothing has changed: whether there is news since the last sync is a comparison of two objects' identities.

In the kubelet these are three result managers, and each reader knows which to ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.container.probe_results import ProbeResult, ProbeResults
from trikubelet.formats.values import define, frozen
from trikubelet.probes.types import ProbeKind
from trikubelet.status.container_statuses import NO_OUTCOMES, ProbeOutcomes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.container.model import ContainerID


@frozen
class PodResults:
    """The results of one pod, for each of their readers."""

    plan: ProbeResults
    """What decides which containers start and stop."""
    outcomes: ProbeOutcomes
    """What becomes of it in the status. A startup probe that came to no result yet says that it has not started."""


NO_RESULTS: Final = PodResults(ProbeResults(), NO_OUTCOMES)


@define
class _PodPage:
    by_kind: dict[ProbeKind, dict[ContainerID, ProbeResult]] = attrs.field(
        factory=lambda: {kind: {} for kind in ProbeKind}
    )
    read: PodResults = NO_RESULTS
    """What readers got last."""
    changed: bool = False
    """Since then."""


class ProbeResultBook:
    """The newest result of each probe. All methods are synchronous and take effect at once."""

    def __init__(self) -> None:
        self._pages: dict[str, _PodPage] = {}

    def of_pod(self, uid: str) -> PodResults:
        """The results of a pod: the same object until one of them changes, and equal parts stay the same too."""
        page = self._pages.get(uid)
        if page is None:
            return NO_RESULTS
        if page.changed:
            page.read = _snapshot(page.by_kind, page.read)
            page.changed = False
        return page.read

    def get(self, uid: str, kind: ProbeKind, container_id: ContainerID) -> ProbeResult | None:
        """The result of one probe, None when there is none."""
        page = self._pages.get(uid)
        return None if page is None else page.by_kind[kind].get(container_id)

    def set(self, uid: str, kind: ProbeKind, container_id: ContainerID, result: ProbeResult) -> bool:
        """Keep a result. Tells whether it is another one than before."""
        page = self._pages.get(uid)
        if page is None:
            page = self._pages[uid] = _PodPage()
        if page.by_kind[kind].get(container_id) is result:
            return False
        page.by_kind[kind][container_id] = result
        page.changed = True
        return True

    def forget(self, uid: str, kind: ProbeKind, container_id: ContainerID) -> None:
        """Drop the result of one probe, if there is one."""
        page = self._pages.get(uid)
        if page is None or page.by_kind[kind].pop(container_id, None) is None:
            return
        page.changed = True
        if not any(page.by_kind.values()):
            del self._pages[uid]

    def forget_pod(self, uid: str) -> None:
        """Drop all results of a pod."""
        self._pages.pop(uid, None)

    def __len__(self) -> int:
        """How many results there are."""
        return sum(len(results) for page in self._pages.values() for results in page.by_kind.values())


def _snapshot(by_kind: Mapping[ProbeKind, Mapping[ContainerID, ProbeResult]], before: PodResults) -> PodResults:
    startup = by_kind[ProbeKind.STARTUP]
    plan = ProbeResults(liveness=dict(by_kind[ProbeKind.LIVENESS]), startup=dict(startup))
    outcomes = ProbeOutcomes(startup=_successes(startup), readiness=_successes(by_kind[ProbeKind.READINESS]))
    if plan == before.plan:
        plan = before.plan
    if outcomes == before.outcomes:
        outcomes = before.outcomes
    if plan is before.plan and outcomes is before.outcomes:
        return before
    return PodResults(plan, outcomes)


def _successes(results: Mapping[ContainerID, ProbeResult]) -> dict[str, bool]:
    return {str(container_id): result is ProbeResult.SUCCESS for container_id, result in results.items()}
