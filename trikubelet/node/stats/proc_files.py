"""What /proc says of the machine and of network namespaces.

The machine's own group is the root of the cgroup tree. In v1 it has the files that all have. In v2 it has none for
memory, and a node without cgroups has none at all: there /proc tells (as in cAdvisor and runc). Its limits are what
the machine has.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.node.stats.cgroup_files import CgroupReading, CpuReading, MemoryReading, read_cgroup
from trikubelet.node.stats.kernel_files import read_number, read_pressure, read_table, read_text
from trikubelet.node.stats.model import InterfaceStats, NetworkStats, RlimitStats

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.node.stats.cgroup_places import CgroupPlaces

_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_SECOND: Final = 1_000_000_000
_IGNORED: Final = ("lo", "veth", "docker", "nerdctl")
"""Beginnings of the names of interfaces that carry what others carry too, or nothing that leaves (cAdvisor)."""
_USUAL_DEFAULT: Final = "eth0"
_COLUMNS: Final = 16


@frozen(kw_only=True)
class Interface:
    """Counters since the interface is there."""

    name: str
    rx_bytes: int = 0
    rx_packets: int = 0
    rx_errors: int = 0
    rx_dropped: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0
    tx_errors: int = 0
    tx_dropped: int = 0

    def stats(self) -> InterfaceStats:
        """As in the summary."""
        return InterfaceStats(
            name=self.name,
            rx_bytes=self.rx_bytes,
            rx_errors=self.rx_errors,
            tx_bytes=self.tx_bytes,
            tx_errors=self.tx_errors,
        )


@frozen(kw_only=True)
class NetworkReading:
    """Of one network namespace."""

    at: int
    interfaces: tuple[Interface, ...]
    default: str = ""
    """Its name; empty where none is."""

    def stats(self) -> NetworkStats:
        """As in the summary: the default interface's counters beside all."""
        every = tuple(interface.stats() for interface in self.interfaces)
        default = next((one for one in every if one.name == self.default), InterfaceStats())
        return NetworkStats(time=self.at, interfaces=every, **attrs.asdict(default))


def read_network(proc: Path, pid: int | str, at: int) -> NetworkReading | None:
    """The network that a process is in. None when that cannot be read.

    The default interface is `eth0` as the kubelet has it; where none is called so, the one of the default route.
    """
    text = read_text(f"{proc}/{pid}/net/dev")
    if text is None:
        return None
    interfaces = []
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        name, columns = name.strip(), rest.split()
        if name.lower().startswith(_IGNORED) or len(columns) < _COLUMNS:
            continue
        numbers = [int(column) for column in columns[:_COLUMNS]]
        interfaces.append(
            Interface(
                name=name,
                rx_bytes=numbers[0],
                rx_packets=numbers[1],
                rx_errors=numbers[2],
                rx_dropped=numbers[3],
                tx_bytes=numbers[8],
                tx_packets=numbers[9],
                tx_errors=numbers[10],
                tx_dropped=numbers[11],
            )
        )
    names = {interface.name for interface in interfaces}
    default = _USUAL_DEFAULT if _USUAL_DEFAULT in names else _default_route(f"{proc}/{pid}/net/route")
    return NetworkReading(at=at, interfaces=tuple(interfaces), default=default if default in names else "")


def has_own_network(proc: Path, pid: int) -> bool:
    """Whether a process is in another network than this agent. A pod in the machine's has no traffic of its own
    (cAdvisor would give it all of the machine's)."""
    try:
        return (proc / str(pid) / "ns/net").readlink() != (proc / "self/ns/net").readlink()
    except OSError:
        return True


def read_machine(proc: Path, places: CgroupPlaces, at: int, *, full: bool) -> CgroupReading:
    """The machine as the root of all groups."""
    root = places.root()
    reading = CgroupReading(at=at, path="/") if root is None else read_cgroup(root, at, full=full, processes=False)
    memory = {name.rstrip(":"): kilobytes * 1024 for name, kilobytes in _meminfo(proc).items()}
    return attrs.evolve(
        reading,
        path="/",
        cpu=reading.cpu or _processors(proc),
        memory=_machine_memory(
            reading.memory, memory, read_table(f"{root.unified}/memory.stat") if root and root.unified else {}, proc
        ),
        cpu_pressure=reading.cpu_pressure or read_pressure(f"{proc}/pressure/cpu"),
        memory_pressure=reading.memory_pressure or read_pressure(f"{proc}/pressure/memory"),
        io_pressure=(reading.io_pressure or read_pressure(f"{proc}/pressure/io")) if full else None,
    )


def boot_time(proc: Path) -> int | None:
    """Nanoseconds since 1970."""
    seconds = read_table(f"{proc}/stat").get("btime")
    return None if seconds is None else seconds * _SECOND


def read_rlimit(proc: Path, at: int) -> RlimitStats:
    """How many tasks there may be, and are (kubelet: `pidlimit.Stats`)."""
    limits = [read_number(f"{proc}/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
    known = [limit for limit in limits if limit is not None]
    fields = (read_text(f"{proc}/loadavg") or "").split()
    tasks = fields[3].partition("/")[2] if len(fields) >= 5 else ""
    return RlimitStats(time=at, maxpid=min(known) if known else None, curproc=int(tasks) if tasks.isdigit() else None)


def _default_route(path: str) -> str:
    for line in (read_text(path) or "").splitlines()[1:]:
        columns = line.split()
        if len(columns) >= 8 and columns[1] == "00000000" and columns[7] == "00000000":
            return columns[0]
    return ""


def _processors(proc: Path) -> CpuReading | None:
    first = (read_text(f"{proc}/stat") or "").partition("\n")[0].split()
    if len(first) < 8 or first[0] != "cpu":
        return None
    user, nice, system, _, _, interrupts, soft_interrupts, *rest = (int(number) * _TICK for number in first[1:])
    kernel = system + interrupts + soft_interrupts + (rest[0] if rest else 0)
    return CpuReading(usage=user + nice + kernel, user=user + nice, system=kernel)


def _machine_memory(
    group: MemoryReading | None, info: dict[str, int], root: dict[str, int], proc: Path
) -> MemoryReading | None:
    """`info`: /proc/meminfo in bytes. `root`: `memory.stat` of v2's root, where usage is what it accounts."""
    total = info.get("MemTotal")
    if group is None and total is None:
        return None
    if group is None:
        faults = read_table(f"{proc}/vmstat")
        accounted = root.get("anon", 0) + root.get("file", 0)
        group = MemoryReading(
            usage=accounted or (total or 0) - info.get("MemFree", 0),
            inactive_file=root.get("inactive_file", info.get("Inactive(file)", 0)),
            active_file=root.get("active_file", info.get("Active(file)")),
            rss=root.get("anon", info.get("AnonPages")),
            cache=root.get("file", info.get("Cached")),
            mapped_file=root.get("file_mapped", info.get("Mapped")),
            page_faults=root.get("pgfault", faults.get("pgfault")),
            major_page_faults=root.get("pgmajfault", faults.get("pgmajfault")),
        )
    swap = info.get("SwapTotal")
    return attrs.evolve(
        group,
        limit=total,
        swap=group.swap if swap is None else swap - info.get("SwapFree", 0),
        swap_limit=swap,
    )


def _meminfo(proc: Path) -> dict[str, int]:
    found = {}
    for line in (read_text(f"{proc}/meminfo") or "").splitlines():
        columns = line.split()
        if len(columns) == 3 and columns[2] == "kB" and columns[1].isdigit():
            found[columns[0]] = int(columns[1])
    return found
