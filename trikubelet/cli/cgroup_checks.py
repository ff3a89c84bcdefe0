"""What of pods' cgroups works on this machine (`trikubelet.agent.resources`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.cli.machine_checks import fail, ok, refusal_of_a_group, warn

if TYPE_CHECKING:
    from trikubelet.cgroups.hierarchy import Hierarchies
    from trikubelet.cli.machine_checks import CheckResult, Machine

SUBJECT: Final = "pods' cgroups"
WITHOUT: Final = "pods run without cgroups of their own"
_LIMITS: Final = {
    "cpu": "CPU",
    "memory": "memory",
    "pids": "processes",
    "hugetlb": "huge pages",
}


def check_pod_cgroups(machine: Machine, fail_cgroup_v1: bool | None = None) -> CheckResult:
    """Whether pods can have groups, what these limit, and with which driver.

    `fail_cgroup_v1`: None without a configuration file, where an agent goes without groups instead.
    """
    from trikubelet.cgroups.version import CGROUP_V1_REFUSED, examine, read_hierarchies

    try:
        hierarchies = read_hierarchies(machine.root)
    except OSError as error:
        return warn(SUBJECT, f"{WITHOUT}: {error}", "mount /proc and /sys/fs/cgroup")
    if hierarchies.version == 1 and fail_cgroup_v1:
        return fail(SUBJECT, CGROUP_V1_REFUSED, "set failCgroupV1: false in the configuration, or boot with cgroup v2")
    problem = examine(hierarchies, fail_cgroup_v1=False).problem
    if problem is not None:
        return warn(SUBJECT, f"{WITHOUT}: {problem}", "mount these hierarchies, or boot with cgroup v2")
    problems = [why for point in hierarchies.mount_points if (why := refusal_of_a_group(point)) is not None]
    if problems:
        return warn(SUBJECT, f"{WITHOUT}: {'; '.join(problems)}", "run as root, with hierarchies mounted rw")
    limited = _limited(hierarchies)
    drivers = "cgroupfs or systemd" if machine.has("/run/systemd/system") else "cgroupfs, as systemd does not run here"
    finding = f"kubepods can be made; limits of {', '.join(limited)}; driver {drivers}"
    lacking = [what for what in _LIMITS.values() if what not in limited and what != "huge pages"]
    if lacking:
        return warn(SUBJECT, f"{finding}; none of {', '.join(lacking)}", "turn these controllers on")
    if hierarchies.version == 1 and fail_cgroup_v1 is None:
        return warn(
            SUBJECT, f"{finding}; with a configuration file v1 is refused", "set failCgroupV1: false, or boot with v2"
        )
    return ok(SUBJECT, finding)


def _limited(hierarchies: Hierarchies) -> list[str]:
    """What can be limited, in words."""
    if hierarchies.version == 1:
        there = set(hierarchies.controllers)
    else:
        there = set((Path(str(hierarchies.unified)) / "cgroup.controllers").read_text().split())
    return [what for controller, what in _LIMITS.items() if controller in there]
