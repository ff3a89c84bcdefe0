"""The kubelet's test machines, from `tables/topologies.json`, and larger ones. And its tables.

A machine is its cores, one number for each CPU in order (`0-3,0-3`: CPUs 0 and 4 share core 0), and lists of the CPUs
of each socket, NUMA node and uncore cache.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, cast

from trikubelet.allocation.cpus.topology import CpuPlace, CpuTopology
from trikubelet.formats.cpu_list import members, parse_cpu_list

_TABLES = Path(__file__).parent / "tables"


def table(name: str) -> list[Any]:
    return cast("list[Any]", json.loads((_TABLES / f"{name}.json").read_text()))


@functools.cache
def _machines() -> dict[str, dict[str, Any]]:
    return cast("dict[str, dict[str, Any]]", json.loads((_TABLES / "topologies.json").read_text()))


@functools.cache
def topology(name: str) -> CpuTopology:
    return topology_of(_machines()[name])


def topology_of(machine: dict[str, Any]) -> CpuTopology:
    cores = [core for part in machine["cores"].split(",") for core in _span(part)]
    levels = {level: _of_cpu(machine[level]) for level in ("sockets", "nodes", "uncores")}
    return CpuTopology(
        {
            cpu: CpuPlace(core, levels["sockets"][cpu], levels["nodes"][cpu], levels["uncores"][cpu])
            for cpu, core in enumerate(cores)
        }
    )


def machine_names() -> list[str]:
    return list(_machines())


def regular(sockets: int, nodes: int, cores: int, threads: int, uncores: int = 1) -> CpuTopology:
    """`nodes` in each socket, `cores` in each node, `uncores` in each node; the second threads come after all cores."""
    total = sockets * nodes * cores
    return CpuTopology(
        {
            core + thread * total: CpuPlace(
                core=core,
                socket=core // (nodes * cores),
                node=core // cores,
                uncore=core * uncores // cores,
            )
            for thread in range(threads)
            for core in range(total)
        }
    )


def _span(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _of_cpu(groups: dict[str, str]) -> dict[int, int]:
    return {cpu: int(number) for number, cpus in groups.items() for cpu in members(parse_cpu_list(cpus))}
