"""What the machine is: its processors and memory, its names, its kernel. Read once, when the agent starts.

The kubelet takes these facts from cAdvisor, once too. Each is a line of a file below /proc, /sys or /etc, so a test or
a container hands in another root. A machine that cannot tell one of its names has an empty one; only a machine that
cannot tell its memory is no machine that pods could be put on.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.linux.huge_pages import huge_pages_folder, page_sizes

_PRETTY_NAME: Final = re.compile(r"""^PRETTY_NAME=["']?(.*?)["']?\s*$""", re.MULTILINE)
_PROCESSORS: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_MEMORY_LINE: Final = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_MACHINE_IDS: Final = ("etc/machine-id", "var/lib/dbus/machine-id")
_SYSTEM_UUIDS: Final = (
    "sys/class/dmi/id/product_uuid",
    "proc/device-tree/system-id",
    "proc/device-tree/vm,uuid",
    "etc/machine-id",
)
_RELEASE_FILES: Final = ("etc/os-release", "usr/lib/os-release")
_ARCHITECTURES: Final = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv6l": "arm",
    "armv7l": "arm",
    "armv8l": "arm",
    "i386": "386",
    "i686": "386",
    "loongarch64": "loong64",
}
"""Where the kernel's name of a machine is not the one that Kubernetes uses."""


@frozen(kw_only=True)
class Machine:
    """Facts that do not change while the agent runs."""

    cpus: int
    """Logical processors that are online."""
    memory: int
    """Bytes."""
    huge_pages: Mapping[int, int] = attrs.field(factory=dict)
    """How many pages there are of each size in bytes; every size of the kernel is named."""
    swap: int = 0
    """Bytes."""
    storage: int | None = None
    """Bytes of the file system with the agent's root folder; None when unknown."""
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    kernel_version: str = ""
    os_image: str = "Linux"
    architecture: str = "amd64"
    """As in labels: `amd64`, `arm64`."""

    @classmethod
    def read(cls, root: Path = Path("/"), *, root_dir: Path | None = None) -> Machine:
        """Read the files below `root`; `root_dir` is the agent's own folder, whose file system pods fill.

        Raises OSError where there is no /proc/meminfo, or none that can be understood.
        """
        memory = {name: int(kilobytes) * 1024 for name, kilobytes in _MEMORY_LINE.findall(_meminfo(root))}
        if "MemTotal" not in memory:
            raise OSError(f"{root / 'proc/meminfo'} has no line MemTotal: cannot tell how much memory there is")
        return cls(
            cpus=_online_processors(root),
            memory=memory["MemTotal"],
            huge_pages=_huge_pages(root),
            swap=memory.get("SwapTotal", 0),
            storage=None if root_dir is None else _file_system_size(root_dir),
            machine_id=_first_line(root, _MACHINE_IDS),
            system_uuid=_first_line(root, _SYSTEM_UUIDS),
            boot_id=_first_line(root, ("proc/sys/kernel/random/boot_id",)),
            kernel_version=_first_line(root, ("proc/sys/kernel/osrelease",)),
            os_image=_os_image(root),
            architecture=go_architecture(platform.machine()),
        )


def go_architecture(machine: str) -> str:
    """What Kubernetes calls a machine that the kernel calls `x86_64`."""
    return _ARCHITECTURES.get(machine, machine)


def _meminfo(root: Path) -> str:
    return (root / "proc/meminfo").read_text(encoding="utf-8", errors="replace")


def _online_processors(root: Path) -> int:
    """From a list such as `0-3,6`; where there is none, the entries of /proc/cpuinfo; at least one."""
    listed = _first_line(root, ("sys/devices/system/cpu/online",))
    try:
        count = processors_in(listed)
    except ValueError:
        count = 0
    return count or _text(root / "proc/cpuinfo").count("\nprocessor") + 1


def processors_in(text: str) -> int:
    """How many processors a list such as `0-3,6` names. Raises ValueError for a text that is none."""
    processors: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        numbers = _PROCESSORS.fullmatch(part)
        if numbers is None or int(numbers[1]) > int(numbers[2] or numbers[1]):
            raise ValueError(f'expected a list of processors such as "0-3,6", got "{text}"')
        processors.update(range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1))
    return len(processors)


def _huge_pages(root: Path) -> dict[int, int]:
    """How many there are of each size."""
    counts = {size: _text(huge_pages_folder(size, root) / "nr_hugepages").strip() for size in page_sizes(root)}
    return {size: int(count) if count.isdecimal() else 0 for size, count in counts.items()}


def _file_system_size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _os_image(root: Path) -> str:
    for name in _RELEASE_FILES:
        if (match := _PRETTY_NAME.search(_text(root / name))) is not None:
            return match[1]
    return "Linux"


def _first_line(root: Path, names: tuple[str, ...]) -> str:
    """Of the first of these files that says something."""
    for name in names:
        if text := _text(root / name).strip().strip("\0"):
            return text
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
