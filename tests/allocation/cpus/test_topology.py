"""Where CPUs are: the rows of the kubelet's `cpumanager/topology` tests, and what follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.allocation.cpus.machines import machine_names, regular, table, topology, topology_of
from tests.linux.system_folder import SystemFolder
from trikubelet.allocation.cpus.assignment import take_packed
from trikubelet.allocation.cpus.topology import CpuPlace, CpuTopology, union
from trikubelet.formats.cpu_list import members, parse_cpu_list, set_of
from trikubelet.linux.machine_topology import Core, MachineTopology, NumaNode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("row", table("discover"))
def test_a_machines_cpus_are_found(row: dict[str, Any]) -> None:
    machine = MachineTopology(
        tuple(
            NumaNode(one["id"], tuple(Core(socket, tuple(threads), uncore) for socket, threads, uncore in one["cores"]))
            for one in row["nodes"]
        )
    )
    if row["error"]:
        with pytest.raises(ValueError, match="expected a machine with CPUs"):
            CpuTopology.of(machine)
        return
    found = CpuTopology.of(machine)
    assert found.places == topology_of(row["expected"]).places
    counts = {level: len(getattr(found, level)) for level in ("sockets", "cores", "nodes", "uncores")}
    assert {"cpus": found.cpus.bit_count(), **counts} == row["counts"]


LARGEST = regular(8, 1, 48, 2, uncores=6)
"""8 sockets, 768 CPUs."""


@pytest.mark.parametrize("name", [*machine_names(), "768 CPUs"])
def test_a_machine_is_read_from_the_kernels_folder(name: str, tmp_path: Path) -> None:
    expected = LARGEST if name == "768 CPUs" else topology(name)
    folder = SystemFolder(tmp_path)
    for node, cpus in expected.nodes.items():
        folder.node(node, *members(cpus))
    uncores = expected.uncores if len(expected.uncores) > 1 else {}
    for cpu, place in expected.places.items():
        folder.cpu(cpu, place.core, place.socket)
        folder.cache(cpu, 0, 1, cpu, _words(1 << cpu))
        if uncores:
            folder.cache(cpu, 3, 3, place.uncore, _words(uncores[place.uncore]))
    found = CpuTopology.of(MachineTopology.read(tmp_path))
    assert found.sockets == expected.sockets
    assert found.nodes == expected.nodes
    # One of the kubelet's machines gives cores of both sockets the same numbers; the kernel does, and means two cores.
    of_sockets = {cpus & socket for cpus in expected.cores.values() for socket in expected.sockets.values()} - {0}
    assert set(found.cores.values()) == of_sockets
    # A cache of a whole NUMA node is none that CPUs are chosen by.
    chosen_by = {cpus for cpus in uncores.values() if cpus not in expected.nodes.values()}
    assert set(found.uncores.values()) == (chosen_by or set(expected.sockets.values()))


def _words(cpus: int) -> str:
    """A set of CPUs as the kernel writes it: words of 32 bits, the highest first."""
    count = max(-(-cpus.bit_length() // 32), 1)
    return ",".join(f"{cpus >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(count)))


@pytest.mark.parametrize("row", table("alignment"))
def test_cpus_share_an_uncore_cache_or_not(row: dict[str, Any]) -> None:
    assert regular(1, 1, 32, 1, uncores=8).share_uncore(parse_cpu_list(row["cpus"])) is row["aligned"]


@pytest.mark.parametrize(("socket", "uncore", "expected"), [(1, 5, 5), (2, None, 2), (1, None, 1)])
def test_without_an_uncore_cache_it_is_the_sockets(socket: int, uncore: int | None, expected: int) -> None:
    found = CpuTopology.of(MachineTopology((NumaNode(0, (Core(socket, (0,), uncore),)),)))
    assert found.places[0].uncore == expected


@pytest.mark.parametrize("name", machine_names())
def test_every_cpu_is_in_one_group_of_each_level(name: str) -> None:
    machine = topology(name)
    for groups in (machine.cores, machine.sockets, machine.nodes, machine.uncores):
        assert union(groups.values()) == machine.cpus
        assert sum(cpus.bit_count() for cpus in groups.values()) == len(machine.places)


def test_siblings_are_the_cpus_of_the_same_cores() -> None:
    assert regular(1, 1, 4, 2).siblings(0b1) == 0b10001


def test_sockets_of_nodes_have_the_cpus_of_their_other_nodes_too() -> None:
    machine = regular(2, 2, 1, 1)
    assert machine.cpus_in_nodes(0b10) == 0b10
    assert machine.cpus_in_sockets_of(0b10) == 0b11


def test_unequal_cores_are_whole_only_if_all_their_cpus_are_free() -> None:
    # A performance core with the CPUs 0 and 1, and the efficiency cores 2 and 3.
    cores = {0: 0, 1: 0, 2: 2, 3: 3}
    machine = CpuTopology({cpu: CpuPlace(core, 0, 0, 0) for cpu, core in cores.items()})
    assert take_packed(machine, set_of([1, 2, 3]), 3) == set_of([1, 2, 3])
    assert take_packed(machine, set_of([1, 2]), 2) == set_of([1, 2])
