"""What the runtime manager is told once, at the start: paths, node facts and the kubelet's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from trikubelet.api import Quantity
from trikubelet.runtime.backoff import CONTAINER_MAXIMUM

_HUGEPAGE_DIRECTORY: Final = re.compile(r"hugepages-(\d+)kB")
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")


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

    @classmethod
    def read(cls, root: Path = Path("/")) -> MachineFacts:
        """Read /proc and /sys below `root`. Raises OSError where there is no /proc."""
        match = re.search(r"^MemTotal:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
        if match is None:
            raise OSError(f"{root / 'proc/meminfo'} has no line MemTotal: cannot tell how much memory there is")
        pages = sorted(
            int(found[1])
            for entry in (root / "sys/kernel/mm").glob("hugepages/*")
            if (found := _HUGEPAGE_DIRECTORY.fullmatch(entry.name)) is not None
        )
        throttle = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle"))
        return cls(
            memory_capacity=int(match[1]) * 1024,
            cgroup_v2=(root / "sys/fs/cgroup/cgroup.controllers").exists(),
            hugepage_sizes=tuple(hugepage_unit(kilobytes * 1024) for kilobytes in pages),
            masked_paths=tuple(f"/{path.relative_to(root)}" for path in throttle),
        )


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
    """The node's addresses, the primary one first."""
    allocatable: Mapping[str, Quantity] = attrs.field(factory=dict)
    """What the node can give to pods: the limit of containers without one, where a variable asks for it."""
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
    ids_per_pod: int = 65_536
    """Users of a pod with a user namespace (userNamespaces.idsPerPod)."""
    swap_behavior: str = "NoSwap"
    """(memorySwap.swapBehavior)"""
    max_container_restart_period: float = CONTAINER_MAXIMUM
    """Seconds (crashLoopBackOff.maxContainerRestartPeriod)."""

    @property
    def seccomp_profile_root(self) -> Path:
        return self.root_dir / "seccomp"

    def pod_directory(self, uid: str) -> Path:
        return self.root_dir / "pods" / uid


def hugepage_unit(size: int) -> str:
    """A page size in bytes as cgroups name it: `64KB`, `2MB`, `1GB`."""
    value, units = float(size), iter(_UNITS)
    unit = next(units)
    while value >= 1024:
        value, unit = value / 1024, next(units)
    return f"{value:g}{unit}"
