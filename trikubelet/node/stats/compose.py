"""From what was measured and what the runtime reported to the summary. Pure, but for the rates that it notes.

The first source that has a value counts: the cgroup, then the runtime; with `prefer_runtime` (the kubelet's gate
PodAndContainerStatsFromCRI) the other way round. A pod without a group of its own is the sum of its containers. What no
source has is left out: the kubelet writes zeros there, which look like a counter that has started anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from trikubelet.formats.values import frozen
from trikubelet.node.stats.cgroup_places import pod_group
from trikubelet.node.stats.choice import MeasuredPod
from trikubelet.node.stats.measure import KUBELET, PODS
from trikubelet.node.stats.model import (
    ContainerStats,
    CpuStats,
    FsStats,
    IoStats,
    MemoryStats,
    NodeStats,
    PodRef,
    PodStats,
    ProcessStats,
    RuntimeStats,
    Summary,
    SwapStats,
)
from trikubelet.node.stats.runtime_replies import ReportedContainer, ReportedSandbox
from trikubelet.node.stats.storage import PodVolumeStats, added, ephemeral_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from trikubelet.node.stats.cgroup_files import CgroupReading
    from trikubelet.node.stats.choice import RunningContainer
    from trikubelet.node.stats.measure import Measured
    from trikubelet.node.stats.rates import RateBook

T = TypeVar("T")

_UNSEEN: Final = ContainerStats(name="")
_UNREPORTED: Final = ReportedContainer(id="")
_UNREPORTED_SANDBOX: Final = ReportedSandbox(id="")


@frozen(kw_only=True)
class ImageFileSystem:
    """What the runtime says of a file system that it keeps images or layers on."""

    path: str
    time: int
    used_bytes: int | None = None
    inodes_used: int | None = None


@frozen(kw_only=True)
class Facts:
    """What was asked of others."""

    node_name: str
    started: int
    """When the agent was, nanoseconds since 1970."""
    pods: tuple[MeasuredPod, ...] = ()
    containers: Mapping[str, ReportedContainer] = attrs.field(factory=dict)
    sandboxes: Mapping[str, ReportedSandbox] = attrs.field(factory=dict)
    image_fs: ImageFileSystem | None = None
    container_fs: ImageFileSystem | None = None
    volumes: Mapping[str, PodVolumeStats] = attrs.field(factory=dict)
    """By UID."""
    problems: tuple[str, ...] = ()
    prefer_runtime: bool = False


def compose(facts: Facts, measured: Measured, rates: RateBook, *, full: bool) -> Summary:
    """The whole summary; not `full`: processors, memory and swap only."""
    return _Composer(facts, measured, rates, full=full).summary()


class _Composer:
    def __init__(self, facts: Facts, measured: Measured, rates: RateBook, *, full: bool) -> None:
        self._facts = facts
        self._measured = measured
        self._rates = rates
        self._full = full

    def summary(self) -> Summary:
        pods = tuple(self._pod(pod) for pod in self._facts.pods)
        return Summary(node=self._node(pods), pods=pods, problems=self._facts.problems)

    def _node(self, pods: tuple[PodStats, ...]) -> NodeStats:
        measured = self._measured
        machine = self._of_group("/", measured.machine)
        node = NodeStats(
            node_name=self._facts.node_name,
            start_time=measured.boot_time,
            cpu=machine.cpu,
            memory=machine.memory,
            swap=machine.swap,
            system_containers=tuple(self._daemons(pods)),
        )
        if not self._full:
            return node
        images, layers = self._file_system(self._facts.image_fs), self._file_system(self._facts.container_fs)
        return attrs.evolve(
            node,
            io=machine.io,
            network=None if measured.network is None else measured.network.stats(),
            fs=measured.node_fs,
            runtime=RuntimeStats(image_fs=images, container_fs=layers or images),
            rlimit=measured.rlimit,
        )

    def _daemons(self, pods: tuple[PodStats, ...]) -> Iterable[ContainerStats]:
        for name, reading in self._measured.daemons.items():
            started = self._facts.started if name == KUBELET else None
            yield attrs.evolve(self._of_group(name, reading), start_time=started)
        if PODS not in self._measured.daemons and pods:
            yield ContainerStats(
                name=PODS,
                cpu=sum_of_cpu([pod.cpu for pod in pods]),
                memory=sum_of_memory([pod.memory for pod in pods]),
                swap=sum_of_swap([pod.swap for pod in pods]),
            )

    def _pod(self, pod: MeasuredPod) -> PodStats:
        containers = tuple(self._container(container) for container in pod.containers)
        group = self._measured.groups.get(pod_group(pod.uid))
        reported = self._facts.sandboxes.get(pod.sandbox_id, _UNREPORTED_SANDBOX)
        seen = _UNSEEN if group is None else self._of_group(pod_group(pod.uid), group)
        stats = PodStats(
            pod_ref=PodRef(name=pod.name, namespace=pod.namespace, uid=pod.uid),
            start_time=pod.created_at,
            containers=containers,
            cpu=self._first(seen.cpu, self._with_rate(("pod", pod.uid), reported.cpu))
            or sum_of_cpu([container.cpu for container in containers]),
            memory=self._first(seen.memory, reported.memory)
            or sum_of_memory([container.memory for container in containers]),
            swap=seen.swap or sum_of_swap([container.swap for container in containers]),
        )
        if not self._full:
            return stats
        network = self._measured.networks.get(pod.sandbox_id)
        volumes = self._facts.volumes.get(pod.uid, PodVolumeStats())
        files = self._measured.pod_files.get(pod.uid, ())
        node = self._measured.node_fs
        return attrs.evolve(
            stats,
            io=self._first(seen.io, reported.io),
            network=self._first(None if network is None else network.stats(), reported.network),
            process_stats=self._processes(pod, reported),
            volume=volumes.ephemeral + volumes.persistent,
            ephemeral_storage=None if node is None else ephemeral_storage(node, containers, volumes.ephemeral, files),
        )

    def _container(self, container: RunningContainer) -> ContainerStats:
        group = self._measured.groups.get(container.id)
        reported = self._facts.containers.get(container.id, _UNREPORTED)
        seen = _UNSEEN if group is None else self._of_group(container.id, group)
        stats = ContainerStats(
            name=container.name,
            start_time=container.created_at,
            cpu=self._first(seen.cpu, self._with_rate(container.id, reported.cpu)),
            memory=self._first(seen.memory, reported.memory),
            swap=self._first(seen.swap, reported.swap),
        )
        if not self._full:
            return stats
        return attrs.evolve(
            stats,
            io=self._first(seen.io, reported.io),
            rootfs=self._layer(reported),
            logs=self._measured.container_logs.get(container.id),
        )

    def _of_group(self, name: str, reading: CgroupReading) -> ContainerStats:
        return stats_of_group(name, reading, self._rate)

    def _first(self, seen: T | None, reported: T | None) -> T | None:
        if self._facts.prefer_runtime:
            seen, reported = reported, seen
        return reported if seen is None else seen

    def _with_rate(self, key: Hashable, reported: CpuStats | None) -> CpuStats | None:
        """The runtime's rate, or one by what it reported before (kubelet: `getAndUpdateContainerUsageNanoCores`)."""
        if reported is None or reported.usage_nano_cores is not None or reported.usage_core_nano_seconds is None:
            return reported
        rate = self._rates.rate(("reported", key), reported.time, reported.usage_core_nano_seconds)
        return attrs.evolve(reported, usage_nano_cores=rate)

    def _rate(self, key: Hashable, at: int, usage: int) -> int | None:
        return self._rates.rate(key, at, usage)

    def _layer(self, reported: ReportedContainer) -> FsStats | None:
        if reported.layer is None:
            return None
        on = self._measured.file_systems.get(reported.layer_path)
        return reported.layer if on is None else _used_of(on, reported.layer)

    def _file_system(self, reported: ImageFileSystem | None) -> FsStats | None:
        if reported is None:
            return None
        used = FsStats(time=reported.time, used_bytes=reported.used_bytes, inodes_used=reported.inodes_used)
        on = self._measured.file_systems.get(reported.path)
        return used if on is None else _used_of(on, used)

    def _processes(self, pod: MeasuredPod, reported: ReportedSandbox) -> ProcessStats | None:
        groups = self._measured.groups
        counts = [len(groups[container.id].pids) for container in pod.containers if container.id in groups]
        count = self._first(sum(counts) if counts else None, reported.processes)
        return None if count is None else ProcessStats(process_count=count)


