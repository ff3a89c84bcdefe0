"""What a pod was given, and the pod with it (facts: `TestUpdatePodFromAllocation`)."""

from __future__ import annotations

import attrs
import pytest

from tests.allocation.situations import amounts, container, make_pod, quantities, requirements, resized, sidecar
from trikubelet.allocation.model import (
    PodAllocation,
    ResizeGates,
    allocation_of,
    from_wire,
    to_wire,
    with_allocation,
)
from trikubelet.api import Pod, ResourceClaim, ResourceRequirements

NO_POD_LEVEL = ResizeGates(pod_level=False)
SIDECARS_ONLY = ResizeGates(init_containers=False)

POD = make_pod(
    "12345",
    container("c1", amounts("100m", "200"), amounts("300m", "400")),
    container("c2", amounts("500m", "600"), amounts("700m", "800")),
    init=(
        sidecar("sidecar", amounts("200m", "300"), amounts("400m", "500")),
        container("init", amounts("500m", "600"), amounts("700m", "800")),
    ),
)
POD_LEVEL = resized(POD, pod=requirements(amounts("1200m", "1700"), amounts("2", "2500")))
WITHOUT_CONTAINERS = resized(POD, c1=ResourceRequirements(), sidecar=ResourceRequirements())
RESIZED = resized(
    POD,
    c1=requirements(amounts("200m", "200"), amounts("300m", "400")),
    sidecar=requirements(amounts("300m", "300"), amounts("400m", "500")),
    init=requirements(amounts("300m", "600"), amounts("700m", "800")),
)
RESIZED_POD_LEVEL = resized(RESIZED, pod=requirements(amounts("1500m", "1700"), amounts("2200m", "2500")))
OVERHEAD = attrs.evolve(POD_LEVEL, spec=attrs.evolve(POD_LEVEL.spec, overhead=quantities(amounts("100m", "200"))))


@pytest.mark.parametrize(
    ("pod", "allocation", "gates"),
    [
        pytest.param(POD, allocation_of(POD), NO_POD_LEVEL, id="all as allocated"),
        pytest.param(POD, PodAllocation({}), NO_POD_LEVEL, id="nothing allocated"),
        pytest.param(
            POD,
            PodAllocation({"c2": POD.spec.containers[1].resources}),
            NO_POD_LEVEL,
            id="a container that is not in the allocation",
        ),
        pytest.param(OVERHEAD, PodAllocation({}, POD_LEVEL.spec.resources), ResizeGates(), id="overhead"),
        pytest.param(POD_LEVEL, allocation_of(POD), NO_POD_LEVEL, id="pod level that cannot be resized"),
        pytest.param(
            POD,
            allocation_of(resized(POD, c1=requirements(amounts("0.1", "200"), amounts("300m", "400")))),
            ResizeGates(),
            id="the same amount in other words",
        ),
    ],
)
def test_a_pod_that_has_what_it_asks_for_stays_the_same_object(
    pod: Pod, allocation: PodAllocation, gates: ResizeGates
) -> None:
    assert with_allocation(pod, allocation, gates) is pod


@pytest.mark.parametrize(
    ("pod", "allocation", "gates", "expected"),
    [
        pytest.param(POD, allocation_of(RESIZED), NO_POD_LEVEL, RESIZED, id="containers"),
        pytest.param(POD, allocation_of(RESIZED_POD_LEVEL), ResizeGates(), RESIZED_POD_LEVEL, id="pod level is new"),
        pytest.param(
            POD_LEVEL, allocation_of(RESIZED_POD_LEVEL), ResizeGates(), RESIZED_POD_LEVEL, id="pod level is other"
        ),
        pytest.param(
            WITHOUT_CONTAINERS,
            allocation_of(RESIZED_POD_LEVEL),
            ResizeGates(),
            RESIZED_POD_LEVEL,
            id="containers that ask for nothing",
        ),
        pytest.param(POD_LEVEL, allocation_of(POD), ResizeGates(), POD, id="pod level was not allocated"),
    ],
)
def test_a_pod_gets_what_was_allocated(pod: Pod, allocation: PodAllocation, gates: ResizeGates, expected: Pod) -> None:
    together = with_allocation(pod, allocation, gates)
    assert together == expected
    assert together is not pod


def test_pod_level_resources_that_cannot_be_resized_stay_as_they_were_allocated() -> None:
    assert with_allocation(RESIZED_POD_LEVEL, allocation_of(POD_LEVEL, NO_POD_LEVEL), NO_POD_LEVEL) == POD_LEVEL


def test_an_allocation_is_of_init_containers_and_containers_without_overhead() -> None:
    allocation = allocation_of(OVERHEAD)
    assert allocation.containers.keys() == {"c1", "c2", "sidecar", "init"}
    assert allocation.pod == POD_LEVEL.spec.resources


def test_where_only_sidecars_can_be_resized_other_init_containers_are_not_allocated() -> None:
    assert allocation_of(POD, SIDECARS_ONLY).containers.keys() == {"c1", "c2", "sidecar"}


@pytest.mark.parametrize("pod", [POD, POD_LEVEL, WITHOUT_CONTAINERS])
def test_an_allocation_comes_back_from_its_wire_form(pod: Pod) -> None:
    assert from_wire(to_wire(allocation_of(pod))) == allocation_of(pod)


def test_claims_are_part_of_an_allocation() -> None:
    claims = (ResourceClaim(name="gpu", request="one"),)
    allocation = PodAllocation({"main": ResourceRequirements(claims=claims)})
    assert to_wire(allocation) == {
        "ContainerResources": {"main": {"claims": [{"name": "gpu", "request": "one"}]}},
        "PodLevelResources": None,
    }
    assert from_wire(to_wire(allocation)) == allocation


def test_what_a_newer_kubelet_adds_is_ignored() -> None:
    wire = {"ContainerResources": None, "PodLevelResources": None, "Extra": 1}
    assert from_wire(wire) == PodAllocation({})


@pytest.mark.parametrize(
    "wire",
    [
        None,
        [],
        {"ContainerResources": [1]},
        {"ContainerResources": {"main": "1"}},
        {"ContainerResources": {"main": {"requests": {"cpu": "lots"}}}},
        {"PodLevelResources": []},
    ],
)
def test_what_is_no_allocation_is_not_read_as_one(wire: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        from_wire(wire)
