"""CPUs from several NUMA nodes, as many from each (`distribute-cpus-across-numa`, KEP-2902).

The fewest NUMA nodes that can give equal shares are asked. Shares are multiples of a group: of 1, or of the threads of
a core. What cannot be shared out equally comes, one group each, from some of them. Of several ways to do it the one is
taken that leaves the numbers of free CPUs of all NUMA nodes the most alike: with the smallest standard deviation, to
three places, as the kubelet has it. Where no way is, CPUs are packed.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

from trikubelet.allocation.cpus.assignment import Choice, NotEnoughCpusError, take_packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trikubelet.allocation.cpus.topology import CpuTopology

_Way = tuple[tuple[int, ...], tuple[int, ...]]
"""The NUMA nodes that give a share, and those of them that give the rest."""


def take_distributed(topology: CpuTopology, available: int, count: int, *, group: int = 1, spread: bool = False) -> int:
    """`count` CPUs of the set `available`, in groups of `group`. Raises NotEnoughCpusError."""
    if count % group == 0 and 0 < count <= available.bit_count():
        choice = Choice(topology, available & topology.cpus, count)
        way = _best_way(choice, group)
        if way is not None:
            return _take(choice, way, group, spread=spread)
    elif count > available.bit_count():
        raise NotEnoughCpusError(count, available.bit_count())
    return take_packed(topology, available, count, spread=spread)


def _best_way(choice: Choice, group: int) -> _Way | None:
    topology, count = choice.topology, choice.needed
    free = {node: (topology.nodes[node] & choice.free).bit_count() for node in choice.sorted_nodes()}
    groups_per_node = math.ceil(math.ceil(len(topology.places) / group) / len(topology.nodes))
    groups = count // group
    balance = _Balance(free.values(), count)
    for number in range(math.ceil(groups / groups_per_node), min(groups, len(free)) + 1):
        best: tuple[float, _Way | None] = (math.inf, None)
        for nodes in combinations(free, number):
            share = groups // number * group
            if sum(free[node] // group for node in nodes) >= groups and min(free[node] for node in nodes) >= share:
                found = _best_rest(free, nodes, share, count - share * number, group, balance)
                if found[0] < best[0]:
                    best = (found[0], (nodes, found[1]))
            if best[0] == 0:
                break
        if best[1] is not None:
            return best[1]
    return None


def _best_rest(
    free: dict[int, int], nodes: tuple[int, ...], share: int, rest: int, group: int, balance: _Balance
) -> tuple[float, tuple[int, ...]]:
    """How balanced it can be if all `nodes` give `share`, and which of them then give the rest."""
    left = {node: cpus - share if node in nodes else cpus for node, cpus in free.items()}
    squares = sum(cpus * cpus for cpus in left.values())
    if rest == 0:
        return balance(squares), ()
    best: tuple[float, tuple[int, ...]] = (math.inf, ())
    least: float = math.inf
    for givers in _givers([node for node in nodes if left[node] >= group], rest // group):
        changed = _squares_without(squares, [left[node] for node in givers], rest, group)
        # More squares are never better balanced.
        if changed is not None and changed < least:
            least = changed
            if (score := balance(changed)) < best[0]:
                best = (score, givers)
    return best


def _givers(nodes: list[int], groups: int) -> Iterator[tuple[int, ...]]:
    """Who may give: as many nodes as there are groups, then fewer. Of equally good ones the first is taken.

    The kubelet begins with larger sets, of which only the first nodes give something. This is the order in which such
    beginnings first come up there.
    """
    for last in range(groups - 1, len(nodes)):
        for others in combinations(nodes[:last], groups - 1):
            yield (*others, nodes[last])
    for number in range(min(groups - 1, len(nodes)), 0, -1):
        yield from combinations(nodes, number)


def _squares_without(squares: int, left: list[int], rest: int, group: int) -> int | None:
    """The sum of squares after these have given the rest, a group each in turn; None if they have not that much."""
    if len(left) * group == rest:
        return squares + group * (rest - 2 * sum(left))
    after = list(left)
    while rest:
        before = rest
        for index, cpus in enumerate(after):
            if rest and cpus >= group:
                after[index] -= group
                rest -= group
        if rest == before:
            return None
    return squares + sum(new * new - old * old for new, old in zip(after, left, strict=True))


class _Balance:
    """The standard deviation of how many CPUs are left on the nodes, rounded to three places like their mean.

    How many are left in all is known, so the sum of squares tells all.
    """

    def __init__(self, free: Iterable[int], count: int) -> None:
        numbers = list(free)
        self._nodes = len(numbers)
        self._left = sum(numbers) - count
        self._mean = _rounded(self._left / self._nodes)

    def __call__(self, squares: int) -> float:
        deviations = squares - 2 * self._mean * self._left + self._nodes * self._mean**2
        return _rounded(math.sqrt(max(deviations, 0) / self._nodes))


def _rounded(value: float) -> float:
    """To three places, halves up. Not negative."""
    return math.floor(value * 1000 + 0.5) / 1000


def _take(choice: Choice, way: _Way, group: int, *, spread: bool) -> int:
    nodes, givers = way
    topology = choice.topology
    share = choice.needed // len(nodes) // group * group
    for node in nodes:
        choice.take(take_packed(topology, topology.nodes[node] & choice.free, share, spread=spread))
    while choice.needed:
        for node in givers:
            free = topology.nodes[node] & choice.free
            if choice.needed and free.bit_count() >= group:
                choice.take(take_packed(topology, free, group, spread=spread))
    return choice.taken
