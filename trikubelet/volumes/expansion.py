"""How far the file system of a volume is to grow on this node, and what follows when its driver does not let it.

Who makes the volume larger is a controller. One that tracks how far it is says by the claim's status when the node may
begin, and is told in the same place how that went, so that a user can take back a size that is not to be had
(`RecoverVolumeExpansionFailure`). An older one only makes the volume larger than the claim says. Pure (kubelet:
`NodeExpander`, `legacyCallNodeExpandOnPlugin`).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, assert_never

from trikubelet.api import PersistentVolumeClaim, Quantity
from trikubelet.api.persistent_volumes import READ_WRITE_MANY
from trikubelet.formats.values import frozen
from trikubelet.volumes.sources import CSI, LOCAL

if TYPE_CHECKING:
    from trikubelet.volumes.model import VolumeSpec

STORAGE: Final = "storage"
NO_NODE_EXPANSION_ANNOTATION: Final = "volume.kubernetes.io/node-expansion-not-required"
_GROWING: Final = (CSI, LOCAL)
"""Kinds of volumes with file systems that the node can grow."""
_RESIZING_ON_NODE: Final = ("NodeResizePending", "NodeResizeInProgress")


@frozen
class Growth:
    """What a volume should become."""

    size: Quantity
    tracked: bool = False
    """The claim's status is to be told how far it is."""
    written: bool = False
    """The claim has the size already: another node has grown the volume, and this one has to follow."""


class Refusal(enum.Enum):
    """How a driver does not grow a volume."""

    IN_USE = "it does not while the volume is in use"
    INFEASIBLE = "it never can"
    UNSUPPORTED = "it does not grow volumes on nodes at all"
    FAILED = "it has failed"
    UNCERTAIN = "it has not answered, and may still be at it"
    UNTRIED = "it could not be asked"


class Told(enum.Enum):
    """What the claim's status is told."""

    NOTHING = "nothing"
    FAILED = "a condition"
    INFEASIBLE = "a condition, and that this size is not to be had"


@frozen(kw_only=True)
class Verdict:
    """What follows from a refusal."""

    told: Told = Told.NOTHING
    passes: bool = False
    """The pod gets the volume as it is."""
    grown: bool = False
    """It is taken for grown: nothing is left to be done on a node."""


@frozen(kw_only=True)
class Expansion:
    """What came of growing a volume."""

    claim: PersistentVolumeClaim
    """As the API server has it now."""
    size: Quantity | None = None
    """What the file system has; None: as before."""
    stays: bool = False
    """The driver does not grow it while it is in use."""
    refused: bool = False
    """The driver has failed for good, at least for now."""


def growth_of(spec: VolumeSpec) -> Growth | None:
    """None: it is not to be grown on this node, or not now."""
    claim, persistent = spec.claim, spec.persistent
    if claim is None or persistent is None or spec.read_only or not _grows(spec):
        return None
    state = claim.status.allocated_resource_statuses.get(STORAGE, "")
    allocated = claim.status.allocated_resources.get(STORAGE)
    if not state and allocated is None:
        capacity = persistent.spec.capacity.get(STORAGE)
        return None if capacity is None else Growth(capacity)
    if allocated is None:
        return None
    if state in _RESIZING_ON_NODE:
        return Growth(allocated, tracked=True)
    has = size_known(spec)
    if state or has is None or has.nanos < allocated.nanos:
        return None
    everywhere = READ_WRITE_MANY in claim.spec.access_modes
    everywhere = everywhere and NO_NODE_EXPANSION_ANNOTATION not in claim.metadata.annotations
    return Growth(allocated, tracked=True, written=True) if everywhere else None


def size_known(spec: VolumeSpec) -> Quantity | None:
    """The size that the claim says the file system has."""
    return None if spec.claim is None else spec.claim.status.capacity.get(STORAGE)


def is_kept_small(spec: VolumeSpec) -> bool:
    """Whether it should grow, and does not since the pod only reads it."""
    if not spec.read_only or spec.persistent is None or spec.claim is None or not _grows(spec):
        return False
    has, should = size_known(spec), spec.persistent.spec.capacity.get(STORAGE)
    return should is not None and (has is None or has.nanos < should.nanos)


def _grows(spec: VolumeSpec) -> bool:
    """Drivers of flexVolume are plugins of names of their own."""
    return spec.plugin in _GROWING or (spec.persistent is not None and spec.persistent.spec.flex_volume is not None)


def judge(growth: Growth, refusal: Refusal, *, changed: bool) -> Verdict:
    """`changed`: the driver has failed for good before, and the claim asks for another size by now."""
    match refusal:
        case Refusal.UNTRIED:
            return Verdict()
        case Refusal.UNSUPPORTED if growth.written or not growth.tracked:
            return Verdict(passes=True, grown=True)
        case Refusal.UNSUPPORTED | Refusal.IN_USE:
            return Verdict(passes=True, told=_told(growth, infeasible=changed))
        case Refusal.INFEASIBLE:
            return Verdict(told=_told(growth, infeasible=True))
        case Refusal.FAILED:
            return Verdict(told=_told(growth, infeasible=changed))
        case Refusal.UNCERTAIN:
            return Verdict(told=_told(growth, infeasible=False))
        case _:
            assert_never(refusal)


def asks_for_another_size(claim: PersistentVolumeClaim, growth: Growth) -> bool:
    """Whether its user wants something else by now."""
    wanted = claim.spec.resources.requests.get(STORAGE)
    return (0 if wanted is None else wanted.nanos) != growth.size.nanos


def _told(growth: Growth, *, infeasible: bool) -> Told:
    if not growth.tracked:
        return Told.NOTHING
    return Told.INFEASIBLE if infeasible else Told.FAILED
