"""The machine's own files, as a container on `localhost/host` may see them: its mounts, and what is hidden."""

from __future__ import annotations

import os

from trikubelet.embedded.keeper.protocol import read_bytes

# What a host-image container gets of its own instead of the host's mount at that place.
NOT_COPIED = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/run")
_PSEUDO = frozenset(
    "proc sysfs devtmpfs devpts cgroup cgroup2 mqueue debugfs tracefs securityfs pstore bpf configfs fusectl hugetlbfs "
    "autofs binfmt_misc efivarfs rpc_pipefs nsfs".split()
)


class Mount:
    """A line of the mount table: its number and its parent's, device, folder of that file system, mount point, type."""

    __slots__ = ("device", "kind", "number", "parent", "path", "root")

    def __init__(self, line: bytes) -> None:
        left, _, right = line.partition(b" - ")
        fields = left.split()
        self.number, self.parent = fields[:2]
        self.device, self.kind = fields[2], right.partition(b" ")[0].decode()
        self.root, self.path = (_unescaped(os.fsdecode(field)) for field in fields[3:5])


def mount_table() -> list[Mount]:
    """Return the mounts of this process's namespace to which a path leads."""
    return reachable([Mount(line) for line in read_bytes("/proc/self/mountinfo").splitlines()])


def reachable(mounts: list[Mount]) -> list[Mount]:
    """Leave out what is hidden by a mount that was made over it later: no path leads there."""
    by_number = {mount.number: mount for mount in mounts}
    places: dict[bytes, set[str]] = {}  # the paths of what is mounted on each mount
    for mount in mounts:
        if mount.parent != mount.number:
            places.setdefault(mount.parent, set()).add(mount.path)
    ways: dict[bytes, bool] = {}

    def has_way(mount: Mount) -> bool:
        if mount.number not in ways:
            parent = by_number.get(mount.parent, mount)
            ways[mount.number] = parent is mount or (
                places[mount.parent].isdisjoint(_above(mount.path)) and has_way(parent)
            )
        return ways[mount.number]

    return [mount for mount in mounts if has_way(mount) and mount.path not in places.get(mount.number, ())]


def _above(path: str) -> list[str]:
    """Return the folders that a path leads through."""
    found = []
    while path != "/":
        path = os.path.dirname(path)
        found.append(path)
    return found


def _unescaped(path: str) -> str:
    for escaped, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(escaped, character)
    return path


def everywhere(paths: list[str], mounts: list[Mount]) -> list[str]:
    """Paths of the host, and where else their files can be seen by way of bind mounts; not what is never copied."""
    found: set[str] = set()
    for path in map(os.path.realpath, paths):
        found.add(path)
        above = [mount for mount in mounts if below(path, (mount.path.rstrip("/"),))]
        home = max(reversed(above), key=lambda mount: len(mount.path))
        place = home.root.rstrip("/") + path[len(home.path.rstrip("/")) :]
        for mount in mounts:
            if mount.device == home.device and below(place, (mount.root.rstrip("/"),)):
                found.add(mount.path.rstrip("/") + place[len(mount.root.rstrip("/")) :])
            elif mount.device == home.device and below(mount.root, (place,)):
                found.add(mount.path)
    return sorted(path for path in found if not below(path, NOT_COPIED))


def file_systems(hidden: list[str], mounts: list[Mount]) -> list[str]:
    """Mount points of the host, besides its root, that hold files rather than the kernel's data."""
    found: list[str] = []
    for mount in mounts:
        # A copy is taken with everything mounted beneath it.
        if mount.path != "/" and mount.kind not in _PSEUDO and not below(mount.path, (*NOT_COPIED, *hidden, *found)):
            found.append(mount.path)
    return found


def below(path: str, parents: tuple[str, ...]) -> bool:
    return any(path == parent or path.startswith(parent + "/") for parent in parents)
