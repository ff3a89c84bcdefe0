"""CRI's metrics of pods and containers, by cAdvisor's names: the kubelet passes them on at `/metrics/cadvisor`.

CRI's values are whole numbers, so that seconds are whole ones too, as with every runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.metric_readings import Reading, read_container, read_file_system, read_network
from trikubelet.embedded.records import ContainerRecord, Phase, RecordStore, SandboxRecord
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.embedded.lifecycle import Lifecycle
    from trikubelet.embedded.usage_messages import UsageMessages

COUNTER, GAUGE = v1.MetricType.COUNTER, v1.MetricType.GAUGE
LABELS: Final = ("container", "id", "image", "name", "namespace", "pod")
"""Of every metric; `id` is the path of the cgroup, `name` the id of the container, or of the sandbox."""
_DEVICE: Final = ("device",)

METRICS: Final[Mapping[str, tuple[v1.MetricType, tuple[str, ...], str]]] = {
    "container_blkio_device_usage_total": (COUNTER, (*_DEVICE, "major", "minor", "operation"), "Bytes moved."),
    "container_cpu_cfs_periods_total": (COUNTER, (), "Periods in which the limit was enforced."),
    "container_cpu_cfs_throttled_periods_total": (COUNTER, (), "Periods in which the limit was reached."),
    "container_cpu_cfs_throttled_seconds_total": (COUNTER, (), "Time held back by the limit."),
    "container_cpu_system_seconds_total": (COUNTER, (), "Processor time used by the kernel."),
    "container_cpu_usage_seconds_total": (COUNTER, ("cpu",), "Processor time used."),
    "container_cpu_user_seconds_total": (COUNTER, (), "Processor time used by programs."),
    "container_file_descriptors": (GAUGE, (), "Open file descriptors."),
    "container_fs_inodes_free": (GAUGE, _DEVICE, "Free inodes of the file system."),
    "container_fs_inodes_total": (GAUGE, _DEVICE, "Inodes of the file system."),
    "container_fs_limit_bytes": (GAUGE, _DEVICE, "Size of the file system."),
    "container_fs_reads_bytes_total": (COUNTER, _DEVICE, "Bytes read from a device."),
    "container_fs_reads_total": (COUNTER, _DEVICE, "Reads from a device."),
    "container_fs_usage_bytes": (GAUGE, _DEVICE, "Bytes that the container has used of the file system."),
    "container_fs_writes_bytes_total": (COUNTER, _DEVICE, "Bytes written to a device."),
    "container_fs_writes_total": (COUNTER, _DEVICE, "Writes to a device."),
    "container_hugetlb_max_usage_bytes": (GAUGE, ("pagesize",), "The most huge pages that were in use."),
    "container_hugetlb_usage_bytes": (GAUGE, ("pagesize",), "Huge pages in use."),
    "container_last_seen": (GAUGE, (), "When it was seen last."),
    "container_memory_cache": (GAUGE, (), "Page cache."),
    "container_memory_failcnt": (COUNTER, (), "How often the limit was hit; 0 on cgroup v2."),
    "container_memory_failures_total": (COUNTER, ("failure_type", "scope"), "Page faults."),
    "container_memory_kernel_usage": (GAUGE, (), "Memory of the kernel."),
    "container_memory_mapped_file": (GAUGE, (), "Mapped files."),
    "container_memory_max_usage_bytes": (GAUGE, (), "The most memory that was in use."),
    "container_memory_rss": (GAUGE, (), "Anonymous memory."),
    "container_memory_swap": (GAUGE, (), "Swap in use."),
    "container_memory_total_active_file_bytes": (GAUGE, (), "File pages that were used lately."),
    "container_memory_total_inactive_file_bytes": (GAUGE, (), "File pages that were not used lately."),
    "container_memory_usage_bytes": (GAUGE, (), "Memory in use, caches too."),
    "container_memory_working_set_bytes": (GAUGE, (), "Memory in use that cannot be reclaimed easily."),
    **{
        f"container_network_{direction}_{name}_total": (COUNTER, ("interface",), f"{what} {past}.")
        for direction, past in (("receive", "received"), ("transmit", "sent"))
        for name, what in (
            ("bytes", "Bytes"),
            ("errors", "Errors among what was"),
            ("packets", "Packets"),
            ("packets_dropped", "Packets dropped that should have been"),
        )
    },
    "container_oom_events_total": (COUNTER, (), "Processes killed for want of memory."),
    **{
        f"container_pressure_{resource}_{kind}_seconds_total": (COUNTER, (), f"Time in which {tasks} {resource}.")
        for resource in ("cpu", "io", "memory")
        for kind, tasks in (("stalled", "all tasks waited for"), ("waiting", "some task waited for"))
    },
    "container_processes": (GAUGE, (), "Processes."),
    "container_sockets": (GAUGE, (), "Open sockets."),
    "container_spec_cpu_period": (GAUGE, (), "Period of the limit, in microseconds."),
    "container_spec_cpu_quota": (GAUGE, (), "Processor time of each period, in microseconds."),
    "container_spec_cpu_shares": (GAUGE, (), "Weight among others."),
    "container_spec_memory_limit_bytes": (GAUGE, (), "Limit of memory, 0 without."),
    "container_spec_memory_reservation_limit_bytes": (GAUGE, (), "Memory that is protected, 0 without."),
    "container_spec_memory_swap_limit_bytes": (GAUGE, (), "Limit of memory and swap, 0 without."),
    "container_start_time_seconds": (GAUGE, (), "When it was started."),
    "container_threads": (GAUGE, (), "Threads."),
    "container_threads_max": (GAUGE, (), "Most threads that there may be, 0 without a limit."),
    "container_ulimits_soft": (GAUGE, ("ulimit",), "Soft limits of the first process."),
}
_NANOSECONDS: Final = 1_000_000_000


def descriptors() -> list[v1.MetricDescriptor]:
    """What each metric is called and means."""
    return [
        v1.MetricDescriptor(name=name, help=text, label_keys=[*LABELS, *labels])
        for name, (_, labels, text) in METRICS.items()
    ]


class PodMetrics:
    """Metrics on request, read in a thread."""

    def __init__(self, lifecycle: Lifecycle, store: RecordStore, usage: UsageMessages) -> None:
        self._lifecycle = lifecycle
        self._store = store
        self._usage = usage
        self._reading = trio.CapacityLimiter(1)

    async def of_all(self) -> list[v1.PodSandboxMetrics]:
        """Of all ready sandboxes and their running containers."""
        return [
            await self._of(sandbox) for sandbox in list(self._lifecycle.inventory.sandboxes.values()) if sandbox.ready
        ]

    async def _of(self, sandbox: SandboxRecord) -> v1.PodSandboxMetrics:
        running = [
            container
            for container in self._lifecycle.inventory.containers_of(sandbox.id)
            if container.phase is Phase.RUNNING
        ]
        metrics = v1.PodSandboxMetrics(pod_sandbox_id=sandbox.id)
        if running:
            pid = running[0].pid
            readings = await trio.to_thread.run_sync(read_network, pid, limiter=self._reading)
            pod = sandbox.config.metadata
            labels = ("", sandbox.config.linux.cgroup_parent, "", sandbox.id, pod.namespace, pod.name)
            metrics.metrics = self._messages(labels, readings)
        metrics.container_metrics = [await self._of_container(sandbox, container) for container in running]
        return metrics

    async def _of_container(self, sandbox: SandboxRecord, record: ContainerRecord) -> v1.ContainerMetrics:
        used, _ = await self._usage.disk_usage(record)
        folder, pid, cgroup = self._store.container_folder(record.id), record.pid, record.cgroup

        def read() -> list[Reading]:
            return [*read_container(pid, cgroup), *read_file_system(folder, used)]

        readings = await trio.to_thread.run_sync(read, limiter=self._reading)
        pod, own = sandbox.config.metadata, record.config
        image = own.image.user_specified_image or record.image.name
        labels = (own.metadata.name, _cgroup_path(record), image, record.id, pod.namespace, pod.name)
        return v1.ContainerMetrics(
            container_id=record.id, metrics=self._messages(labels, [*readings, *self._known(record)])
        )

    def _known(self, record: ContainerRecord) -> list[Reading]:
        """What needs no measuring."""
        limits = record.config.linux.resources
        set_ones = {
            "container_spec_cpu_period": limits.cpu_period,
            "container_spec_cpu_quota": max(0, limits.cpu_quota),
            "container_spec_cpu_shares": limits.cpu_shares,
        }
        return [
            ("container_last_seen", (), self._lifecycle.now() // _NANOSECONDS),
            ("container_start_time_seconds", (), record.started_at // _NANOSECONDS),
            ("container_spec_memory_limit_bytes", (), max(0, limits.memory_limit_in_bytes)),
            ("container_spec_memory_swap_limit_bytes", (), max(0, limits.memory_swap_limit_in_bytes)),
            *((name, (), value) for name, value in set_ones.items() if value),
        ]

    def _messages(self, labels: tuple[str, ...], readings: Iterable[Reading]) -> list[v1.Metric]:
        now = self._lifecycle.now()
        return [
            v1.Metric(
                name=name,
                timestamp=now,
                metric_type=METRICS[name][0],
                label_values=[*labels, *own],
                value=v1.UInt64Value(value=value),
            )
            for name, own, value in readings
        ]


def _cgroup_path(record: ContainerRecord) -> str:
    """Of the group that counts its memory, from the root of the hierarchy on."""
    groups = record.cgroup or {}
    memory = (groups.get("controllers") or {}).get("memory")
    if memory:
        return str(memory).removeprefix("/sys/fs/cgroup/memory")
    return str(groups.get("unified") or "").removeprefix("/sys/fs/cgroup")
