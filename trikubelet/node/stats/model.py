"""The summary as values (k8s.io/kubelet/pkg/apis/stats/v1alpha1): what is None is not known, and not on the wire.

Times are nanoseconds since 1970, sizes bytes. `wire.py` derives the names on the wire from the names here.
"""

from __future__ import annotations

from trikubelet.formats.values import frozen


@frozen(kw_only=True)
class PsiData:
    """How long tasks waited. `total` is in microseconds, as the kernel gives it and the kubelet passes it on."""

    total: int = 0
    avg10: float = 0.0
    """Percent of the last ten seconds."""
    avg60: float = 0.0
    avg300: float = 0.0


@frozen(kw_only=True)
class PsiStats:
    """Pressure on one resource (KEP-4205): all tasks waited, or some."""

    full: PsiData = PsiData()
    some: PsiData = PsiData()


@frozen(kw_only=True)
class CpuStats:
    """`usage_nano_cores`: billionths of a core, over some seconds before `time`."""

    time: int
    usage_nano_cores: int | None = None
    usage_core_nano_seconds: int | None = None
    psi: PsiStats | None = None


@frozen(kw_only=True)
class MemoryStats:
    """`available_bytes` is the limit less the working set, None without a limit."""

    time: int
    available_bytes: int | None = None
    usage_bytes: int | None = None
    working_set_bytes: int | None = None
    rss_bytes: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    psi: PsiStats | None = None


@frozen(kw_only=True)
class SwapStats:
    """`swap_available_bytes` is the limit less the usage, None without a limit."""

    time: int
    swap_available_bytes: int | None = None
    swap_usage_bytes: int | None = None


@frozen(kw_only=True)
class IoStats:
    """Pressure on input and output."""

    time: int
    psi: PsiStats | None = None


@frozen(kw_only=True)
class InterfaceStats:
    """Counters of one network interface."""

    name: str = ""
    rx_bytes: int | None = None
    rx_errors: int | None = None
    tx_bytes: int | None = None
    tx_errors: int | None = None


@frozen(kw_only=True)
class NetworkStats(InterfaceStats):
    """The counters of the default interface, and those of all."""

    time: int
    interfaces: tuple[InterfaceStats, ...] = ()


@frozen(kw_only=True)
class FsStats:
    """Of a file system, and what somebody uses of it."""

    time: int | None = None
    available_bytes: int | None = None
    capacity_bytes: int | None = None
    used_bytes: int | None = None
    inodes_free: int | None = None
    inodes: int | None = None
    inodes_used: int | None = None


@frozen(kw_only=True)
class PvcRef:
    """The claim behind a volume."""

    name: str
    namespace: str


@frozen(kw_only=True)
class VolumeStats(FsStats):
    """One volume of a pod, by its name there."""

    name: str
    pvc_ref: PvcRef | None = None


@frozen(kw_only=True)
class ContainerStats:
    """One container, or a group of the node's daemons."""

    name: str
    start_time: int | None = None
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    rootfs: FsStats | None = None
    logs: FsStats | None = None
    swap: SwapStats | None = None


@frozen(kw_only=True)
class PodRef:
    """Which pod."""

    name: str
    namespace: str
    uid: str


@frozen(kw_only=True)
class ProcessStats:
    """Processes of a pod's containers."""

    process_count: int | None = None


@frozen(kw_only=True)
class PodStats:
    """One pod. `start_time` is when its sandbox was made."""

    pod_ref: PodRef
    start_time: int | None = None
    containers: tuple[ContainerStats, ...] = ()
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    network: NetworkStats | None = None
    volume: tuple[VolumeStats, ...] = ()
    ephemeral_storage: FsStats | None = None
    process_stats: ProcessStats | None = None
    swap: SwapStats | None = None


@frozen(kw_only=True)
class RuntimeStats:
    """The file systems of images and of what containers write."""

    image_fs: FsStats | None = None
    container_fs: FsStats | None = None


@frozen(kw_only=True)
class RlimitStats:
    """How many tasks the machine may have, and has."""

    time: int
    maxpid: int | None = None
    curproc: int | None = None


@frozen(kw_only=True)
class NodeStats:
    """The machine. `start_time` is when it was booted."""

    node_name: str
    system_containers: tuple[ContainerStats, ...] = ()
    start_time: int | None = None
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    network: NetworkStats | None = None
    fs: FsStats | None = None
    runtime: RuntimeStats | None = None
    rlimit: RlimitStats | None = None
    swap: SwapStats | None = None


@frozen(kw_only=True)
class Summary:
    """Everything. `problems` says what could not be found out and why; it is not on the wire."""

    node: NodeStats
    pods: tuple[PodStats, ...] = ()
    problems: tuple[str, ...] = ()
