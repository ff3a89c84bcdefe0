"""Whether the agent can run on the machine's cgroups, and what to report of them (kubelet: `warnCgroupV1Usage` and
others).

cgroup v1 is on its way out: the kubelet refuses it unless `failCgroupV1` is false, and then warns. What is found is
told as values, so that the caller decides about refusing, events and log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from trikubelet.cgroups.hierarchy import MOUNT_POINT, Hierarchies, parse_hierarchies
from trikubelet.formats.values import frozen
from trikubelet.linux.huge_pages import page_sizes

CGROUP_V1_EVENT: Final = "CgroupV1"
"""Reason of the node's warning."""
CGROUP_V1_WARNING: Final = (
    "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. "
    "Please migrate to cgroup v2. More information at "
    "https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"
)
CGROUP_V1_REFUSED: Final = (
    "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed "
    "in a future release"
)
KERNEL_WARNING: Final = (
    "cgroup v2 is being used on a kernel, which doesn't support root `cpu.stat`. "
    "Kubelet will continue, but may experience instability or wrong behavior"
)
SINGLE_OOM_KILL_REFUSED: Final = (
    "invalid configuration: singleProcessOOMKill must not be explicitly set to false when using cgroup v1"
)


@frozen
class CgroupFindings:
    """What a start makes of the hierarchies."""

    problem: str | None = None
    """Why the agent cannot start."""
    event: str | None = None
    """Message of a warning of the node, reason `CGROUP_V1_EVENT`; for the log too."""
    warning: str | None = None
    """For the log alone."""


def read_hierarchies(root: Path = Path("/")) -> Hierarchies:
    """The machine's hierarchies. Small files of /proc and /sys below `root`; raises OSError where there is no /proc."""
    at = root / MOUNT_POINT.lstrip("/")
    unified = (at / "cgroup.controllers").exists()
    found = parse_hierarchies((root / "proc/self/mountinfo").read_text(), version=2 if unified else 1)
    if unified:
        limited = "hugetlb" in (at / "cgroup.controllers").read_text().split()
        return Hierarchies(2, {}, at, page_sizes(root) if limited else ())
    return attrs.evolve(found, page_sizes=page_sizes(root) if "hugetlb" in found.controllers else ())


def online_cpus(root: Path = Path("/")) -> str | None:
    """The machine's processors as the kernel writes them (`0-3`), None where it does not tell."""
    try:
        return (root / "sys/devices/system/cpu/online").read_text().strip() or None
    except OSError:
        return None


def max_processes(root: Path = Path("/")) -> int | None:
    """How many processes the machine can have (kubelet: `pidlimit.Stats`), None where it does not tell."""
    found: list[int] = []
    for name in ("pid_max", "threads-max"):
        try:
            found.append(int((root / "proc/sys/kernel" / name).read_text()))
        except (OSError, ValueError):
            continue
    return min(found, default=None)


def examine(
    hierarchies: Hierarchies, *, fail_cgroup_v1: bool, single_process_oom_kill: bool | None = None
) -> CgroupFindings:
    """Judge what is mounted. `single_process_oom_kill`: None where the configuration does not say. Reads one file."""
    if hierarchies.version == 2:
        stat = None if hierarchies.unified is None else hierarchies.unified / "cpu.stat"
        return CgroupFindings(warning=None if stat is None or stat.exists() else KERNEL_WARNING)
    if fail_cgroup_v1:
        return CgroupFindings(problem=CGROUP_V1_REFUSED)
    if single_process_oom_kill is False:
        return CgroupFindings(problem=SINGLE_OOM_KILL_REFUSED)
    if hierarchies.lacking:
        return CgroupFindings(
            problem="system validation failed - Following Cgroup subsystem not mounted: "
            f"[{' '.join(hierarchies.lacking)}]"
        )
    return CgroupFindings(event=CGROUP_V1_WARNING)
