"""`/metrics/cadvisor`: the machine, its daemons, pods and containers, by cAdvisor's names.

The kubelet restricts cAdvisor to use of processors, memory, disks, networks, processes and pressure, and labels each
series with `container`, `id`, `image`, `name`, `namespace` and `pod`, empty where they mean nothing
(`containerPrometheusLabelsFunc`). Everything has the time of its reading, but for what does not change.

Left out is what no file of a cgroup tells: load averages and states of tasks (cAdvisor has them as zeros unless it is
asked for more), health and custom metrics. Out of memory kills are the kernel's own count in the cgroup, not lines of
its log. What the kernel counts of a disk as a whole (`container_fs_io_time_weighted_seconds_total` and others) the
machine's group has, as in cAdvisor, which gives these times in thousands of seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.node.stats import block_io
from trikubelet.node.stats.block_io import READ, TOTAL, WRITE
from trikubelet.node.stats.cadvisor_catalogue import FAMILIES
from trikubelet.node.stats.cgroup_places import pod_group
from trikubelet.telemetry.families import Family, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from trikubelet.node.stats.block_io import DeviceIo, DiskStats
    from trikubelet.node.stats.cgroup_files import CgroupReading, MemoryReading
    from trikubelet.node.stats.choice import MeasuredPod, RunningContainer
    from trikubelet.node.stats.compose import Facts
    from trikubelet.node.stats.machine_info import MachineInfo
    from trikubelet.node.stats.measure import Measured
    from trikubelet.node.stats.model import FsStats, PsiStats
    from trikubelet.node.stats.open_files import OpenFiles
    from trikubelet.node.stats.proc_files import NetworkReading

_LABELS: Final = ("container", "id", "image", "name", "namespace", "pod")
_NANOSECONDS: Final = 1e9
_MICROSECONDS: Final = 1e6
_MILLISECONDS: Final = 1e3
_Value = tuple[str, tuple[str, ...], float | None]
"""A family's name, values of its further labels, and the value."""


@frozen(kw_only=True)
class _Whose:
    container: str = ""
    id: str = ""
    image: str = ""
    name: str = ""
    namespace: str = ""
    pod: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.container, self.id, self.image, self.name, self.namespace, self.pod)


def cadvisor_families(
    facts: Facts, measured: Measured, open_files: Mapping[str, OpenFiles], machine: MachineInfo
) -> list[Family]:
    """All families that have series. `measured` is a full one; `open_files` as `Meter.open_files`."""
    series: dict[str, list[Sample]] = {}

    def add(whose: _Whose, at: int | None, values: Iterable[_Value]) -> None:
        for name, labels, value in values:
            if value is not None:
                series.setdefault(name, []).append(Sample(whose.labels + labels, value, at))

    for whose, reading in _groups(facts, measured):
        add(whose, reading.at, _usage(reading, measured.devices))
        add(whose, None, _limits(reading))
    for whose, at, files in _with_open_files(facts, measured, open_files):
        add(whose, at, _opened(files))
    for whose, started in _starts(facts, measured):
        add(whose, None, [(name, (), started / _NANOSECONDS) for name in _START_NAMES])
    for whose, network in _networks(facts, measured):
        add(whose, network.at, _traffic(network))
    for whose, stats, device in _file_systems(facts, measured):
        add(whose, stats.time, _space(stats, device))
    if measured.node_disk is not None:
        add(_Whose(id="/"), measured.machine.at, _disk(measured.node_disk, measured.node_fs_device))
    families = [
        Family(name, FAMILIES[name][0], FAMILIES[name][1], _LABELS + FAMILIES[name][2], samples)
        for name, samples in series.items()
    ]
    failed = Sample((), float(bool(facts.problems)))
    families.append(Family("container_scrape_error", "gauge", "1 if something could not be measured.", (), [failed]))
    return families + _machine(machine)


