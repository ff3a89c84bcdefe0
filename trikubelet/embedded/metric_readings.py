"""What `ListPodSandboxMetrics` tells of a container, read from its cgroup, its processes and its network.

Functions here read small kernel files and block; they are called from a thread. A value that this machine does not
tell is left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trikubelet.embedded.stats import descendants, read_number, read_table, read_traffic, read_usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trikubelet.embedded.stats import Usage

Reading = tuple[str, tuple[str, ...], int]
"""A metric's name, the values of its own labels, and its value."""

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_NANOSECONDS: Final = 1_000_000_000
_MICROSECONDS: Final = 1_000_000
_UNLIMITED: Final = 2**62
"""v1 writes the largest multiple of a page that fits."""
_HUGE_V1: Final = re.compile(r"hugetlb\.(\w+)\.(max_)?usage_in_bytes")
_HUGE_V2: Final = re.compile(r"hugetlb\.(\w+)\.current")


def read_container(pid: int, cgroup: Mapping[str, Any] | None) -> list[Reading]:
    """All that can be read of the running container whose first process is `pid`."""
    folders: dict[str, Path] = {name: Path(path) for name, path in ((cgroup or {}).get("controllers") or {}).items()}
    unified = Path(cgroup["unified"]) if cgroup and cgroup.get("unified") else None
    readings = [*_usage(read_usage(pid, cgroup)), *_processes(pid)]
    if "cpuacct" in folders:
        readings += _cpu_v1(folders["cpuacct"], folders.get("cpu", folders["cpuacct"]))
    elif unified is not None:
        readings += _cpu_v2(unified)
    if "memory" in folders:
        readings += _memory_v1(folders["memory"])
    elif unified is not None and (unified / "memory.current").exists():
        readings += _memory_v2(unified)
    if "hugetlb" in folders:
        readings += _huge_pages(folders["hugetlb"])
    elif unified is not None:
        readings += _huge_pages(unified)
    pids = folders.get("pids", unified)
    if pids is not None:
        readings += _threads(pids)
    if unified is not None:
        readings += [*_devices(unified), *_pressure(unified)]
    return readings


def read_network(pid: int) -> list[Reading]:
    """What went over the interfaces of a process's network; nothing for one that shares this process's own."""
    try:
        if os.path.samefile(_PROC / str(pid) / "ns/net", _PROC / "self/ns/net"):  # noqa: PTH121 - names in procfs
            return []
    except OSError:
        return []
    return [
        (f"container_network_{direction}_{what}_total", (traffic.interface,), count)
        for traffic in read_traffic(pid)
        for direction, counters in (("receive", traffic.received), ("transmit", traffic.sent))
        for what, count in (
            ("bytes", counters.bytes),
            ("packets", counters.packets),
            ("errors", counters.errors),
            ("packets_dropped", counters.dropped),
        )
    ]


def read_file_system(folder: Path, used: int) -> list[Reading]:
    """The file system that a folder is on, of which the container itself has `used` bytes."""
    try:
        space, device = os.statvfs(folder), (device_name(folder.stat().st_dev),)
    except OSError:
        return []
    return [
        ("container_fs_limit_bytes", device, space.f_blocks * space.f_frsize),
        ("container_fs_usage_bytes", device, used),
        ("container_fs_inodes_total", device, space.f_files),
        ("container_fs_inodes_free", device, space.f_ffree),
    ]


def device_name(number: int) -> str:
    """`/dev/sda1`, or `major:minor` for what is no device of the machine."""
    name = f"{os.major(number)}:{os.minor(number)}"
    link = Path("/sys/dev/block") / name
    return f"/dev/{link.resolve().name}" if link.exists() else name


def _usage(usage: Usage) -> list[Reading]:
    cpu = None if usage.cpu_nanoseconds is None else usage.cpu_nanoseconds // _NANOSECONDS
    return _known(
        ("container_cpu_usage_seconds_total", ("total",), cpu),
        ("container_memory_usage_bytes", (), usage.memory_bytes),
        ("container_memory_working_set_bytes", (), usage.working_set_bytes),
        ("container_memory_rss", (), usage.rss_bytes),
        *(
            ("container_memory_failures_total", (kind, scope), faults)
            for kind, faults in (("pgfault", usage.page_faults), ("pgmajfault", usage.major_page_faults))
            for scope in ("container", "hierarchy")
        ),
    )


def _cpu_v1(accounts: Path, limits: Path) -> list[Reading]:
    times, throttled = read_table(accounts / "cpuacct.stat"), read_table(limits / "cpu.stat")
    return _known(
        ("container_cpu_user_seconds_total", (), _part(times.get("user"), _TICKS)),
        ("container_cpu_system_seconds_total", (), _part(times.get("system"), _TICKS)),
        ("container_cpu_cfs_periods_total", (), throttled.get("nr_periods")),
        ("container_cpu_cfs_throttled_periods_total", (), throttled.get("nr_throttled")),
        ("container_cpu_cfs_throttled_seconds_total", (), _part(throttled.get("throttled_time"), _NANOSECONDS)),
    )


