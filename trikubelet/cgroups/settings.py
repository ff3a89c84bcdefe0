"""What cgroups are set to: pure arithmetic from pods and reservations to the text of kernel files.

Two steps, so that each can be read alone. First what is wanted, in the units of cgroup v1, which are the ones that the
kubelet and CRI speak (`CgroupSettings`): shares, microseconds, bytes. Then the files of one version, in the order in
which they are to be written. The formulas are the kubelet's (`ResourceConfigForPod`, `getCgroupConfigInternal`,
`UpdateCgroups`, `getCPUWeight`): agents that computed differently would resize each other's pods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import (
    QOS_BEST_EFFORT,
    QOS_BURSTABLE,
    QOS_GUARANTEED,
    Pod,
    Quantity,
    QuantityError,
    is_huge_page_resource,
    is_sidecar,
    pod_limits,
    pod_requests,
    qos_class,
)
from trikubelet.formats.values import frozen
from trikubelet.linux.huge_pages import page_size_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CPU: Final = "cpu"
MEMORY: Final = "memory"
PIDS: Final = "pid"
"""The resource name of processes in reservations (kubelet: `pidlimit.PIDs`)."""
HUGEPAGES_PREFIX: Final = "hugepages-"

NO_QUOTA: Final = -1
NO_LIMIT: Final = -1
MIN_SHARES: Final = 2
MAX_SHARES: Final = 262_144
DEFAULT_PERIOD: Final = 100_000
"""Microseconds."""
MIN_QUOTA: Final = 1000
MAX_QUOTA: Final = 2**44 - 1
"""Microseconds: the kernel refuses more."""
MAX_BYTES: Final = 2**63 - 1
"""What fits into CRI's messages, and the most that a quantity of the kubelet can be."""
MIN_MILLI_CPU_LIMIT: Final = 10
"""Limits of less are all the same quota (kubelet: `MinMilliCPULimit`)."""
UNBOUNDED_HUGEPAGES: Final = 1 << 62
_MAX_WEIGHT: Final = 10_000
_SHARES_PER_CPU: Final = 1024
_ZERO: Final = Quantity()


@frozen
class CgroupSettings:
    """What a cgroup is to be set to. None, and 0 except of huge pages: leave it as it is."""

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    """Microseconds per period; -1 is no quota."""
    cpu_period: int | None = None
    """Microseconds."""
    memory: int | None = None
    """Bytes; -1 is no limit."""
    pids: int | None = None
    cpus: str | None = None
    """Processors as the kernel writes them: `0-3,7`."""
    hugepages: Mapping[int, int] | None = None
    """Bytes by the size of a page in bytes; sizes of the machine that are left out get 0."""
    unified: Mapping[str, str] = attrs.field(factory=dict)
    """Files of cgroup v2 by name, as they are to be written; cgroup v1 has none of them."""


@frozen
class CgroupReading:
    """What a cgroup says of itself; None where its hierarchy lacks the controller."""

    cpu_shares: int | None = None
    """In cgroup v2 computed from the weight: a resolution of about 26."""
    cpu_quota: int | None = None
    """Microseconds per period; -1 is no quota."""
    cpu_period: int | None = None
    memory_limit: int | None = None
    """Bytes; -1 is no limit."""
    memory_usage: int | None = None
    """Bytes, files in the page cache included."""

    @property
    def settings(self) -> CgroupSettings:
        """What would have to be written to make a cgroup like this one."""
        return CgroupSettings(
            cpu_shares=self.cpu_shares, cpu_quota=self.cpu_quota, cpu_period=self.cpu_period, memory=self.memory_limit
        )


@frozen(kw_only=True)
class CgroupOptions:
    """What of the configuration pods' cgroups depend on; the names of the kubelet's settings in brackets."""

    cpu_cfs_quota: bool = True
    """Whether CPU limits are enforced (cpuCFSQuota)."""
    cpu_cfs_quota_period: int = DEFAULT_PERIOD
    """Microseconds (cpuCFSQuotaPeriod)."""
    pod_pids_limit: int = NO_LIMIT
    """Processes of a pod together (podPidsLimit)."""
    memory_qos: bool = False
    """Whether the feature gate MemoryQoS is on and cgroups are v2."""
    tiered_reservation: bool = False
    """Whether requested memory is protected (memoryReservationPolicy: TieredReservation)."""
    qos_reserved_memory: int | None = None
    """Percent of requested memory that lower classes may not touch (qosReserved, feature gate QOSReserved)."""
    hugepage_sizes: tuple[int, ...] = ()
    """Page sizes of the machine, bytes."""
    has_exclusive_cpus: Callable[[Pod], bool] = lambda _pod: False
    """Whether a pod has CPUs of its own: then its group has no quota."""