def _groups(facts: Facts, measured: Measured) -> Iterator[tuple[_Whose, CgroupReading]]:
    yield _Whose(id="/"), measured.machine
    for reading in (*measured.daemons.values(), *measured.tiers):
        yield _Whose(id=reading.path), reading
    for pod in facts.pods:
        group, sandbox = measured.groups.get(pod_group(pod.uid)), measured.groups.get(pod.sandbox_id)
        if group is not None:
            yield _Whose(id=group.path, namespace=pod.namespace, pod=pod.name), group
        if sandbox is not None:
            yield _sandbox(pod.sandbox_id, pod.namespace, pod.name, sandbox.path), sandbox
        for container in pod.containers:
            own = measured.groups.get(container.id)
            if own is not None:
                yield _container(container, pod, own.path), own


def _with_open_files(
    facts: Facts, measured: Measured, open_files: Mapping[str, OpenFiles]
) -> Iterator[tuple[_Whose, int, OpenFiles]]:
    """Of groups with processes of their own."""
    names = {reading.path: name for name, reading in measured.groups.items() if reading.pids}
    for whose, reading in _groups(facts, measured):
        files = open_files.get(names.get(reading.path, ""))
        if files is not None:
            yield whose, reading.at, files


def _starts(facts: Facts, measured: Measured) -> Iterator[tuple[_Whose, int]]:
    if measured.boot_time is not None:
        yield _Whose(id="/"), measured.boot_time
    for pod in facts.pods:
        for container in pod.containers:
            reading = measured.groups.get(container.id)
            yield _container(container, pod, "" if reading is None else reading.path), container.created_at


def _networks(facts: Facts, measured: Measured) -> Iterator[tuple[_Whose, NetworkReading]]:
    if measured.network is not None:
        yield _Whose(id="/"), measured.network
    for pod in facts.pods:
        network = measured.networks.get(pod.sandbox_id)
        if network is not None:
            sandbox = measured.groups.get(pod.sandbox_id)
            path = "" if sandbox is None else sandbox.path
            yield _sandbox(pod.sandbox_id, pod.namespace, pod.name, path), network


def _file_systems(facts: Facts, measured: Measured) -> Iterator[tuple[_Whose, FsStats, str]]:
    if measured.node_fs is not None:
        yield _Whose(id="/"), measured.node_fs, measured.node_fs_device
    for pod in facts.pods:
        for container in pod.containers:
            reported, reading = facts.containers.get(container.id), measured.groups.get(container.id)
            if reported is None or reported.layer is None:
                continue
            on = measured.file_systems.get(reported.layer_path)
            stats = reported.layer if on is None else attrs.evolve(on, used_bytes=reported.layer.used_bytes)
            whose = _container(container, pod, "" if reading is None else reading.path)
            yield whose, stats, measured.devices.get(reported.layer_path, "")


def _container(container: RunningContainer, pod: MeasuredPod, path: str) -> _Whose:
    return _Whose(
        container=container.name,
        id=path,
        image=container.image,
        name=container.id,
        namespace=pod.namespace,
        pod=pod.name,
    )


def _sandbox(sandbox_id: str, namespace: str, pod: str, path: str) -> _Whose:
    return _Whose(id=path, name=sandbox_id, namespace=namespace, pod=pod)


