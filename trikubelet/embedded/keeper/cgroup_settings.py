"""Which files of cgroups say what CRI's LinuxContainerResources say; 0 and missing fields mean unchanged."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def v1_settings(resources: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Controllers, files and values."""
    settings: list[tuple[str, str, str]] = []
    for controller, name, field in (
        ("cpu", "cpu.shares", "cpu_shares"),
        ("cpu", "cpu.cfs_period_us", "cpu_period"),
        ("cpu", "cpu.cfs_quota_us", "cpu_quota"),
        ("memory", "memory.limit_in_bytes", "memory_limit_in_bytes"),
        ("memory", "memory.memsw.limit_in_bytes", "memory_swap_limit_in_bytes"),
        ("cpuset", "cpuset.cpus", "cpuset_cpus"),
        ("cpuset", "cpuset.mems", "cpuset_mems"),
    ):
        value = resources.get(field)
        if value:
            settings.append((controller, name, str(value)))
    for size, limit in (resources.get("hugepage_limits") or {}).items():
        settings.append(("hugetlb", f"hugetlb.{size}.limit_in_bytes", str(limit)))
    return settings


def v2_settings(resources: dict[str, Any]) -> list[tuple[str, str]]:
    """Files and values."""
    settings: list[tuple[str, str]] = []
    shares, quota = resources.get("cpu_shares"), resources.get("cpu_quota")
    if shares:
        settings.append(("cpu.weight", str(1 + (min(max(shares, 2), 262144) - 2) * 9999 // 262142)))
    if quota:
        settings.append(("cpu.max", f"{quota if quota > 0 else 'max'} {resources.get('cpu_period') or 100000}"))
    limit, with_swap = resources.get("memory_limit_in_bytes"), resources.get("memory_swap_limit_in_bytes")
    if limit:
        settings.append(("memory.max", str(limit) if limit > 0 else "max"))
    if limit and limit > 0 and with_swap:
        settings.append(("memory.swap.max", str(max(0, with_swap - limit)) if with_swap > 0 else "max"))
    for name, field in (("cpuset.cpus", "cpuset_cpus"), ("cpuset.mems", "cpuset_mems")):
        if resources.get(field):
            settings.append((name, resources[field]))
    for size, huge in (resources.get("hugepage_limits") or {}).items():
        settings.append((f"hugetlb.{size}.max", str(huge)))
    settings += [(name, value) for name, value in (resources.get("unified") or {}).items() if "/" not in name]
    return settings
