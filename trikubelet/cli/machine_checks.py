"""The checks of the machine itself. Each looks at one thing, changes nothing, and never raises."""

from __future__ import annotations

import ctypes
import enum
import os
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.linux.selinux import RUNTIME_LABEL, ContainerLabels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Level(enum.Enum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@frozen
class CheckResult:
    """One line of the report."""

    level: Level
    subject: str
    finding: str
    fix: str = ""


def ok(subject: str, finding: str) -> CheckResult:
    return CheckResult(Level.OK, subject, finding)


def warn(subject: str, finding: str, fix: str) -> CheckResult:
    return CheckResult(Level.WARN, subject, finding, fix)


def fail(subject: str, finding: str, fix: str) -> CheckResult:
    return CheckResult(Level.FAIL, subject, finding, fix)


@frozen
class Machine:
    """Where the checks look; tests put a folder in the place of `/`."""

    root: Path = Path("/")
    uid: int = attrs.field(factory=os.geteuid)
    python: tuple[int, ...] = sys.version_info[:3]
    kernel: str = attrs.field(factory=platform.release)

    def read(self, path: str) -> str | None:
        """The text of a file, None when it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text().strip()
        except OSError:
            return None

    def has(self, path: str) -> bool:
        return (self.root / path.lstrip("/")).exists()


def check_machine(
    root_dir: Path, *, embedded: bool, fail_cgroup_v1: bool | None = None, machine: Machine | None = None
) -> Iterator[CheckResult]:
    """Every check of the machine, in the order of the report. `fail_cgroup_v1`: see `check_pod_cgroups`."""
    from trikubelet.cli.cgroup_checks import check_pod_cgroups

    here = machine or Machine()
    yield check_python(here)
    yield check_kernel(here)
    yield check_user(here)
    yield check_root_dir(root_dir)
    yield check_cgroups(here)
    yield check_pod_cgroups(here, fail_cgroup_v1)
    yield check_pidfd()
    yield check_inotify(here)
    yield check_swap(here)
    yield check_kernel_settings(here)
    yield check_kernel_log(here)
    if embedded:
        yield check_user_namespaces(here)
        yield check_overlayfs(here)
        yield from check_selinux(here)
    else:
        yield check_cni(here)


def check_python(machine: Machine) -> CheckResult:
    version = ".".join(str(part) for part in machine.python)
    if machine.python >= (3, 11):
        return ok("Python", version)
    return fail("Python", version, "install Python 3.11 or newer")


def check_kernel(machine: Machine) -> CheckResult:
    match = re.match(r"(\d+)\.(\d+)", machine.kernel)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version >= (5, 4):
        return ok("kernel", machine.kernel)
    return fail("kernel", machine.kernel, "use Linux 5.4 or newer (pidfd_open)")


def check_user(machine: Machine) -> CheckResult:
    if machine.uid == 0:
        return ok("user", "root")
    return warn(
        "user",
        f"uid {machine.uid}: containers get one user id and no limits",
        "run as root for full isolation, resource limits and containerd",
    )


def check_root_dir(root_dir: Path) -> CheckResult:
    """The folder, or the nearest one that exists above it, must be ours to write."""
    place = root_dir
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return fail("root folder", f"{place} is no folder", "give another --root-dir")
    if not os.access(place, os.W_OK | os.X_OK):
        return fail("root folder", f"{place} cannot be written", "give another --root-dir, or run as its owner")
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    if free < 2**30:
        return warn(
            "root folder", f"{root_dir}: {free / 2**20:.0f} MiB free", "make room: images and volumes live there"
        )
    return ok("root folder", f"{root_dir}: {free / 2**30:.0f} GiB free")


def check_cgroups(machine: Machine) -> CheckResult:
    if machine.has("/sys/fs/cgroup/cgroup.controllers"):
        controllers = set((machine.read("/sys/fs/cgroup/cgroup.controllers") or "").split())
        missing = sorted({"cpu", "memory", "pids"} - controllers)
        if missing:
            return warn(
                "cgroups", f"v2 without {', '.join(missing)}", "enable these controllers to have limits enforced"
            )
        if refusal_of_a_group(machine.root / "sys/fs/cgroup") is not None:
            return warn("cgroups", "v2, read-only here", "run as root, or with Delegate=yes, to have limits enforced")
        return ok("cgroups", "v2, writable")
    if machine.has("/sys/fs/cgroup/memory"):
        if refusal_of_a_group(machine.root / "sys/fs/cgroup/memory") is None:
            return warn("cgroups", "v1, writable", "boot with systemd.unified_cgroup_hierarchy=1: v1 is on its way out")
        return warn("cgroups", "v1, read-only here", "run as root to have limits enforced")
    return warn("cgroups", "not mounted", "mount -t cgroup2 none /sys/fs/cgroup, to have limits enforced")


def refusal_of_a_group(point: Path) -> str | None:
    """Why no group can be made in a hierarchy; None when one was made, and removed again.

    Only trying tells: root may write a folder by its mode that is mounted read-only, or whose groups have a limit.
    """
    group = point / f"trikubelet-check-{os.getpid()}"
    try:
        group.mkdir()
        group.rmdir()
    except OSError as error:
        return f"no group can be made in {point}: {error.strerror}"
    return None


def check_pidfd() -> CheckResult:
    """The end of a process must wake us."""
    try:
        descriptor = os.pidfd_open(os.getpid())
    except OSError as error:
        fix = "use Linux 5.4 or newer, and a seccomp profile that allows pidfd_open"
        return warn("pidfd", f"{error.strerror}: exits are noticed by polling", fix)
    os.close(descriptor)
    return ok("pidfd", "exits are noticed at once")


def check_inotify(machine: Machine) -> CheckResult:
    from trikubelet.linux.inotify import Inotify

    instances = machine.read("/proc/sys/fs/inotify/max_user_instances") or "?"
    watches = machine.read("/proc/sys/fs/inotify/max_user_watches") or "?"
    try:
        Inotify().close()
    except OSError as error:
        fix = "sysctl fs.inotify.max_user_instances=1024"
        return warn("inotify", f"{error.strerror}: manifests are reread periodically", fix)
    if instances.isdigit() and int(instances) < 64:
        return warn("inotify", f"{instances} instances allowed", "sysctl fs.inotify.max_user_instances=1024")
    return ok("inotify", f"{instances} instances, {watches} watches allowed")


def check_swap(machine: Machine) -> CheckResult:
    devices = (machine.read("/proc/swaps") or "").splitlines()[1:]
    if not devices:
        return ok("swap", "off")
    names = ", ".join(line.split()[0] for line in devices)
    fix = "swapoff -a, or failSwapOn: false in the configuration file: agents that are given a file start only so"
    return warn("swap", f"on ({names})", fix)


def check_kernel_settings(machine: Machine) -> CheckResult:
    from trikubelet.node.start_checks import kernel_settings

    wrong = [setting for setting in kernel_settings(machine.root) if not setting.right]
    if not wrong:
        return ok("kernel settings", "as a node's should be")
    found = ", ".join(f"{one.name} is {'unreadable' if one.found is None else one.found}" for one in wrong)
    settings = " ".join(f"{one.name}={one.expected}" for one in wrong)
    if machine.uid == 0 and all(one.found is not None for one in wrong):
        return ok("kernel settings", f"{found}: the agent will set {settings}, unless protectKernelDefaults is true")
    return warn(
        "kernel settings", found, f"sysctl -w {settings}, as root: the agent relies on them and may not set them"
    )


def check_kernel_log(machine: Machine) -> CheckResult:
    """Opening it is what may be forbidden (`kernel.dmesg_restrict`), whatever the file's mode says."""
    try:
        os.close(os.open(machine.root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        fix = "run as root, with CAP_SYSLOG and the device: no SystemOOM event tells that memory ran out"
        return warn("kernel log", f"/dev/kmsg: {error.strerror}", fix)
    return ok("kernel log", "tells when memory runs out")


_CLONE_NEWUSER: Final = 0x10000000


def check_user_namespaces(machine: Machine, *, allowed: Callable[[], bool] | None = None) -> CheckResult:
    if machine.uid == 0:
        if (allowed or _may_unshare)():
            return ok("namespaces", "containers get PID, mount, UTS and IPC namespaces of their own")
        return warn(
            "namespaces",
            "no user namespaces: descriptors that a container of the embedded runtime leaves to others show, after its "
            "end, what was hidden from it",
            "sysctl user.max_user_namespaces=10000",
        )
    if (allowed or _may_unshare)():
        return ok("namespaces", "user namespaces are allowed: containers are isolated, with one user id")
    return warn(
        "namespaces",
        "user namespaces are not allowed: containers are plain processes, and only localhost/host can be run",
        "sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0, or run as root",
    )


def _may_unshare() -> bool:
    """Whether a child of ours may enter a user namespace of its own; the child does nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.unshare(_CLONE_NEWUSER) == 0 else 1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0


def check_overlayfs(machine: Machine) -> CheckResult:
    filesystems = machine.read("/proc/filesystems") or ""
    if "overlay" in filesystems.split():
        return ok("overlayfs", "images share their layers")
    return warn("overlayfs", "not in this kernel: each container copies its image", "modprobe overlay")


def check_cni(machine: Machine) -> CheckResult:
    folder = machine.root / "etc/cni/net.d"
    configurations = sorted(path.name for path in folder.glob("*.conf*")) if folder.is_dir() else []
    if not configurations:
        fix = "put a network configuration there, or use hostNetwork: true"
        return warn("CNI", "nothing in /etc/cni/net.d: pods get no network", fix)
    if not any((machine.root / place).is_dir() for place in ("opt/cni/bin", "usr/lib/cni")):
        return warn("CNI", f"{configurations[0]}, but no plugins", "apt-get install containernetworking-plugins")
    return ok("CNI", configurations[0])


def check_selinux(machine: Machine) -> Iterator[CheckResult]:
    """Nothing to tell where the kernel has none, or only logs what it would refuse.

    Who may start containers with labels depends on the label of the service, which is not known here.
    """
    if machine.read("/sys/fs/selinux/enforce") != "1":
        return
    if ContainerLabels.read(machine.root).process:
        yield ok("SELinux", f"enforcing: the embedded runtime gives containers labels if it runs as {RUNTIME_LABEL}")
    else:
        yield warn(
            "SELinux",
            "enforcing, but there is no policy for containers, so the embedded runtime gives them no labels: nothing "
            "keeps pods apart by it, and seLinuxOptions are refused",
            f"install container-selinux, and run the agent as {RUNTIME_LABEL} (systemd: SELinuxContext=)",
        )
