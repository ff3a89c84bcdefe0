"""The runtime's statistics, read from the bytes of its replies.

A reply for five hundred pods is some hundred kilobytes of nested messages, of which labels and annotations are most.
betterproto would make objects of all that for half a second, in the middle of everything else that the agent does. So
the bytes come as they are into the thread that reads the files too, and tables pick what is needed.

Messages: `ListContainerStatsResponse` and `ListPodSandboxStatsResponse` of CRI's runtime.v1.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final

from trikubelet.formats.values import frozen
from trikubelet.node.stats.model import (
    CpuStats,
    FsStats,
    InterfaceStats,
    IoStats,
    MemoryStats,
    NetworkStats,
    PsiData,
    PsiStats,
    SwapStats,
)
from trikubelet.rpc.cri.list_cache import split_entries
from trikubelet.rpc.cri.wire import FIXED64, LENGTH_DELIMITED, REPEATED, SINGLE, VARINT, Reader, read_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    Table = dict[int, Reader]


@frozen(kw_only=True)
class ReportedContainer:
    """What the runtime says of one container."""

    id: str
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    swap: SwapStats | None = None
    io: IoStats | None = None
    layer: FsStats | None = None
    """What it wrote over its image: used bytes and inodes only."""
    layer_path: str = ""
    """On the file system that the layer is on; may name nothing that is here."""


@frozen(kw_only=True)
class ReportedSandbox:
    """What the runtime says of one pod."""

    id: str
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    network: NetworkStats | None = None
    processes: int | None = None
    containers: tuple[ReportedContainer, ...] = ()


def read_container_stats(reply: bytes) -> dict[str, ReportedContainer]:
    """By container id. Raises ValueError for bytes that are no such reply."""
    return {one.id: one for one in map(_container, _entries(reply, _CONTAINER))}


def read_sandbox_stats(reply: bytes) -> dict[str, ReportedSandbox]:
    """By sandbox id. Raises ValueError for bytes that are no such reply."""
    return {one.id: one for one in map(_sandbox, _entries(reply, _SANDBOX))}


def _entries(reply: bytes, table: Table) -> list[dict[str, Any]]:
    try:
        return [_read(entry, table) for entry in split_entries(reply)]
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"statistics of {len(reply)} bytes are no protobuf message: {error}") from error


def _container(fields: dict[str, Any]) -> ReportedContainer:
    attributes, layer = fields.get("attributes", {}), fields.get("layer")
    return ReportedContainer(
        id=attributes.get("id", ""),
        cpu=_cpu(fields.get("cpu")),
        memory=_memory(fields.get("memory")),
        swap=_swap(fields.get("swap")),
        io=_io(fields.get("io")),
        layer=None
        if layer is None
        else FsStats(time=layer.get("time", 0), used_bytes=layer.get("used"), inodes_used=layer.get("inodes")),
        layer_path="" if layer is None else layer.get("fs", {}).get("mountpoint", ""),
    )


def _sandbox(fields: dict[str, Any]) -> ReportedSandbox:
    linux = fields.get("linux", {})
    return ReportedSandbox(
        id=fields.get("attributes", {}).get("id", ""),
        cpu=_cpu(linux.get("cpu")),
        memory=_memory(linux.get("memory")),
        io=_io(linux.get("io")),
        network=_network(linux.get("network")),
        processes=linux.get("process", {}).get("count"),
        containers=tuple(_container(container) for container in linux.get("containers", ())),
    )


def _cpu(fields: dict[str, Any] | None) -> CpuStats | None:
    if fields is None:
        return None
    return CpuStats(
        time=fields.get("time", 0),
        usage_nano_cores=fields.get("rate"),
        usage_core_nano_seconds=fields.get("usage"),
        psi=_psi(fields.get("psi")),
    )


def _memory(fields: dict[str, Any] | None) -> MemoryStats | None:
    if fields is None:
        return None
    return MemoryStats(
        time=fields.get("time", 0),
        available_bytes=fields.get("available"),
        usage_bytes=fields.get("usage"),
        working_set_bytes=fields.get("working_set"),
        rss_bytes=fields.get("rss"),
        page_faults=fields.get("faults"),
        major_page_faults=fields.get("major_faults"),
        psi=_psi(fields.get("psi")),
    )


def _swap(fields: dict[str, Any] | None) -> SwapStats | None:
    if fields is None:
        return None
    return SwapStats(
        time=fields.get("time", 0),
        swap_available_bytes=fields.get("available"),
        swap_usage_bytes=fields.get("usage"),
    )


def _io(fields: dict[str, Any] | None) -> IoStats | None:
    return None if fields is None else IoStats(time=fields.get("time", 0), psi=_psi(fields.get("psi")))


def _psi(fields: dict[str, Any] | None) -> PsiStats | None:
    if fields is None:
        return None
    return PsiStats(full=PsiData(**fields.get("full", {})), some=PsiData(**fields.get("some", {})))


def _network(fields: dict[str, Any] | None) -> NetworkStats | None:
    if fields is None:
        return None
    interfaces = tuple(InterfaceStats(**one) for one in fields.get("interfaces", ()))
    return NetworkStats(time=fields.get("time", 0), interfaces=interfaces, **fields.get("default", {}))


def _read(data: bytes, table: Table) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    read_fields(data, table, fields)
    fields.pop("", None)
    return fields


def _message(table: Table) -> Callable[[bytes], dict[str, Any]]:
    return lambda data: _read(data, table)


def _number(data: bytes) -> int:
    """A UInt64Value: 0 has no bytes."""
    value: int = _read(data, _VALUE).get("value", 0)
    return value


def _double(data: bytes) -> float:
    """0 for what is no number: JSON has no word for it."""
    value: float = struct.unpack("<d", data)[0]
    return value if math.isfinite(value) else 0.0


def _text(number: int, name: str) -> Table:
    return {number << 3 | LENGTH_DELIMITED: (name, SINGLE, bytes.decode)}


def _messages(way: int = SINGLE, **tables: tuple[int, Table]) -> Table:
    return {number << 3 | LENGTH_DELIMITED: (name, way, _message(table)) for name, (number, table) in tables.items()}


def _numbers(**fields: int) -> Table:
    return {number << 3 | LENGTH_DELIMITED: (name, SINGLE, _number) for name, number in fields.items()}


def _skipped(*numbers: int) -> Table:
    """Maps with labels and annotations: passed over."""
    return {number << 3 | LENGTH_DELIMITED: ("", SINGLE, len) for number in numbers}


# The field numbers of CRI's messages.
_VALUE: Final[Table] = {1 << 3 | VARINT: ("value", SINGLE, int)}
_TIME: Final[Table] = {1 << 3 | VARINT: ("time", SINGLE, int)}
_PSI_DATA: Final[Table] = {
    1 << 3 | VARINT: ("total", SINGLE, int),
    2 << 3 | FIXED64: ("avg10", SINGLE, _double),
    3 << 3 | FIXED64: ("avg60", SINGLE, _double),
    4 << 3 | FIXED64: ("avg300", SINGLE, _double),
}
_PSI: Final = _messages(full=(1, _PSI_DATA), some=(2, _PSI_DATA))
_CPU: Final = {**_TIME, **_numbers(usage=2, rate=3), **_messages(psi=(4, _PSI))}
_MEMORY: Final = {
    **_TIME,
    **_numbers(working_set=2, available=3, usage=4, rss=5, faults=6, major_faults=7),
    **_messages(psi=(8, _PSI)),
}
_SWAP: Final = {**_TIME, **_numbers(available=2, usage=3)}
_IO: Final = {**_TIME, **_messages(psi=(2, _PSI))}
_LAYER: Final = {**_TIME, **_messages(fs=(2, _text(1, "mountpoint"))), **_numbers(used=3, inodes=4)}
_ATTRIBUTES: Final = {**_text(1, "id"), **_skipped(2, 3, 4)}
_CONTAINER: Final = _messages(
    attributes=(1, _ATTRIBUTES), cpu=(2, _CPU), memory=(3, _MEMORY), layer=(4, _LAYER), swap=(5, _SWAP), io=(6, _IO)
)
_INTERFACE: Final = {**_text(1, "name"), **_numbers(rx_bytes=2, rx_errors=3, tx_bytes=4, tx_errors=5)}
_NETWORK: Final = {**_TIME, **_messages(default=(2, _INTERFACE)), **_messages(REPEATED, interfaces=(3, _INTERFACE))}
_LINUX: Final = {
    **_messages(cpu=(1, _CPU), memory=(2, _MEMORY), network=(3, _NETWORK)),
    **_messages(process=(4, {**_TIME, **_numbers(count=2)}), io=(6, _IO)),
    **_messages(REPEATED, containers=(5, _CONTAINER)),
}
_SANDBOX: Final = _messages(attributes=(1, _ATTRIBUTES), linux=(2, _LINUX))
