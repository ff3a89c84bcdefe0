"""`/metrics/cadvisor`: the machine, its daemons, pods and containers, by cAdvisor's names.

The kubelet restricts cAdvisor to use of processors, memory, disks, networks, processes and pressure, and labels each
series with `container`, `id`, `image`, `name`, `namespace` and `pod`, empty where they mean nothing
(`containerPrometheusLabelsFunc`). Everything has the time of its reading, but for what does not change.

Left out is what no file of a cgroup tells: load averages and states of tasks (cAdvisor has them as zeros unless it is
asked for more), health, custom metrics, and open files, for which all descriptors of all processes would have to be
counted on each scrape. Out of memory kills are the kernel's own count in the cgroup, not lines of its log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import attrs

from trikubelet.node.stats.cgroup_places import pod_group
from trikubelet.telemetry.families import Family, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from trikubelet.node.stats.cgroup_files import CgroupReading, MemoryReading
    from trikubelet.node.stats.choice import MeasuredPod, RunningContainer
    from trikubelet.node.stats.compose import Facts
    from trikubelet.node.stats.machine_info import MachineInfo
    from trikubelet.node.stats.measure import Measured
    from trikubelet.node.stats.model import FsStats, PsiStats
    from trikubelet.node.stats.proc_files import NetworkReading

_LABELS: Final = ("container", "id", "image", "name", "namespace", "pod")
_NANOSECONDS: Final = 1e9
_MICROSECONDS: Final = 1e6
_Kind = Literal["counter", "gauge"]
_Value = tuple[str, tuple[str, ...], float | None]
"""A family's name, values of its further labels, and the value."""


@attrs.frozen(kw_only=True)
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


def cadvisor_families(facts: Facts, measured: Measured, machine: MachineInfo) -> list[Family]:
    """All families that have series. `measured` is a full one."""
    series: dict[str, list[Sample]] = {}

    def add(whose: _Whose, at: int | None, values: Iterable[_Value]) -> None:
        for name, labels, value in values:
            if value is not None:
                series.setdefault(name, []).append(Sample(whose.labels + labels, value, at))

    for whose, reading in _groups(facts, measured):
        add(whose, reading.at, _usage(reading, measured.devices))
        add(whose, None, _limits(reading))
    for whose, started in _starts(facts, measured):
        add(whose, None, [(name, (), started / _NANOSECONDS) for name in _START_NAMES])
    for whose, network in _networks(facts, measured):
        add(whose, network.at, _traffic(network))
    for whose, stats, device in _file_systems(facts, measured):
        add(whose, stats.time, _space(stats, device))
    families = [
        Family(name, _FAMILIES[name][0], _FAMILIES[name][1], _LABELS + _FAMILIES[name][2], samples)
        for name, samples in series.items()
    ]
    failed = Sample((), float(bool(facts.problems)))
    families.append(Family("container_scrape_error", "gauge", "1 if something could not be measured.", (), [failed]))
    return families + _machine(machine)


