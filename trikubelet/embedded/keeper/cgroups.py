"""Cgroups of containers: limits where a controller is writable, and a way to kill everything inside.

Three layouts occur: v2 alone, v1 alone, and v1 controllers beside a bare v2 tree ("hybrid"). Each container gets a
group in every hierarchy: v2 for `cgroup.kill`, v1 controllers for limits. A container also gets groups in hierarchies
that this runtime does not use (blkio, named ones, the freezer if v2 is mounted): a process that unshares its cgroup
namespace can mount each hierarchy from its own group on, and may write there what root may.

Groups lie beneath the group that the keeper itself is in (so what confines the agent confines its containers), except
in v2 and systemd's own hierarchy, where the root is taken if it may be: a service manager that stops the agent must not
take the containers with it.

Where a pod has groups of its own (CRI's `cgroup_parent`), its containers' lie in those, counted from the root of each
hierarchy as the agent does that makes them. Rules for devices are nothing that a pod shares, and stay where they are.

Files are written with `os.write`: errors that come at close would be lost otherwise.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from trikubelet.embedded.keeper.cgroup_settings import v1_settings, v2_settings
from trikubelet.embedded.keeper.device_program import DevicePrograms
from trikubelet.linux.trees import bottom_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_V1_USED = ("cpu", "cpuacct", "memory", "pids", "devices", "freezer", "cpuset", "hugetlb")
_V2_USED = ("cpu", "memory", "pids", "cpuset", "hugetlb")
# Null, zero, full, random, urandom, tty, console, ptmx and pseudo terminals: what a container's /dev holds.
_DEVICES = ("c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:0 rwm", "c 5:1 rwm", "c 5:2 rwm")
_CONFINED = "confined"
_DEVICES_ALWAYS = ("c *:* m", "b *:* m", "c 136:* rwm", *_DEVICES)


def write_file(path: str, text: str) -> None:
    """Write a kernel file at once, and raise what the kernel answers."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"the kernel refuses {text!r} in {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _read(path: str, *, folder: int | None = None) -> str:
    """A kernel file; a file object asks the kernel six more things, which counts before each start."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("ascii", "replace")


class ContainerCgroup:
    """The groups of one container: `unified` (v2) and `controllers` (v1, by name; several may share a folder).

    The name of a hierarchy without controllers is its option, like `name=systemd`.

    `shared` are groups of somebody else that processes join too: nothing in them is killed or deleted through this one.
    """

    __slots__ = ("controllers", "outer_freezer", "shared", "unified", "views")

    def __init__(
        self,
        unified: str | None,
        controllers: dict[str, str],
        shared: tuple[str, ...] = (),
        views: dict[str, str] | None = None,
    ) -> None:
        self.unified = unified
        self.controllers = controllers
        self.shared = shared
        self.views: dict[str, str] = views or {}
        """What a new container may see of them, by name below its /sys/fs/cgroup; "" is v2, as a whole."""
        self.outer_freezer: str | None = None
        """The group around this one that the container may have frozen, with all that is in here."""

    def to_json(self) -> dict[str, Any]:
        return {"unified": self.unified, "controllers": self.controllers}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ContainerCgroup:
        return cls(data.get("unified"), dict(data.get("controllers") or {}))

    def join(self, *, born_inside: bool) -> None:
        """Move the calling process in; `born_inside` says that it is in the v2 group already.

        v1's `tasks` is cheap for a process that moves itself, `cgroup.procs` costs a grace period of the kernel.
        """
        if self.unified and not born_inside:
            write_file(f"{self.unified}/cgroup.procs", "0")
        for folder in {*self.controllers.values(), *self.shared}:
            write_file(f"{folder}/tasks", "0")

    def nested(self, name: str) -> ContainerCgroup | None:
        """Make a group within this one whose processes can be killed by themselves; limits stay this one's.

        None where the machine offers no way to kill a group for sure. Raises OSError.
        """
        if not self.can_kill():
            return None
        shared = dict(self.controllers)
        freezer = shared.pop("freezer", None)
        group = ContainerCgroup(
            f"{self.unified}/{name}" if self.unified else None,
            {"freezer": f"{freezer}/{name}"} if freezer else {},
            tuple(set(shared.values())),
        )
        group.outer_freezer = freezer
        for folder in (group.unified, *group.controllers.values()):
            if folder:
                os.mkdir(folder)
        return group

    def processes(self) -> list[int]:
        """Pids of everything inside, in sub-groups too. Raises OSError when this process can open no more files."""
        folders = [self.unified] if self.unified else list(set(self.controllers.values()))[:1]
        found: list[int] = []
        for folder in folders:
            for group, _, _ in bottom_up(folder):
                try:
                    found += [int(line) for line in _read("cgroup.procs", folder=group).split()]
                except OSError as error:
                    if error.errno == errno.EMFILE:
                        raise
        return found

    def can_kill(self) -> bool:
        """Whether `kill` reaches every process for sure."""
        return bool(self.controllers.get("freezer")) or self._kills_by_file()

    def _kills_by_file(self) -> bool:
        return self.unified is not None and os.path.exists(f"{self.unified}/cgroup.kill")

    def kill(self) -> None:
        """SIGKILL to all processes inside, those being forked too."""
        freezer = self.controllers.get("freezer")
        if not self._kill_by_file():
            if freezer:
                self._freeze(freezer)
            for pid in self.processes():
                _kill(pid)
        if thawed := self.outer_freezer or freezer:
            _thaw(thawed)

    def _kill_by_file(self) -> bool:
        if self.unified is None:
            return False
        try:
            write_file(f"{self.unified}/cgroup.kill", "1")
        except FileNotFoundError:
            return False
        return True

    def _freeze(self, folder: str) -> None:
        try:
            write_file(f"{folder}/freezer.state", "FROZEN")
            deadline = time.monotonic() + 0.02
            while _read(f"{folder}/freezer.state").strip() != "FROZEN" and time.monotonic() < deadline:
                pass
        except FileNotFoundError:
            return

    def oom_kills(self) -> int:
        """How many processes inside the kernel has killed for want of memory."""
        memory = self.controllers.get("memory")
        path = f"{memory}/memory.oom_control" if memory else f"{self.unified}/memory.events"
        try:
            lines = _read(path).splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def update(self, resources: dict[str, Any]) -> None:
        """Set the limits that are there (fields of CRI's LinuxContainerResources; 0 and missing mean unchanged).

        Raises OSError: then some are set, and the rest is as it was.
        """
        if self.controllers:
            settings = v1_settings(resources)
            if self._grows_with_swap(resources):
                settings.sort(key=lambda setting: setting[1] != "memory.memsw.limit_in_bytes")
            waiting: list[tuple[str, str]] = []
            for controller, name, value in settings:
                if controller in self.controllers:
                    path = f"{self.controllers[controller]}/{name}"
                    try:
                        write_file(path, value)
                    except OSError as error:
                        # A shorter period with the quota that is still the old one may be more than the pod has.
                        if name != "cpu.cfs_period_us" or not resources.get("cpu_quota") or error.errno != errno.EINVAL:
                            raise
                        waiting.append((path, value))
            for path, value in waiting:
                write_file(path, value)
        if self.unified:
            for name, value in v2_settings(resources):
                path = f"{self.unified}/{name}"
                if os.path.exists(path):
                    write_file(path, value)

    def _grows_with_swap(self, resources: dict[str, Any]) -> bool:
        """Whether memory with swap (v1) gets a higher limit: then that comes first, since memory alone never may have
        the higher one of the two."""
        wanted, folder = resources.get("memory_swap_limit_in_bytes"), self.controllers.get("memory")
        if not wanted or not folder:
            return False
        try:
            current = int(_read(f"{folder}/memory.memsw.limit_in_bytes"))
        except OSError:
            return False
        return bool(wanted < 0 or wanted > current)

    def confine_devices(self, extra: list[str]) -> None:
        """Allow the harmless devices and `extra` ("c 1:3 rwm") only. On v1; v2's group was made with its rules."""
        folder = self.controllers.get("devices")
        if folder and os.path.basename(os.path.dirname(folder)) != _CONFINED:
            write_file(f"{folder}/devices.deny", "a")
            descriptor = os.open(f"{folder}/devices.allow", os.O_WRONLY | os.O_CLOEXEC)
            for rule in (*_DEVICES_ALWAYS, *extra):
                os.write(descriptor, rule.encode())
            os.close(descriptor)

    def remove(self) -> bool:
        """Delete the groups. False while a dying process keeps one, or while this process can open no more files."""
        gone = True
        for folder in {*self.controllers.values(), *([self.unified] if self.unified else [])}:
            try:
                for _, parent, name in bottom_up(folder):
                    gone = _remove_group(name, parent) and gone
            except OSError:
                gone = False
        return gone


def _remove_group(name: str, parent: int) -> bool:
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _thaw(freezer: str) -> None:
    """Thaw killed processes, so that they end. The container may have frozen them itself, in groups that it made."""
    for group, _, _ in bottom_up(freezer):
        try:
            state = os.open("freezer.state", os.O_WRONLY | os.O_CLOEXEC, dir_fd=group)
            try:
                os.write(state, b"THAWED")
            finally:
                os.close(state)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # the group has been removed meanwhile
                raise


class Cgroups:
    """Which hierarchies of this machine can be used, and the groups made in them."""

    def __init__(self, name: str) -> None:
        """`name` is the folder that holds this runtime's groups, unique on the machine."""
        self._name = name
        self.problems: list[str] = []
        self._unified_mount: str | None = None
        self._mounts: dict[str, str] = {}
        """Mount points of v1 by controller."""
        self.unified: str | None = None
        self.controllers: dict[str, str] = {}
        self._others: dict[str, str] = {}
        """Folders in v1 hierarchies that this runtime does not use, by controller or by the option that names one."""
        self._service: list[str] = []
        self._device_programs: DevicePrograms | None = None
        """Rules for devices on v2."""
        self._find()

    @property
    def devices_confined(self) -> bool:
        """Whether containers can use no other devices than theirs."""
        return "devices" in self.controllers or self._device_programs is not None

    @property
    def usable(self) -> bool:
        """True if containers get groups in at least one hierarchy."""
        return bool(self.unified or self.controllers or self._others)

    @property
    def limits(self) -> list[str]:
        """Controllers that can limit containers."""
        names = set(self.controllers) - {"cpuacct", "freezer", "devices"}
        if self.unified:
            names |= set(_read(f"{self.unified}/cgroup.subtree_control").split())
        return sorted(names)

    def _find(self) -> None:
        own = _own_groups()
        for kind, mountpoint, root, options in _cgroup_mounts():
            if kind == "cgroup2":
                if self._unified_mount is not None and not mountpoint.startswith("/sys/fs/cgroup"):
                    continue  # somebody's own, which may go at any time
                self._unified_mount = mountpoint
                candidates = [mountpoint, mountpoint + _relative(own.get("", "/"), root)]
                self.unified = self._usable(candidates, "v2")
                if self.unified:
                    self._enable_controllers(mountpoint, self.unified)
                continue
            if "name=systemd" in options:
                self._service.append(mountpoint)
            for name in options & own.keys():
                if name in self._mounts and not mountpoint.startswith("/sys/fs/cgroup"):
                    continue
                self._mounts[name] = mountpoint
                self._use(name, [mountpoint + _relative(own[name], root)])
        if self.unified and "freezer" in self.controllers:
            self._others["freezer"] = self.controllers.pop("freezer")
        hidden = own.keys() - self._mounts.keys() - {""}
        if hidden and os.geteuid() == 0:
            hierarchies = ", ".join(sorted(hidden))
            self.problems.append(f"cgroup {hierarchies}: not mounted here, so containers have no groups of their own")
        if "devices" in self.controllers:
            self._check_devices(self.controllers["devices"])
        if self.unified and "devices" not in self.controllers:
            try:
                self._device_programs = DevicePrograms(_DEVICES_ALWAYS, f"{self.unified}/{_CONFINED}")
            except OSError as error:
                self.problems.append(f"cgroup devices: {error}")
        if "cpuset" in self.controllers:
            self._fill_cpuset(self.controllers["cpuset"], self._mounts["cpuset"])
            write_file(f"{self.controllers['cpuset']}/cgroup.clone_children", "1")  # for containers

    def _use(self, name: str, parents: list[str]) -> None:
        """Take a hierarchy of v1, by one of its controllers or the option that names it."""
        if name in _V1_USED:
            folder = self._usable(parents, name)
            if folder:
                self.controllers[name] = folder
            return
        folder = self._usable([self._mounts[name], *parents] if name == "name=systemd" else parents, name)
        if folder:
            self._others[name] = folder

    def _usable(self, parents: list[str], what: str) -> str | None:
        problem = ""
        for parent in parents:
            folder = os.path.normpath(f"{parent}/{self._name}")
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                problem = f"cgroup {what}: {error}"
                continue
            return folder
        self.problems.append(problem)
        return None

    def _enable_controllers(self, mountpoint: str, folder: str) -> None:
        """Turn controllers on for the groups below `folder`."""
        path = mountpoint
        steps = ["", *os.path.relpath(folder, mountpoint).split("/")]
        for step in steps:
            path = f"{path}/{step}" if step else path
            wanted = set(_read(f"{path}/cgroup.controllers").split()) & set(_V2_USED) - set(self.controllers)
            wanted -= set(_read(f"{path}/cgroup.subtree_control").split())
            for controller in _V2_USED:
                if controller in wanted:
                    try:
                        write_file(f"{path}/cgroup.subtree_control", f"+{controller}")
                    except OSError as error:
                        self.problems.append(f"cgroup v2 controller {controller}: {error}")

    def _check_devices(self, folder: str) -> None:
        """Make the group whose rules containers inherit. Only root of the whole machine may, whoever owns the files."""
        confined = f"{folder}/{_CONFINED}"
        try:
            os.makedirs(confined, exist_ok=True)
            ContainerCgroup(None, {"devices": confined}).confine_devices([])
        except OSError as error:
            self.problems.append(f"cgroup devices: {error}")
            del self.controllers["devices"]
            ContainerCgroup(None, {"devices": folder}).remove()

    def _fill_cpuset(self, folder: str, mountpoint: str) -> None:
        """A v1 cpuset group takes no process before it has CPUs and memory nodes, which those above it must have."""
        above = os.path.dirname(folder)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not _read(f"{folder}/{name}").strip():
                if above.startswith(f"{mountpoint}/"):
                    self._fill_cpuset(above, mountpoint)
                write_file(f"{folder}/{name}", _read(f"{above}/{name}").strip())

    def leave_service(self) -> None:
        """Move this process out of the group that a service manager would kill; no matter if that is not allowed."""
        for parent in (self.unified, *(f"{mountpoint}/{self._name}" for mountpoint in self._service)):
            if parent is None:
                continue
            try:
                os.makedirs(f"{parent}/keeper", exist_ok=True)
                write_file(f"{parent}/keeper/cgroup.procs", "0")
            except OSError as error:
                self.problems.append(f"stay in the service's cgroup: {error}")

    def create(
        self, container: str, parent: str, resources: dict[str, Any], *, privileged: bool, devices: list[str]
    ) -> ContainerCgroup:
        """Groups for a container beneath `parent` (CRI's cgroup_parent, a path from the root of the hierarchies), or
        beneath this runtime's own where that is empty. `devices`: rules for those that it has besides what all have.
        Raises OSError, with nothing left behind."""
        group = ContainerCgroup(None, {})
        try:
            if self.unified:
                self._make_unified(group, container, parent, devices, privileged=privileged)
            self._make_limiting(group, container, parent, devices, privileged=privileged)
            for name, folder in self._others.items():
                group.controllers[name] = self._make_other(name, folder, container, parent)
            if not self.controllers and self._unified_mount is not None:
                group.views[""] = self._unified_mount
            group.update(resources)
        except OSError:
            group.remove()
            raise
        return group

    def _make_unified(
        self, group: ContainerCgroup, container: str, parent: str, devices: list[str], *, privileged: bool
    ) -> None:
        above = self._below(self._unified_mount, parent) or self.unified
        group.unified = f"{above}/{container}"
        _make_folder(group.unified)
        if self._device_programs is not None and not privileged:
            self._device_programs.confine(group.unified, devices)
        if above is not None and above != self.unified and self._unified_mount is not None:
            self._enable_controllers(self._unified_mount, above)

    def _make_limiting(
        self, group: ContainerCgroup, container: str, parent: str, devices: list[str], *, privileged: bool
    ) -> None:
        wanted = dict(self.controllers)  # cpuset too: what is not in it now could not be confined to CPUs later
        if privileged:
            wanted.pop("devices", None)
        for controller, folder in wanted.items():
            above = (self._below(self._mounts[controller], parent) if controller != "devices" else "") or folder
            if controller == "devices" and not devices:
                above = f"{folder}/{_CONFINED}"
                if not os.path.isdir(above):
                    # Somebody deleted it; made anew without its rules it would confine nothing.
                    self._check_devices(folder)
            path = f"{above}/{container}"
            alone = _make_folder(path)
            group.controllers[controller] = path
            if controller == "cpuset" and not (alone and above == folder):  # there it inherits what it needs
                self._fill_cpuset(path, self._mounts[controller])
            group.views[os.path.basename(self._mounts[controller])] = path

    def _make_other(self, name: str, folder: str, container: str, parent: str) -> str:
        """Return the container's group: below the pod's if that exists, else below the runtime's.

        The agent may not know the hierarchy, and would not remove a pod's group that is made here.
        """
        above = self._below(self._mounts[name], parent)
        if above and os.path.isdir(above):
            folder = above
        _make_folder(f"{folder}/{container}")
        return f"{folder}/{container}"

    def _below(self, mountpoint: str | None, parent: str) -> str:
        """The folder of the pod's group; empty where it has none."""
        parts = [part for part in parent.split("/") if part not in ("", ".", "..")]
        return "/".join([mountpoint, *parts]) if mountpoint and parts else ""

    def remove(self) -> None:
        """Delete this runtime's own folders, when the last container is gone."""
        folders = [*self.controllers.values(), *self._others.values()]
        folders += [f"{mountpoint}/{self._name}" for mountpoint in self._service]
        for mountpoint in (*self._service, *([self._unified_mount] if self._unified_mount else [])):
            try:
                write_file(f"{mountpoint}/cgroup.procs", "0")
            except OSError:
                continue
        if self.unified:
            folders.append(self.unified)
        ContainerCgroup(None, {folder: folder for folder in folders}).remove()


def _make_folder(path: str) -> bool:
    """Whether those above it were there, which `os.makedirs` would look for first: that counts before each start."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return True
    except FileNotFoundError:
        os.makedirs(path, exist_ok=True)
        return False
    return True


def _own_groups() -> dict[str, str]:
    """This process's group by controller; "" is v2."""
    groups: dict[str, str] = {}
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _cgroup_mounts() -> list[tuple[str, str, str, set[str]]]:
    """(type, mount point, root within the hierarchy, super options) of each cgroup mount."""
    found: list[tuple[str, str, str, set[str]]] = []
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            found.append((kind, fields[4], fields[3], set(options.split(","))))
    return found


def _relative(path: str, root: str) -> str:
    """A group's path below a mount that shows only the hierarchy from `root` on."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return "" if path == "/" or path.startswith("/..") else path
