"""CPUs across NUMA nodes: the same as from going through all ways, one after the other."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.allocation.cpus.machines import regular
from trikubelet.allocation.cpus.assignment import Choice, take_packed
from trikubelet.allocation.cpus.distribution import take_distributed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.allocation.cpus.topology import CpuTopology


def _three_places(value: float) -> float:
    return math.floor(value * 1000 + 0.5) / 1000


def _deviation(numbers: Iterable[int]) -> float:
    values = list(numbers)
    mean = _three_places(sum(values) / len(values))
    return _three_places(math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)))


def _without_rest(left: dict[int, int], givers: tuple[int, ...], rest: int, group: int) -> dict[int, int] | None:
    after = dict(left)
    while rest:
        able = [node for node in givers if after[node] >= group]
        if not able:
            return None
        for node in able[: rest // group]:
            after[node] -= group
            rest -= group
    return after


def _all_ways(topology: CpuTopology, available: int, count: int, group: int) -> int:
    if count % group or not count:
        return take_packed(topology, available, count)
    choice = Choice(topology, available, count)
    free = {node: (topology.nodes[node] & available).bit_count() for node in choice.sorted_nodes()}
    per_node = math.ceil(math.ceil(len(topology.places) / group) / len(topology.nodes))
    for number in range(math.ceil(count // group / per_node), min(count // group, len(free)) + 1):
        share = count // number // group * group
        rest = count - share * number
        best: tuple[float, tuple[int, ...], tuple[int, ...]] = (math.inf, (), ())
        for nodes in combinations(free, number):
            enough = sum(free[node] // group for node in nodes) * group >= count
            if not enough or any(free[node] < share for node in nodes):
                continue
            left = {node: cpus - share * (node in nodes) for node, cpus in free.items()}
            able = [node for node in nodes if left[node] >= group]
            ways = [()] if not rest else [way for size in range(len(able), 0, -1) for way in combinations(able, size)]
            for way in ways:
                after = _without_rest(left, way, rest, group)
                if after is not None and (score := _deviation(after.values())) < best[0]:
                    best = (score, nodes, way)
        if best[1]:
            return _taken(choice, best[1], best[2], share, group)
    return take_packed(topology, available, count)


def _taken(choice: Choice, nodes: tuple[int, ...], givers: tuple[int, ...], share: int, group: int) -> int:
    topology = choice.topology
    for node in nodes:
        choice.take(take_packed(topology, topology.nodes[node] & choice.free, share))
    while choice.needed:
        for node in givers:
            free = topology.nodes[node] & choice.free
            if choice.needed and free.bit_count() >= group:
                choice.take(take_packed(topology, free, group))
    return choice.taken


@given(
    st.integers(1, 2), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.sampled_from([1, 2, 3]), st.data()
)
def test_the_best_way_is_found(
    sockets: int, nodes: int, cores: int, threads: int, group: int, data: st.DataObject
) -> None:
    machine = regular(sockets, nodes, cores, threads)
    available = data.draw(st.integers(0, machine.cpus))
    count = data.draw(st.integers(0, available.bit_count()))
    found = take_distributed(machine, available, count, group=group)
    assert found == _all_ways(machine, available, count, group)
    assert found.bit_count() == count
    assert found & ~available == 0


def test_one_node_gives_all_of_the_rest_where_others_have_nothing_left() -> None:
    machine = regular(1, 3, 12, 1)
    available = machine.nodes[0] | 0b1111 << 12 | 0b1111 << 24
    taken = take_distributed(machine, available, 14)
    assert [(taken & cpus).bit_count() for cpus in machine.nodes.values()] == [6, 4, 4]


def test_the_rest_comes_from_the_node_that_has_the_most() -> None:
    machine = regular(1, 3, 12, 1)
    available = machine.nodes[0] | 0b11111 << 12 | 0b11111 << 24
    taken = take_distributed(machine, available, 14)
    assert [(taken & cpus).bit_count() for cpus in machine.nodes.values()] == [6, 4, 4]
