"""Where containers' and pods' cgroups are.

Runtimes do not tell: the folder depends on the cgroup version, the driver, the parent that was asked for and where the
runtime itself was put. But with all of them a container's group is named by its id, and a pod's by its UID. So, as
cAdvisor does, the tree is walked for those names, once for each container that came; found places are kept.

Three layouts occur: v2 alone, v1 with a tree for each controller, and both ("hybrid", where v2 has no controllers but
pressure and processes). In v1 a container may lie at another place in each tree. What was found in one tree has
processes, and the kernel says of a process where it is in all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.node.stats.kernel_files import read_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_USED: Final = ("cpu", "cpuacct", "memory", "pids", "blkio")
_LOOK_IN: Final = ("memory", "cpuacct", "pids", "cpu")
_MOST_FOLDERS: Final = 50_000
"""That one walk looks into."""
_TRIES: Final = 3
"""Walks for one name; a container in a machine of its own has no group here."""
_DEEP: Final = 4
_ID: Final = re.compile(r"[0-9a-f]{64}")


@frozen
class CgroupPlace:
    """The folders of one group."""

    path: str
    """In the tree, as people know it: `/kubepods/burstable/pod…`."""
    unified: str | None = None
    """In v2; in a hybrid layout without the controllers' files."""
    controllers: Mapping[str, str] = attrs.field(factory=dict)
    """In v1, by controller."""

    @property
    def folder(self) -> str | None:
        """One that lists the processes."""
        return self.unified or next(iter(self.controllers.values()), None)


@frozen
class _Mount:
    folder: str
    root: str
    """What of the tree is mounted there."""
    controllers: frozenset[str]
    """Empty for v2."""

    def below(self, path: str) -> str | None:
        """The folder of a path in the tree, None when it is not mounted."""
        if self.root != "/":
            if path != self.root and not path.startswith(self.root + "/"):
                return None
            path = path[len(self.root) :]
        return self.folder + path.rstrip("/")


class CgroupPlaces:
    """Finds groups, and remembers where they are. Blocking."""

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._mounts = tuple(_mounts(read_text(f"{proc}/self/mountinfo") or ""))
        self._known: dict[str, CgroupPlace] = {}
        self._misses: dict[str, int] = {}

    @property
    def usable(self) -> bool:
        """Whether this machine has any."""
        return bool(self._mounts)

    def locate(self, names: Collection[str]) -> None:
        """Look for the groups of these containers and pods (`pod_group`), and forget those of all others."""
        self._known = {name: place for name, place in self._known.items() if name in names}
        self._misses = {name: tries for name, tries in self._misses.items() if name in names}
        wanted = {name for name in names if name not in self._known and self._misses.get(name, 0) < _TRIES}
        if not wanted:
            return
        for mount in self._trees():
            for name, folder in _walk(mount, wanted):
                place = self._place(mount, folder, name)
                if place is not None:
                    self._known[name] = place
                    wanted.discard(name)
            if not wanted:
                return
        for name in wanted:
            self._misses[name] = self._misses.get(name, 0) + 1

    def find(self, name: str) -> CgroupPlace | None:
        """Of a container id, or a pod's `pod_group`."""
        return self._known.get(name)

    def lost(self, name: str) -> None:
        """It was not where it was found."""
        self._known.pop(name, None)

    def root(self) -> CgroupPlace | None:
        """The machine's own group."""
        return self.at("/")

    def at(self, path: str) -> CgroupPlace | None:
        """The group with this path in all trees; None when it is in none."""
        unified, controllers = None, {}
        for mount in self._mounts:
            folder = mount.below(path)
            if folder is None or not Path(folder).is_dir():
                continue
            if not mount.controllers:
                unified = folder
            for controller in mount.controllers:
                controllers[controller] = folder
        return CgroupPlace(path, unified, controllers) if unified or controllers else None

    def of_process(self, pid: int | str, within: str = "") -> CgroupPlace | None:
        """The group of a process; with `within` that group above it which is named so. None when unknown."""
        unified, controllers, shown = None, {}, ""
        for line in (read_text(f"{self._proc}/{pid}/cgroup") or "").splitlines():
            _, names, whole = line.split(":", 2)
            path = _cut(whole, within) if within else whole
            if path is None:
                continue
            for mount in self._mounts:
                folder = mount.below(path)
                if folder is None:
                    continue
                if not names and not mount.controllers:
                    unified = folder
                elif mount.controllers & set(names.split(",")):
                    controllers.update(dict.fromkeys(mount.controllers, folder))
                else:
                    continue
                shown = max(shown, path, key=len)
        return CgroupPlace(shown, unified, controllers) if unified or controllers else None

    def own(self) -> CgroupPlace | None:
        """This process's, where it has one to itself: a process of the root group, or one that is at several places,
        cannot be told from others (kubelet: `getContainer`)."""
        paths = set()
        for line in (read_text(f"{self._proc}/self/cgroup") or "").splitlines():
            _, names, path = line.split(":", 2)
            tree = {mount.controllers for mount in self._mounts if mount.controllers & set(names.split(","))}
            only_v2 = not names and not any(mount.controllers for mount in self._mounts)
            if only_v2 or any(controllers & {"memory", "cpuacct"} for controllers in tree):
                paths.add(path)
        path = paths.pop() if len(paths) == 1 else "/"
        return None if path == "/" else self.at(path)

    def _place(self, mount: _Mount, folder: str, name: str) -> CgroupPlace | None:
        path = mount.root.rstrip("/") + folder[len(mount.folder) :]
        if len(self._mounts) == 1 and not mount.controllers:
            return CgroupPlace(path, folder)
        pid = next(_processes(folder, _DEEP), None)
        by_process = None if pid is None else self.of_process(pid, within=name)
        return by_process or self.at(path)

    def _trees(self) -> Iterator[_Mount]:
        """Those to look in, the likeliest first: v2 has all groups, where it has any."""
        yield from (mount for mount in self._mounts if not mount.controllers)
        seen = set()
        for controller in _LOOK_IN:
            for mount in self._mounts:
                if controller in mount.controllers and mount.folder not in seen:
                    seen.add(mount.folder)
                    yield mount


