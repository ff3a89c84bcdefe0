"""The node that is created, and what is corrected of one that is there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from tests.node.stage import FACTS, SETTINGS
from trikubelet.api import Node, NodeStatus, ObjectMeta, Quantity, Taint
from trikubelet.node.registration import CONTROLLER_ATTACHES, UNINITIALIZED, initial_node, reconciled

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TAINT = Taint(key="a", value="b", effect="NoExecute")


def initial(**settings: Any) -> Node:
    return initial_node(attrs.evolve(SETTINGS, **settings), FACTS, NOW).node


def node(status: NodeStatus = NodeStatus(), **metadata: Any) -> Node:  # noqa: B008 - frozen
    return Node(metadata=ObjectMeta(name="n", **metadata), status=status)


def amounts(**texts: str) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity(text) for name, text in texts.items()}


def test_a_new_node_says_who_it_is() -> None:
    made = initial(labels={"role": "x", "kubernetes.io/arch": "mine"}, taints=(TAINT,), provider_id="p://1")
    assert made.metadata.labels["kubernetes.io/hostname"] == "n"
    assert made.metadata.labels["role"] == "x"
    assert made.metadata.annotations == {CONTROLLER_ATTACHES: "true"}
    assert (made.spec.taints, made.spec.provider_id) == ((TAINT,), "p://1")
    assert made.status.conditions[-1].status == "True"
    assert made.status.capacity["cpu"] == Quantity(2)


def test_a_node_of_a_cloud_waits_for_the_clouds_controller() -> None:
    cloud = attrs.evolve(SETTINGS.addresses, external_cloud=True)
    made = initial(addresses=cloud, taints=(TAINT,))
    assert made.spec.taints == (TAINT, UNINITIALIZED)
    assert [address.type for address in made.status.addresses] == ["Hostname"]


def test_a_node_that_is_as_it_should_be_is_left_alone() -> None:
    made = initial()
    existing = attrs.evolve(made, metadata=attrs.evolve(made.metadata, uid="u", resource_version="7"))
    assert reconciled(made, existing) is existing


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({"kubernetes.io/hostname": "new"}, {}, {"kubernetes.io/hostname": "new"}),
        (
            {"kubernetes.io/hostname": "new"},
            {"kubernetes.io/hostname": "old", "x": "y"},
            {"kubernetes.io/hostname": "new", "x": "y"},
        ),
        ({}, {"topology.kubernetes.io/zone": "z"}, {"topology.kubernetes.io/zone": "z"}),
        ({"topology.kubernetes.io/zone": ""}, {"topology.kubernetes.io/zone": "z"}, {}),
        ({"role": "mine"}, {}, {}),
    ],
)
def test_default_labels_are_put_right(ours: dict[str, str], theirs: dict[str, str], expected: dict[str, str]) -> None:
    assert reconciled(node(labels=ours), node(labels=theirs)).metadata.labels == expected


@pytest.mark.parametrize("wanted", [None, "true"])
@pytest.mark.parametrize("found", [None, "true", "false"])
def test_the_attach_annotation_is_put_right(wanted: str | None, found: str | None) -> None:
    ours = node(annotations={} if wanted is None else {CONTROLLER_ATTACHES: wanted})
    theirs = node(annotations={"x": "y"} | ({} if found is None else {CONTROLLER_ATTACHES: found}))
    result = reconciled(ours, theirs)
    assert result.metadata.annotations.get(CONTROLLER_ATTACHES) == wanted
    assert result.metadata.annotations["x"] == "y"
    assert (result is theirs) is (wanted == found)


def test_resources_are_only_given_to_a_node_that_has_none() -> None:
    ours = node(NodeStatus(capacity=amounts(cpu="2"), allocatable=amounts(cpu="1")))
    result = reconciled(ours, node())
    assert (result.status.capacity, result.status.allocatable) == (amounts(cpu="2"), amounts(cpu="1"))
    theirs = node(NodeStatus(capacity=amounts(cpu="9"), allocatable=amounts(cpu="9")))
    assert reconciled(ours, theirs) is theirs


def test_huge_pages_are_those_of_the_machine() -> None:
    ours = NodeStatus(
        capacity=amounts(hugepages_2Mi="100Mi", hugepages_1Gi="2Gi"),
        allocatable=amounts(hugepages_2Mi="100Mi", hugepages_1Gi="1Gi"),
    )
    theirs = NodeStatus(
        capacity=amounts(cpu="1", hugepages_2Mi="5Mi", hugepages_64Ki="1Mi"),
        allocatable=amounts(cpu="1", hugepages_2Mi="5Mi", hugepages_64Ki="1Mi"),
    )
    result = reconciled(node(ours), node(theirs)).status
    assert result.capacity == amounts(cpu="1", hugepages_2Mi="100Mi", hugepages_1Gi="2Gi")
    assert result.allocatable == amounts(cpu="1", hugepages_2Mi="100Mi", hugepages_1Gi="1Gi")


def test_extended_resources_are_zeroed_only_when_devices_are_unknown() -> None:
    both = {"cpu": Quantity(1), "example.com/gpu": Quantity(2)}
    theirs = node(NodeStatus(capacity=both, allocatable=both))
    ours = node(NodeStatus(capacity=amounts(cpu="1"), allocatable=amounts(cpu="1")))
    assert reconciled(ours, theirs) is theirs
    result = reconciled(ours, theirs, reset_extended=True).status
    assert result.capacity == result.allocatable == {"cpu": Quantity(1), "example.com/gpu": Quantity(0)}
