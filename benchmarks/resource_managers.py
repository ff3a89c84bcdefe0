"""How long the decisions of the CPU, memory and topology managers take on a large machine.

    python -m benchmarks.resource_managers [--json FILE] [--rounds N]

CPUs are assigned on a machine of 8 sockets with 768 CPUs, of which random parts are free, with each way to choose them.
Hints of four resources are merged on 8 NUMA nodes: where all can agree, and where none is preferred, which takes
longest. Times are CPU time of this process, of the slowest of all rounds.
"""

from __future__ import annotations

import random
import sys
import time
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.report import Result, print_table, report
from trikubelet.allocation.cpus.assignment import take_packed
from trikubelet.allocation.cpus.distribution import take_distributed
from trikubelet.allocation.cpus.topology import CpuPlace, CpuTopology
from trikubelet.allocation.topology.hints import TopologyHint
from trikubelet.allocation.topology.policy import BEST_EFFORT, SINGLE_NUMA_NODE, TopologyPolicy
from trikubelet.formats.cpu_list import set_of

if TYPE_CHECKING:
    from collections.abc import Callable

SOCKETS, CORES, THREADS, UNCORES = 8, 48, 2, 6
NODES = tuple(range(8))
RESOURCES = 4
ASSIGNMENT_AIM = 10.0
MERGE_AIM = 50.0
"""Milliseconds."""


def machine() -> CpuTopology:
    """8 sockets of one NUMA node with 48 cores of two threads, six uncore caches in each."""
    total = SOCKETS * CORES
    return CpuTopology(
        {
            core + thread * total: CpuPlace(core, core // CORES, core // CORES, core * UNCORES // CORES)
            for thread in range(THREADS)
            for core in range(total)
        }
    )


def assignment_times(topology: CpuTopology, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round, by the way to choose."""
    ways: dict[str, Callable[[int, int], int]] = {
        "packed": partial(take_packed, topology),
        "packed, by uncore cache": partial(take_packed, topology, align_uncore=True),
        "across cores": partial(take_packed, topology, spread=True),
        "across NUMA nodes": partial(take_distributed, topology),
        "across NUMA nodes, whole cores": partial(take_distributed, topology, group=THREADS),
    }
    times: dict[str, list[float]] = {}
    for name, choose in ways.items():
        choices = random.Random(1)
        choose(topology.cpus, 1)  # the topology's tables are made once
        for _ in range(rounds):
            part = choices.random()
            free = set_of(cpu for cpu in topology.places if choices.random() < part)
            count = choices.randint(0, free.bit_count())
            times.setdefault(name, []).append(_milliseconds(partial(choose, free, count)))
    return times


def merge_times(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round, by the policy and what hints there are."""
    sets = [set_of(nodes) for size in range(1, len(NODES) + 1) for nodes in combinations(NODES, size)]
    distances = {one: {other: 10 + abs(one - other) for other in NODES} for one in NODES}
    policies = {
        "best-effort": TopologyPolicy(BEST_EFFORT, NODES),
        "best-effort, closest": TopologyPolicy(BEST_EFFORT, NODES, distances),
        "single-numa-node": TopologyPolicy(SINGLE_NUMA_NODE, NODES),
    }
    kinds = {
        "agreed": [TopologyHint(nodes, nodes.bit_count() == 1) for nodes in sets],
        "none preferred": [TopologyHint(nodes) for nodes in sets],
    }
    return {
        f"{name}, {kind}": [
            _milliseconds(partial(policy.merge, [{f"resource-{number}": hints} for number in range(RESOURCES)]))
            for _ in range(rounds)
        ]
        for name, policy in policies.items()
        for kind, hints in kinds.items()
    }


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


@click.command(help=__doc__)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims there.")
@click.option("--rounds", default=300, show_default=True, help="Assignments of each way; a tenth as many merges.")
def main(json_file: Path | None, rounds: int) -> None:
    assignments, merges = assignment_times(machine(), rounds), merge_times(max(rounds // 10, 1))
    rows = [
        [name, f"{sorted(times)[len(times) // 2]:.2f}", f"{max(times):.2f}"]
        for name, times in {**assignments, **merges}.items()
    ]
    print_table("Decisions, ms", ["", "median", "slowest"], rows)
    results = [
        Result("assignment of CPUs, 8 sockets and 768 CPUs", "ms", max(map(max, assignments.values())), ASSIGNMENT_AIM),
        Result("merge of four resources' hints, 8 NUMA nodes", "ms", max(map(max, merges.values())), MERGE_AIM),
    ]
    sys.exit(not report(results, json_file))


if __name__ == "__main__":
    main()
