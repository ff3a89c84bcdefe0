"""`memory_manager_state`: who has memory of which NUMA nodes, in the kubelet's file (`memorymanager/state`).

    {"policyName":"Static",
     "machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":…,…}},"cells":[0]}},
     "entries":{"<uid>":{"<container>":[{"numaAffinity":[0],"type":"memory","size":…}]}},"checksum":…}

This is version 1, which is written unless the feature gate `PodLevelResourceManagers` is on; then it is version 2, with
`"podEntries":{"<uid>":{"memoryBlocks":[…]}}`, which is not read without the gate. Both have the checksum of a structure
named MemoryManagerCheckpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trikubelet.allocation.memory.state import Block, Blocks, Machine, MemoryState, MemoryTable, NodeState
from trikubelet.formats.cpu_list import members, set_of
from trikubelet.formats.go_checkpoint import (
    GoCheckpointError,
    by_lower_name,
    go_checksum,
    go_map,
    go_object,
    go_sorted,
    go_struct,
    mapping_of,
    number_of,
    read_object,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = "memory_manager_state"
"""Below the agent's root directory."""

_NAME: Final = "state.MemoryManagerCheckpoint"
_HIGHEST_NODE: Final = 63


def to_bytes(policy: str, state: MemoryState, *, pod_level: bool = False) -> bytes:
    """What the file says. `policy`: the name of the memory manager's policy."""
    return go_object(
        policyName=policy,
        machineState=go_sorted({node: _node_to_wire(one) for node, one in state.machine.items()}) or {},
        entries=go_sorted(
            {
                uid: go_sorted({name: list(map(_block_to_wire, blocks)) for name, blocks in its.items()}) or {}
                for uid, its in state.containers.items()
            }
        ),
        podEntries=go_sorted(
            {
                uid: {"memoryBlocks": list(map(_block_to_wire, blocks))} if blocks else {}
                for uid, blocks in (state.pods if pod_level else {}).items()
            }
        ),
        checksum=_checksum(policy, state, _NAME, pod_level=pod_level),
    )


def from_bytes(content: bytes, policy: str, *, pod_level: bool = False) -> MemoryState:
    """What the file says. Raises GoCheckpointError for a file that is broken, of another policy or of version 2."""
    wire = read_object(content)
    written_by = text_of(wire.get("policyname"))
    machine = {_node_number(node): one for node, one in mapping_of(wire.get("machinestate"), _node_from_wire).items()}
    containers = mapping_of(wire.get("entries"), lambda its: mapping_of(its, _blocks_from_wire))
    pods = mapping_of(wire.get("podentries"), lambda entry: _blocks_from_wire(by_lower_name(entry).get("memoryblocks")))
    expected = number_of(wire.get("checksum"))
    state = MemoryState(machine, containers, pods)
    if not (pod_level and expected == _checksum(written_by, state, _NAME, pod_level=True)):
        state = MemoryState(machine, containers)
        actual = _checksum(written_by, state, _NAME)
        own_name = not pod_level and expected == _checksum(written_by, state, f"{_NAME}V1")
        if expected not in (0, actual) and not own_name:
            raise GoCheckpointError(f"it has the checksum {actual}, and should have {expected}: it is not as written")
    if written_by != policy:
        raise GoCheckpointError(f'it is of the policy "{written_by}", and the policy is "{policy}" now')
    return state


def _node_number(text: str) -> int:
    if not text.isdecimal() or int(text) > _HIGHEST_NODE:
        raise GoCheckpointError(f'expected a NUMA node from 0 to {_HIGHEST_NODE}, got "{text:.20}"')
    return int(text)


def _nodes_from_wire(wire: Any) -> int:
    if wire is None:
        return 0
    if not isinstance(wire, list):
        raise GoCheckpointError(f"expected a list of NUMA nodes, got {wire!r:.60}")
    return set_of(_node_number(str(number_of(node))) for node in wire)