def pod_group(uid: str) -> str:
    """What a pod's group is called, with either driver (`_name_of`)."""
    return f"pod{uid}"


def processes_of(place: CgroupPlace) -> list[int]:
    """All that are in it or in groups below. Pids of other PID namespaces are left out."""
    return [] if place.folder is None else list(_processes(place.folder, _DEEP))


def _walk(mount: _Mount, wanted: Collection[str]) -> Iterator[tuple[str, str]]:
    """(name, folder) of the groups with these names. Containers' own groups are not looked into."""
    waiting, looked = [mount.folder], 0
    while waiting and looked < _MOST_FOLDERS:
        looked += 1
        for entry in _folders(waiting.pop()):
            name = _name_of(entry.name)
            if name in wanted:
                yield name, entry.path
            if not _ID.search(entry.name):
                waiting.append(entry.path)


def _folders(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _name_of(folder: str) -> str:
    """The container id or `pod<UID>` in a folder's name, which systemd decorates:
    `cri-containerd-<id>.scope`, `kubepods-burstable-pod<UID with underscores>.slice`."""
    if folder.endswith(".scope"):
        stem = folder.removesuffix(".scope")
        return "" if "conmon" in stem else stem.rpartition("-")[2]
    if folder.endswith(".slice"):
        return folder.removesuffix(".slice").rpartition("-")[2].replace("_", "-")
    return folder


def _processes(folder: str, depth: int) -> Iterator[int]:
    for line in (read_text(f"{folder}/cgroup.procs") or "").split():
        if line.isdigit() and line != "0":
            yield int(line)
    if depth > 0:
        for entry in _folders(folder):
            yield from _processes(entry.path, depth - 1)


def _cut(path: str, name: str) -> str | None:
    """The path up to the part that is named so; None when there is none."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if _name_of(part) == name:
            return "/".join(parts[: index + 1])
    return None


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    seen = set()
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, *others) = left.split(), right.split()
        if kind not in ("cgroup", "cgroup2") or len(fields) < 5 or not others:
            continue
        controllers = frozenset(others[-1].split(",")) & set(_USED) if kind == "cgroup" else frozenset()
        if (kind == "cgroup" and not controllers) or (kind, controllers) in seen:
            continue
        seen.add((kind, controllers))
        yield _Mount(fields[4].replace("\\040", " "), fields[3], controllers)
