"""What containers' settings depend on and no configuration file says: read once from /proc and /sys."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trikubelet.formats.values import frozen
from trikubelet.linux.huge_pages import page_size_name, page_sizes


@frozen
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
    """Major and minor version; empty when it is unknown."""

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