def _groups(facts: Facts, measured: Measured) -> Iterator[tuple[_Whose, CgroupReading]]:
    yield _Whose(id="/"), measured.machine
    for reading in measured.daemons.values():
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
    if memory is not None:
        for name, value in _MEMORY.items():
            yield name, (), value(memory)
        for scope in ("container", "hierarchy"):
            yield "container_memory_failures_total", ("pgfault", scope), memory.page_faults
            yield "container_memory_failures_total", ("pgmajfault", scope), memory.major_page_faults
        yield "container_oom_events_total", (), memory.oom_kills
    for device in reading.devices:
        label = (devices.get(device.device, device.device),)
        yield "container_fs_reads_bytes_total", label, device.read_bytes
        yield "container_fs_writes_bytes_total", label, device.write_bytes
        yield "container_fs_reads_total", label, device.reads
        yield "container_fs_writes_total", label, device.writes
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
_FAMILIES: Final[Mapping[str, tuple[_Kind, str, tuple[str, ...]]]] = {
    "container_cpu_usage_seconds_total": ("counter", "Processor time used.", ("cpu",)),
    "container_cpu_user_seconds_total": ("counter", "Processor time used by programs.", ()),
    "container_cpu_system_seconds_total": ("counter", "Processor time used by the kernel.", ()),
    "container_cpu_cfs_periods_total": ("counter", "Periods in which the limit was enforced.", ()),
    "container_cpu_cfs_throttled_periods_total": ("counter", "Periods in which the limit was reached.", ()),
    "container_cpu_cfs_throttled_seconds_total": ("counter", "Time held back by the limit.", ()),
    "container_memory_usage_bytes": ("gauge", "Memory in use, caches too.", ()),
    "container_memory_working_set_bytes": ("gauge", "Memory in use that cannot be reclaimed easily.", ()),
    "container_memory_rss": ("gauge", "Anonymous memory.", ()),
    "container_memory_cache": ("gauge", "Page cache.", ()),
    "container_memory_mapped_file": ("gauge", "Mapped files.", ()),
    "container_memory_kernel_usage": ("gauge", "Memory of the kernel.", ()),
    "container_memory_swap": ("gauge", "Swap in use.", ()),
    "container_memory_failcnt": ("counter", "How often the limit was hit.", ()),
    "container_memory_max_usage_bytes": ("gauge", "The most memory that was in use.", ()),
    "container_memory_total_active_file_bytes": ("gauge", "File pages that were used lately.", ()),
    "container_memory_total_inactive_file_bytes": ("gauge", "File pages that were not used lately.", ()),
    "container_memory_file_dirty_bytes": ("gauge", "File pages that are not written yet.", ()),
    "container_memory_file_writeback_bytes": ("gauge", "File pages that are being written.", ()),
    "container_memory_failures_total": ("counter", "Page faults.", ("failure_type", "scope")),
    "container_oom_events_total": ("counter", "Processes killed for want of memory.", ()),
    "container_fs_reads_bytes_total": ("counter", "Bytes read from a device.", ("device",)),
    "container_fs_writes_bytes_total": ("counter", "Bytes written to a device.", ("device",)),
    "container_fs_reads_total": ("counter", "Reads from a device.", ("device",)),
    "container_fs_writes_total": ("counter", "Writes to a device.", ("device",)),
    "container_fs_limit_bytes": ("gauge", "Size of the file system.", ("device",)),
    "container_fs_usage_bytes": ("gauge", "Bytes used of the file system.", ("device",)),
    "container_fs_inodes_free": ("gauge", "Free inodes of the file system.", ("device",)),
    "container_fs_inodes_total": ("gauge", "Inodes of the file system.", ("device",)),
    "container_processes": ("gauge", "Processes.", ()),
    "container_threads": ("gauge", "Threads.", ()),
    "container_threads_max": ("gauge", "Most threads that there may be, 0 without a limit.", ()),
    **{
        f"container_pressure_{resource}_{kind}_seconds_total": ("counter", f"Time in which {tasks} {resource}.", ())
        for resource in ("cpu", "memory", "io")
        for kind, tasks in (("stalled", "all tasks waited for"), ("waiting", "some task waited for"))
    },
    "container_last_seen": ("gauge", "When it was seen last.", ()),
    "container_creation_time_seconds": ("gauge", "When it was made.", ()),
    "container_start_time_seconds": ("gauge", "When it was started.", ()),
    "container_spec_cpu_period": ("gauge", "Period of the limit, in microseconds.", ()),
    "container_spec_cpu_quota": ("gauge", "Processor time of each period, in microseconds.", ()),
    "container_spec_cpu_shares": ("gauge", "Weight among others.", ()),
    "container_spec_memory_limit_bytes": ("gauge", "Limit of memory, 0 without.", ()),
    "container_spec_memory_swap_limit_bytes": ("gauge", "Limit of swap, 0 without.", ()),
    **{
        f"container_network_{direction}_{name}_total": ("counter", f"{what} {past}.", ("interface",))
        for direction, past in (("receive", "received"), ("transmit", "sent"))
        for name, what in (
            ("bytes", "Bytes"),
            ("packets", "Packets"),
            ("packets_dropped", "Packets dropped that should have been"),
            ("errors", "Errors among what was"),
        )
    },
}
