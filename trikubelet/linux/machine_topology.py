"""Where the machine's CPUs and memory are: NUMA nodes, their distances, sockets, cores and caches.

Read from /sys as the kubelet reads it (cadvisor's `sysinfo`): a CPU that is offline does not exist, neither does one of
which the kernel does not tell the core or the socket, and where there are no NUMA nodes each socket counts as one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.cpu_list import parse_cpu_list
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SYSTEM: Final = "sys/devices/system"
_MEMORY: Final = re.compile(r"MemTotal:\s*([0-9]+) kB", re.ASCII)
_HUGE_PAGES: Final = re.compile(r"hugepages-([0-9]+)kB", re.ASCII)
_PRIVATE_CACHE: Final = 2
"""Caches of higher levels belong to several cores."""


@frozen
class Core:
    socket: int
    threads: tuple[int, ...]
    """Its CPUs, in rising order; at least one."""
    uncore: int | None = None
    """The number of the first cache above L2 that some cores of the NUMA node share, not all of them."""


@frozen
class NumaNode:
    id: int
    cores: tuple[Core, ...] = ()
    """None: it has only memory."""
    memory: int = 0
    """Bytes."""
    huge_pages: tuple[tuple[int, int], ...] = ()
    """The size in bytes, and how many there are."""
    distances: tuple[int, ...] = ()
    """To each node of the machine, this one included, in the order of their numbers. Empty: nobody knows."""


@frozen
class MachineTopology:
    nodes: tuple[NumaNode, ...]
    """In the order of their numbers."""

    @classmethod
    def read(cls, root: Path = Path("/")) -> MachineTopology:
        """Read /sys below `root`. Blocks on files. Raises OSError, and ValueError for a file that says nothing."""
        system = root / _SYSTEM
        online = _online(system / "cpu")
        folders = dict(_numbered(system / "node", "node"))
        if not folders:
            return cls(tuple(_sockets(system, online)))
        return cls(tuple(_node(system, number, folder, online) for number, folder in sorted(folders.items())))


def _sockets(system: Path, online: int) -> Iterator[NumaNode]:
    cores = _cores(system, (cpu for cpu, _ in _numbered(system / "cpu", "cpu")), online)
    for socket in sorted({core.socket for core in cores}):
        yield NumaNode(socket, _with_uncores(system, [core for core in cores if core.socket == socket]))


def _node(system: Path, number: int, folder: Path, online: int) -> NumaNode:
    memory = _text(folder / "meminfo")
    total = None if memory is None else _MEMORY.search(memory)
    if memory is not None and total is None:
        raise ValueError(f'expected a line "MemTotal: … kB" in {folder / "meminfo"}')
    return NumaNode(
        id=number,
        cores=_with_uncores(system, _cores(system, (cpu for cpu, _ in _numbered(folder, "cpu")), online)),
        memory=0 if total is None else int(total[1]) * 1024,
        huge_pages=tuple(_huge_pages(folder / "hugepages")),
        distances=tuple(map(int, (_text(folder / "distance") or "").split())),
    )


def _online(folder: Path) -> int:
    """The set of CPUs that are online; without such a file all are."""
    text = _text(folder / "online")
    return -1 if text is None else parse_cpu_list(text)


def _numbered(folder: Path, name: str) -> Iterator[tuple[int, Path]]:
    for path in folder.glob(f"{name}[0-9]*"):
        number = path.name.removeprefix(name)
        if number.isdecimal():
            yield int(number), path


def _cores(system: Path, cpus: Iterable[int], online: int) -> list[Core]:
    """Those of one NUMA node; CPUs are one core if the kernel gives them the same core and socket."""
    threads: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(cpus):
        folder = system / f"cpu/cpu{cpu}/topology"
        core, socket = _text(folder / "core_id"), _text(folder / "physical_package_id")
        if online >> cpu & 1 and core is not None and socket is not None:
            threads.setdefault((int(socket), int(core)), []).append(cpu)
    return [Core(socket, tuple(its)) for (socket, _), its in threads.items()]


def _with_uncores(system: Path, cores: list[Core]) -> tuple[Core, ...]:
    """From the first core on of which the kernel tells no caches (as in guests on Arm), the others have none either."""
    told = []
    for core in cores:
        uncore = _uncore(system / f"cpu/cpu{core.threads[0]}/cache", len(cores) * len(core.threads))
        if uncore is None:
            break
        told.append(attrs.evolve(core, uncore=next(iter(uncore), None)))
    return (*told, *cores[len(told) :])


def _uncore(folder: Path, cpus_of_node: int) -> list[int] | None:
    """The caches that are shared, by some only; None if a file is missing."""
    found = []
    indexes = sorted(folder.glob("index*"))
    for index in indexes:
        number, level, shared = (_text(index / name) for name in ("id", "level", "shared_cpu_map"))
        if number is None or level is None or shared is None:
            return None
        cpus = sum(int(part, 16).bit_count() for part in shared.split(","))
        if int(level) > _PRIVATE_CACHE and cpus != cpus_of_node:
            found.append(int(number))
    return found if folder.exists() else None


def _huge_pages(folder: Path) -> Iterator[tuple[int, int]]:
    sizes = sorted((int(match[1]), path) for path in folder.glob("*") if (match := _HUGE_PAGES.fullmatch(path.name)))
    for size, path in sizes:
        yield size * 1024, int((path / "nr_hugepages").read_text())


def _text(path: Path) -> str | None:
    """None where there is no such file. Raises OSError for one that cannot be read."""
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
