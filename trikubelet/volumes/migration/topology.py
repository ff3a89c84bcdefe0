"""Where a migrated volume can be reached, in its driver's terms: the node's zone has another label there (kubelet:
`translateTopologyFromInTreeToCSI`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import NodeSelector, VolumeNodeAffinity
from trikubelet.api.scheduling import NodeSelectorRequirement, NodeSelectorTerm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import PersistentVolume

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
OLD_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"
OLD_REGION: Final = "failure-domain.beta.kubernetes.io/region"
_BETWEEN_ZONES: Final = "__"


def zones_of(label: str) -> list[str]:
    """The zones of a label that may name several."""
    return label.split(_BETWEEN_ZONES) if label else []


def with_zone_key(volume: PersistentVolume, key: str) -> PersistentVolume:
    """Zones of the node affinity, or else of the labels, under the driver's `key`. A region by its old label gets the
    new one: nodes have no other any more."""
    zone, region = _labels(volume)
    volume = _moved(volume, zone, key, zones_of(volume.metadata.labels.get(zone, "")))
    return _renamed(volume, OLD_REGION, REGION) if region == OLD_REGION else volume


def with_zone_and_region_keys(volume: PersistentVolume, zone_key: str, region_key: str) -> PersistentVolume:
    """The same for a driver that knows regions too, and no volumes in several zones."""
    zone, region = _labels(volume)
    volume = _moved(volume, zone, zone_key, [volume.metadata.labels.get(zone, "")])
    return _moved(volume, region, region_key, [volume.metadata.labels.get(region, "")])


def _moved(volume: PersistentVolume, old: str, new: str, labelled: Iterable[str]) -> PersistentVolume:
    if any(one.key == old and one.values for term in _terms(volume) for one in term.match_expressions):
        return _renamed(volume, old, new)
    values = tuple(sorted({value.strip() for value in labelled} - {""}))
    if not values:
        return volume
    added = NodeSelectorRequirement(key=new, operator="In", values=values)
    terms = _terms(volume) or (NodeSelectorTerm(),)
    return _with_terms(
        volume, (attrs.evolve(term, match_expressions=(*term.match_expressions, added)) for term in terms)
    )


def _renamed(volume: PersistentVolume, old: str, new: str) -> PersistentVolume:
    def renamed(one: NodeSelectorRequirement) -> NodeSelectorRequirement:
        return attrs.evolve(one, key=new) if one.key == old else one

    terms = _terms(volume)
    if not terms:
        return volume
    return _with_terms(
        volume, (attrs.evolve(term, match_expressions=tuple(map(renamed, term.match_expressions))) for term in terms)
    )


def _labels(volume: PersistentVolume) -> tuple[str, str]:
    """The labels that the volume uses for zone and region: its node affinity tells, or else its own labels."""
    keys = {one.key for term in _terms(volume) for one in term.match_expressions}
    for known in (keys, volume.metadata.labels):
        if ZONE in known:
            return ZONE, REGION
        if OLD_ZONE in known:
            return OLD_ZONE, OLD_REGION
    return ZONE, REGION


def _terms(volume: PersistentVolume) -> tuple[NodeSelectorTerm, ...]:
    affinity = volume.spec.node_affinity
    return () if affinity is None or affinity.required is None else affinity.required.node_selector_terms


def _with_terms(volume: PersistentVolume, terms: Iterable[NodeSelectorTerm]) -> PersistentVolume:
    affinity = VolumeNodeAffinity(required=NodeSelector(node_selector_terms=tuple(terms)))
    return attrs.evolve(volume, spec=attrs.evolve(volume.spec, node_affinity=affinity))