def stats_of_group(
    name: str, reading: CgroupReading, rate: Callable[[Hashable, int, int], int | None]
) -> ContainerStats:
    """What a group uses, in the summary's form."""
    at, cpu, memory = reading.at, reading.cpu, reading.memory
    return ContainerStats(
        name=name,
        cpu=None
        if cpu is None
        else CpuStats(
            time=at,
            usage_nano_cores=rate(name, at, cpu.usage),
            usage_core_nano_seconds=cpu.usage,
            psi=reading.cpu_pressure,
        ),
        memory=None
        if memory is None
        else MemoryStats(
            time=at,
            available_bytes=memory.available,
            usage_bytes=memory.usage,
            working_set_bytes=memory.working_set,
            rss_bytes=memory.rss,
            page_faults=memory.page_faults,
            major_page_faults=memory.major_page_faults,
            psi=reading.memory_pressure,
        ),
        swap=None
        if memory is None or memory.swap is None
        else SwapStats(time=at, swap_usage_bytes=memory.swap, swap_available_bytes=memory.swap_available),
        io=IoStats(time=at, psi=reading.io_pressure) if reading.has_io else None,
    )


def sum_of_cpu(parts: Iterable[CpuStats | None]) -> CpuStats | None:
    """Of those that are known. Pressure cannot be added up."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return CpuStats(
        time=max(part.time for part in known),
        usage_nano_cores=_sum(part.usage_nano_cores for part in known),
        usage_core_nano_seconds=_sum(part.usage_core_nano_seconds for part in known),
    )


def sum_of_memory(parts: Iterable[MemoryStats | None]) -> MemoryStats | None:
    """Of those that are known; what is available only where every part has a limit."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    limited = all(part.available_bytes is not None for part in known)
    return MemoryStats(
        time=max(part.time for part in known),
        available_bytes=_sum(part.available_bytes for part in known) if limited else None,
        usage_bytes=_sum(part.usage_bytes for part in known),
        working_set_bytes=_sum(part.working_set_bytes for part in known),
        rss_bytes=_sum(part.rss_bytes for part in known),
        page_faults=_sum(part.page_faults for part in known),
        major_page_faults=_sum(part.major_page_faults for part in known),
    )


def sum_of_swap(parts: Iterable[SwapStats | None]) -> SwapStats | None:
    """Of those that are known; what is available only where every part has a limit."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    limited = all(part.swap_available_bytes is not None for part in known)
    return SwapStats(
        time=max(part.time for part in known),
        swap_available_bytes=_sum(part.swap_available_bytes for part in known) if limited else None,
        swap_usage_bytes=_sum(part.swap_usage_bytes for part in known),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    total: int | None = None
    for value in values:
        total = added(total, value)
    return total


def _used_of(on: FsStats, used: FsStats) -> FsStats:
    return attrs.evolve(on, time=used.time, used_bytes=used.used_bytes, inodes_used=used.inodes_used)