def _usage(reading: CgroupReading, devices: Mapping[str, str]) -> Iterator[_Value]:
    cpu, memory = reading.cpu, reading.memory
    if cpu is not None:
        yield "container_cpu_usage_seconds_total", ("total",), cpu.usage / _NANOSECONDS
        yield "container_cpu_user_seconds_total", (), _part(cpu.user, _NANOSECONDS)
        yield "container_cpu_system_seconds_total", (), _part(cpu.system, _NANOSECONDS)
        if cpu.quota is not None:
            yield "container_cpu_cfs_periods_total", (), cpu.periods
            yield "container_cpu_cfs_throttled_periods_total", (), cpu.throttled_periods
            yield "container_cpu_cfs_throttled_seconds_total", (), _part(cpu.throttled, _NANOSECONDS)
            yield "container_cpu_cfs_burst_periods_total", (), cpu.burst_periods
            yield "container_cpu_cfs_burst_seconds_total", (), _part(cpu.burst, _NANOSECONDS)
    if memory is not None:
        for name, value in _MEMORY.items():
            yield name, (), value(memory)
        for scope in ("container", "hierarchy"):
            yield "container_memory_failures_total", ("pgfault", scope), memory.page_faults
            yield "container_memory_failures_total", ("pgmajfault", scope), memory.major_page_faults
        yield "container_oom_events_total", (), memory.oom_kills
    for device in reading.devices:
        yield from _device(device, devices.get(device.device, device.device))
    if reading.pids:
        yield "container_processes", (), len(reading.pids)
    if reading.threads is not None:
        yield "container_threads", (), reading.threads
        yield "container_threads_max", (), reading.threads_limit or 0
    for resource, pressure in (
        ("cpu", reading.cpu_pressure),
        ("memory", reading.memory_pressure),
        ("io", reading.io_pressure),
    ):
        yield from _pressure(resource, pressure)
    yield "container_last_seen", (), reading.at // 1_000_000_000


def _device(device: DeviceIo, name: str) -> Iterator[_Value]:
    major, _, minor = device.device.partition(":")
    for kind, number in device.counts.get(block_io.BYTES, {}).items():
        yield "container_blkio_device_usage_total", (name, major, minor, kind), number
    for family, (table, operation, unit) in _OF_DEVICE.items():
        count = device.counts.get(table, {}).get(operation)
        yield f"container_fs_{family}", (name,), None if count is None else count / unit


def _disk(disk: DiskStats, name: str) -> Iterator[_Value]:
    """After what the group says: where both tell the same of a device, that counts."""
    for family, (field, unit) in _OF_DISK.items():
        yield f"container_fs_{family}", (name,), getattr(disk, field) / unit


def _opened(files: OpenFiles) -> Iterator[_Value]:
    yield "container_file_descriptors", (), files.descriptors
    yield "container_sockets", (), files.sockets
    yield "container_ulimits_soft", ("max_open_files",), files.soft_limit


def _pressure(resource: str, pressure: PsiStats | None) -> Iterator[_Value]:
    if pressure is not None:
        yield f"container_pressure_{resource}_stalled_seconds_total", (), pressure.full.total / _MICROSECONDS
        yield f"container_pressure_{resource}_waiting_seconds_total", (), pressure.some.total / _MICROSECONDS


def _limits(reading: CgroupReading) -> Iterator[_Value]:
    """What was set; of memory, 0 is no limit."""
    cpu, memory = reading.cpu, reading.memory
    if cpu is not None:
        yield "container_spec_cpu_period", (), cpu.period
        yield "container_spec_cpu_quota", (), cpu.quota
        yield "container_spec_cpu_shares", (), cpu.shares
    if memory is not None:
        yield "container_spec_memory_limit_bytes", (), memory.limit or 0
        yield "container_spec_memory_swap_limit_bytes", (), memory.swap_limit or 0
        yield "container_spec_memory_reservation_limit_bytes", (), memory.reservation or 0


def _traffic(network: NetworkReading) -> Iterator[_Value]:
    for interface in network.interfaces:
        for direction, ours in (("receive", "rx"), ("transmit", "tx")):
            for name, field in _TRAFFIC.items():
                value = getattr(interface, f"{ours}_{field}")
                yield f"container_network_{direction}_{name}_total", (interface.name,), value


def _space(stats: FsStats, device: str) -> Iterator[_Value]:
    yield "container_fs_limit_bytes", (device,), stats.capacity_bytes
    yield "container_fs_usage_bytes", (device,), stats.used_bytes
    yield "container_fs_inodes_free", (device,), stats.inodes_free
    yield "container_fs_inodes_total", (device,), stats.inodes


