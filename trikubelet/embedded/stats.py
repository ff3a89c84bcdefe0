"""CPU and memory of containers, from their cgroups, or from procfs where there are none; traffic of pods.

Functions here read small kernel files and block for some tens of microseconds. Counters are cumulative; rates are left
to the reader, which knows the time of its last sample.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROC: Final = Path("/proc")
_LOOPBACK: Final = "lo"
_COLUMNS: Final = 16


@frozen
class Usage:
    """Of one container. None where this machine does not tell."""

    cpu_nanoseconds: int | None = None
    memory_bytes: int | None = None
    working_set_bytes: int | None = None
    rss_bytes: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    processes: int | None = None


@frozen
class Counters:
    """What went one way over a network interface, since it is there."""

    bytes: int
    packets: int
    errors: int
    dropped: int


@frozen
class Traffic:
    """Of one network interface."""

    interface: str
    received: Counters
    sent: Counters


def read_traffic(pid: int) -> list[Traffic]:
    """Of each interface but loopback in the network that a process is in; none when it has ended."""
    try:
        lines = (_PROC / str(pid) / "net" / "dev").read_text().splitlines()[2:]
    except OSError:
        return []
    found = []
    for line in lines:
        name, _, rest = line.partition(":")
        columns = [int(column) for column in rest.split()]
        if name.strip() != _LOOPBACK and len(columns) == _COLUMNS:
            found.append(Traffic(name.strip(), Counters(*columns[:4]), Counters(*columns[8:12])))
    return found


def read_usage(pid: int, cgroup: Mapping[str, Any] | None) -> Usage:
    """What the container whose first process is `pid` has used and uses."""
    controllers: Mapping[str, str] = (cgroup or {}).get("controllers") or {}
    unified: str | None = (cgroup or {}).get("unified")
    usage = Usage()
    if controllers.get("memory"):
        usage = _memory_v1(Path(controllers["memory"]))
    elif unified and (Path(unified) / "memory.current").exists():
        usage = _memory_v2(Path(unified))
    cpu = _cpu(controllers.get("cpuacct"), unified)
    if cpu is not None and usage.memory_bytes is not None:
        return attrs.evolve(usage, cpu_nanoseconds=cpu, processes=len(list(descendants(pid))))
    measured = _from_processes(pid)
    return measured if cpu is None else attrs.evolve(measured, cpu_nanoseconds=cpu)


def _cpu(cpuacct: str | None, unified: str | None) -> int | None:
    if cpuacct:
        return read_number(Path(cpuacct) / "cpuacct.usage")
    if unified:
        usage = read_table(Path(unified) / "cpu.stat").get("usage_usec")
        return None if usage is None else usage * 1000
    return None


def _memory_v1(folder: Path) -> Usage:
    used, table = read_number(folder / "memory.usage_in_bytes"), read_table(folder / "memory.stat")
    return Usage(
        memory_bytes=used,
        working_set_bytes=_working_set(used, table.get("total_inactive_file", 0)),
        rss_bytes=table.get("total_rss"),
        page_faults=table.get("total_pgfault"),
        major_page_faults=table.get("total_pgmajfault"),
    )


def _memory_v2(folder: Path) -> Usage:
    used, table = read_number(folder / "memory.current"), read_table(folder / "memory.stat")
    return Usage(
        memory_bytes=used,
        working_set_bytes=_working_set(used, table.get("inactive_file", 0)),
        rss_bytes=table.get("anon"),
        page_faults=table.get("pgfault"),
        major_page_faults=table.get("pgmajfault"),
    )


def _working_set(used: int | None, inactive_file: int) -> int | None:
    return None if used is None else max(0, used - inactive_file)


def _from_processes(pid: int) -> Usage:
    """Sums over the container's process tree. What has ended counts as far as its parent has waited for it."""
    ticks = resident = faults = major_faults = processes = 0
    for process in descendants(pid):
        try:
            fields = (_PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        processes += 1
        faults += int(fields[7]) + int(fields[8])
        major_faults += int(fields[9]) + int(fields[10])
        ticks += sum(int(field) for field in fields[11:15])
        resident += int(fields[21]) * _PAGE
    if processes == 0:
        return Usage()
    return Usage(
        cpu_nanoseconds=ticks * 1_000_000_000 // _TICKS,
        memory_bytes=resident,
        working_set_bytes=resident,
        rss_bytes=resident,
        page_faults=faults,
        major_page_faults=major_faults,
        processes=processes,
    )


def descendants(pid: int) -> Iterator[int]:
    """A process and all below it."""
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        yield process
        try:
            for task in (_PROC / str(process) / "task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue


def read_number(path: Path) -> int | None:
    """The number in a kernel file; None where there is no such file, or something else in it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def read_table(path: Path) -> dict[str, int]:
    """`name value` lines, those with numbers; none where there is no such file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}
