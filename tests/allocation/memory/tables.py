"""The kubelet's tables of the memory manager, from `tables/*.json`.

A machine is, for each NUMA node, the number of assignments, its cells and its memory by kind: total, reserved by the
system, allocatable, reserved, free. A block is its NUMA nodes, its kind and its size. All in bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from trikubelet.allocation.memory.state import Block, Blocks, MemoryState, MemoryTable, NodeState
from trikubelet.allocation.memory.static_policy import StaticPolicy, empty_machine
from trikubelet.allocation.topology.hints import TopologyHint
from trikubelet.formats.cpu_list import set_of
from trikubelet.linux.machine_topology import MachineTopology, NumaNode

_TABLES = Path(__file__).parent / "tables"


def table(name: str) -> list[Any]:
    return cast("list[Any]", json.loads((_TABLES / f"{name}.json").read_text()))


def machine(wire: dict[str, Any]) -> dict[int, NodeState]:
    return {
        int(node): NodeState(
            one["assignments"],
            {type_: MemoryTable(*numbers) for type_, numbers in one["memory"].items()},
            set_of(one["cells"]),
        )
        for node, one in wire.items()
    }


def containers(wire: dict[str, Any]) -> dict[str, dict[str, Blocks]]:
    return {uid: {name: blocks(its) for name, its in own.items()} for uid, own in wire.items()}


def blocks(wire: list[Any]) -> Blocks:
    return tuple(Block(set_of(nodes), type_, size) for nodes, type_, size in wire)


def state(row: dict[str, Any]) -> MemoryState:
    return MemoryState(machine(row["machine"]), containers(row["containers"]))


def policy(row: dict[str, Any]) -> StaticPolicy:
    nodes = (
        NumaNode(one["id"], memory=one["memory"], huge_pages=tuple((size, count) for size, count in one["huge_pages"]))
        for one in row["nodes"]
    )
    reserved = {int(node): amounts for node, amounts in row["reserved"].items()}
    return StaticPolicy(empty_machine(MachineTopology(tuple(nodes)), reserved), pod_level=row["gate"])


def hint(wire: list[Any] | None) -> TopologyHint:
    if wire is None:
        return TopologyHint(None, False)
    return TopologyHint(None if wire[0] is None else set_of(wire[0]), wire[1])
