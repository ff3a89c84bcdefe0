"""The memory manager: the rows of the kubelet's `memory_manager_test.go` that are about what containers have.

Left out are those in which a policy of the test itself fails ("policy returns an error", twice), and the way from
container ids to names: here containers are known by their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest

from tests.allocation.pods import pod_with
from trikubelet.allocation.managers import ANYWHERE, ManagerSettings, ResourceManagers
from trikubelet.allocation.memory.manager import MemoryManager
from trikubelet.allocation.memory.state import Block, Blocks, Machine, MemoryState, take
from trikubelet.allocation.memory.static_policy import StaticPolicy, difference, empty_machine
from trikubelet.allocation.topology.hints import AllocationError, TopologyHint
from trikubelet.linux.machine_topology import MachineTopology, NumaNode

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB: Final = 2**30
HUGE: Final = "hugepages-1Gi"
EMPTY: Final = empty_machine(
    MachineTopology(tuple(NumaNode(node, memory=15 * GIB, huge_pages=((GIB, 5),)) for node in range(2))),
    {node: {"memory": GIB} for node in range(2)},
)
"""On each of two nodes 9 GiB of memory and five huge pages."""
ANY: Final = TopologyHint(None)


def on(nodes: int, memory: int, pages: int) -> Blocks:
    """Blocks of so many GiB."""
    return Block(nodes, "memory", memory * GIB), Block(nodes, HUGE, pages * GIB)


def manager(containers: Mapping[str, Blocks]) -> MemoryManager:
    """One in which a pod's containers have these."""
    machine: Machine = EMPTY
    for blocks in containers.values():
        for block in blocks:
            machine = take(machine, block.nodes, block.type, block.size)
    state = MemoryState(machine, {"pod1": containers} if containers else {})
    assert StaticPolicy(EMPTY).start(state) == state
    return MemoryManager(StaticPolicy(EMPTY), state)


def pod(uid: str, memory: int, pages: int, init: tuple[int, int] | None = None) -> Any:
    def amounts(memory: int, pages: int) -> dict[str, str]:
        return {"cpu": "1000Mi", "memory": f"{memory}Gi", HUGE: f"{pages}Gi"}

    row: dict[str, Any] = {"uid": uid, "containers": [["container1", *[amounts(memory, pages)] * 2]]}
    return pod_with(row if init is None else {**row, "init": [["initContainer1", *[amounts(*init)] * 2]]})


SMALL: Final = {"container1": on(0b1, 1, 1), "container2": on(0b1, 1, 1)}
LARGE: Final = {"container1": on(0b11, 12, 1), "container2": on(0b11, 1, 1)}


@pytest.mark.parametrize("containers", [SMALL, LARGE])
def test_what_pods_have_that_are_gone_is_removed(containers: Mapping[str, Blocks]) -> None:
    after = manager(containers).keep_only({})
    assert after == manager({})


@pytest.mark.parametrize(
    ("before", "asked", "expected"),
    [
        pytest.param({}, (1, 1), on(0b1, 1, 1), id="on NUMA node 0"),
        pytest.param({}, (12, 4), on(0b11, 12, 4), id="more than one NUMA node has"),
        pytest.param({"other": on(0b1, 1, 1)}, (12, 4), None, id="more than one NUMA node has, and one is in use"),
    ],
)
def test_a_container_is_added(before: Mapping[str, Blocks], asked: tuple[int, int], expected: Blocks | None) -> None:
    then, new = manager(before), pod("new", *asked)
    if expected is None:
        with pytest.raises(AllocationError):
            then.allocate(new, new.spec.containers[0], ANY)
        return
    after = then.allocate(new, new.spec.containers[0], ANY).when_it_starts(new, new.spec.containers[0])
    assert set(after.state.containers["new"]["container1"]) == set(expected)
    assert difference(after.state.machine, manager({**before, "new": expected}).state.machine) is None


async def test_without_a_policy_a_container_is_added_anywhere() -> None:
    none = ResourceManagers(ManagerSettings(), None, needed=lambda _: True, sources_ready=lambda: True)
    new = pod("new", 1, 1)
    assert await none.affinity(new, new.spec.containers[0]) == ANYWHERE


@pytest.mark.parametrize("containers", [SMALL, LARGE])
@pytest.mark.parametrize("removed", ["container2", "unknown"])
def test_a_container_is_removed(containers: Mapping[str, Blocks], removed: str) -> None:
    before = manager(containers)
    after = before.policy.remove_container(before.state, "pod1", removed)
    left = {name: blocks for name, blocks in containers.items() if name != removed}
    expected = manager(left).state
    assert after.containers == expected.containers
    assert difference(after.machine, expected.machine) is None


def test_an_init_container_has_nothing_once_the_container_after_it_has_started() -> None:
    new = pod("new", 4, 4, init=(7, 5))
    after = manager({})
    for container in (*new.spec.init_containers, *new.spec.containers):
        after = after.allocate(new, container, ANY).when_it_starts(new, container)
    assert set(after.state.containers["new"]["container1"]) == set(on(0b1, 4, 4))
    assert after.state.containers["new"]["initContainer1"] == ()
    assert difference(after.state.machine, manager({"new": on(0b1, 4, 4)}).state.machine) is None
    assert attrs.evolve(after, state=after.policy.start(after.state)) == after
