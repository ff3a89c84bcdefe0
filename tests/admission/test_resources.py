"""What is left on a node for one more pod."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admission.situations import container, make_node, make_pod, quantities, resources
from trikubelet.admission.resources import Demand, Insufficient, insufficient, together, without_foreign_resources
from trikubelet.api import (
    Container,
    ContainerExtendedResourceRequest,
    Node,
    Pod,
    PodExtendedResourceClaimStatus,
    PodStatus,
    pod_requests,
)

A = "example.com/aaa"
B = "example.com/bbb"
NATIVE = "kubernetes.io/something"
PAGES = "hugepages-2Mi"
NODE = make_node(allocatable={A: "5", PAGES: "5", "ephemeral-storage": "20"})


def compute(cpu: int, memory: int, **more: Any) -> dict[str, str]:
    return {"cpu": f"{cpu}m", "memory": str(memory)} | more


def wanting(cpu: int, memory: int, *init: dict[str, str], **spec: Any) -> Pod:
    return make_pod(compute(cpu, memory), init=tuple(container(one) for one in init), **spec)


def lacking(pod: Pod, *others: Pod, node: Node = NODE) -> list[tuple[str, int, int, int]]:
    """Resource, requested, used and capacity of what there is not enough of."""
    used = together(Demand.of(other) for other in others).amounts
    found = insufficient(Demand.of(pod).amounts, used, node.status.allocatable)
    return [(one.resource, one.requested, one.used, one.capacity) for one in found]


@pytest.mark.parametrize(
    ("pod", "used", "expected"),
    [
        (make_pod(), (10, 20), []),
        (wanting(1, 1), (10, 20), [("cpu", 1, 10, 10), ("memory", 1, 20, 20)]),
        (wanting(1, 1, compute(3, 1)), (8, 19), [("cpu", 3, 8, 10)]),
        (wanting(1, 1, compute(3, 1), compute(2, 1)), (8, 19), [("cpu", 3, 8, 10)]),
        (wanting(1, 1, compute(1, 3)), (9, 19), [("memory", 3, 19, 20)]),
        (wanting(1, 1, compute(1, 3), compute(1, 2)), (9, 19), [("memory", 3, 19, 20)]),
        (wanting(1, 1, compute(1, 1)), (9, 19), []),
        (wanting(1, 1, compute(1, 1), compute(1, 1)), (9, 19), []),
        (wanting(1, 1), (5, 5), []),
        (wanting(2, 1), (9, 5), [("cpu", 2, 9, 10)]),
        (wanting(1, 2), (5, 19), [("memory", 2, 19, 20)]),
        (wanting(5, 1), (5, 19), []),
        (wanting(4, 1, compute(5, 1)), (5, 19), []),
        (wanting(1, 1, overhead=quantities(compute(3, 13))), (5, 5), []),
        (wanting(1, 1, overhead=quantities(compute(1, 15))), (5, 5), [("memory", 16, 5, 20)]),
        (wanting(1, 1, overhead=quantities(compute(10, 15))), (5, 5), [("cpu", 11, 5, 10), ("memory", 16, 5, 20)]),
        (wanting(0, 0), (11, 21), []),
        (wanting(1, 1), (11, 5), [("cpu", 1, 11, 10)]),
        (wanting(1, 1, resources=resources(compute(6, 1))), (5, 5), [("cpu", 6, 5, 10)]),
        (wanting(1, 1, resources=resources({"memory": "16"})), (5, 5), [("memory", 16, 5, 20)]),
        (wanting(1, 1, resources=resources(compute(5, 15))), (5, 5), []),
    ],
)
def test_cpu_and_memory(pod: Pod, used: tuple[int, int], expected: list[tuple[str, int, int, int]]) -> None:
    assert lacking(pod, wanting(*used)) == expected


@pytest.mark.parametrize(
    ("requests", "init", "used", "expected"),
    [
        ([{A: "1"}], [], {}, []),
        ([], [{A: "1"}], {}, []),
        ([compute(1, 1) | {A: "10"}], [], {A: "0"}, [(A, 10, 0, 5)]),
        ([], [{A: "10"}], {A: "0"}, [(A, 10, 0, 5)]),
        ([{A: "1"}], [], {A: "5"}, [(A, 1, 5, 5)]),
        ([{A: "3"}, {A: "3"}], [], {A: "2"}, [(A, 6, 2, 5)]),
        ([], [{A: "3"}, {A: "3"}], {A: "2"}, []),
        ([], [{A: "6"}, {A: "3"}], {A: "2"}, [(A, 6, 2, 5)]),
        ([{B: "1"}], [], {}, [(B, 1, 0, 0)]),
        ([{B: "0"}], [], {}, []),
        ([{NATIVE: "10"}], [], {}, [(NATIVE, 10, 0, 0)]),
        ([{PAGES: "10"}], [], {PAGES: "0"}, [(PAGES, 10, 0, 5)]),
        ([{PAGES: "3"}, {PAGES: "3"}], [], {PAGES: "2"}, [(PAGES, 6, 2, 5)]),
        ([{"ephemeral-storage": "11"}], [], {"ephemeral-storage": "10"}, [("ephemeral-storage", 11, 10, 20)]),
        ([{"ephemeral-storage": "10"}], [], {"ephemeral-storage": "10"}, []),
        ([{"storage": "10"}], [], {}, []),
        ([{B: "1", A: "6", "cpu": "11m"}], [], {}, [("cpu", 11, 0, 10), (A, 6, 0, 5), (B, 1, 0, 0)]),
    ],
)
def test_other_resources(
    requests: list[dict[str, str]],
    init: list[dict[str, str]],
    used: dict[str, str],
    expected: list[tuple[str, int, int, int]],
) -> None:
    pod = make_pod(*requests, init=tuple(container(one) for one in init))
    assert lacking(pod, make_pod(used)) == expected


@pytest.mark.parametrize("pod", [make_pod(), wanting(1, 1), wanting(1, 1, compute(1, 1))])
def test_a_node_has_room_for_so_many_pods(pod: Pod) -> None:
    node = make_node(allocatable={"pods": "1"})
    assert lacking(pod, node=node) == []
    assert lacking(pod, make_pod(), node=node) == [("pods", 1, 1, 1)]
    assert lacking(pod, node=make_node(allocatable={"pods": "0"})) == [("pods", 1, 0, 0)]


def test_users_are_told_what_is_missing_in_the_resources_own_unit() -> None:
    [cpu] = insufficient({"cpu": 2000}, {}, quantities({"cpu": "1"}))
    assert cpu.reason == "OutOfcpu"
    assert cpu.message == "Node didn't have enough resource: cpu, requested: 2000, used: 0, capacity: 1000"
    assert cpu.missing == 1000
    assert Insufficient("ephemeral-storage", 1, 2, 3).reason == "OutOfephemeral-storage"


def test_a_fraction_of_a_unit_is_a_whole_one() -> None:
    assert lacking(make_pod({"cpu": "9500u"}), wanting(1, 1)) == [("cpu", 10, 1, 10)]


FOO = "foo.com/bar"
DEVICE_CLASS = "deviceclass.resource.kubernetes.io/bar"


def left(pod: Pod, *allocatable: str) -> set[str]:
    return set(pod_requests(without_foreign_resources(pod, allocatable)))


def claiming(name: str, container_name: str = "c0") -> Pod:
    mapping = ContainerExtendedResourceRequest(container_name=container_name, resource_name=name)
    claim = PodExtendedResourceClaimStatus(request_mappings=(mapping,))
    return make_pod({name: "1"}, status=PodStatus(extended_resource_claim_status=claim))


@pytest.mark.parametrize(
    ("pod", "allocatable", "kept"),
    [
        (make_pod({FOO: "1"}), {FOO}, True),
        (make_pod({FOO: "1"}), {"foo.com/baz"}, False),
        (make_pod({FOO: "1"}), set(), False),
        (claiming(FOO), {FOO}, False),
        (claiming(FOO), set(), False),
        (claiming(FOO, "another"), {FOO}, True),
        (claiming(DEVICE_CLASS), set(), False),
        (make_pod({DEVICE_CLASS: "1"}), set(), True),
        (make_pod({"hugepages-2Mi": "1"}), set(), True),
        (make_pod({"kubernetes.io/x": "1"}), set(), True),
        (make_pod({"cpu": "1"}), set(), True),
    ],
)
def test_what_is_not_the_nodes_to_give_is_not_asked_of_it(pod: Pod, allocatable: set[str], kept: bool) -> None:
    names = set(pod.spec.containers[0].resources.requests)
    assert left(pod, *allocatable) == (names if kept else set())


def test_init_containers_are_looked_at_too_and_nothing_else_is_changed() -> None:
    main = Container(name="main", resources=resources({"cpu": "1"}, {FOO: "1"}))
    pod = make_pod(init=(container({FOO: "1", "memory": "1"}),), containers=(main,))
    filtered = without_foreign_resources(pod, ())
    assert set(filtered.spec.init_containers[0].resources.requests) == {"memory"}
    assert filtered.spec.containers == (main,)
