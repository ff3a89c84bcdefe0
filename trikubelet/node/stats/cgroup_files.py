"""What the files of one cgroup say, in either version of them.

cAdvisor reads the same files: working set is the usage less the file pages not used lately, resident memory is
the anonymous one, and counters cover the groups below. What a version or kernel does not tell is None.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.node.stats.block_io import DeviceIo, read_devices
from trikubelet.node.stats.cgroup_places import processes_of
from trikubelet.node.stats.kernel_files import read_limit, read_number, read_pressure, read_table, read_text
from trikubelet.node.stats.model import PsiStats

if TYPE_CHECKING:
    from trikubelet.node.stats.cgroup_places import CgroupPlace

_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Nanoseconds."""


@frozen(kw_only=True)
class CpuReading:
    """Counters in nanoseconds and numbers."""

    usage: int
    user: int | None = None
    system: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled: int | None = None
    burst_periods: int | None = None
    burst: int | None = None
    quota: int | None = None
    """Microseconds of each period; None without a limit."""
    period: int | None = None
    shares: int | None = None


@frozen(kw_only=True)
class MemoryReading:
    """Bytes and numbers."""

    usage: int
    inactive_file: int = 0
    active_file: int | None = None
    rss: int | None = None
    cache: int | None = None
    mapped_file: int | None = None
    kernel: int | None = None
    dirty: int | None = None
    writeback: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    highest: int | None = None
    fails: int | None = None
    limit: int | None = None
    swap: int | None = None
    swap_limit: int | None = None
    reservation: int | None = None
    """What it gets before others are served; None without."""
    oom_kills: int | None = None

    @property
    def working_set(self) -> int:
        return max(0, self.usage - self.inactive_file)

    @property
    def available(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.working_set)

    @property
    def swap_available(self) -> int | None:
        return None if self.swap_limit is None else max(0, self.swap_limit - (self.swap or 0))


@frozen(kw_only=True)
class CgroupReading:
    """Of one group at one time (nanoseconds since 1970)."""

    at: int
    path: str
    cpu: CpuReading | None = None
    memory: MemoryReading | None = None
    cpu_pressure: PsiStats | None = None
    memory_pressure: PsiStats | None = None
    io_pressure: PsiStats | None = None
    devices: tuple[DeviceIo, ...] = ()
    pids: tuple[int, ...] = ()
    threads: int | None = None
    threads_limit: int | None = None

    @property
    def has_io(self) -> bool:
        return self.io_pressure is not None or bool(self.devices)


def read_cgroup(place: CgroupPlace, at: int, *, full: bool, processes: bool = True) -> CgroupReading:
    """`full`: everything; else what use of processors, memory and swap takes, which is a third of the files.
    `processes`: list them too, in the groups below as well."""
    reading = CgroupReading(
        at=at,
        path=place.path,
        cpu=_cpu(place, full=full),
        memory=_memory(place, full=full),
        cpu_pressure=_pressure(place, "cpu"),
        memory_pressure=_pressure(place, "memory"),
    )
    if not full:
        return reading
    pids = place.controllers.get("pids") or place.unified
    return attrs.evolve(
        reading,
        io_pressure=_pressure(place, "io"),
        devices=read_devices(place),
        pids=tuple(processes_of(place)) if processes else (),
        threads=None if pids is None else read_number(f"{pids}/pids.current"),
        threads_limit=None if pids is None else read_limit(f"{pids}/pids.max"),
    )


def _cpu(place: CgroupPlace, *, full: bool) -> CpuReading | None:
    accounts = place.controllers.get("cpuacct")
    if accounts is not None:
        usage = read_number(f"{accounts}/cpuacct.usage")
        return None if usage is None else _cpu_v1(place, usage, accounts) if full else CpuReading(usage=usage)
    table = {} if place.unified is None else read_table(f"{place.unified}/cpu.stat")
    if "usage_usec" not in table:
        return None
    reading = CpuReading(usage=table["usage_usec"] * 1000)
    return _cpu_v2(place.unified or "", table) if full else reading


def _cpu_v1(place: CgroupPlace, usage: int, accounts: str) -> CpuReading:
    ticks = read_table(f"{accounts}/cpuacct.stat")
    folder = place.controllers.get("cpu")
    table = {} if folder is None else read_table(f"{folder}/cpu.stat")
    return CpuReading(
        usage=usage,
        user=_times(ticks.get("user"), _TICK),
        system=_times(ticks.get("system"), _TICK),
        periods=table.get("nr_periods"),
        throttled_periods=table.get("nr_throttled"),
        throttled=table.get("throttled_time"),
        burst_periods=table.get("nr_bursts"),
        burst=table.get("burst_time"),
        quota=None if folder is None else read_limit(f"{folder}/cpu.cfs_quota_us"),
        period=None if folder is None else read_number(f"{folder}/cpu.cfs_period_us"),
        shares=None if folder is None else read_number(f"{folder}/cpu.shares"),
    )


