"""The checks of what volumes need of the machine: permissions, a mount option, programs.

Nothing here is needed by every pod. What is missing costs some kind of volume, which the finding names.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.cli.machine_checks import CheckResult, Machine, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CAP_SYS_ADMIN: Final = 21
_NOSWAP_SINCE: Final = (6, 4)
_HELPERS: Final = ("sbin", "usr/sbin")
"""Where mount(8) looks for its helpers."""
_PROGRAMS: Final = ("usr/sbin", "sbin", "usr/bin", "bin")
_TOOLS: Final[Mapping[str, str]] = {
    "blkid": "util-linux",
    "losetup": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "fsck": "util-linux",
    "resize2fs": "e2fsprogs",
}
"""Programs for local volumes on devices, and the packages that have them."""


def check_volumes(root_dir: Path, machine: Machine | None = None) -> Iterator[CheckResult]:
    """In the order of the report."""
    here = machine or Machine()
    yield check_memory_volumes(here)
    yield check_mount_propagation(here, root_dir)
    yield check_nfs(here)
    yield check_device_tools(here)


def check_memory_volumes(machine: Machine) -> CheckResult:
    """Whether secrets and tokens stay out of what survives them."""
    subject = "secret volumes"
    if not _may_mount(machine):
        return warn(
            subject,
            "no permission to mount a tmpfs: secrets and tokens of pods are kept on disk, and removed with the pod",
            "run as root, or with CAP_SYS_ADMIN",
        )
    devices = (machine.read("/proc/swaps") or "").splitlines()[1:]
    if not devices:
        return ok(subject, "in memory")
    if _kernel(machine) >= _NOSWAP_SINCE and not _in_user_namespace(machine):
        return ok(subject, "in memory, and never in swap")
    return warn(
        subject,
        "in memory, but the kernel may swap them out",
        "swapoff -a, or use Linux 6.4 or newer, outside of user namespaces",
    )


def check_mount_propagation(machine: Machine, root_dir: Path) -> CheckResult:
    """What a container mounts reaches others only over a shared mount: CSI drivers in pods need that."""
    subject = "mount propagation"
    place = root_dir.resolve()
    holder = _holder(machine, str(place))
    if holder is None:
        return warn(subject, "the mount table cannot be read", "mount proc on /proc")
    point, shared = holder
    if shared:
        return ok(subject, f"{point} is a shared mount")
    if _may_mount(machine) and not _in_user_namespace(machine):
        return ok(subject, f"an agent makes {place} a shared mount when it starts")
    return warn(
        subject,
        f"{point}, which {place} is on, is no shared mount: mounts in containers do not reach the node",
        "run as root, outside of user namespaces",
    )


def check_nfs(machine: Machine) -> CheckResult:
    subject = "NFS volumes"
    if not any((machine.root / folder / "mount.nfs").exists() for folder in _HELPERS):
        return warn(
            subject, "mount.nfs is not installed: pods with NFS volumes wait", "install nfs-common or nfs-utils"
        )
    return ok(subject, "mount.nfs is there")


def check_device_tools(machine: Machine) -> CheckResult:
    """Programs that file systems on devices are made, checked and grown with."""
    subject = "volumes on devices"
    missing = [name for name in _TOOLS if not _has_program(machine, name)]
    if missing:
        packages = " and ".join(sorted({_TOOLS[name] for name in missing}))
        return warn(
            subject, f"{', '.join(missing)} not installed: local volumes on devices fail", f"install {packages}"
        )
    return ok(subject, f"{', '.join(_TOOLS)} are there")


def _may_mount(machine: Machine) -> bool:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", machine.read("/proc/self/status") or "", re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> _CAP_SYS_ADMIN & 1)


def _in_user_namespace(machine: Machine) -> bool:
    """The first one maps all ids to themselves."""
    return (machine.read("/proc/self/uid_map") or "").split() != ["0", "0", "4294967295"]


def _kernel(machine: Machine) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", machine.kernel)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _holder(machine: Machine, path: str) -> tuple[str, bool] | None:
    """The mount that a path is on: where, and whether it is shared (proc_pid_mountinfo(5)). The last hides others."""
    found: tuple[str, bool] | None = None
    for line in (machine.read("/proc/self/mountinfo") or "").splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        is_on = f"{path}/".startswith(f"{point}/".replace("//", "/"))
        if is_on and (found is None or len(point) >= len(found[0])):
            optional = fields[6 : fields.index("-", 6)]
            found = point, any(field.startswith("shared:") for field in optional)
    return found


def _has_program(machine: Machine, name: str) -> bool:
    if machine.root == Path("/") and shutil.which(name, path=os.environ.get("PATH", "")):
        return True
    return any((machine.root / folder / name).exists() for folder in _PROGRAMS)