def pod_settings(pod: Pod, options: CgroupOptions) -> CgroupSettings:
    """What a pod's cgroup is set to; `pod` is the pod as allocated (kubelet: `ResourceConfigForPod`)."""
    requests, limits = pod_requests(pod), pod_limits(pod)
    quality = qos_class(pod)
    shares, quota, memory = MIN_SHARES, None, None
    if quality != QOS_BEST_EFFORT:
        shares = cpu_shares(requests.get(CPU, _ZERO).milli_value())
        if quality == QOS_GUARANTEED or _limited(pod, CPU):
            quota = cpu_quota(limits.get(CPU, _ZERO).milli_value(), options.cpu_cfs_quota_period)
            quota = quota if options.cpu_cfs_quota and not options.has_exclusive_cpus(pod) else NO_QUOTA
        if quality == QOS_GUARANTEED or _limited(pod, MEMORY):
            memory = memory_limit(limits.get(MEMORY, _ZERO))
    unified: dict[str, str] = {}
    requested = requests.get(MEMORY, _ZERO).value()
    if options.memory_qos and options.tiered_reservation and requested > 0:
        unified["memory.min" if quality == QOS_GUARANTEED else "memory.low"] = str(requested)
    return CgroupSettings(
        cpu_shares=shares,
        cpu_quota=quota,
        cpu_period=None if quota is None else options.cpu_cfs_quota_period,
        memory=memory,
        pids=options.pod_pids_limit if options.pod_pids_limit > 0 else None,
        hugepages=hugepage_limits(requests),
        unified=unified,
    )


def _limited(pod: Pod, resource: str) -> bool:
    """Whether a limit holds for everything that the pod runs, so that one for the whole follows from it.

    An init container without one is covered by the limits of the sidecars before it: so the kubelet counts.
    """
    if pod.spec.resources is not None and pod.spec.resources.limits.get(resource):
        return True
    before = False
    for container in pod.spec.init_containers:
        own = bool(container.resources.limits.get(resource))
        if not own and not before:
            return False
        before = before or (own and is_sidecar(container))
    return all(container.resources.limits.get(resource) for container in pod.spec.containers)


@frozen
class PodDemand:
    """What a pod contributes to the settings of its class."""

    quality: str
    cpu: int
    """Requested thousandths of a processor, with overhead."""
    memory: int
    """Requested bytes, with overhead."""


def pod_demand(pod: Pod) -> PodDemand:
    requests = pod_requests(pod)
    return PodDemand(qos_class(pod), requests.get(CPU, _ZERO).milli_value(), requests.get(MEMORY, _ZERO).value())


def qos_settings(
    pods: Iterable[Pod], options: CgroupOptions, *, allocatable_memory: int | None
) -> dict[str, CgroupSettings]:
    """What the three groups of pods are set to, by class; `pods` are the active ones (kubelet: `UpdateCgroups`)."""
    return tier_settings(map(pod_demand, pods), options, allocatable_memory=allocatable_memory)


