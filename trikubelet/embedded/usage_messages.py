"""CRI's statistics of containers and pods, from what `stats.py` reads."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded import messages
from trikubelet.embedded.inventory import has_labels
from trikubelet.embedded.records import ContainerRecord, Phase, RecordStore, SandboxRecord
from trikubelet.embedded.stats import Traffic, Usage, read_traffic, read_usage
from trikubelet.linux.trees import disk_usage
from trikubelet.rpc.cri import v1
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.embedded.lifecycle import Lifecycle

log = get_logger("embedded")

_DISK_USAGE_FRESH_FOR: Final = 60.0


class UsageMessages:
    """Statistics on request. The size of a container's own files is measured in a thread, at most once a minute."""

    def __init__(self, lifecycle: Lifecycle, store: RecordStore) -> None:
        self._lifecycle = lifecycle
        self._store = store
        self._measuring = trio.CapacityLimiter(1)
        self._disk: dict[str, tuple[float, tuple[int, int]]] = {}

    async def containers(self, wanted: v1.ContainerStatsFilter) -> list[v1.ContainerStats]:
        """Of all running containers that match."""
        self._forget_removed()
        return [
            await self.container(record)
            for record in list(self._lifecycle.inventory.containers.values())
            if record.phase is Phase.RUNNING
            and record.id.startswith(wanted.id)
            and record.sandbox_id.startswith(wanted.pod_sandbox_id)
            and has_labels(record.config.labels, wanted.label_selector)
        ]

    async def sandboxes(self, wanted: v1.PodSandboxStatsFilter) -> list[v1.PodSandboxStats]:
        """Of all ready sandboxes that match."""
        self._forget_removed()
        return [
            await self.sandbox(record)
            for record in list(self._lifecycle.inventory.sandboxes.values())
            if record.ready and record.id.startswith(wanted.id)
            if has_labels(record.config.labels, wanted.label_selector)
        ]

    async def container(self, record: ContainerRecord) -> v1.ContainerStats:
        """Of one container; CPU and memory are missing when it does not run."""
        stats = v1.ContainerStats(attributes=messages.container_attributes(record))
        if record.phase is Phase.RUNNING:
            self._add_usage(stats, read_usage(record.pid, record.cgroup))
        used, inodes = await self.disk_usage(record)
        stats.writable_layer = v1.FilesystemUsage(
            timestamp=self._lifecycle.now(),
            fs_id=v1.FilesystemIdentifier(mountpoint=str(self._store.container_folder(record.id) / "upper")),
            used_bytes=v1.UInt64Value(value=used),
            inodes_used=v1.UInt64Value(value=inodes),
        )
        return stats

    async def sandbox(self, record: SandboxRecord) -> v1.PodSandboxStats:
        """Of one pod: the sums over its running containers, and each of them."""
        running = [
            container
            for container in self._lifecycle.inventory.containers_of(record.id)
            if container.phase is Phase.RUNNING
        ]
        usages = [read_usage(container.pid, container.cgroup) for container in running]
        total = v1.LinuxPodSandboxStats(containers=[await self.container(container) for container in running])
        now = self._lifecycle.now()
        total.cpu = v1.CpuUsage(
            timestamp=now, usage_core_nano_seconds=_sum([usage.cpu_nanoseconds for usage in usages])
        )
        total.memory = v1.MemoryUsage(
            timestamp=now,
            working_set_bytes=_sum([usage.working_set_bytes for usage in usages]),
            usage_bytes=_sum([usage.memory_bytes for usage in usages]),
            rss_bytes=_sum([usage.rss_bytes for usage in usages]),
            page_faults=_sum([usage.page_faults for usage in usages]),
            major_page_faults=_sum([usage.major_page_faults for usage in usages]),
        )
        total.process = v1.ProcessUsage(timestamp=now, process_count=_sum([usage.processes for usage in usages]))
        if record.network is not None and record.network.attachment is not None and running:
            interface = record.network.attachment.interface
            total.network = _network_usage(read_traffic(running[0].pid), interface, now)
        return v1.PodSandboxStats(attributes=messages.sandbox_attributes(record), linux=total)

    def _add_usage(self, stats: v1.ContainerStats, usage: Usage) -> None:
        now = self._lifecycle.now()
        if usage.cpu_nanoseconds is not None:
            stats.cpu = v1.CpuUsage(timestamp=now, usage_core_nano_seconds=v1.UInt64Value(value=usage.cpu_nanoseconds))
        if usage.memory_bytes is not None:
            stats.memory = v1.MemoryUsage(
                timestamp=now,
                usage_bytes=v1.UInt64Value(value=usage.memory_bytes),
                working_set_bytes=v1.UInt64Value(value=usage.working_set_bytes or 0),
                rss_bytes=v1.UInt64Value(value=usage.rss_bytes or 0),
                page_faults=v1.UInt64Value(value=usage.page_faults or 0),
                major_page_faults=v1.UInt64Value(value=usage.major_page_faults or 0),
            )

    async def disk_usage(self, record: ContainerRecord) -> tuple[int, int]:
        """Bytes and inodes of a container's own files."""
        known = self._disk.get(record.id)
        if known is not None and trio.current_time() - known[0] < _DISK_USAGE_FRESH_FOR:
            return known[1]
        # In pieces: the machine's folders in a user namespace. None is there before the first start.
        folders = [self._store.container_folder(record.id) / name for name in ("upper", "pieces", "volumes")]
        problems: list[OSError] = []

        def measure() -> tuple[int, int]:
            used = inodes = 0
            for folder in folders:
                with suppress(FileNotFoundError):
                    found = disk_usage(folder, trio.from_thread.check_cancelled, problems.append)
                    used, inodes = used + found[0], inodes + found[1]
            return used, inodes

        measured = await trio.to_thread.run_sync(measure, limiter=self._measuring, abandon_on_cancel=True)
        if problems:
            log.warning("not all files of a container were counted", container=record.id, error=str(problems[0]))
        self._disk[record.id] = (trio.current_time(), measured)
        return measured

    def _forget_removed(self) -> None:
        known = self._lifecycle.inventory.containers
        self._disk = {container: size for container, size in self._disk.items() if container in known}


def _network_usage(traffic: list[Traffic], default: str, now: int) -> v1.NetworkUsage:
    usage = v1.NetworkUsage(timestamp=now)
    for one in traffic:
        message = v1.NetworkInterfaceUsage(
            name=one.interface,
            rx_bytes=v1.UInt64Value(value=one.received.bytes),
            rx_errors=v1.UInt64Value(value=one.received.errors),
            tx_bytes=v1.UInt64Value(value=one.sent.bytes),
            tx_errors=v1.UInt64Value(value=one.sent.errors),
        )
        if one.interface == default:
            usage.default_interface = message
        else:
            usage.interfaces.append(message)
    return usage


def _sum(values: list[int | None]) -> v1.UInt64Value:
    return v1.UInt64Value(value=sum(value or 0 for value in values))
