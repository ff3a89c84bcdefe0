"""Which cgroup hierarchies a machine has, from what `/proc/self/mountinfo` says. No I/O here.

Three layouts occur: v2 alone; v1, one hierarchy for each controller or for a few together; and v1 beside a v2 tree that
has few controllers or none ("hybrid"). As for the kubelet the last is v1. Its v2 tree is still looked at when a group
is removed: runtimes put containers there too, and would keep it from going.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

from trikubelet.formats.values import frozen

MOUNT_POINT: Final = "/sys/fs/cgroup"
"""What is here says which version the machine uses."""
V1_REQUIRED: Final = ("cpu", "cpuacct", "cpuset", "memory")
"""Without these nothing runs (kubelet: `validateSystemRequirements`)."""
V1_GROUP_CONTROLLERS: Final = frozenset({"cpu", "cpuacct", "cpuset", "memory", "systemd", "pids", "hugetlb"})
"""A group exists when it has a folder in each of these that is mounted (kubelet: `Validate`)."""
V2_GROUP_CONTROLLERS: Final = frozenset({"cpu", "cpuset", "memory", "hugetlb", "pids"})
"""A group exists when it has each of these that the root has."""
V2_ENABLED: Final = V2_GROUP_CONTROLLERS | {"io"}
"""What is turned on for groups, where the root has it."""
_V1_CONTROLLERS: Final = V1_GROUP_CONTROLLERS | {
    *("blkio", "devices", "freezer", "net_cls", "net_prio", "perf_event", "rdma", "misc"),
}
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@frozen
class Hierarchies:
    """What is mounted where."""

    version: Literal[1, 2]
    controllers: Mapping[str, Path] = attrs.field(factory=dict)
    """Mount points of v1 by controller; systemd's own, without controller, is `systemd`."""
    unified: Path | None = None
    """Mount point of v2; beside v1 too."""
    page_sizes: tuple[int, ...] = ()
    """Sizes of huge pages that can be limited, bytes."""

    @property
    def mount_points(self) -> tuple[Path, ...]:
        """Every hierarchy once, v2 last."""
        found = dict.fromkeys(self.controllers.values())
        return (*found, self.unified) if self.unified is not None else tuple(found)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Controllers of v1 that are not mounted and have to be."""
        if self.version == 2:
            return ()
        return tuple(name for name in V1_REQUIRED if name not in self.controllers)


def parse_hierarchies(mountinfo: str, *, version: Literal[1, 2]) -> Hierarchies:
    """Read mounts; of several mounts of a controller the one with the shortest path counts, as for the kubelet."""
    controllers: dict[str, Path] = {}
    unified: Path | None = None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        kind, _, options = right.split(" ", 2)
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), left.split(" ")[4]))
        if kind == "cgroup2":
            if unified is None or len(str(point)) < len(str(unified)):
                unified = point
        elif kind == "cgroup" and version == 1:
            for option in options.split(","):
                name = option.removeprefix("name=")
                if name not in _V1_CONTROLLERS:
                    continue
                if name not in controllers or len(str(point)) < len(str(controllers[name])):
                    controllers[name] = point
    return Hierarchies(version, controllers, unified)