def tier_settings(
    demands: Iterable[PodDemand], options: CgroupOptions, *, allocatable_memory: int | None
) -> dict[str, CgroupSettings]:
    """`qos_settings` of demands that are known already. `allocatable_memory`: bytes, None or 0 where unknown.

    The group of the Guaranteed class is that of all pods; its limits are the node's and come from `node_settings`.
    """
    cpu = 0
    memory = {QOS_GUARANTEED: 0, QOS_BURSTABLE: 0, QOS_BEST_EFFORT: 0}
    for demand in demands:
        memory[demand.quality] += demand.memory
        cpu += demand.cpu if demand.quality == QOS_BURSTABLE else 0
    guaranteed, burstable = memory[QOS_GUARANTEED], memory[QOS_BURSTABLE]
    unified: dict[str, dict[str, str]] = {QOS_GUARANTEED: {}, QOS_BURSTABLE: {}}
    if options.memory_qos:
        reserved = (guaranteed + burstable, burstable) if options.tiered_reservation else (0, 0)
        unified = {
            QOS_GUARANTEED: {"memory.min": str(reserved[0])},
            QOS_BURSTABLE: {"memory.low": str(reserved[1])},
        }
    limits: tuple[int | None, int | None] = (None, None)
    if options.qos_reserved_memory is not None and allocatable_memory:
        for_burstable = allocatable_memory - guaranteed * options.qos_reserved_memory // 100
        for_best_effort = for_burstable - burstable * options.qos_reserved_memory // 100
        limits = (max(for_burstable, 0), max(for_best_effort, 0))
    unbounded = dict.fromkeys(options.hugepage_sizes, UNBOUNDED_HUGEPAGES)
    return {
        QOS_GUARANTEED: CgroupSettings(unified=unified[QOS_GUARANTEED]),
        QOS_BURSTABLE: CgroupSettings(
            cpu_shares=cpu_shares(cpu), memory=limits[0], hugepages=unbounded, unified=unified[QOS_BURSTABLE]
        ),
        QOS_BEST_EFFORT: CgroupSettings(cpu_shares=MIN_SHARES, memory=limits[1], hugepages=unbounded),
    }


def node_settings(amounts: Mapping[str, Quantity], *, compressible: bool, cpus: str | None) -> CgroupSettings:
    """Limits of all pods together, or of what is reserved; `compressible`: only limits that slow down and never
    kill."""
    shares = cpu_shares(amounts[CPU].milli_value()) if CPU in amounts else None
    if compressible:
        return CgroupSettings(cpu_shares=shares, cpus=cpus)
    return CgroupSettings(
        cpu_shares=shares,
        memory=amounts[MEMORY].value() if MEMORY in amounts else None,
        pids=amounts[PIDS].value() if PIDS in amounts else None,
        cpus=cpus,
        hugepages=hugepage_limits(amounts),
    )


def hugepage_limits(amounts: Mapping[str, Quantity]) -> dict[int, int]:
    """Bytes by page size of `hugepages-2Mi: 4Mi` (kubelet: `HugePageLimits`); two ways to write one size add up."""
    limits: dict[int, int] = {}
    for name, amount in amounts.items():
        if not is_huge_page_resource(name):
            continue
        try:
            size = Quantity(name.removeprefix(HUGEPAGES_PREFIX)).value()
        except QuantityError:
            continue
        limits[size] = limits.get(size, 0) + amount.value()
    return limits


def merged(a: CgroupSettings, b: CgroupSettings) -> CgroupSettings:
    """`a`, with what `b` says in its place (kubelet: `mergeResourceConfig`)."""
    hugepages = a.hugepages if b.hugepages is None else {**(a.hugepages or {}), **b.hugepages}
    return CgroupSettings(
        cpu_shares=a.cpu_shares if b.cpu_shares is None else b.cpu_shares,
        cpu_quota=a.cpu_quota if b.cpu_quota is None else b.cpu_quota,
        cpu_period=a.cpu_period if b.cpu_period is None else b.cpu_period,
        memory=a.memory if b.memory is None else b.memory,
        pids=a.pids if b.pids is None else b.pids,
        cpus=a.cpus if b.cpus is None else b.cpus,
        hugepages=hugepages,
        unified={**a.unified, **b.unified},
    )


def without_overhead(settings: CgroupSettings, pod: Pod) -> CgroupSettings:
    """What is left for the containers of a pod (kubelet: `subtractOverheadFromResourceConfig`).

    No quota and no limit stay what they are, where the kubelet subtracts from -1.
    """
    cpu, memory = pod.spec.overhead.get(CPU), pod.spec.overhead.get(MEMORY)
    shares, quota, limit = settings.cpu_shares, settings.cpu_quota, settings.memory
    if cpu is not None:
        if settings.cpu_period is not None and quota is not None and quota != NO_QUOTA:
            quota -= cpu_quota(cpu.milli_value(), settings.cpu_period)
        if shares is not None:
            shares = cpu_shares(milli_of_shares(shares) - cpu.milli_value())
    if memory is not None and limit is not None and limit != NO_LIMIT:
        limit -= memory.value()
    return attrs.evolve(settings, cpu_shares=shares, cpu_quota=quota, memory=limit)


