"""The settings of the runtime manager, which are fixed at the start: paths, node facts, the kubelet's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import attrs

from trikubelet.api import Container, Pod, Quantity
from trikubelet.formats.values import frozen
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.runtime.backoff import CONTAINER_INITIAL, CONTAINER_MAXIMUM

DEFAULT_IDS_PER_POD: Final = 65_536


class NodeValues(Protocol):
    """Facts of the node that pods see. They may change while the agent runs: in a cluster the node object has them."""

    def host_ips(self) -> tuple[str, ...]:
        """The node's addresses, the primary one first: one, or one of each family."""
        ...

    def allocatable(self) -> Mapping[str, Quantity]:
        """The node's allocatable resources: the limit of containers without one, where a variable asks for it."""
        ...


@frozen
class FixedNodeValues:
    """The facts of a node without a cluster, which do not change."""

    addresses: tuple[str, ...] = ()
    resources: Mapping[str, Quantity] = attrs.field(factory=dict)

    def host_ips(self) -> tuple[str, ...]:
        return self.addresses

    def allocatable(self) -> Mapping[str, Quantity]:
        return self.resources


@frozen
class IDRange:
    """User and group ids of the node, for pods with user namespaces."""

    first: int
    length: int


@frozen
class RuntimeOptions:
    """Settings of the runtime manager; the names of the kubelet's settings in brackets."""

    root_dir: Path
    """Pods' files are below `<root_dir>/pods/<uid>` (--root-dir)."""
    machine: MachineFacts
    owner: str = ""
    """The mark on sandboxes and containers (`cgroups.ownership`); empty: they get none."""
    alone: bool = False
    """True without a cluster."""
    pod_logs_dir: Path = Path("/var/log/pods")
    """(podLogsDir)"""
    earlier_logs_dir: Path | None = None
    """Log folder of an older version of this agent. The logs of pods that have a folder there stay there."""
    legacy_log_symlinks_dir: Path | None = None
    """Where log collectors look for containers' logs, /var/log/containers. None: make no links."""
    node_name: str = ""
    host_ips: tuple[str, ...] = ()
    """The node's addresses, the primary one first; for a node without a cluster."""
    ipv6_first: bool = False
    """Whether `--node-ip` is of that family, so that pods' first address is."""
    allocatable: Mapping[str, Quantity] = attrs.field(factory=dict)
    """The node's allocatable resources; likewise."""
    cluster_domain: str = ""
    """(clusterDomain)"""
    cluster_dns: tuple[str, ...] | None = ()
    """(clusterDNS) None: there is no cluster whose names pods could miss."""
    resolver_config: Path | None = Path("/etc/resolv.conf")
    """(resolvConf)"""
    cpu_cfs_quota: bool = True
    """(cpuCFSQuota)"""
    cpu_cfs_quota_period: int = 100_000
    """Microseconds (cpuCFSQuotaPeriod)."""
    has_exclusive_cpus: Callable[[Pod, Container | None], bool] = lambda _pod, _container: False
    """Whether a container, or a pod where it is None, has CPUs of its own: then it has no quota."""
    single_process_oom_kill: bool = False
    """(singleProcessOOMKill)"""
    seccomp_default: bool = False
    """(seccompDefault)"""
    calls_at_once: int = 8
    """Calls that make sandboxes and containers that the runtime gets at a time, and as many that stop sandboxes."""
    serialize_image_pulls: bool = True
    """(serializeImagePulls)"""
    max_parallel_image_pulls: int | None = None
    """(maxParallelImagePulls)"""
    registry_pull_qps: int = 5
    """Pulls a second, 0 for any number (registryPullQPS)."""
    registry_burst: int = 10
    """(registryBurst)"""
    credential_verification_policy: str = "NeverVerifyPreloadedImages"
    """(imagePullCredentialsVerificationPolicy)"""
    preloaded_images_allowlist: tuple[str, ...] = ()
    """(preloadedImagesVerificationAllowlist)"""
    allowed_unsafe_sysctls: tuple[str, ...] = ()
    """Names, or prefixes with a `*` (allowedUnsafeSysctls)."""
    ids_per_pod: int = DEFAULT_IDS_PER_POD
    """Users of a pod with a user namespace (userNamespaces.idsPerPod)."""
    user_ids: IDRange | None = None
    """The ids that pods with user namespaces share (`id_range_of_node`). None: all but those below `ids_per_pod`."""
    max_pods: int = 110
    """Pods that there must be user ids for (maxPods)."""
    swap_behavior: str = "NoSwap"
    """(memorySwap.swapBehavior)"""
    memory_qos: bool = False
    """Whether memory is protected and throttled, on cgroup v2 (feature gate MemoryQoS)."""
    memory_throttling_factor: float = 0.9
    """(memoryThrottlingFactor)"""
    memory_reservation_policy: str = "None"
    """(memoryReservationPolicy)"""
    allocatable_memory: int = 0
    """Bytes of the machine that are not reserved (kubelet: `GetNodeAllocatableAbsolute`); 0 where unknown."""
    min_container_restart_period: float = CONTAINER_INITIAL
    max_container_restart_period: float = CONTAINER_MAXIMUM
    """Seconds (crashLoopBackOff.maxContainerRestartPeriod)."""

    @property
    def fixed_node(self) -> FixedNodeValues:
        return FixedNodeValues(self.host_ips, self.allocatable)

    @property
    def seccomp_profile_root(self) -> Path:
        return self.root_dir / "seccomp"

    def pod_directory(self, uid: str) -> Path:
        return self.root_dir / "pods" / uid
