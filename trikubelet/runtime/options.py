"""What the runtime manager is told once, at the start: paths, node facts and the kubelet's settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import attrs

from trikubelet.api import Quantity
from trikubelet.huge_pages import page_size_name, page_sizes
from trikubelet.runtime.backoff import CONTAINER_MAXIMUM

DEFAULT_IDS_PER_POD: Final = 65_536


@attrs.frozen
class MachineFacts:
    """What containers' settings depend on and no configuration file says."""

    memory_capacity: int
    """Bytes."""
    cgroup_v2: bool = True
    hugepage_sizes: tuple[str, ...] = ()
    """As the CRI writes them: `2MB`, `1GB`."""
    masked_paths: tuple[str, ...] = ()
    """Paths of this machine that containers must not see, beyond those that no machine shows."""
    swap_capacity: int = 0
    """Bytes."""
    swap_controller: bool = False
    """Whether the kernel counts swap per cgroup."""
    selinux: bool = False
    """Whether SELinux is on: files that containers mount may need a label."""
    apparmor: bool = False
    kernel: tuple[int, ...] = ()
    """Major and minor version; empty when it cannot be told."""

    @classmethod
    def read(cls, root: Path = Path("/")) -> MachineFacts:
        """Read /proc and /sys below `root`. Raises OSError where there is no /proc."""
        memory = _memory_lines(root)
        if "MemTotal" not in memory:
            raise OSError(f"{root / 'proc/meminfo'} has no line MemTotal: cannot tell how much memory there is")
        cgroup_v2 = (root / "sys/fs/cgroup/cgroup.controllers").exists()
        throttle = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle"))
        return cls(
            memory_capacity=memory["MemTotal"],
            cgroup_v2=cgroup_v2,
            hugepage_sizes=tuple(map(page_size_name, page_sizes(root))),
            masked_paths=tuple(f"/{path.relative_to(root)}" for path in throttle),
            swap_capacity=memory.get("SwapTotal", 0),
            swap_controller=_counts_swap(root, cgroup_v2=cgroup_v2),
            # Read-only, as in a container, it is not ours to use.
            selinux=os.access(root / "sys/fs/selinux/enforce", os.W_OK)
            and _line(root / "proc/self/attr/current").rstrip("\0") != "kernel",
            apparmor=(root / "sys/kernel/security/apparmor").exists()
            and _line(root / "sys/module/apparmor/parameters/enabled").startswith("Y"),
            kernel=_kernel_version(_line(root / "proc/sys/kernel/osrelease")),
        )


class NodeValues(Protocol):
    """What pods are told of the node. It may change while the agent runs: in a cluster the node object says it."""

    def host_ips(self) -> tuple[str, ...]:
        """The node's addresses, the primary one first: one, or one of each family."""
        ...

    def allocatable(self) -> Mapping[str, Quantity]:
        """What the node can give to pods: the limit of containers without one, where a variable asks for it."""
        ...


@attrs.frozen
class FixedNodeValues:
    """A node that no cluster knows: it is what it was at the start."""

    addresses: tuple[str, ...] = ()
    resources: Mapping[str, Quantity] = attrs.field(factory=dict)

    def host_ips(self) -> tuple[str, ...]:
        return self.addresses

    def allocatable(self) -> Mapping[str, Quantity]:
        return self.resources


@attrs.frozen
class IDRange:
    """User and group ids of the node, for pods with user namespaces."""

    first: int
    length: int


@attrs.frozen
class RuntimeOptions:
    """Settings of the runtime manager; the names of the kubelet's settings in brackets."""

    root_dir: Path
    """Pods' files are below `<root_dir>/pods/<uid>` (--root-dir)."""
    machine: MachineFacts
    pod_logs_dir: Path = Path("/var/log/pods")
    """(podLogsDir)"""
    legacy_log_symlinks_dir: Path | None = None
    """Where log collectors look for containers' logs, /var/log/containers. None: make no links."""
    node_name: str = ""
    host_ips: tuple[str, ...] = ()
    """The node's addresses, the primary one first; of a node that nobody else tells more of."""
    allocatable: Mapping[str, Quantity] = attrs.field(factory=dict)
    """Likewise, what the node can give to pods."""
    cluster_domain: str = ""
    """(clusterDomain)"""
    cluster_dns: tuple[str, ...] = ()
    """(clusterDNS)"""
    resolver_config: Path | None = Path("/etc/resolv.conf")
    """(resolvConf)"""
    cpu_cfs_quota: bool = True
    """(cpuCFSQuota)"""
    cpu_cfs_quota_period: int = 100_000
    """Microseconds (cpuCFSQuotaPeriod)."""
    single_process_oom_kill: bool = False
    """(singleProcessOOMKill)"""
    seccomp_default: bool = False
    """(seccompDefault)"""
    starts_at_once: int = 8
    """Calls that make sandboxes and containers that the runtime gets at a time."""
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


def _memory_lines(root: Path) -> dict[str, int]:
    """Bytes by name. Raises OSError."""
    text = (root / "proc/meminfo").read_text()
    return {name: int(kilobytes) * 1024 for name, kilobytes in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}


def _counts_swap(root: Path, *, cgroup_v2: bool) -> bool:
    """Whether there is a limit for swap. The root cgroup of v2 never has one: ours tells (kubelet's check)."""
    if not cgroup_v2:
        return (root / "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists()
    own = re.search(r"^0::/(.*)", _text(root / "proc/self/cgroup"), re.MULTILINE)
    return own is not None and (root / "sys/fs/cgroup" / own[1] / "memory.swap.max").exists()


def _kernel_version(release: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return () if match is None else (int(match[1]), int(match[2]))


def _line(path: Path) -> str:
    return _text(path).strip()


def _text(path: Path) -> str:
    """Empty where there is no such file, or nothing may be read from it."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
