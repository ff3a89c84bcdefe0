"""Replies with statistics, against the messages that make them."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node.stats.fake_runtime import SECOND, number, stats_of
from trikubelet.node.stats.model import CpuStats, FsStats, IoStats, MemoryStats, PsiData, PsiStats, SwapStats
from trikubelet.node.stats.runtime_replies import ReportedContainer, read_container_stats, read_sandbox_stats
from trikubelet.rpc.cri import v1

PSI = v1.PsiStats(full=v1.PsiData(total=1, avg10=0.5, avg60=0.25, avg300=0.125), some=v1.PsiData(total=300, avg10=1.5))
SAME_PSI = PsiStats(full=PsiData(total=1, avg10=0.5, avg60=0.25, avg300=0.125), some=PsiData(total=300, avg10=1.5))


def test_every_field_of_a_container_is_read() -> None:
    stats = stats_of("id-1")
    stats.cpu = v1.CpuUsage(
        timestamp=7 * SECOND, usage_core_nano_seconds=number(2**60), usage_nano_cores=number(5), psi=PSI
    )
    stats.memory = v1.MemoryUsage(
        timestamp=8 * SECOND,
        working_set_bytes=number(1),
        available_bytes=number(2),
        usage_bytes=number(3),
        rss_bytes=number(4),
        page_faults=number(5),
        major_page_faults=number(6),
        psi=PSI,
    )
    stats.swap = v1.SwapUsage(timestamp=9, swap_available_bytes=number(10), swap_usage_bytes=number(11))
    stats.io = v1.IoUsage(timestamp=12, psi=PSI)
    found = read_container_stats(bytes(v1.ListContainerStatsResponse(stats=[stats])))
    assert found == {
        "id-1": ReportedContainer(
            id="id-1",
            cpu=CpuStats(time=7 * SECOND, usage_core_nano_seconds=2**60, usage_nano_cores=5, psi=SAME_PSI),
            memory=MemoryStats(
                time=8 * SECOND,
                working_set_bytes=1,
                available_bytes=2,
                usage_bytes=3,
                rss_bytes=4,
                page_faults=5,
                major_page_faults=6,
                psi=SAME_PSI,
            ),
            swap=SwapStats(time=9, swap_available_bytes=10, swap_usage_bytes=11),
            io=IoStats(time=12, psi=SAME_PSI),
            layer=FsStats(time=100 * SECOND, used_bytes=8192, inodes_used=3),
            layer_path="/",
        )
    }


def test_a_number_that_is_zero_is_not_one_that_is_missing() -> None:
    stats = v1.ContainerStats(attributes=v1.ContainerAttributes(id="c"))
    stats.memory = v1.MemoryUsage(timestamp=1, rss_bytes=number(0))
    (found,) = read_container_stats(bytes(v1.ListContainerStatsResponse(stats=[stats]))).values()
    assert found.memory == MemoryStats(time=1, rss_bytes=0)
    assert found.cpu is None
    assert found.layer is None


@pytest.mark.parametrize("average", [math.nan, math.inf, -math.inf])
def test_an_average_that_is_no_number_is_as_if_it_were_not_told(average: float) -> None:
    """JSON has no word for it."""
    stats = v1.ContainerStats(attributes=v1.ContainerAttributes(id="c"))
    stats.io = v1.IoUsage(timestamp=1, psi=v1.PsiStats(some=v1.PsiData(total=5, avg10=average, avg60=0.5)))
    (found,) = read_container_stats(bytes(v1.ListContainerStatsResponse(stats=[stats]))).values()
    assert found.io == IoStats(time=1, psi=PsiStats(some=PsiData(total=5, avg60=0.5)))


def test_every_field_of_a_sandbox_is_read() -> None:
    network = v1.NetworkUsage(
        timestamp=3,
        default_interface=v1.NetworkInterfaceUsage(name="eth0", rx_bytes=number(1), tx_errors=number(2)),
        interfaces=[v1.NetworkInterfaceUsage(name="eth1", tx_bytes=number(3))],
    )
    linux = v1.LinuxPodSandboxStats(
        cpu=v1.CpuUsage(timestamp=1, usage_core_nano_seconds=number(2)),
        memory=v1.MemoryUsage(timestamp=1, working_set_bytes=number(4)),
        network=network,
        process=v1.ProcessUsage(timestamp=1, process_count=number(6)),
        io=v1.IoUsage(timestamp=5, psi=PSI),
        containers=[stats_of("a"), stats_of("b", cpu=9)],
    )
    reply = v1.ListPodSandboxStatsResponse(
        stats=[v1.PodSandboxStats(attributes=v1.PodSandboxAttributes(id="s", labels={"x": "y"}), linux=linux)]
    )
    found = read_sandbox_stats(bytes(reply))["s"]
    assert found.cpu == CpuStats(time=1, usage_core_nano_seconds=2)
    assert found.memory == MemoryStats(time=1, working_set_bytes=4)
    assert found.io == IoStats(time=5, psi=SAME_PSI)
    assert found.processes == 6
    assert found.network is not None
    assert (found.network.time, found.network.name, found.network.rx_bytes, found.network.tx_errors) == (
        3,
        "eth0",
        1,
        2,
    )
    assert [(one.name, one.tx_bytes, one.rx_bytes) for one in found.network.interfaces] == [("eth1", 3, None)]
    assert [one.id for one in found.containers] == ["a", "b"]


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_mean_nothing(data: bytes) -> None:
    for read in (read_container_stats, read_sandbox_stats):
        with contextlib.suppress(ValueError):
            assert isinstance(read(data), dict)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_reply_that_ends_early_is_refused(cut: int) -> None:
    reply = bytes(v1.ListContainerStatsResponse(stats=[stats_of("c", cpu=5)]))
    with pytest.raises(ValueError, match=r"."):
        read_container_stats(reply[:-cut])
