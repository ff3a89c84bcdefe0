"""The static memory policy: containers of Guaranteed pods get memory of NUMA nodes of their own.

Pure: a state in, another state out (kubelet: `memorymanager/policy_static.go`). Memory that one node has not is taken
of several, and from then on these nodes are a group: a node is either used alone, or by one group.

Memory of init containers is used again by those of the same pod that come after them, not that of sidecars. Blocks of
init containers shrink by what others use, so the sum over all containers is what the pod has; and what can be used
again is what is left of them. (The kubelet keeps that number in memory, and after a restart has another one.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.allocation.demands import (
    Amounts,
    all_containers,
    container_memory,
    ends_before_others,
    has_pod_level_resources,
    pod_memory,
)
from trikubelet.allocation.memory.state import (
    Block,
    Blocks,
    Machine,
    MemoryState,
    MemoryTable,
    NodeState,
    give_back,
    take,
)
from trikubelet.allocation.topology.hints import AllocationError, TopologyHint, narrowness, node_sets
from trikubelet.api.quantity import Quantity
from trikubelet.formats.cpu_list import format_cpu_list, members, set_of
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trikubelet.api import Container, Pod
    from trikubelet.linux.machine_topology import MachineTopology, NumaNode

EMPTY_SHARED_POOL: Final = "EmptyPodSharedPoolError"
MEMORY: Final = "memory"

Reserved = dict[int, Amounts]
"""Bytes that the system keeps, by NUMA node."""

_Hints = dict[str, list[TopologyHint]]


class MemoryStateError(ValueError):
    """What was written down of memory does not fit this machine, or what is reserved on it."""


def empty_machine(machine: MachineTopology, reserved: Reserved) -> Machine:
    """What there is on the NUMA nodes while no container has any of it."""
    return {node.id: NodeState(0, _tables(node, reserved.get(node.id, {})), 1 << node.id) for node in machine.nodes}


def _tables(node: NumaNode, reserved: Mapping[str, int]) -> dict[str, MemoryTable]:
    tables = {}
    huge = 0
    for page, count in node.huge_pages:
        name = f"hugepages-{Quantity.from_bytes_count(page).canonical()}"
        tables[name] = _table(page * count, reserved.get(name, 0), 0)
        huge += page * count
    return {**tables, MEMORY: _table(node.memory, reserved.get(MEMORY, 0), huge)}


def _table(total: int, reserved: int, huge: int) -> MemoryTable:
    allocatable = max(total - reserved - huge, 0)
    return MemoryTable(total, reserved, allocatable, 0, allocatable)


@frozen
class StaticPolicy:
    empty: Machine
    """See `empty_machine`."""
    pod_level: bool = False
    """The feature gate `PodLevelResourceManagers`."""

    def start(self, state: MemoryState) -> MemoryState:
        """The state to begin with. Raises MemoryStateError for one that this machine or configuration cannot have."""
        if not state.machine:
            if state.containers:
                raise MemoryStateError("containers have memory, and the machine has no NUMA nodes")
            return attrs.evolve(state, machine=self.empty)
        expected = self.empty
        for uid, containers in state.containers.items():
            whole = state.pods.get(uid) if self.pod_level else None
            for blocks in [whole] if whole else containers.values():
                for block in blocks:
                    for node in members(block.nodes):
                        if node not in expected or block.type not in expected[node].memory:
                            raise MemoryStateError(f"pod {uid} has {block.type} of NUMA node {node}: there is none")
                    expected = take(expected, block.nodes, block.type, block.size)
        if (problem := difference(state.machine, expected)) is not None:
            raise MemoryStateError(problem)
        return state

    def allocate(self, state: MemoryState, pod: Pod, container: Container, hint: TopologyHint) -> MemoryState:
        """The state in which the container has its memory; the same state if it gets none, or has it already.

        `hint`: what was agreed on. Raises AllocationError.
        """
        uid = pod.metadata.uid
        amounts = container_memory(pod, container, pod_level=self.pod_level)
        if not amounts or state.get(uid, container.name) is not None or _has_ended(state, pod, container):
            return state

        def reusable(nodes: int, type_: str) -> int:
            return sum(block.size for _, _, block in _reusable(state, pod, container, nodes, type_))

        nodes = self._choose(state.machine, amounts, hint, reusable)
        machine = state.machine
        after = state
        for type_, size in sorted(amounts.items()):
            machine = take(machine, nodes, type_, max(size - reusable(nodes, type_), 0))
            after = _use_again(after, pod, container, Block(nodes, type_, size))
        blocks = tuple(Block(nodes, type_, size) for type_, size in sorted(amounts.items()))
        return attrs.evolve(after, machine=machine).with_container(uid, container.name, blocks)

    def allocate_pod(self, state: MemoryState, pod: Pod, hint: TopologyHint) -> MemoryState:
        """The state in which a pod with resources of its own has its memory, and each container its part of it; the
        same state if it gets none, or has it already.

        Those that can have none for themselves share what is left of the pod's. Raises AllocationError.
        """
        amounts = pod_memory(pod, pod_level=self.pod_level)
        if not amounts or pod.metadata.uid in state.containers:
            return state
        if (problem := self._empty_shared_pool(pod, amounts)) is not None:
            raise AllocationError(problem, EMPTY_SHARED_POOL)
        nodes = self._choose(state.machine, amounts, hint, _nothing)
        uid, machine = pod.metadata.uid, state.machine
        for type_, size in sorted(amounts.items()):
            machine = take(machine, nodes, type_, size)
        after = attrs.evolve(state, machine=machine, pods={**state.pods, uid: _blocks(nodes, amounts)})
        for name, part in self._parts(pod, amounts).items():
            after = after.with_container(uid, name, _blocks(nodes, part))
        return after

    def end_container(self, state: MemoryState, uid: str, container: str) -> MemoryState:
        """The state in which a container that has ended, and will not start again, has no memory, and gets none."""
        blocks = state.get(uid, container)
        if not blocks:
            return state
        after = state.with_container(uid, container, ())
        return after if uid in state.pods else attrs.evolve(after, machine=give_back(state.machine, blocks))

    def remove_container(self, state: MemoryState, uid: str, container: str) -> MemoryState:
        """The state without the container and its memory."""
        blocks = state.get(uid, container)
        if blocks is None:
            return state
        after = state.without_container(uid, container)
        if self.pod_level and uid in state.pods:
            if uid in after.containers:
                return after
            blocks = state.pods[uid]
            after = attrs.evolve(after, pods={other: its for other, its in state.pods.items() if other != uid})
        return attrs.evolve(after, machine=give_back(state.machine, blocks))

    def is_settled(self, state: MemoryState, pod: Pod, container: Container) -> bool:
        """Whether the container has memory, had some and has ended, or gets none."""
        uid = pod.metadata.uid
        if uid in state.pods or state.get(uid, container.name) is not None or _has_ended(state, pod, container):
            return True
        if container_memory(pod, container, pod_level=self.pod_level):
            return False
        # While a pod with resources of its own has nothing, it may still get some as a whole.
        whole = has_pod_level_resources(pod) and pod_memory(pod, pod_level=self.pod_level)
        return not whole or uid in state.containers

    def hints(self, state: MemoryState, pod: Pod, container: Container) -> _Hints:
        """Where the container's memory could be, by resource; empty: it gets none, or there is none.

        For a container that has it already, where it is; nothing if it now asks for something else.
        """
        amounts = container_memory(pod, container, pod_level=self.pod_level)
        blocks = state.get(pod.metadata.uid, container.name)
        if not amounts or blocks is not None or _has_ended(state, pod, container):
            return _hints_of(blocks or (), amounts)
        return possible(
            state.machine,
            amounts,
            lambda nodes, type_: sum(one.size for _, _, one in _reusable(state, pod, container, nodes, type_)),
        )

    def pod_hints(self, state: MemoryState, pod: Pod) -> _Hints:
        """Where the memory of all containers of the pod could be. See `hints`."""
        amounts = pod_memory(pod, pod_level=self.pod_level)
        if not amounts:
            return {}
        if (whole := state.pods.get(pod.metadata.uid)) is not None:
            return _hints_of(whole, amounts)
        if has_pod_level_resources(pod) and self._empty_shared_pool(pod, amounts) is not None:
            return {type_: [] for type_ in amounts}
        own = state.containers.get(pod.metadata.uid, {})
        if any(own.values()):
            return self._where_it_is(pod, own, amounts)
        return possible(state.machine, amounts, _nothing)

    def _where_it_is(self, pod: Pod, own: Mapping[str, Blocks], amounts: Amounts) -> _Hints:
        """The nodes of all that the pod has; empty if a container that stays has not just what it asks for."""
        for container in all_containers(pod):
            has = {block.type: block.size for block in own.get(container.name, ())}
            wanted = container_memory(pod, container, pod_level=self.pod_level)
            if has != wanted and not ends_before_others(pod, container):
                return {}
        nodes = dict.fromkeys(amounts, 0)
        for block in (block for blocks in own.values() for block in blocks if block.type in nodes):
            nodes[block.type] |= block.nodes
        return {type_: [TopologyHint(its, preferred=True)] for type_, its in nodes.items() if its}

    def allocatable(self) -> list[Block]:
        """What containers can have of each NUMA node."""
        return [
            Block(1 << node, type_, table.allocatable)
            for node, state in self.empty.items()
            for type_, table in state.memory.items()
            if table.allocatable
        ]

    def _choose(
        self, machine: Machine, amounts: Amounts, hint: TopologyHint, reusable: Callable[[int, str], int]
    ) -> int:
        """The NUMA nodes of the hint, or more of them. Raises AllocationError."""
        best = hint
        if best.nodes is None:
            best = self._extended(machine, amounts, hint, 0, reusable)
        assert best.nodes is not None
        if _in_group(machine, best.nodes) or any(
            _free(machine, best.nodes, type_) < size for type_, size in amounts.items()
        ):
            best = self._extended(machine, amounts, best, best.nodes, reusable)
        assert best.nodes is not None
        if best.nodes.bit_count() > 1 and not _may_group(machine, best.nodes):
            group = format_cpu_list(best.nodes)
            raise AllocationError(f"memory of the NUMA nodes {group} is needed, and they belong to other groups")
        return best.nodes

    def _extended(
        self, machine: Machine, amounts: Amounts, hint: TopologyHint, nodes: int, reusable: Callable[[int, str], int]
    ) -> TopologyHint:
        """The best set that has enough memory and all of `nodes`. Raises AllocationError."""
        # All resources have the same hints.
        found = possible(machine, amounts, reusable).get(MEMORY, [])
        larger = [one for one in found if one.nodes is not None and nodes & ~one.nodes == 0]
        best = min(larger, key=lambda one: (not one.preferred, narrowness(one.nodes or 0)), default=None)
        if best is None or (hint.preferred and not best.preferred):
            which = f" with {format_cpu_list(nodes)} among them" if nodes else ""
            raise AllocationError(f"no NUMA nodes{which} have the memory that is requested")
        return best

    def _parts(self, pod: Pod, amounts: Amounts) -> dict[str, Amounts]:
        parts: dict[str, Amounts] = {}
        left = dict(amounts)
        sharing = []
        for container in all_containers(pod):
            own = container_memory(pod, container, pod_level=self.pod_level)
            passes = ends_before_others(pod, container)
            if own:
                parts[container.name] = own
                for type_, size in () if passes else own.items():
                    left[type_] = left.get(type_, 0) - size
            elif passes:
                parts[container.name] = dict(left)
            else:
                sharing.append(container.name)
        return parts | dict.fromkeys(sharing, left)

    def _empty_shared_pool(self, pod: Pod, amounts: Amounts) -> str | None:
        """What is wrong if containers share the pod's memory, and those with memory of their own leave none."""
        exclusive: Amounts = {}
        sharing = False
        for container in all_containers(pod):
            own = container_memory(pod, container, pod_level=self.pod_level)
            gone = next((type_ for type_, size in amounts.items() if exclusive.get(type_, 0) >= size), None)
            if not ends_before_others(pod, container):
                sharing |= not own
                for type_, size in own.items():
                    exclusive[type_] = exclusive.get(type_, 0) + size
            elif not own and gone is not None:
                return f"sidecars have all {gone} of the pod, and leave none to init container {container.name}"
        gone = next((type_ for type_, size in amounts.items() if exclusive.get(type_, 0) >= size), None)
        if sharing and gone is not None:
            return f"containers with {gone} of their own have all of the pod's, and leave none to the others"
        return None


