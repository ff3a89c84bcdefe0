"""Which CPUs a container gets, of those that are free: as close to each other as can be (kubelet: `cpu_assignment.go`).

Whole sockets and NUMA nodes are taken first, then, if so wished, whole uncore caches or one that suffices, then whole
cores, and single threads last. Of several that could be taken it is the one with the fewest free CPUs, so that those
with many stay whole; then the one with the lowest number.

A group is whole if all of its CPUs are free. (The kubelet compares the number of free CPUs with the average over the
machine's cores or sockets. Where they are unequal, as with performance and efficiency cores, that takes a half-used
core for a whole one, and gives its CPUs away twice.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.allocation.cpus.topology import CpuTopology, Groups, union
from trikubelet.formats.cpu_list import lowest, members
from trikubelet.formats.values import define, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class NotEnoughCpusError(Exception):
    """More CPUs are requested than there are."""

    requested: int
    available: int

    def __str__(self) -> str:
        return f"{self.requested} CPUs are requested, and {self.available} are available"


def take_packed(
    topology: CpuTopology, available: int, count: int, *, spread: bool = False, align_uncore: bool = False
) -> int:
    """`count` CPUs of the set `available`. Raises NotEnoughCpusError.

    `spread`: leave out whole cores, and take the CPUs of a socket by their numbers (`distribute-cpus-across-cores`);
    `align_uncore`: prefer whole uncore caches (`prefer-align-cpus-by-uncorecache`).
    """
    if count > available.bit_count():
        raise NotEnoughCpusError(count, available.bit_count())
    choice = Choice(topology, available & topology.cpus, count)
    outer, inner = topology.levels
    choice.take_whole(outer, choice.sorted_outer())
    choice.take_whole(inner, choice.sorted_inner())
    if align_uncore:
        choice.take_uncores()
    if not choice.needed:
        return choice.taken
    if spread:
        choice.take_each(cpu for socket in choice.sorted_sockets() for cpu in choice.free_in(topology.sockets[socket]))
    else:
        choice.take_whole(topology.cores, choice.sorted_cores())
        choice.take_each(cpu for core in choice.sorted_cores() for cpu in choice.free_in(topology.cores[core]))
    return choice.taken


@define
class Choice:
    """A choice that is being made: what is free, what was taken, and how many CPUs are still needed."""

    topology: CpuTopology
    free: int
    needed: int
    taken: int = 0

    def take(self, cpus: int) -> None:
        self.taken |= cpus
        self.free &= ~cpus
        self.needed -= cpus.bit_count()

    def take_whole(self, groups: Groups, order: list[int]) -> None:
        """Take the groups that are whole, in this order, as long as no more is taken than is needed."""
        for number in order:
            cpus = groups[number]
            if cpus.bit_count() <= self.needed and self.is_whole(cpus):
                self.take(cpus)

    def is_whole(self, cpus: int) -> bool:
        """Whether all of them are free."""
        return cpus & self.free == cpus

    def take_each(self, cpus: Iterable[int]) -> None:
        """Take single CPUs in this order, until there are enough."""
        for cpu in cpus:
            if not self.needed:
                return
            self.take(1 << cpu)

    def take_uncores(self) -> None:
        """Take whole uncore caches; and what is left of a need, from one that has just that many on whole cores."""
        order = self.sorted_uncores()
        if self.needed >= self.topology.cpus_per_uncore:
            self.take_whole(self.topology.uncores, order)
        for uncore in order:
            if not self.needed:
                return
            self._take_part_of(self.topology.uncores[uncore])

    def _take_part_of(self, uncore: int) -> None:
        per_core = self.topology.cpus_per_core
        cores = self.topology.cores
        numbers = sorted({self.topology.places[cpu].core for cpu in members(uncore & self.free)})
        cpus = union(cores[core] & self.free for core in numbers[: -(-self.needed // per_core)])
        if self.needed % 2 and per_core > 1 and cpus.bit_count() > self.needed:
            cpus = lowest(cpus, cpus.bit_count() - 1)
        if cpus.bit_count() == self.needed:
            self.take(cpus)

    def free_in(self, cpus: int) -> Iterable[int]:
        return members(cpus & self.free)

    def sorted_nodes(self) -> list[int]:
        return self.sorted_outer() if self.topology.nodes_first else self.sorted_inner()

    def sorted_sockets(self) -> list[int]:
        return self.sorted_inner() if self.topology.nodes_first else self.sorted_outer()

    def sorted_outer(self) -> list[int]:
        """The NUMA nodes with free CPUs; the sockets, where sockets have several NUMA nodes."""
        return self._sorted(self.topology.levels[0])

    def sorted_inner(self) -> list[int]:
        """The other of the two, one after the other of what it is in."""
        outer, inner = self.topology.levels
        return [number for around in self.sorted_outer() for number in self._sorted(inner, outer[around])]

    def sorted_cores(self) -> list[int]:
        cores_in = self.topology.cores_in
        return [core for number in self.sorted_inner() for core in self._sorted(cores_in[number])]

    def sorted_uncores(self) -> list[int]:
        nodes, uncores = self.topology.nodes, self.topology.uncores
        return [uncore for node in self.sorted_nodes() for uncore in self._sorted(uncores, nodes[node])]

    def _sorted(self, groups: Groups, within: int = -1) -> list[int]:
        """The groups with free CPUs, also in `within`; the fewest free CPUs first."""
        counted = []
        for number, cpus in groups.items():
            free = cpus & self.free
            if free & within:
                counted.append((free.bit_count(), number))
        counted.sort()
        return [number for _, number in counted]