def _cpu_v2(folder: Path) -> list[Reading]:
    table = read_table(folder / "cpu.stat")
    return _known(
        ("container_cpu_user_seconds_total", (), _part(table.get("user_usec"), _MICROSECONDS)),
        ("container_cpu_system_seconds_total", (), _part(table.get("system_usec"), _MICROSECONDS)),
        ("container_cpu_cfs_periods_total", (), table.get("nr_periods")),
        ("container_cpu_cfs_throttled_periods_total", (), table.get("nr_throttled")),
        ("container_cpu_cfs_throttled_seconds_total", (), _part(table.get("throttled_usec"), _MICROSECONDS)),
    )


def _memory_v1(folder: Path) -> list[Reading]:
    table = read_table(folder / "memory.stat")
    reserved = read_number(folder / "memory.soft_limit_in_bytes")
    if reserved is not None and reserved > _UNLIMITED:
        reserved = 0
    return _known(
        ("container_memory_cache", (), table.get("total_cache")),
        ("container_memory_mapped_file", (), table.get("total_mapped_file")),
        ("container_memory_swap", (), table.get("total_swap", 0)),
        ("container_memory_kernel_usage", (), read_number(folder / "memory.kmem.usage_in_bytes")),
        ("container_memory_failcnt", (), read_number(folder / "memory.failcnt")),
        ("container_memory_max_usage_bytes", (), read_number(folder / "memory.max_usage_in_bytes")),
        ("container_memory_total_active_file_bytes", (), table.get("total_active_file")),
        ("container_memory_total_inactive_file_bytes", (), table.get("total_inactive_file")),
        ("container_oom_events_total", (), read_table(folder / "memory.oom_control").get("oom_kill")),
        ("container_spec_memory_reservation_limit_bytes", (), reserved),
    )


def _memory_v2(folder: Path) -> list[Reading]:
    table, used = read_table(folder / "memory.stat"), read_number(folder / "memory.current")
    return _known(
        ("container_memory_cache", (), table.get("file")),
        ("container_memory_mapped_file", (), table.get("file_mapped")),
        ("container_memory_swap", (), read_number(folder / "memory.swap.current") or 0),
        ("container_memory_kernel_usage", (), table.get("kernel", table.get("kernel_stack"))),
        ("container_memory_failcnt", (), 0),  # v2 does not count it
        ("container_memory_max_usage_bytes", (), read_number(folder / "memory.peak") or used),
        ("container_memory_total_active_file_bytes", (), table.get("active_file")),
        ("container_memory_total_inactive_file_bytes", (), table.get("inactive_file")),
        ("container_oom_events_total", (), read_table(folder / "memory.events").get("oom_kill")),
        ("container_spec_memory_reservation_limit_bytes", (), read_number(folder / "memory.low")),
    )


def _huge_pages(folder: Path) -> Iterator[Reading]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return
    for name in names:
        found = _HUGE_V1.fullmatch(name) or _HUGE_V2.fullmatch(name)
        value = read_number(folder / name) if found else None
        if found and value is not None:
            most = found.lastindex == 2
            yield f"container_hugetlb_{'max_' if most else ''}usage_bytes", (found[1],), value


def _threads(folder: Path) -> list[Reading]:
    return _known(
        ("container_threads", (), read_number(folder / "pids.current")),
        ("container_threads_max", (), read_number(folder / "pids.max") or 0),  # "max" is no limit
    )


def _devices(folder: Path) -> Iterator[Reading]:
    """Only where somebody turned the controller on."""
    try:
        lines = (folder / "io.stat").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, *fields = line.split()
        counts = {key: int(value) for key, _, value in (field.partition("=") for field in fields) if value.isdigit()}
        major, _, minor = number.partition(":")
        device = device_name(os.makedev(int(major), int(minor)))
        for key, operation, what in (("r", "Read", "reads"), ("w", "Write", "writes")):
            size = counts.get(f"{key}bytes", 0)
            yield f"container_fs_{what}_bytes_total", (device,), size
            yield f"container_fs_{what}_total", (device,), counts.get(f"{key}ios", 0)
            yield "container_blkio_device_usage_total", (device, major, minor, operation), size


def _pressure(folder: Path) -> Iterator[Reading]:
    for resource in ("cpu", "memory", "io"):
        try:
            lines = (folder / f"{resource}.pressure").read_text().splitlines()
        except OSError:  # the kernel does not measure it
            continue
        for line in lines:
            kind, total = ("stalled" if line.startswith("full") else "waiting"), line.rpartition("total=")[2]
            yield f"container_pressure_{resource}_{kind}_seconds_total", (), int(total) // _MICROSECONDS


def _processes(pid: int) -> list[Reading]:
    processes = list(descendants(pid))
    files = [target for process in processes for target in _open_files(process)]
    return _known(
        ("container_processes", (), len(processes)),
        ("container_file_descriptors", (), len(files)),
        ("container_sockets", (), sum(1 for target in files if target.startswith("socket:"))),
        ("container_ulimits_soft", ("max_open_files",), _open_files_limit(pid)),
    )


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - there may be many
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")  # noqa: PTH115
        except OSError:  # closed meanwhile
            continue


def _open_files_limit(pid: int) -> int | None:
    try:
        lines = (_PROC / str(pid) / "limits").read_text().splitlines()
    except OSError:
        return None
    soft = next((line.split()[3] for line in lines if line.startswith("Max open files")), "")
    return int(soft) if soft.isdigit() else None


def _part(value: int | None, unit: int) -> int | None:
    return None if value is None else value // unit


def _known(*values: tuple[str, tuple[str, ...], int | None]) -> list[Reading]:
    return [(name, labels, value) for name, labels, value in values if value is not None]