def possible(machine: Machine, amounts: Amounts, reusable: Callable[[int, str], int]) -> _Hints:
    """The sets of NUMA nodes that have as much free, the same ones for each resource; empty if there are none.

    `reusable`: how much of a resource the pod can use again on a set of nodes.
    """
    narrowest = len(machine)
    found = []
    for chosen in node_sets(sorted(machine)):
        if any(
            sum(_table_of(machine, node, type_).allocatable for node in chosen) < size
            for type_, size in amounts.items()
        ):
            continue
        narrowest = min(narrowest, len(chosen))
        nodes = set_of(chosen)
        if _in_group(machine, nodes) or (len(chosen) > 1 and not _may_group(machine, nodes)):
            continue
        if all(_free(machine, nodes, type_) + reusable(nodes, type_) >= size for type_, size in amounts.items()):
            found.append(nodes)
    hints = [TopologyHint(nodes, nodes.bit_count() == narrowest) for nodes in found]
    return {type_: list(hints) for type_ in amounts} if hints else {}


def _hints_of(blocks: Blocks, amounts: Amounts) -> _Hints:
    if {block.type: block.size for block in blocks} != amounts or len(blocks) != len(amounts):
        return {}
    return {block.type: [TopologyHint(block.nodes, preferred=True)] for block in blocks}