_TABLE_FIELDS: Final = ("total", "systemReserved", "allocatable", "reserved", "free")
_TABLE_NAMES: Final = ("TotalMemSize", "SystemReserved", "Allocatable", "Reserved", "Free")


def _numbers(table: MemoryTable) -> tuple[int, ...]:
    return table.total, table.system_reserved, table.allocatable, table.reserved, table.free


def _node_to_wire(state: NodeState) -> dict[str, Any]:
    return {
        "numberOfAssignments": state.assignments,
        "memoryMap": go_sorted(
            {type_: dict(zip(_TABLE_FIELDS, _numbers(table), strict=True)) for type_, table in state.memory.items()}
        )
        or {},
        "cells": list(members(state.cells)),
    }


def _node_from_wire(wire: Any) -> NodeState:
    fields = by_lower_name(wire)
    memory = mapping_of(
        fields.get("memorymap"),
        lambda table: MemoryTable(*(number_of(by_lower_name(table).get(name.lower())) for name in _TABLE_FIELDS)),
    )
    return NodeState(number_of(fields.get("numberofassignments")), memory, _nodes_from_wire(fields.get("cells")))


def _block_to_wire(block: Block) -> dict[str, Any]:
    return {"numaAffinity": list(members(block.nodes)), "type": block.type, "size": block.size}


def _blocks_from_wire(wire: Any) -> Blocks:
    if wire is None:
        return ()
    if not isinstance(wire, list):
        raise GoCheckpointError(f"expected a list of blocks, got {wire!r:.60}")
    return tuple(
        Block(_nodes_from_wire(fields.get("numaaffinity")), text_of(fields.get("type")), number_of(fields.get("size")))
        for fields in map(by_lower_name, wire)
    )


def _checksum(policy: str, state: MemoryState, name: str, *, pod_level: bool = False) -> int:
    fields = {
        "PolicyName": f"(string){policy}",
        "MachineState": f"(state.NUMANodeMap){_printed_machine(state.machine)}",
        "Entries": f"(state.ContainerMemoryAssignments){_printed_entries(state.containers)}",
    }
    if pod_level:
        printed = {
            uid: go_struct(MemoryBlocks=f"([]state.Block){_printed_blocks(blocks)}")
            for uid, blocks in state.pods.items()
        }
        fields["PodEntries"] = f"(state.PodMemoryAssignments){go_map(printed)}"
    return go_checksum(name, **fields)


def _printed_machine(machine: Machine) -> str:
    nodes = []
    for node in sorted(machine):
        state = machine[node]
        tables = {
            type_: "<*>"
            + go_struct(
                **{name: f"(uint64){number}" for name, number in zip(_TABLE_NAMES, _numbers(table), strict=True)}
            )
            for type_, table in state.memory.items()
        }
        printed = go_struct(
            NumberOfAssignments=f"(int){state.assignments}",
            MemoryMap=f"(map[v1.ResourceName]*state.MemoryTable){go_map(tables)}",
            Cells=f"([]int){_printed_nodes(state.cells)}",
        )
        nodes.append(f"{node}:<*>{printed}")
    return f"map[{' '.join(nodes)}]"


def _printed_entries(containers: Mapping[str, Mapping[str, Blocks]]) -> str:
    return go_map(
        {
            uid: go_map({name: _printed_blocks(blocks) for name, blocks in its.items()})
            for uid, its in containers.items()
        }
    )


def _printed_blocks(blocks: Blocks) -> str:
    printed = (
        go_struct(
            NUMAAffinity=f"([]int){_printed_nodes(block.nodes)}",
            Type=f"(v1.ResourceName){block.type}",
            Size=f"(uint64){block.size}",
        )
        for block in blocks
    )
    return f"[{' '.join(printed)}]"


def _printed_nodes(nodes: int) -> str:
    return f"[{' '.join(map(str, members(nodes)))}]"