def cpu_shares(milli_cpu: int) -> int:
    """Weight among neighbours of so many thousandths of a processor (kubelet: `MilliCPUToShares`)."""
    if milli_cpu == 0:
        return MIN_SHARES
    return min(max(milli_cpu * _SHARES_PER_CPU // 1000, MIN_SHARES), MAX_SHARES)


def milli_of_shares(shares: int) -> int:
    """Thousandths of a processor, rounded up (kubelet: `SharesToMilliCPU`)."""
    return -(-shares * 1000 // _SHARES_PER_CPU) if shares >= MIN_SHARES else 0


def cpu_quota(milli_cpu: int, period: int) -> int:
    """Microseconds of CPU time per period; 0 for 0, which leaves a quota as it is (kubelet: `MilliCPUToQuota`)."""
    return min(max(milli_cpu * period // 1000, MIN_QUOTA), MAX_QUOTA) if milli_cpu else 0


def memory_limit(amount: Quantity) -> int:
    """Bytes; 0 for 0, which leaves a limit as it is."""
    return min(amount.value(), MAX_BYTES)


def milli_of_quota(quota: int, period: int) -> int:
    """Thousandths of a processor; 0 is no limit (kubelet: `QuotaToMilliCPU`)."""
    return 0 if quota == NO_QUOTA else quota * 1000 // period


def cpu_weight(shares: int) -> int:
    """Shares of cgroup v1 as a weight of v2 (KEP-2254)."""
    return _MAX_WEIGHT if shares >= MAX_SHARES else 1 + (max(shares, MIN_SHARES) - 2) * 9999 // 262_142


def shares_of_weight(weight: int) -> int:
    """Back; a round trip gives at most as many shares as there were."""
    return (weight - 1) * 262_142 // 9999 + 2


def v1_files(settings: CgroupSettings, page_sizes: Sequence[int]) -> list[tuple[str, str, str]]:
    """(controller, file, text) in the order in which they are to be written. `page_sizes`: bytes."""
    wanted: list[tuple[str, str, int | None]] = [
        ("cpu", "cpu.shares", settings.cpu_shares),
        ("cpu", "cpu.cfs_period_us", settings.cpu_period),
        ("cpu", "cpu.cfs_quota_us", settings.cpu_quota),
        ("memory", "memory.limit_in_bytes", settings.memory),
    ]
    files = [(controller, name, str(value)) for controller, name, value in wanted if value]
    if settings.pids:
        files.append(("pids", "pids.max", str(settings.pids) if settings.pids > 0 else "max"))
    if settings.cpus:
        files.append(("cpuset", "cpuset.cpus", settings.cpus))
    for size, limit in _hugepages(settings, page_sizes):
        files.append(("hugetlb", f"hugetlb.{size}.limit_in_bytes", str(limit)))
        files.append(("hugetlb", f"hugetlb.{size}.rsvd.limit_in_bytes", str(limit)))
    return files


def v2_files(settings: CgroupSettings, page_sizes: Sequence[int]) -> list[tuple[str, str]]:
    """(file, text) in the order in which they are to be written. `page_sizes`: bytes."""
    files: list[tuple[str, str]] = []
    if settings.cpu_shares:
        files.append(("cpu.weight", str(cpu_weight(settings.cpu_shares))))
    if settings.cpu_quota or settings.cpu_period:
        quota = settings.cpu_quota if (settings.cpu_quota or 0) > 0 else "max"
        files.append(("cpu.max", f"{quota} {settings.cpu_period or DEFAULT_PERIOD}"))
    for name, limit in (("memory.max", settings.memory), ("pids.max", settings.pids)):
        if limit:
            files.append((name, str(limit) if limit > 0 else "max"))
    if settings.cpus:
        files.append(("cpuset.cpus", settings.cpus))
    for size, amount in _hugepages(settings, page_sizes):
        files.append((f"hugetlb.{size}.max", str(amount)))
        files.append((f"hugetlb.{size}.rsvd.max", str(amount)))
    return [*files, *settings.unified.items()]


def _hugepages(settings: CgroupSettings, page_sizes: Sequence[int]) -> list[tuple[str, int]]:
    if settings.hugepages is None:
        return []
    return [(page_size_name(size), settings.hugepages.get(size, 0)) for size in page_sizes]
