"""Who has memory of which NUMA nodes, and what is left there."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from trikubelet.formats.cpu_list import members
from trikubelet.formats.values import frozen


@frozen
class MemoryTable:
    """One kind of memory of one NUMA node, in bytes."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    """What containers have of the allocatable."""
    free: int
    """What they have not."""


@frozen
class NodeState:
    assignments: int
    """How many blocks have to do with this node."""
    memory: Mapping[str, MemoryTable]
    """By resource: `memory`, `hugepages-2Mi`."""
    cells: int
    """The NUMA nodes that blocks share with this one: a set. A node is part of one such set only."""


Machine = Mapping[int, NodeState]


@frozen
class Block:
    """Memory of a container, somewhere on these NUMA nodes."""

    nodes: int
    type: str
    size: int
    """Bytes. An init container's shrinks when others use it again, down to 0."""


Blocks = tuple[Block, ...]


@frozen
class MemoryState:
    """Never changed: a change makes another one."""

    machine: Machine = attrs.field(factory=dict)
    containers: Mapping[str, Mapping[str, Blocks]] = attrs.field(factory=dict)
    """By the pod's UID, then by the container's name."""
    pods: Mapping[str, Blocks] = attrs.field(factory=dict)
    """Of pods that have it as a whole; those of their containers are parts of it."""

    def get(self, uid: str, container: str) -> Blocks | None:
        return self.containers.get(uid, {}).get(container)

    def with_container(self, uid: str, container: str, blocks: Blocks) -> MemoryState:
        of_pod = {**self.containers.get(uid, {}), container: blocks}
        return attrs.evolve(self, containers={**self.containers, uid: of_pod})

    def without_container(self, uid: str, container: str) -> MemoryState:
        of_pod = {name: blocks for name, blocks in self.containers.get(uid, {}).items() if name != container}
        others = {other: containers for other, containers in self.containers.items() if other != uid}
        return attrs.evolve(self, containers={**others, uid: of_pod} if of_pod else others)


def take(machine: Machine, nodes: int, type_: str, size: int) -> Machine:
    """One more block on these nodes: as much of each as is free there, those with low numbers first."""
    after = dict(machine)
    for node in members(nodes):
        state = after[node]
        table = state.memory.get(type_)
        taken = 0 if table is None else min(size, table.free)
        size -= taken
        after[node] = NodeState(state.assignments + 1, _moved(state.memory, type_, taken), nodes)
    return after


def give_back(machine: Machine, blocks: Blocks) -> Machine:
    """Without these blocks. A node that is part of none any more is alone again."""
    after = dict(machine)
    for block in blocks:
        size = block.size
        for node in members(block.nodes):
            state = after[node]
            table = state.memory.get(block.type)
            back = 0 if table is None else min(size, table.reserved)
            size -= back
            assignments = state.assignments - 1
            cells = state.cells if assignments else 1 << node
            after[node] = NodeState(assignments, _moved(state.memory, block.type, -back), cells)
    return after


def _moved(memory: Mapping[str, MemoryTable], type_: str, size: int) -> Mapping[str, MemoryTable]:
    """From free to reserved."""
    if not size:
        return memory
    table = memory[type_]
    return {**memory, type_: attrs.evolve(table, reserved=table.reserved + size, free=table.free - size)}