def _machine(machine: MachineInfo) -> list[Family]:
    names = ("boot_id", "machine_id", "system_uuid")
    labels = (machine.boot_id, machine.machine_id, machine.system_uuid)
    values = (
        ("machine_cpu_cores", machine.cores, "Logical processors."),
        ("machine_cpu_physical_cores", machine.physical_cores, "Physical processors."),
        ("machine_cpu_sockets", machine.sockets, "Sockets with processors."),
        ("machine_memory_bytes", machine.memory, "Memory of the machine."),
        ("machine_swap_bytes", machine.swap, "Swap of the machine."),
    )
    version = Sample((machine.kernel_version, machine.os_image, "", "", ""), 1.0)
    version_names = ("kernelVersion", "osVersion", "dockerVersion", "cadvisorVersion", "cadvisorRevision")
    return [
        *(Family(name, "gauge", text, names, [Sample(labels, float(value))]) for name, value, text in values),
        Family("cadvisor_version_info", "gauge", "Always 1: what runs here.", version_names, [version]),
    ]


def _part(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


_OF_DEVICE: Final = {
    "reads_bytes_total": (block_io.BYTES, READ, 1),
    "writes_bytes_total": (block_io.BYTES, WRITE, 1),
    "reads_total": (block_io.REQUESTS, READ, 1),
    "writes_total": (block_io.REQUESTS, WRITE, 1),
    "reads_merged_total": (block_io.MERGED, READ, 1),
    "writes_merged_total": (block_io.MERGED, WRITE, 1),
    "read_seconds_total": (block_io.SERVICE_TIME, READ, _NANOSECONDS),
    "write_seconds_total": (block_io.SERVICE_TIME, WRITE, _NANOSECONDS),
    "io_time_seconds_total": (block_io.SERVICE_TIME, TOTAL, _NANOSECONDS),
    "io_current": (block_io.QUEUED, TOTAL, 1),
    **{
        f"io_cost_{kind}_seconds_total": (block_io.COST, kind, _MICROSECONDS)
        for kind in ("usage", "wait", "indebt", "indelay")
    },
}
"""By the end of a family's name: where `DeviceIo.counts` has it, and what one second is there."""
_OF_DISK: Final = {
    "reads_total": ("reads", 1),
    "writes_total": ("writes", 1),
    "sector_reads_total": ("sectors_read", 1),
    "sector_writes_total": ("sectors_written", 1),
    "reads_merged_total": ("reads_merged", 1),
    "writes_merged_total": ("writes_merged", 1),
    "read_seconds_total": ("read_time", _MILLISECONDS),
    "write_seconds_total": ("write_time", _MILLISECONDS),
    "io_time_seconds_total": ("io_time", _MILLISECONDS),
    "io_time_weighted_seconds_total": ("weighted_io_time", _MILLISECONDS),
    "io_current": ("in_progress", 1),
}
"""The same of fields of `DiskStats`."""
_START_NAMES: Final = ("container_creation_time_seconds", "container_start_time_seconds")
_TRAFFIC: Final = {"bytes": "bytes", "packets": "packets", "packets_dropped": "dropped", "errors": "errors"}
_MEMORY: Final[Mapping[str, Callable[[MemoryReading], float | None]]] = {
    "container_memory_usage_bytes": lambda memory: memory.usage,
    "container_memory_working_set_bytes": lambda memory: memory.working_set,
    "container_memory_rss": lambda memory: memory.rss,
    "container_memory_cache": lambda memory: memory.cache,
    "container_memory_mapped_file": lambda memory: memory.mapped_file,
    "container_memory_kernel_usage": lambda memory: memory.kernel,
    "container_memory_swap": lambda memory: memory.swap,
    "container_memory_failcnt": lambda memory: memory.fails,
    "container_memory_max_usage_bytes": lambda memory: memory.highest,
    "container_memory_total_active_file_bytes": lambda memory: memory.active_file,
    "container_memory_total_inactive_file_bytes": lambda memory: memory.inactive_file,
    "container_memory_file_dirty_bytes": lambda memory: memory.dirty,
    "container_memory_file_writeback_bytes": lambda memory: memory.writeback,
}
