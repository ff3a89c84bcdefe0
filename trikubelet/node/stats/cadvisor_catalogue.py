"""The families of `/metrics/cadvisor` that groups have: kind, help, and labels beside those that say whose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind: TypeAlias = Literal["counter", "gauge"]

FAMILIES: Final[Mapping[str, tuple[Kind, str, tuple[str, ...]]]] = {
    "container_cpu_usage_seconds_total": ("counter", "Processor time used.", ("cpu",)),
    "container_cpu_user_seconds_total": ("counter", "Processor time used by programs.", ()),
    "container_cpu_system_seconds_total": ("counter", "Processor time used by the kernel.", ()),
    "container_cpu_cfs_periods_total": ("counter", "Periods in which the limit was enforced.", ()),
    "container_cpu_cfs_throttled_periods_total": ("counter", "Periods in which the limit was reached.", ()),
    "container_cpu_cfs_throttled_seconds_total": ("counter", "Time held back by the limit.", ()),
    "container_cpu_cfs_burst_periods_total": ("counter", "Periods in which the limit was exceeded.", ()),
    "container_cpu_cfs_burst_seconds_total": ("counter", "Time used beyond the limit.", ()),
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
    **{
        f"container_fs_{name}": ("counter", text, ("device",))
        for name, text in (
            ("sector_reads_total", "Sectors read."),
            ("sector_writes_total", "Sectors written."),
            ("reads_merged_total", "Reads that were merged with others."),
            ("writes_merged_total", "Writes that were merged with others."),
            ("read_seconds_total", "Time that reads took."),
            ("write_seconds_total", "Time that writes took."),
            ("io_time_seconds_total", "Time in which something was read or written."),
            ("io_time_weighted_seconds_total", "The same, for each request that was under way."),
            ("io_cost_usage_seconds_total", "Time of the device that was charged."),
            ("io_cost_wait_seconds_total", "Time that requests waited for the budget of the group."),
            ("io_cost_indebt_seconds_total", "Time in which the group owed budget."),
            ("io_cost_indelay_seconds_total", "Time in which the group was held back for what it owed."),
        )
    },
    "container_fs_io_current": ("gauge", "Requests that are queued, or under way.", ("device",)),
    "container_blkio_device_usage_total": (
        "counter",
        "Bytes read from a device and written to it.",
        ("device", "major", "minor", "operation"),
    ),
    "container_file_descriptors": ("gauge", "Open file descriptors.", ()),
    "container_sockets": ("gauge", "Open sockets.", ()),
    "container_ulimits_soft": ("gauge", "Limits that the first process has, -1 without one.", ("ulimit",)),
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
    "container_spec_memory_reservation_limit_bytes": ("gauge", "Memory that is kept for it, 0 for none.", ()),
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
