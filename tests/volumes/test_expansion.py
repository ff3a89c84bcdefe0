"""How far a volume may grow on a node, by its claim: the kubelet's tables (`TestNodeExpander`,
`TestOperationGenerator_nodeExpandVolume`, `TestCheckForRecoveryFromExpansion`)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from trikubelet.api import PersistentVolume, PersistentVolumeClaim, Quantity, from_dict
from trikubelet.volumes.expansion import (
    Growth,
    Refusal,
    Told,
    Verdict,
    asks_for_another_size,
    growth_of,
    is_kept_small,
    judge,
)
from trikubelet.volumes.model import VolumeSpec

PENDING, IN_PROGRESS, INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"
RWX = ["ReadWriteOnce", "ReadWriteMany"]
NOT_REQUIRED = {"volume.kubernetes.io/node-expansion-not-required": "true"}


def volume(
    asked: str = "2G",
    has: str = "1G",
    allocated: str = "",
    state: str = "",
    *,
    size: str = "2G",
    modes: list[str] | None = None,
    annotations: dict[str, str] | None = None,
    plugin: str = "kubernetes.io/csi",
) -> VolumeSpec:
    status: dict[str, Any] = {"capacity": {"storage": has}}
    status |= {"allocatedResources": {"storage": allocated}} if allocated else {}
    status |= {"allocatedResourceStatuses": {"storage": state}} if state else {}
    claim = {
        "metadata": {"name": "claim01", "namespace": "ns", "uid": "u", "annotations": annotations or {}},
        "spec": {"accessModes": modes or ["ReadWriteOnce"], "resources": {"requests": {"storage": asked}}},
        "status": status,
    }
    persistent = from_dict(PersistentVolume, {"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": size}}})
    return VolumeSpec("data", "pv", plugin, persistent=persistent, claim=from_dict(PersistentVolumeClaim, claim))


def growth(size: str, **flags: bool) -> Growth:
    return Growth(Quantity(size), **flags)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # A controller that says how far it is.
        (volume(allocated="2G", state=PENDING), growth("2G", tracked=True)),
        (volume(allocated="2G", state=IN_PROGRESS), growth("2G", tracked=True)),
        (volume(allocated="3G", state=PENDING), growth("3G", tracked=True)),
        (volume(state=INFEASIBLE), None),
        (volume(allocated="2G", state=INFEASIBLE), None),
        (volume(has="2G", allocated="2G", state=INFEASIBLE), None),
        (volume(allocated="2G", state="ControllerResizeInProgress"), None),
        (volume(allocated="2G", state="ControllerResizeInfeasible"), None),
        (volume(allocated="2G"), None),
        # Without a size the driver would be told to make it nothing.
        (volume(state=PENDING), None),
        # It has grown: on another node, if more than one may have it.
        (volume(has="2G", allocated="2G"), None),
        (volume(has="2G", allocated="2G", modes=RWX), growth("2G", tracked=True, written=True)),
        (volume(has="2G", allocated="2G", modes=RWX, annotations=NOT_REQUIRED), None),
        (volume(has="1G", allocated="2G", modes=RWX), None),
        # An older controller, that only makes the volume larger.
        (volume(), growth("2G")),
        (volume(has="2G"), growth("2G")),
        (volume(modes=RWX), growth("2G")),
        # Kinds that do not grow on nodes.
        (volume(plugin="kubernetes.io/nfs"), None),
        (volume(plugin="kubernetes.io/local-volume"), growth("2G")),
    ],
)
def test_the_claim_says_how_far_a_volume_is_to_grow(spec: VolumeSpec, expected: Growth | None) -> None:
    assert growth_of(spec) == expected
    assert growth_of(attrs.evolve(spec, read_only=True)) is None
    assert growth_of(attrs.evolve(spec, claim=None)) is None


TRACKED, WRITTEN, OLDER = growth("2G", tracked=True), growth("2G", tracked=True, written=True), growth("2G")


@pytest.mark.parametrize(
    ("to", "refusal", "verdict"),
    [
        (TRACKED, Refusal.INFEASIBLE, Verdict(told=Told.INFEASIBLE)),
        (TRACKED, Refusal.FAILED, Verdict(told=Told.FAILED)),
        (TRACKED, Refusal.IN_USE, Verdict(told=Told.FAILED, passes=True)),
        (TRACKED, Refusal.UNSUPPORTED, Verdict(told=Told.FAILED, passes=True)),
        (TRACKED, Refusal.UNCERTAIN, Verdict(told=Told.FAILED)),
        (TRACKED, Refusal.UNTRIED, Verdict()),
        (WRITTEN, Refusal.UNSUPPORTED, Verdict(passes=True, grown=True)),
        (WRITTEN, Refusal.INFEASIBLE, Verdict(told=Told.INFEASIBLE)),
        (WRITTEN, Refusal.FAILED, Verdict(told=Told.FAILED)),
        (OLDER, Refusal.INFEASIBLE, Verdict()),
        (OLDER, Refusal.FAILED, Verdict()),
        (OLDER, Refusal.IN_USE, Verdict(passes=True)),
        (OLDER, Refusal.UNSUPPORTED, Verdict(passes=True, grown=True)),
        (OLDER, Refusal.UNCERTAIN, Verdict()),
    ],
)
def test_what_follows_from_a_refusal(to: Growth, refusal: Refusal, verdict: Verdict) -> None:
    assert judge(to, refusal, changed=False) == verdict


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (Refusal.FAILED, Told.INFEASIBLE),
        (Refusal.IN_USE, Told.INFEASIBLE),
        # It may come yet.
        (Refusal.UNCERTAIN, Told.FAILED),
        (Refusal.UNTRIED, Told.NOTHING),
    ],
)
def test_who_wants_another_size_need_not_wait_for_this_one(refusal: Refusal, told: Told) -> None:
    assert judge(TRACKED, refusal, changed=True).told is told
    assert judge(OLDER, refusal, changed=True).told is Told.NOTHING


@pytest.mark.parametrize(("asked", "another"), [("2G", False), ("2000M", False), ("1500M", True), ("3G", True)])
def test_what_a_claim_asks_for_may_change_meanwhile(asked: str, another: bool) -> None:
    claim = volume(asked).claim
    assert claim is not None
    assert asks_for_another_size(claim, TRACKED) is another


@pytest.mark.parametrize(
    ("spec", "kept"),
    [(volume(), True), (volume(has="2G"), False), (volume(plugin="kubernetes.io/nfs"), False)],
)
def test_a_volume_that_is_only_read_stays_small(spec: VolumeSpec, kept: bool) -> None:
    assert is_kept_small(attrs.evolve(spec, read_only=True)) is kept
    assert not is_kept_small(spec)
