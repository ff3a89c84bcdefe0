"""How much memory of which NUMA node the system keeps: `reservedMemory` of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api.pod_resources import ResourceList, add, is_huge_page_resource
from trikubelet.api.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.allocation.memory.static_policy import Reserved
    from trikubelet.linux.machine_topology import MachineTopology

Reservation = tuple[int, "Mapping[str, Quantity]"]
"""A NUMA node, and how much of what."""


def reserved_memory(
    machine: MachineTopology, reservations: Sequence[Reservation], node_reserved: Mapping[str, Quantity]
) -> Reserved:
    """Bytes by NUMA node.

    `node_reserved`: what the node keeps in all (`kubeReserved`, `systemReserved` and the hard eviction threshold).
    Raises ValueError if it is not the sum of the reservations, and for a NUMA node that is not there.
    """
    total: ResourceList = {}
    reserved: Reserved = {node.id: {} for node in machine.nodes}
    for node, amounts in reservations:
        if node not in reserved:
            raise ValueError(f"reservedMemory: this machine has no NUMA node {node}, it has {sorted(reserved)}")
        add(total, amounts)
        for name, amount in amounts.items():
            reserved[node][name] = amount.value()
    kept = {name: one for name, one in node_reserved.items() if name == "memory" or is_huge_page_resource(name)}
    for name in sorted(total | kept):
        wanted, got = kept.get(name, Quantity()), total.get(name, Quantity())
        if wanted != got:
            raise ValueError(
                f"reservedMemory: the NUMA nodes keep {got} of {name}, and the node keeps {wanted} (kubeReserved, "
                "systemReserved and evictionHard): make them equal"
            )
    return reserved


def require_reserved_memory(reserved: Reserved) -> None:
    """Raises ValueError if the system keeps no memory of any node, which the static policy needs."""
    if not any(amounts.get("memory") for amounts in reserved.values()):
        raise ValueError('reservedMemory: the memory manager\'s policy "Static" needs memory that the system keeps')
