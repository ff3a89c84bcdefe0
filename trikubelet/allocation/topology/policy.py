"""On which NUMA nodes all resources of a container are given: the best that can be agreed on (kubelet: `HintMerger`).

Each resource has a list of hints. Take one of each list: together they mean the nodes that all of them have, and that
is preferred if each is preferred and all have the same nodes. The kubelet goes through all such combinations: with four
resources on eight NUMA nodes they are four thousand million. But which of two results is better follows from their
nodes and whether they are preferred, so it is enough to know which results there are. What is preferred is found by
intersecting the lists. What is not: how many combinations give a set of nodes or more is a product of numbers of hints;
subtracting those that give more leaves those that give just this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.allocation.topology.hints import TopologyHint
from trikubelet.allocation.topology.options import DEFAULTS, TopologyOptions
from trikubelet.formats.cpu_list import members, set_of
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.allocation.topology.hints import Hints
    from trikubelet.linux.machine_topology import MachineTopology

NONE: Final = "none"
BEST_EFFORT: Final = "best-effort"
RESTRICTED: Final = "restricted"
SINGLE_NUMA_NODE: Final = "single-numa-node"

_ANY: Final = TopologyHint(None, preferred=True)
_NOWHERE: Final = TopologyHint(None, preferred=False)

_Lists = Sequence[Sequence[TopologyHint]]
_Key = tuple[bool, int, int, int, int]


@frozen
class TopologyPolicy:
    name: str
    nodes: tuple[int, ...] = ()
    """The machine's NUMA nodes, in rising order."""
    distances: Mapping[int, Mapping[int, int]] | None = None
    """From node to node, where the closest are preferred."""

    @classmethod
    def of(cls, machine: MachineTopology, name: str, options: TopologyOptions = DEFAULTS) -> TopologyPolicy:
        """Raises ValueError for a machine with too many NUMA nodes, or one that does not tell their distances."""
        nodes = tuple(node.id for node in machine.nodes)
        if name != NONE and len(nodes) > options.max_nodes:
            raise ValueError(
                f"this machine has {len(nodes)} NUMA nodes, and the topology manager takes {options.max_nodes}: "
                'set its option "max-allowable-numa-nodes" or its policy to "none"'
            )
        if not options.prefer_closest or name in (NONE, SINGLE_NUMA_NODE):
            return cls(name, nodes)
        if any(len(node.distances) < len(nodes) for node in machine.nodes):
            raise ValueError('"prefer-closest-numa-nodes" needs the distances of NUMA nodes, and the kernel has none')
        return cls(name, nodes, {node.id: dict(zip(nodes, node.distances, strict=False)) for node in machine.nodes})

    @property
    def guarantees_alignment(self) -> bool:
        """Whether what is given is on one NUMA node, or else the pod is refused."""
        return self.name == SINGLE_NUMA_NODE

    def merge(self, providers: Iterable[Hints]) -> tuple[TopologyHint, bool]:
        """The best hint for all, and whether the pod is admitted with it."""
        if self.name == NONE:
            return _NOWHERE, True
        lists = [hints for provider in providers for hints in _lists(provider)]
        if self.name == SINGLE_NUMA_NODE:
            lists = [[hint for hint in hints if _is_single(hint)] for hints in lists]
        best = self._best(lists)
        if self.name == SINGLE_NUMA_NODE and best.nodes == set_of(self.nodes):
            best = attrs.evolve(best, nodes=None)
        return best, self.name == BEST_EFFORT or best.preferred

    def _best(self, lists: _Lists) -> TopologyHint:
        everything = set_of(self.nodes)
        wanted = wanted_count(lists)
        found = [TopologyHint(nodes & everything, preferred=True) for nodes in _preferred(lists, everything)]
        if not any(hint.nodes for hint in found):
            reachable = self._reachable(lists)
            # How many nodes are best does not depend on which ones they are.
            of_each_size = [TopologyHint(nodes) for nodes in {nodes.bit_count(): nodes for nodes in reachable}.values()]
            size = (self._first(of_each_size, wanted).nodes or 0).bit_count()
            found = [TopologyHint(nodes) for nodes in reachable if nodes.bit_count() == size]
        return self._first(found, wanted)

    def _first(self, hints: Iterable[TopologyHint], wanted: int) -> TopologyHint:
        """The best that has any nodes; all nodes if there is none."""
        candidates = (hint for hint in hints if hint.nodes)
        return min(candidates, key=lambda hint: self.rank(hint, wanted), default=TopologyHint(set_of(self.nodes)))

    def rank(self, hint: TopologyHint, wanted: int) -> _Key:
        """The better, the smaller. `wanted`: how many nodes there should be if it is not preferred.

        Preferred ones first. Of these the narrowest. Of the others those with the wanted number of nodes, then those
        with fewer, as many as possible, then those with more, as few as possible.
        """
        nodes = hint.nodes or 0
        count = nodes.bit_count()
        if hint.preferred:
            group, order = 0, count
        else:
            group = 0 if count == wanted else 1 if count < wanted else 2
            order = -count if count < wanted else count
        return not hint.preferred, group, order, self.distance(nodes), nodes

    def distance(self, nodes: int) -> int:
        """The sum of the distances of all to all; of sets with as many nodes it compares as the average does."""
        if self.distances is None:
            return 0
        numbers = list(members(nodes))
        return sum(self.distances[one][other] for one in numbers for other in numbers)

    def _reachable(self, lists: _Lists) -> list[int]:
        """All sets that hints, one of each list, have in common."""
        place = {node: 1 << index for index, node in enumerate(self.nodes)}
        everything, size = set_of(self.nodes), 1 << len(self.nodes)
        dense = everything == size - 1  # the nodes are 0, 1, 2, …, as on nearly all machines
        product = [1] * size
        for hints in lists:
            counts = [0] * size
            for hint in hints:
                nodes = everything if hint.nodes is None else hint.nodes
                counts[nodes & everything if dense else sum(place.get(node, 0) for node in members(nodes))] += 1
            product = list(map(int.__mul__, product, _add_supersets(counts, 1)))
        product = _add_supersets(product, -1) if lists else [0] * (size - 1) + [1]
        found = [nodes for nodes, combinations in enumerate(product) if combinations]
        return found if dense else [sum(1 << node for node, bit in place.items() if nodes & bit) for nodes in found]


