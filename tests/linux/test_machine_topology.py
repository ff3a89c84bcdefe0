"""A machine's topology, from a folder like /sys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.linux.system_folder import SystemFolder
from trikubelet.linux.machine_topology import Core, MachineTopology, NumaNode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> SystemFolder:
    return SystemFolder(tmp_path)


def test_nodes_have_cores_memory_huge_pages_and_distances(machine: SystemFolder) -> None:
    for cpu, core, socket in ((0, 0, 0), (1, 1, 0), (2, 0, 0), (3, 1, 0), (10, 0, 1), (11, 0, 1)):
        machine.cpu(cpu, core, socket)
    machine.node(0, 0, 1, 2, 3)
    machine.node(1, 10, 11)
    machine.write("node/node0/meminfo", "Node 0 MemTotal:       2048 kB\nNode 0 MemFree: 1 kB\n")
    machine.write("node/node0/hugepages/hugepages-2048kB/nr_hugepages", "3\n")
    machine.write("node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "1\n")
    machine.write("node/node0/distance", "10 21\n")
    machine.write("node/node1/distance", "21 10\n")
    assert machine.read() == MachineTopology(
        (
            NumaNode(0, (Core(0, (0, 2)), Core(0, (1, 3))), 2048 * 1024, ((2 * 1024**2, 3), (1024**3, 1)), (10, 21)),
            NumaNode(1, (Core(1, (10, 11)),), 0, (), (21, 10)),
        )
    )


def test_nodes_come_by_number_and_may_have_no_cpus(machine: SystemFolder) -> None:
    machine.cpu(0, 0, 0)
    machine.node(10)
    machine.node(2, 0)
    assert [(node.id, len(node.cores)) for node in machine.read().nodes] == [(2, 1), (10, 0)]


def test_cpus_that_are_offline_or_unknown_do_not_exist(machine: SystemFolder) -> None:
    for cpu in range(4):
        machine.cpu(cpu, cpu, 0)
    machine.write("cpu/online", "0,2-3\n")
    (machine.system / "cpu/cpu3/topology/core_id").unlink()
    machine.node(0, 0, 1, 2, 3, 4)
    assert [core.threads for core in machine.read().nodes[0].cores] == [(0,), (2,)]


def test_without_nodes_a_socket_is_one(machine: SystemFolder) -> None:
    for cpu, socket in ((0, 0), (1, 1), (2, 1)):
        machine.cpu(cpu, cpu, socket)
    (machine.system / "cpu/cpufreq").mkdir()
    nodes = machine.read().nodes
    assert [(node.id, [core.threads for core in node.cores]) for node in nodes] == [(0, [(0,)]), (1, [(1,), (2,)])]


def test_an_uncore_cache_is_what_some_cores_of_a_node_share(machine: SystemFolder) -> None:
    for cpu in range(4):
        machine.cpu(cpu, cpu, 0)
        machine.cache(cpu, 2, 2, cpu, "1")
        machine.cache(cpu, 3, 3, cpu // 2, "00000000,00000003" if cpu < 2 else "00000000,0000000c")
    machine.node(0, 0, 1, 2, 3)
    assert [core.uncore for core in machine.read().nodes[0].cores] == [0, 0, 1, 1]


def test_a_cache_of_the_whole_node_is_no_uncore_cache(machine: SystemFolder) -> None:
    for cpu in range(2):
        machine.cpu(cpu, cpu, 0)
        machine.cache(cpu, 3, 3, 0, "3")
    machine.node(0, 0, 1)
    assert [core.uncore for core in machine.read().nodes[0].cores] == [None, None]


def test_a_core_without_caches_ends_the_reading_of_caches(machine: SystemFolder) -> None:
    for cpu in range(3):
        machine.cpu(cpu, cpu, 0)
        machine.cache(cpu, 3, 3, cpu, "1")
    (machine.system / "cpu/cpu1/cache/index3/id").unlink()
    machine.node(0, 0, 1, 2)
    assert [core.uncore for core in machine.read().nodes[0].cores] == [0, None, None]


def test_memory_that_does_not_say_how_much_is_an_error(machine: SystemFolder) -> None:
    machine.node(0)
    machine.write("node/node0/meminfo", "nothing\n")
    with pytest.raises(ValueError, match="MemTotal"):
        machine.read()


def test_this_machine_can_be_read() -> None:
    cores = [core for node in MachineTopology.read().nodes for core in node.cores]
    assert sum(len(core.threads) for core in cores) >= 1
