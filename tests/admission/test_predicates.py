"""Pods that fit on a node, and pods that do not."""

from __future__ import annotations

import pytest

from tests.admission.situations import make_node, make_pod, pod_with_ports, requires, term, wants
from trikubelet.admission.predicates import misfits
from trikubelet.admission.resources import Demand, together
from trikubelet.api import Node, Pod, Taint, Toleration

NODE_AFFINITY = ("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
NODE_NAME = ("NodeName", "Predicate NodeName failed: node(s) didn't match the requested node name")
NODE_PORTS = ("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
TAINTS = ("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
NO_SCHEDULE, NO_EXECUTE = Taint(key="foo", effect="NoSchedule"), Taint(key="bar", effect="NoExecute")
WANTS_FOO = requires(term(wants("foo", "Exists")))


def found(pod: Pod, *others: Pod, node: Node | None = None) -> list[tuple[str, str]]:
    return [(one.reason, one.message) for one in misfits(pod, together(map(Demand.of, others)), node or make_node())]


def test_a_pod_that_asks_for_nothing_always_fits() -> None:
    assert found(make_pod(), make_pod({"cpu": "9m", "memory": "19"})) == []


def test_not_enough_cpu_and_memory() -> None:
    asked = make_pod({"cpu": "8m", "memory": "10"})
    assert found(asked, make_pod({"cpu": "5m", "memory": "19"})) == [
        ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 8, used: 5, capacity: 10"),
        ("OutOfmemory", "Node didn't have enough resource: memory, requested: 10, used: 19, capacity: 20"),
    ]


def test_a_pod_for_another_node() -> None:
    assert found(make_pod(node_name="machine2")) == [NODE_NAME]
    assert found(make_pod(node_name="machine1")) == []


def test_a_port_that_is_taken() -> None:
    assert found(pod_with_ports(123), pod_with_ports(123)) == [NODE_PORTS]
    assert found(pod_with_ports(123), pod_with_ports(124)) == []


@pytest.mark.parametrize(
    ("pod", "taints", "expected"),
    [
        (make_pod(tolerations=(Toleration(key="foo"), Toleration(key="bar"))), (NO_SCHEDULE, NO_EXECUTE), []),
        (make_pod(), (NO_SCHEDULE,), []),
        (make_pod(), (NO_EXECUTE,), [TAINTS]),
        (make_pod(), (Taint(key="baz", effect="PreferNoSchedule"),), []),
        (make_pod(static=True), (NO_SCHEDULE, NO_EXECUTE), []),
    ],
)
def test_taints(pod: Pod, taints: tuple[Taint, ...], expected: list[tuple[str, str]]) -> None:
    assert found(pod, node=make_node(taints=taints)) == expected


def test_labels_of_the_node() -> None:
    assert found(make_pod(affinity=WANTS_FOO)) == [NODE_AFFINITY]
    assert found(make_pod(affinity=WANTS_FOO), node=make_node(labels={"foo": "bar"})) == []
    assert found(make_pod(node_selector={"key": "A"}), node=make_node(labels={"key": "B"})) == [NODE_AFFINITY]


def test_all_that_does_not_fit_is_told_in_order() -> None:
    pod = pod_with_ports(1, node_name="other", affinity=WANTS_FOO)
    node = make_node(taints=(NO_EXECUTE,), allocatable={"pods": "1"})
    reasons = [reason for reason, _ in found(pod, pod_with_ports(1), node=node)]
    assert reasons == ["OutOfpods", "NodeAffinity", "NodeName", "NodePorts", "TaintToleration"]


@pytest.mark.parametrize(("selected", "expected"), [("linux", []), ("dummyOS", [NODE_AFFINITY])])
@pytest.mark.parametrize("label", ["linux", "dummyOS"])
def test_the_node_is_of_this_agents_operating_system_whatever_its_label_says(
    selected: str, expected: list[tuple[str, str]], label: str
) -> None:
    node = make_node(labels={"kubernetes.io/os": label})
    assert found(make_pod(node_selector={"kubernetes.io/os": selected}), node=node) == expected


def test_resources_that_the_node_does_not_know_are_none_of_its_concern() -> None:
    adjusted, empty, missing = "domain1.com/adjusted", "domain2.com/empty", "domain2.com/missing"
    node = make_node(allocatable={adjusted: "2", empty: "0"})
    assert found(make_pod({adjusted: "2"}), node=node) == []
    assert found(make_pod({missing: "2"}), node=node) == []
    assert [reason for reason, _ in found(make_pod({empty: "2"}), node=node)] == [f"OutOf{empty}"]


# `TestTolerationToleratesTaint` and `compareNumericValues`.
@pytest.mark.parametrize(
    ("operator", "value", "taint", "tolerated"),
    [
        ("Gt", "899", "900", True),
        ("Gt", "900", "900", False),
        ("Lt", "901", "900", True),
        ("Lt", "900", "900", False),
        ("Lt", "5", "-5", True),
        ("Gt", "-5", "0", True),
        ("Gt", "0899", "900", False),
        ("Gt", "+1", "900", False),
        ("Gt", "1.5", "900", False),
        ("Gt", "1", "0900", False),
        ("Gt", "1", "high", False),
        ("Gt", "1", "9223372036854775808", False),
        ("Lt", "", "", False),
    ],
)
def test_tolerations_compare_numbers_where_their_gate_is_on(
    operator: str, value: str, taint: str, tolerated: bool
) -> None:
    pod = make_pod(tolerations=(Toleration(key="sla", operator=operator, value=value),))
    node = make_node(taints=(Taint(key="sla", value=taint, effect="NoExecute"),))
    assert (misfits(pod, together(()), node, compares=True) == []) is tolerated
    assert misfits(pod, together(()), node) != []
