"""Lets the file systems of volumes take their size, and tells the claim how that goes (kubelet: `NodeExpander`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.clock import WallClock
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.volume_objects import StorageObjects
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes import messages
from trikubelet.volumes.errors import NotExpandedError, TransientVolumeError, UncertainVolumeError, VolumeError
from trikubelet.volumes.expansion import (
    Expansion,
    Growth,
    Refusal,
    Told,
    Verdict,
    asks_for_another_size,
    growth_of,
    is_kept_small,
    judge,
    size_known,
)

if TYPE_CHECKING:
    from trikubelet.api import PersistentVolumeClaim, Pod
    from trikubelet.volumes.kinds.protocol import VolumeKind
    from trikubelet.volumes.model import SetUpRequest, VolumeSpec

log = get_logger("volumes")


class ExpansionError(Exception):
    """A volume has not grown, and that has to be so before a pod may have it. `expansion`: what is known by then."""

    def __init__(self, problem: str, expansion: Expansion | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expansion = expansion


@frozen
class Expander:
    storage: StorageObjects
    recorder: EventRecorder
    clock: WallClock

    async def expand(self, request: SetUpRequest, kind: VolumeKind, *, refused: bool) -> Expansion:
        """For a volume that is set up. `refused`: the driver has failed for good before.

        Raises ExpansionError. May be cancelled: what the claim was told then is taken up by the next call.
        """
        known = request.spec.claim
        assert known is not None
        try:
            claim = await self.storage.claim(known.metadata.namespace, known.metadata.name)
        except ObjectError as error:
            raise ExpansionError(f"mountVolume.NodeExpandVolume get PVC failed : {error}") from error
        if claim.metadata.uid != known.metadata.uid:
            raise ExpansionError(f"expected the claim with the UID {known.metadata.uid}, it has been replaced")
        growth = growth_of(attrs.evolve(request.spec, claim=claim))
        if growth is None:
            return Expansion(claim=claim)
        if growth.tracked and not growth.written:
            claim = await self._begin(claim, refused=refused)
        request = attrs.evolve(request, spec=attrs.evolve(request.spec, claim=claim))
        try:
            await kind.expand(request, growth.size)
        except VolumeError as error:
            return await self._not_grown(request.spec, claim, growth, error, refused=refused)
        self._tell_of_growth(request, claim)
        return Expansion(claim=await self._finish(request.spec, claim, growth), size=growth.size)

    def tell_read_only(self, pod: Pod, spec: VolumeSpec) -> None:
        """A pod that only reads a volume does not grow it."""
        if spec.claim is not None and is_kept_small(spec):
            self.recorder.pod_event(pod, EventType.WARNING, *messages.read_only_event(spec))
            self.recorder.object_event(spec.claim, EventType.WARNING, *messages.read_only_event(spec))

    async def _begin(self, claim: PersistentVolumeClaim, *, refused: bool) -> PersistentVolumeClaim:
        try:
            return await self.storage.resizing(claim)
        except ObjectError as error:
            raise ExpansionError(str(error), Expansion(claim=claim, refused=refused)) from error

    async def _finish(self, spec: VolumeSpec, claim: PersistentVolumeClaim, growth: Growth) -> PersistentVolumeClaim:
        has = size_known(attrs.evolve(spec, claim=claim))
        if growth.written or (not growth.tracked and has is not None and has.nanos >= growth.size.nanos):
            return claim
        try:
            return await self.storage.resized(claim, growth.size)
        except ObjectError as error:
            problem = f"mountVolume.NodeExpandVolume update pvc status failed: {error}"
            raise ExpansionError(problem, Expansion(claim=claim)) from error

    async def _not_grown(
        self, spec: VolumeSpec, claim: PersistentVolumeClaim, growth: Growth, error: VolumeError, *, refused: bool
    ) -> Expansion:
        refusal = _refusal(error)
        changed = refused and asks_for_another_size(claim, growth)
        verdict = judge(growth, refusal, changed=changed)
        final = growth.tracked and refusal not in (Refusal.UNCERTAIN, Refusal.UNTRIED) and not verdict.grown
        expansion = Expansion(
            claim=await self._write_down(claim, error, verdict),
            size=growth.size if verdict.grown else None,
            stays=verdict.passes and not verdict.grown,
            refused=refused or final,
        )
        if not verdict.passes:
            raise ExpansionError(error.problem, expansion) from error
        log.warning("a volume is not grown on this node", volume=spec.inner_name, problem=error.problem)
        return expansion

    async def _write_down(
        self, claim: PersistentVolumeClaim, error: VolumeError, verdict: Verdict
    ) -> PersistentVolumeClaim:
        """Where it cannot be told, it is told when it fails again."""
        if verdict.told is Told.NOTHING:
            return claim
        infeasible = verdict.told is Told.INFEASIBLE
        try:
            return await self.storage.resize_failed(claim, error.problem, infeasible=infeasible, at=self.clock.now())
        except ObjectError as failure:
            log.warning(
                "the claim of a volume that was not grown cannot be told",
                claim=claim.metadata.name,
                problem=str(failure),
            )
            return claim

    def _tell_of_growth(self, request: SetUpRequest, claim: PersistentVolumeClaim) -> None:
        spec, pod = request.spec, request.pod
        self.recorder.pod_event(pod, EventType.NORMAL, *messages.expanded_event(spec, pod))
        self.recorder.object_event(claim, EventType.NORMAL, *messages.expanded_event(spec, pod))


def _refusal(error: VolumeError) -> Refusal:
    match error:
        case NotExpandedError():
            return error.refusal
        case UncertainVolumeError():
            return Refusal.UNCERTAIN
        case TransientVolumeError():
            return Refusal.UNTRIED
    return Refusal.FAILED
