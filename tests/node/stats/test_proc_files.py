"""The machine and networks, from /proc."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.node.stats.node_files import GIB, NET_DEV, PRESSURE, Layout, NodeFiles
from trikubelet.node.stats.model import InterfaceStats, RlimitStats
from trikubelet.node.stats.proc_files import boot_time, has_own_network, read_machine, read_network, read_rlimit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("layout", ["v2", "v1", "hybrid"])
def test_the_machine_is_the_root_of_the_tree_with_the_machines_limits(tmp_path: Path, layout: Layout) -> None:
    node = NodeFiles(tmp_path, layout)
    reading = read_machine(node.proc, node.places(), 9, full=True)
    assert reading.path == "/"
    assert reading.cpu is not None
    assert reading.cpu.usage == 5_000_000_000
    assert reading.memory is not None
    assert reading.memory.working_set == 2 * GIB - GIB // 2
    assert reading.memory.rss == GIB
    assert reading.memory.limit == 4 * GIB
    assert (reading.memory.swap, reading.memory.swap_limit) == (24 * 1024, 1024 * 1024)


def test_a_machine_without_cgroups_is_told_by_proc(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path)
    (node.proc / "self/mountinfo").write_text("")
    node.write("proc/pressure/cpu", PRESSURE)
    reading = read_machine(node.proc, node.places(), 9, full=True)
    assert reading.cpu is not None
    assert reading.cpu.usage == (100 + 10 + 50 + 2 + 3 + 1) * 10_000_000, "without idle time"
    assert reading.memory is not None
    assert reading.memory.usage == 3 * GIB
    assert reading.cpu_pressure is not None
    assert reading.cpu_pressure.some.total == 2_000_000


def test_interfaces_that_carry_what_others_carry_are_left_out(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path)
    network = read_network(node.proc, 1, 9)
    assert network is not None
    stats = network.stats()
    assert [one.name for one in stats.interfaces] == ["eth0", "wlan0"]
    assert stats.interfaces[0] == InterfaceStats(name="eth0", rx_bytes=1000, rx_errors=1, tx_bytes=2000, tx_errors=3)
    assert (stats.time, stats.name, stats.rx_bytes, stats.tx_errors) == (9, "eth0", 1000, 3)
    assert (network.interfaces[0].rx_packets, network.interfaces[0].tx_dropped) == (10, 4)


@pytest.mark.parametrize(
    ("route", "default"),
    [("ens3 00000000 0100000A 0003 0 0 0 00000000 0 0 0", "ens3"), ("ens3 0000000A 0 1 0 0 0 00FFFFFF", "")],
)
def test_without_eth0_the_default_interface_is_that_of_the_default_route(
    tmp_path: Path, route: str, default: str
) -> None:
    node = NodeFiles(tmp_path)
    node.write("proc/1/net/dev", NET_DEV.replace("eth0", "ens3"))
    node.write("proc/1/net/route", f"Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n{route}\n")
    network = read_network(node.proc, 1, 9)
    assert network is not None
    assert network.stats().name == default


def test_a_network_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert read_network(tmp_path, 77, 9) is None


def test_a_process_in_the_agents_network_has_none_of_its_own(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path)
    node.process(7, "/", namespace="net:[1]")
    node.process(8, "/", namespace="net:[2]")
    assert not has_own_network(node.proc, 7)
    assert has_own_network(node.proc, 8)


@pytest.mark.parametrize(
    ("pid_max", "threads_max", "most"),
    [("100", "200", 100), ("300", "200", 200), (None, "200", 200), (None, None, None)],
)
def test_the_most_tasks_are_the_lesser_of_two_limits(
    tmp_path: Path, pid_max: str | None, threads_max: str | None, most: int | None
) -> None:
    node = NodeFiles(tmp_path)
    for name, value in (("pid_max", pid_max), ("threads-max", threads_max)):
        path = node.write(f"proc/sys/kernel/{name}", f"{value}\n")
        if value is None:
            path.unlink()
    assert read_rlimit(node.proc, 9) == RlimitStats(time=9, maxpid=most, curproc=3518)


def test_the_machine_was_booted_when_proc_says(tmp_path: Path) -> None:
    assert boot_time(NodeFiles(tmp_path).proc) == 1_700_000_000 * 1_000_000_000
