"""Reading one group, in either version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.node.stats.node_files import MIB, PRESSURE, NodeFiles
from trikubelet.node.stats.block_io import BYTES, REQUESTS, DeviceIo
from trikubelet.node.stats.cgroup_files import CgroupReading, CpuReading, MemoryReading, read_cgroup
from trikubelet.node.stats.model import PsiData, PsiStats

if TYPE_CHECKING:
    from pathlib import Path

TICK = 10_000_000
IO_OF_SDA = DeviceIo(device="8:0", counts={BYTES: {"Read": 1, "Write": 2}, REQUESTS: {"Read": 3, "Write": 4}})


def _read(node: NodeFiles, path: str, *, full: bool = True) -> CgroupReading:
    place = node.places().at(path)
    assert place is not None
    return read_cgroup(place, 5, full=full)


def test_v2_tells_everything(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path)
    node.group("/c", pid=7)
    for name, text in {
        "cpu.stat": "usage_usec 100\nuser_usec 60\nsystem_usec 40\nnr_periods 3\nnr_throttled 2\nthrottled_usec 9\n"
        "nr_bursts 1\nburst_usec 4\n",
        "cpu.max": "50000 100000\n",
        "cpu.weight": "79\n",
        "memory.current": 100 * MIB,
        "memory.stat": f"anon {50 * MIB}\nfile {40 * MIB}\nkernel 7\nfile_mapped 6\nfile_dirty 5\nfile_writeback 4\n"
        f"inactive_file {30 * MIB}\nactive_file 3\npgfault 20\npgmajfault 2\n",
        "memory.max": f"{200 * MIB}\n",
        "memory.swap.current": "4096\n",
        "memory.swap.max": "10000\n",
        "memory.peak": "123\n",
        "memory.min": "77\n",
        "memory.events": "low 0\nhigh 0\nmax 8\noom 1\noom_kill 1\n",
        "io.stat": "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n7:0 \n",
        "pids.current": "12\n",
        "pids.max": "max\n",
        "cpu.pressure": PRESSURE,
        "memory.pressure": PRESSURE,
        "io.pressure": PRESSURE,
    }.items():
        node.write(f"cgroup/c/{name}", text)
    psi = PsiStats(
        some=PsiData(total=2_000_000, avg10=1.5, avg60=0.75, avg300=0.25),
        full=PsiData(total=1_000_000, avg10=0.5, avg60=0.2, avg300=0.1),
    )
    reading = _read(node, "/c")
    assert reading == CgroupReading(
        at=5,
        path="/c",
        cpu=CpuReading(
            usage=100_000,
            user=60_000,
            system=40_000,
            periods=3,
            throttled_periods=2,
            throttled=9000,
            burst_periods=1,
            burst=4000,
            quota=50000,
            period=100000,
            shares=2 + 78 * 262142 // 9999,
        ),
        memory=MemoryReading(
            usage=100 * MIB,
            inactive_file=30 * MIB,
            active_file=3,
            rss=50 * MIB,
            cache=40 * MIB,
            mapped_file=6,
            kernel=7,
            dirty=5,
            writeback=4,
            page_faults=20,
            major_page_faults=2,
            highest=123,
            reservation=77,
            fails=8,
            limit=200 * MIB,
            swap=4096,
            swap_limit=10000,
            oom_kills=1,
        ),
        cpu_pressure=psi,
        memory_pressure=psi,
        io_pressure=psi,
        devices=(IO_OF_SDA,),
        pids=(7,),
        threads=12,
        threads_limit=None,
    )
    assert reading.memory is not None
    assert reading.memory.working_set == 70 * MIB
    assert reading.memory.available == 130 * MIB
    assert reading.memory.swap_available == 10000 - 4096


def test_v1_tells_the_same_from_other_files(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path, "v1")
    node.group("/c", pid=7)
    for name, text in {
        "cpu,cpuacct/c/cpuacct.usage": "100000\n",
        "cpu,cpuacct/c/cpuacct.stat": "user 6\nsystem 4\n",
        "cpu,cpuacct/c/cpu.stat": "nr_periods 3\nnr_throttled 2\nthrottled_time 9000\nnr_bursts 1\nburst_time 4\n",
        "cpu,cpuacct/c/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/c/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/c/cpu.shares": "1024\n",
        "memory/c/memory.usage_in_bytes": 100 * MIB,
        "memory/c/memory.stat": f"rss 1\ntotal_rss {50 * MIB}\ntotal_cache 9\ntotal_inactive_file {30 * MIB}\n"
        "total_swap 4096\ntotal_pgfault 20\ntotal_pgmajfault 2\n",
        "memory/c/memory.limit_in_bytes": 200 * MIB,
        "memory/c/memory.memsw.limit_in_bytes": 210 * MIB,
        "memory/c/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        "memory/c/memory.failcnt": "8\n",
        "blkio/c/blkio.throttle.io_service_bytes_recursive": "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n",
        "blkio/c/blkio.throttle.io_serviced_recursive": "8:0 Read 3\n8:0 Write 4\nTotal 7\n",
        "pids/c/pids.current": "12\n",
        "pids/c/pids.max": "100\n",
    }.items():
        node.write(f"cgroup/{name}", text)
    reading = _read(node, "/c")
    assert reading.cpu == CpuReading(
        usage=100_000,
        user=6 * TICK,
        system=4 * TICK,
        periods=3,
        throttled_periods=2,
        throttled=9000,
        burst_periods=1,
        burst=4,
        quota=None,
        period=100000,
        shares=1024,
    )
    assert reading.memory is not None
    assert (reading.memory.rss, reading.memory.working_set, reading.memory.limit) == (50 * MIB, 70 * MIB, 200 * MIB)
    assert (reading.memory.swap, reading.memory.swap_limit) == (4096, 10 * MIB)
    assert (reading.memory.fails, reading.memory.oom_kills) == (8, 1)
    (device,) = reading.devices
    assert device.counts == {BYTES: {"Read": 1, "Write": 2, "Total": 3}, REQUESTS: {"Read": 3, "Write": 4}}
    assert (reading.threads, reading.threads_limit, reading.pids) == (12, 100, (7,))
    assert reading.cpu_pressure is None


def test_a_hybrid_layout_has_numbers_from_v1_and_pressure_from_v2(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path, "hybrid")
    node.group("/c", cpu=77, memory=1000, pid=7)
    node.write("cgroup/unified/c/cpu.pressure", PRESSURE)
    node.write("cgroup/unified/c/cpu.stat", "usage_usec 1\n")
    reading = _read(node, "/c")
    assert reading.cpu is not None
    assert reading.cpu.usage == 77
    assert reading.cpu_pressure is not None
    assert reading.io_pressure is None


@pytest.mark.parametrize("layout", ["v2", "v1"])
def test_a_short_reading_is_the_same_but_for_what_it_leaves_out(tmp_path: Path, layout: str) -> None:
    node = NodeFiles(tmp_path, layout)  # type: ignore[arg-type]
    node.group("/c", cpu=5000, memory=1000, pid=7)
    short, full = _read(node, "/c", full=False), _read(node, "/c")
    assert short.cpu is not None
    assert full.cpu is not None
    assert short.memory is not None
    assert full.memory is not None
    assert short.cpu.usage == full.cpu.usage == 5000
    assert short.memory.working_set == full.memory.working_set == 900
    assert (short.memory.rss, short.memory.page_faults) == (full.memory.rss, full.memory.page_faults)
    assert short.pids == ()


def test_more_file_pages_than_usage_leave_a_working_set_of_nothing() -> None:
    assert MemoryReading(usage=5, inactive_file=9).working_set == 0


def test_a_group_that_is_gone_says_nothing(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path)
    (tmp_path / "cgroup/c").mkdir()
    assert _read(node, "/c") == CgroupReading(at=5, path="/c")
