"""Where CPUs are: their cores, uncore caches, NUMA nodes and sockets (kubelet: `cpumanager/topology`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from trikubelet.formats.cpu_list import members, set_of
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.linux.machine_topology import MachineTopology

Groups = dict[int, int]
"""The CPUs of each core, each socket and so on, by its number; in the order of the numbers."""


@frozen
class CpuPlace:
    """Where one CPU is, in numbers that are unique on the machine."""

    core: int
    """The lowest of the core's CPUs."""
    socket: int
    node: int
    uncore: int
    """The cache above L2 that some cores of a NUMA node share; the socket where there is none."""


@attrs.frozen(eq=False, slots=False)
class CpuTopology:
    """A machine's CPUs, or those that are online. Sets of CPUs are integers (`trikubelet.formats.cpu_list`)."""

    places: Mapping[int, CpuPlace]

    @classmethod
    def of(cls, machine: MachineTopology) -> CpuTopology:
        """Raises ValueError for a machine without CPUs."""
        places = {
            cpu: CpuPlace(core.threads[0], core.socket, node.id, core.socket if core.uncore is None else core.uncore)
            for node in machine.nodes
            for core in node.cores
            for cpu in core.threads
        }
        if not places:
            raise ValueError("expected a machine with CPUs, found none below /sys/devices/system")
        return cls(places)

    @cached_property
    def cpus(self) -> int:
        return set_of(self.places)

    @cached_property
    def cores(self) -> Groups:
        return _groups((place.core, cpu) for cpu, place in self.places.items())

    @cached_property
    def sockets(self) -> Groups:
        return _groups((place.socket, cpu) for cpu, place in self.places.items())

    @cached_property
    def nodes(self) -> Groups:
        """NUMA nodes that have CPUs."""
        return _groups((place.node, cpu) for cpu, place in self.places.items())

    @cached_property
    def uncores(self) -> Groups:
        return _groups((place.uncore, cpu) for cpu, place in self.places.items())

    @cached_property
    def cpus_per_core(self) -> int:
        """Rounded down: on a machine with unequal cores it is the number of none of them."""
        return len(self.places) // len(self.cores)

    @cached_property
    def cpus_per_uncore(self) -> int:
        return len(self.places) // len(self.uncores)

    @cached_property
    def nodes_first(self) -> bool:
        """Whether a NUMA node has one socket or several, not a socket several NUMA nodes."""
        return len(self.sockets) >= len(self.nodes)

    @cached_property
    def levels(self) -> tuple[Groups, Groups]:
        """NUMA nodes and sockets, the larger first."""
        return (self.nodes, self.sockets) if self.nodes_first else (self.sockets, self.nodes)

    @cached_property
    def cores_in(self) -> dict[int, Groups]:
        """The cores of each NUMA node or, where nodes have sockets, of each socket."""
        return {
            number: {self.places[cpu].core: self.cores[self.places[cpu].core] for cpu in members(cpus)}
            for number, cpus in self.levels[1].items()
        }

    def cpus_in_nodes(self, nodes: int) -> int:
        """`nodes`: a set of NUMA nodes."""
        return union(self.nodes.get(node, 0) for node in members(nodes))

    def cpus_in_sockets_of(self, nodes: int) -> int:
        """The CPUs of all sockets that these NUMA nodes are part of."""
        cpus = self.cpus_in_nodes(nodes)
        return union(socket for socket in self.sockets.values() if socket & cpus)

    def siblings(self, cpus: int) -> int:
        """All CPUs of the cores that these are part of."""
        return union(self.cores[self.places[cpu].core] for cpu in members(cpus & self.cpus))

    def share_uncore(self, cpus: int) -> bool:
        """Whether the CPUs use one uncore cache; a single CPU and none do."""
        return cpus.bit_count() <= 1 or any(cpus & ~uncore == 0 for uncore in self.uncores.values())


def union(sets: Iterable[int]) -> int:
    total = 0
    for one in sets:
        total |= one
    return total


def _groups(pairs: Iterable[tuple[int, int]]) -> Groups:
    groups: Groups = {}
    for number, cpu in sorted(pairs):
        groups[number] = groups.get(number, 0) | 1 << cpu
    return groups