def _add_supersets(counts: list[int], sign: int) -> list[int]:
    """Of a number for each set the sum of those of the sets that contain it; with -1 the other way round.

    One node is gone through after the other: it is the lowest bit of the index, and becomes the highest, so the list is
    in its order again at the end, and each step is two slices.
    """
    combine = int.__add__ if sign > 0 else int.__sub__
    for _ in range(len(counts).bit_length() - 1):
        without, with_node = counts[::2], counts[1::2]
        counts = [*map(combine, without, with_node), *with_node]
    return counts


def wanted_count(lists: _Lists) -> int:
    """How many nodes the most demanding resource needs at least."""
    least = [min((hint.nodes.bit_count() for hint in hints if hint.nodes is not None), default=0) for hints in lists]
    return max(least, default=0)


def _lists(provider: Hints) -> list[Sequence[TopologyHint]]:
    """Each resource's hints; a provider without any does not mind."""
    if not provider:
        return [[_ANY]]
    return [[_ANY] if hints is None else hints or [_NOWHERE] for hints in provider.values()]


def _is_single(hint: TopologyHint) -> bool:
    return hint.preferred and (hint.nodes is None or hint.nodes.bit_count() == 1)


def _preferred(lists: _Lists, everything: int) -> set[int]:
    """The sets that all lists prefer."""
    common: set[int] = set()
    anything = True
    for hints in lists:
        own = {hint.nodes for hint in hints if hint.preferred and hint.nodes is not None}
        does_not_mind = any(hint.preferred and hint.nodes is None for hint in hints)
        common = (common & own) | (common if does_not_mind else set()) | (own if anything else set())
        anything = anything and does_not_mind
    return common | {everything} if anything else common