def _in_group(machine: Machine, nodes: int) -> bool:
    """Whether it is a single node, which is part of a group."""
    return nodes.bit_count() == 1 and any(machine[node].cells.bit_count() > 1 for node in members(nodes))


def _may_group(machine: Machine, nodes: int) -> bool:
    """Whether these nodes can be a group: none of them is used, alone or by another group."""
    return all(not machine[node].assignments or machine[node].cells == nodes for node in members(nodes))


def _free(machine: Machine, nodes: int, type_: str) -> int:
    return sum(_table_of(machine, node, type_).free for node in members(nodes))


_NO_MEMORY: Final = MemoryTable(0, 0, 0, 0, 0)


def _table_of(machine: Machine, node: int, type_: str) -> MemoryTable:
    return machine[node].memory.get(type_, _NO_MEMORY)


def _nothing(nodes: int, type_: str) -> int:
    return 0


def _blocks(nodes: int, amounts: Amounts) -> Blocks:
    return tuple(Block(nodes, type_, size) for type_, size in sorted(amounts.items()) if size > 0)


def _has_ended(state: MemoryState, pod: Pod, container: Container) -> bool:
    """Whether it is an init container that the kubelet, which then removes it, saw end: one after it has some."""
    own = state.containers.get(pod.metadata.uid, {})
    if not own or container.name in own or not ends_before_others(pod, container):
        return False
    names = [one.name for one in all_containers(pod)]
    return any(name in own for name in names[names.index(container.name) + 1 :])


