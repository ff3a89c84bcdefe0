"""What groups read from and write to block devices, and what the kernel counts of each device. Blocking.

v1 has up to eight files, and which depends on the scheduler of the disk: BFQ and CFQ count times, merges and queues,
the throttle counts bytes and requests alone (runc: `BlkioGroup.GetStats`). v2 has `io.stat` with bytes and requests,
and what `io.cost` charges where it is on. Here all have the names of v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.node.stats.kernel_files import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.node.stats.cgroup_places import CgroupPlace

READ: Final = "Read"
WRITE: Final = "Write"
TOTAL: Final = "Total"

BYTES: Final = "io_service_bytes"
REQUESTS: Final = "io_serviced"
MERGED: Final = "io_merged"
QUEUED: Final = "io_queued"
SERVICE_TIME: Final = "io_service_time"
"""Nanoseconds."""
COST: Final = "cost"
"""Microseconds, by what `io.cost` calls them: `usage`, `wait`, `indebt`, `indelay`."""

_BASIC: Final = (REQUESTS, BYTES)
_SETS: Final = (
    ("blkio.bfq.{}_recursive", (SERVICE_TIME, MERGED, QUEUED, *_BASIC)),
    ("blkio.bfq.{}_recursive", _BASIC),
    ("blkio.{}_recursive", (SERVICE_TIME, MERGED, QUEUED, *_BASIC)),
    ("blkio.throttle.{}_recursive", _BASIC),
    ("blkio.throttle.{}", _BASIC),
)
"""Files that belong together. The first set counts whose first file says something."""
_V2: Final = {
    "rbytes": (BYTES, READ),
    "wbytes": (BYTES, WRITE),
    "rios": (REQUESTS, READ),
    "wios": (REQUESTS, WRITE),
    **{f"cost.{kind}": (COST, kind) for kind in ("usage", "wait", "indebt", "indelay")},
}


@frozen(kw_only=True)
class DeviceIo:
    """Of one group and one block device, `major:minor`."""

    device: str
    counts: Mapping[str, Mapping[str, int]]
    """By table and operation; `Total`, `Sync` and others beside `Read` and `Write` in v1."""


@frozen(kw_only=True)
class DiskStats:
    """Of a whole block device since it is there. Times are milliseconds."""

    reads: int
    reads_merged: int
    sectors_read: int
    read_time: int
    writes: int
    writes_merged: int
    sectors_written: int
    write_time: int
    in_progress: int
    io_time: int
    weighted_io_time: int


def read_devices(place: CgroupPlace) -> tuple[DeviceIo, ...]:
    """Of one group with those below it; nothing where the kernel does not count."""
    folder = place.controllers.get("blkio")
    if folder is not None:
        return _devices_v1(folder)
    return () if place.unified is None else _devices_v2(read_text(f"{place.unified}/io.stat") or "")


def read_disk(proc: Path, number: str) -> DiskStats | None:
    """Of the device `major:minor`; None for what is no block device."""
    for line in (read_text(f"{proc}/diskstats") or "").splitlines():
        columns = line.split()
        if ":".join(columns[:2]) == number and len(columns) >= 14 and all(map(str.isdigit, columns[3:14])):
            return DiskStats(**dict(zip(_DISK_COLUMNS, map(int, columns[3:14]), strict=True)))
    return None


_DISK_COLUMNS: Final = tuple(field.name for field in attrs.fields(DiskStats))


def _devices_v1(folder: str) -> tuple[DeviceIo, ...]:
    for pattern, tables in _SETS:
        first = _table_v1(read_text(f"{folder}/{pattern.format(tables[0])}"))
        if first:
            others = {table: _table_v1(read_text(f"{folder}/{pattern.format(table)}")) for table in tables[1:]}
            return _by_device({tables[0]: first, **others})
    return ()


def _table_v1(text: str | None) -> dict[str, dict[str, int]]:
    """Lines `major:minor operation count`, by device; the sum of all devices is skipped."""
    found: dict[str, dict[str, int]] = {}
    for line in (text or "").splitlines():
        columns = line.split()
        if len(columns) == 3 and columns[2].isdigit():
            device, operation, count = columns
            found.setdefault(device, {})[operation] = int(count)
    return found


def _devices_v2(text: str) -> tuple[DeviceIo, ...]:
    tables: dict[str, dict[str, dict[str, int]]] = {}
    for line in text.splitlines():
        device, *pairs = line.split() or [""]
        for name, _, value in (pair.partition("=") for pair in pairs):
            if name in _V2 and value.isdigit():
                table, operation = _V2[name]
                tables.setdefault(table, {}).setdefault(device, {})[operation] = int(value)
    return _by_device(tables)


def _by_device(tables: Mapping[str, Mapping[str, Mapping[str, int]]]) -> tuple[DeviceIo, ...]:
    devices = sorted({device for table in tables.values() for device in table})
    return tuple(
        DeviceIo(device=device, counts={name: table[device] for name, table in tables.items() if device in table})
        for device in devices
    )
