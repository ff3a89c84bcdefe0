"""The static memory policy: the rows of the kubelet's `memorymanager/policy_static_test.go`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.allocation.memory.tables import containers, hint, machine, policy, state, table
from tests.allocation.pods import pod_with
from trikubelet.allocation.demands import all_containers, pod_memory
from trikubelet.allocation.memory.reserved import require_reserved_memory, reserved_memory
from trikubelet.allocation.memory.state import MemoryState, MemoryTable, NodeState
from trikubelet.allocation.memory.static_policy import (
    EMPTY_SHARED_POOL,
    MemoryStateError,
    StaticPolicy,
    difference,
    empty_machine,
)
from trikubelet.allocation.topology.hints import AllocationError, TopologyHint
from trikubelet.api import Quantity
from trikubelet.linux.machine_topology import MachineTopology, NumaNode

if TYPE_CHECKING:
    from trikubelet.api import Pod

_MACHINE = MachineTopology((NumaNode(0, memory=2**33), NumaNode(1, memory=2**33)))


def _check(after: MemoryState, row: dict[str, Any]) -> None:
    found = {uid: {name: set(its) for name, its in own.items()} for uid, own in after.containers.items()}
    expected = containers(row["expected"])
    assert found == {uid: {name: set(its) for name, its in own.items()} for uid, own in expected.items()}
    assert difference(after.machine, machine(row["machine_after"])) is None


@pytest.mark.parametrize("row", table("new"))
def test_the_system_must_keep_some_memory(row: dict[str, Any]) -> None:
    reservations = [
        (int(node), {name: Quantity(size) for name, size in its.items()}) for node, its in row["reserved"].items()
    ]
    kept = {"memory": Quantity(sum(its.get("memory", 0) for its in row["reserved"].values()))}
    if row["error"]:
        with pytest.raises(ValueError, match="needs memory"):
            require_reserved_memory(reserved_memory(_MACHINE, reservations, kept))
    else:
        require_reserved_memory(reserved_memory(_MACHINE, reservations, kept))


@pytest.mark.parametrize("row", table("start"))
def test_a_state_fits_the_machine_or_is_refused(row: dict[str, Any]) -> None:
    if row["error"]:
        with pytest.raises(MemoryStateError):
            policy(row).start(state(row))
    else:
        _check(policy(row).start(state(row)), row)


@pytest.mark.parametrize("row", table("allocate"))
def test_a_container_gets_memory(row: dict[str, Any]) -> None:
    pod = pod_with(row["pod"])
    if row["error"]:
        with pytest.raises(AllocationError):
            policy(row).allocate(state(row), pod, pod.spec.containers[0], hint(row["hint"]))
    else:
        _check(policy(row).allocate(state(row), pod, pod.spec.containers[0], hint(row["hint"])), row)


@pytest.mark.parametrize("row", table("init_containers") + table("sidecars"))
def test_memory_of_init_containers_is_used_again_but_not_that_of_sidecars(row: dict[str, Any]) -> None:
    def given() -> MemoryState:
        pod, after = pod_with(row["pod"]), state(row)
        for container in all_containers(pod):
            after = policy(row).allocate(after, pod, container, hint(row["hint"]))
        return after

    if row["error"]:
        with pytest.raises(AllocationError):
            given()
    else:
        _check(given(), row)


@pytest.mark.parametrize("row", table("remove"))
def test_memory_of_a_removed_container_is_free_again(row: dict[str, Any]) -> None:
    _check(policy(row).remove_container(state(row), "pod1", "container1"), row)


@pytest.mark.parametrize("row", table("hints"))
def test_hints_say_where_a_containers_memory_could_be(row: dict[str, Any]) -> None:
    pod = pod_with(row["pod"])
    found = policy(row).hints(state(row), pod, pod.spec.containers[0])
    assert found == {name: list(map(hint, hints)) for name, hints in row["hints"].items()}


@pytest.mark.parametrize("row", table("pod_hints"))
def test_hints_say_where_a_pods_memory_could_be(row: dict[str, Any]) -> None:
    found = policy(row).pod_hints(state(row), pod_with(row["pod"]))
    assert found == {name: list(map(hint, hints)) for name, hints in row["hints"].items()}


@pytest.mark.parametrize("row", table("allocate_pod"))
def test_a_pod_gets_memory_as_a_whole(row: dict[str, Any]) -> None:
    pod = pod_with(row["pod"])
    if row["error"]:
        with pytest.raises(AllocationError) as error:
            policy(row).allocate_pod(state(row), pod, hint(row["hint"]))
        assert error.value.reason == EMPTY_SHARED_POOL
    else:
        _check(policy(row).allocate_pod(state(row), pod, hint(row["hint"])), row)


@pytest.mark.parametrize("row", table("pod_memory"))
def test_a_pod_needs_memory_for_what_runs_at_the_same_time(row: dict[str, Any]) -> None:
    found = pod_memory(pod_with(row["pod"]), pod_level=False)
    assert {name: size for name, size in found.items() if size} == row["expected"]


@pytest.mark.parametrize("row", table("groups"))
def test_nodes_of_other_groups_are_refused(row: dict[str, Any]) -> None:
    pod = _pod("pod", "1Gi")
    memory = {"memory": MemoryTable(2**32, 0, 2**32, 0, 2**32)}
    nodes = {node: attrs.evolve(one, memory=memory) for node, one in machine(row["machine"]).items()}
    before = MemoryState(nodes)
    agreed = hint([row["nodes"], True])
    if row["violates"]:
        with pytest.raises(AllocationError, match="other groups"):
            StaticPolicy(before.machine).allocate(before, pod, pod.spec.containers[0], agreed)
    else:
        after = StaticPolicy(before.machine).allocate(before, pod, pod.spec.containers[0], agreed)
        assert after.containers["pod"]["one"][0].nodes == agreed.nodes


@pytest.mark.parametrize("row", table("shared_pool"))
def test_containers_that_share_a_pods_memory_need_some(row: dict[str, Any]) -> None:
    empty = StaticPolicy(empty_machine(_MACHINE, {}), pod_level=True)
    hints = empty.pod_hints(empty.start(MemoryState()), pod_with(row["pod"]))
    assert (hints.get("memory") == []) is row["error"]


@pytest.mark.parametrize("row", table("reserved"))
def test_memory_that_is_reserved_must_be_what_the_node_keeps(row: dict[str, Any]) -> None:
    def amounts(wire: dict[str, int]) -> dict[str, Quantity]:
        return {name: Quantity(size) for name, size in wire.items()}

    reservations = [(node, amounts(its)) for node, its in row["reservations"]]
    if row["error"]:
        with pytest.raises(ValueError, match="reservedMemory"):
            reserved_memory(_MACHINE, reservations, amounts(row["node"]))
        return
    reserved = reserved_memory(_MACHINE, reservations, {**amounts(row["node"]), "cpu": Quantity("1")})
    if "expected" in row:
        assert reserved == {int(node): its for node, its in row["expected"].items()}


def test_a_hint_that_is_too_narrow_is_extended() -> None:
    empty = StaticPolicy(empty_machine(_MACHINE, {}))
    pod = _pod("pod", "10Gi")
    after = empty.allocate(empty.start(MemoryState()), pod, pod.spec.containers[0], TopologyHint(0b10))
    assert after.containers["pod"]["one"][0].nodes == 0b11
    assert [after.machine[node].memory["memory"].reserved for node in (0, 1)] == [2**33, 2**31]


def _pod(uid: str, memory: str) -> Pod:
    return pod_with({"uid": uid, "containers": [["one", *[{"cpu": "1", "memory": memory}] * 2]]})


def test_a_node_of_a_group_is_not_used_alone() -> None:
    empty = StaticPolicy(empty_machine(_MACHINE, {}))
    large, small, other = _pod("large", "10Gi"), _pod("small", "1Mi"), _pod("other", "1Mi")
    state = empty.allocate(empty.start(MemoryState()), large, large.spec.containers[0], TopologyHint(0b11, True))
    state = empty.allocate(state, small, small.spec.containers[0], TopologyHint(0b10))
    assert state.containers["small"]["one"][0].nodes == 0b11
    with pytest.raises(AllocationError, match="no NUMA nodes with 1 among them"):
        empty.allocate(state, other, other.spec.containers[0], TopologyHint(0b10, True))


@pytest.mark.parametrize(
    ("assignments", "cells", "free", "problem"),
    [(2, 0b1, 7 * 2**30, "other blocks"), (1, 0b11, 7 * 2**30, "other blocks"), (1, 0b1, 1, "free around")],
)
def test_a_state_that_containers_do_not_explain_is_refused(
    assignments: int, cells: int, free: int, problem: str
) -> None:
    empty, pod = StaticPolicy(empty_machine(_MACHINE, {})), _pod("pod", "1Gi")
    state = empty.allocate(empty.start(MemoryState()), pod, pod.spec.containers[0], TopologyHint(0b1))
    assert empty.start(state) == state
    memory = {"memory": attrs.evolve(state.machine[0].memory["memory"], free=free)}
    broken = {**state.machine, 0: NodeState(assignments, memory, cells)}
    with pytest.raises(MemoryStateError, match=problem):
        empty.start(attrs.evolve(state, machine=broken))