def _cpu_v2(folder: str, table: dict[str, int]) -> CpuReading:
    quota, _, period = (read_text(f"{folder}/cpu.max") or "").partition(" ")
    weight = read_number(f"{folder}/cpu.weight")
    return CpuReading(
        usage=table["usage_usec"] * 1000,
        user=_times(table.get("user_usec"), 1000),
        system=_times(table.get("system_usec"), 1000),
        periods=table.get("nr_periods"),
        throttled_periods=table.get("nr_throttled"),
        throttled=_times(table.get("throttled_usec"), 1000),
        burst_periods=table.get("nr_bursts"),
        burst=_times(table.get("burst_usec"), 1000),
        quota=int(quota) if quota.isdigit() else None,
        period=int(period) if period.strip().isdigit() else None,
        shares=None if weight is None else 2 + (weight - 1) * 262142 // 9999,
    )


def _memory(place: CgroupPlace, *, full: bool) -> MemoryReading | None:
    folder = place.controllers.get("memory")
    if folder is not None:
        return _memory_v1(folder, full=full)
    return None if place.unified is None else _memory_v2(place.unified, full=full)


def _memory_v1(folder: str, *, full: bool) -> MemoryReading | None:
    usage, table = read_number(f"{folder}/memory.usage_in_bytes"), read_table(f"{folder}/memory.stat")
    if usage is None:
        return None
    limit = read_limit(f"{folder}/memory.limit_in_bytes")
    both = read_limit(f"{folder}/memory.memsw.limit_in_bytes")
    reading = MemoryReading(
        usage=usage,
        inactive_file=table.get("total_inactive_file", 0),
        rss=table.get("total_rss"),
        page_faults=table.get("total_pgfault"),
        major_page_faults=table.get("total_pgmajfault"),
        limit=limit,
        swap=table.get("total_swap"),
        swap_limit=None if limit is None or both is None else max(0, both - limit),
    )
    if not full:
        return reading
    return attrs.evolve(
        reading,
        active_file=table.get("total_active_file"),
        cache=table.get("total_cache"),
        mapped_file=table.get("total_mapped_file"),
        kernel=read_number(f"{folder}/memory.kmem.usage_in_bytes"),
        dirty=table.get("total_dirty"),
        writeback=table.get("total_writeback"),
        highest=read_number(f"{folder}/memory.max_usage_in_bytes"),
        reservation=read_limit(f"{folder}/memory.soft_limit_in_bytes"),
        fails=read_number(f"{folder}/memory.failcnt"),
        oom_kills=read_table(f"{folder}/memory.oom_control").get("oom_kill"),
    )


def _memory_v2(folder: str, *, full: bool) -> MemoryReading | None:
    usage, table = read_number(f"{folder}/memory.current"), read_table(f"{folder}/memory.stat")
    if usage is None:
        return None
    reading = MemoryReading(
        usage=usage,
        inactive_file=table.get("inactive_file", 0),
        rss=table.get("anon"),
        page_faults=table.get("pgfault"),
        major_page_faults=table.get("pgmajfault"),
        limit=read_limit(f"{folder}/memory.max"),
        swap=read_number(f"{folder}/memory.swap.current"),
        swap_limit=read_limit(f"{folder}/memory.swap.max"),
    )
    if not full:
        return reading
    events = read_table(f"{folder}/memory.events")
    return attrs.evolve(
        reading,
        active_file=table.get("active_file"),
        cache=table.get("file"),
        mapped_file=table.get("file_mapped"),
        kernel=table.get("kernel"),
        dirty=table.get("file_dirty"),
        writeback=table.get("file_writeback"),
        highest=read_number(f"{folder}/memory.peak"),
        reservation=read_limit(f"{folder}/memory.min"),
        fails=events.get("max"),
        oom_kills=events.get("oom_kill"),
    )


def _pressure(place: CgroupPlace, resource: str) -> PsiStats | None:
    return None if place.unified is None else read_pressure(f"{place.unified}/{resource}.pressure")


def _times(number: int | None, factor: int) -> int | None:
    return None if number is None else number * factor