def _reusable(
    state: MemoryState, pod: Pod, container: Container, nodes: int, type_: str
) -> Iterable[tuple[str, int, Block]]:
    """What is left of the init containers before this one, just there: the container, the block's place and itself."""
    for one in pod.spec.init_containers:
        if one.name == container.name:
            return
        if ends_before_others(pod, one):
            for place, block in enumerate(state.get(pod.metadata.uid, one.name) or ()):
                if block.nodes == nodes and block.type == type_:
                    yield one.name, place, block


def _use_again(state: MemoryState, pod: Pod, container: Container, wanted: Block) -> MemoryState:
    """The state in which init containers' blocks have shrunk by what the container uses of them."""
    needed = wanted.size
    after = state
    for name, place, block in _reusable(state, pod, container, wanted.nodes, wanted.type):
        used = min(needed, block.size)
        needed -= used
        blocks = after.containers[pod.metadata.uid][name]
        shrunk = (*blocks[:place], attrs.evolve(block, size=block.size - used), *blocks[place + 1 :])
        after = after.with_container(pod.metadata.uid, name, shrunk)
    return after


def difference(machine: Machine, expected: Machine) -> str | None:
    """Where the state is not what the machine and the containers' blocks make of it; groups of nodes as a whole."""
    if machine.keys() != expected.keys():
        return f"the state has the NUMA nodes {sorted(machine)}, and the machine has {sorted(expected)}"
    for node, state in machine.items():
        other = expected[node]
        if state.assignments != other.assignments or state.cells != other.cells:
            return f"NUMA node {node} is used by other blocks than containers have"
        if state.memory.keys() != other.memory.keys():
            return f"NUMA node {node} had {sorted(state.memory)}, and has {sorted(other.memory)}"
        for type_, table in state.memory.items():
            fixed = ("total", "system_reserved", "allocatable")
            if any(getattr(table, name) != getattr(other.memory[type_], name) for name in fixed):
                return f"NUMA node {node} has another amount of {type_} than it had, or more of it is reserved"
            for name in ("free", "reserved"):
                had, has = (
                    sum(getattr(_table_of(one, cell, type_), name) for cell in members(state.cells))
                    for one in (machine, expected)
                )
                if had != has:
                    return f"of {type_} the state says {had} bytes are {name} around NUMA node {node}, it must be {has}"
    return None
