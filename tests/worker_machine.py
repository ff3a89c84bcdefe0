"""A machine of its own for a process that runs tests: network, mounts, cgroups, /run and pods' logs.

Processes, devices, the clock and the tree of cgroup v2 are shared. The first process of a session makes the cgroups
(`make`), the worker that it forks moves in (`enter`), and when the worker has ended, the first process says what still
runs there, ends it, and removes the cgroups (`remove`). Only for root, with cgroup v1: a v2 group that has processes
gives its controllers to no group below.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from tests.own_machine import run
from trikubelet.linux.mount_table import MountTable

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT: Final = Path(__file__).parents[1]
SYS: Final = Path("/sys")
CGROUPS: Final = Path("/sys/fs/cgroup")
FOLDERS: Final = ("/run", "/var/log/pods", "/var/log/containers")
"""Empty at first for each worker."""
LAST_TO_GO: Final = 5.0
"""Seconds in which what runs in a worker's cgroups may end by itself."""
COMMANDS: Final = ("ip", "mount", "umount")
MADE: Final = "trikubelet"
"""How names of cgroups begin that agents and keepers make. containerd leaves `k8s.io` wherever it has run."""


@attrs.frozen
class Hierarchy:
    """One mount of cgroups."""

    folder: Path
    kind: str
    options: str
    here: Path
    """The group that this process is in."""


def hierarchies() -> list[Hierarchy]:
    """Return the mounts of cgroups that this process sees."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        groups.update(dict.fromkeys(names.split(","), group))
    found = []
    for mount in MountTable.read().mounts:
        if mount.kind in ("cgroup", "cgroup2") and mount.root == "/":
            options = (
                [each for each in mount.super_options if each not in ("rw", "ro")] if mount.kind == "cgroup" else []
            )
            group = next((groups[each] for each in options or [""] if each in groups), "/")
            found.append(Hierarchy(mount.point, mount.kind, ",".join(options), mount.point / group.lstrip("/")))
    return found


def possible() -> bool:
    """Return whether workers can have machines here."""
    return (
        os.geteuid() == 0 and all(map(shutil.which, COMMANDS)) and any(each.kind == "cgroup" for each in hierarchies())
    )


def name_of(place: int) -> str:
    """Return the name of the cgroups of a worker of this session."""
    return f"tests-{os.getpid()}-{place}"


def remove_those_of_killed_sessions() -> None:
    """End what runs in the cgroups of sessions that have ended without removing them."""
    groups = {group.name for each in hierarchies() for group in each.here.glob("tests-*-*")}
    for name in groups:
        pid = name.split("-")[1]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            WorkerMachine(name).remove(patience=0)


@attrs.frozen
class WorkerMachine:
    """The machine of one worker. `name` is that of its cgroups."""

    name: str
    hierarchies: list[Hierarchy] = attrs.field(factory=hierarchies)

    def _groups(self) -> list[Path]:
        return [each.here / self.name for each in self.hierarchies if each.kind == "cgroup"]

    def make(self) -> None:
        """Make its cgroups."""
        for group in self._groups():
            group.mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (group.parent / file).exists() and (group / file).exists():
                    (group / file).write_text((group.parent / file).read_text())

    def enter(self, temporary: Path) -> None:
        """Move this process, which has no threads, into the machine. It keeps what is mounted below `temporary`."""
        from trikubelet.embedded.keeper import linux

        for group in self._groups():
            (group / "cgroup.procs").write_text(str(os.getpid()))
        linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWCGROUP)
        run("mount", "--make-rprivate", "/")
        _let_go_of_mounts(temporary)
        run("umount", "--recursive", "--lazy", str(CGROUPS))
        _show_own_devices()
        run("mount", "-t", "tmpfs", "none", str(CGROUPS))
        for each in self.hierarchies:
            each.folder.mkdir(parents=True, exist_ok=True)
            named = ["-o", f"none,{each.options}"] if each.options.startswith("name=") else ["-o", each.options]
            run("mount", "-t", each.kind, *(named if each.kind == "cgroup" else []), "none", str(each.folder))
        for folder in map(Path, FOLDERS):
            if folder.is_dir():
                run("mount", "-t", "tmpfs", "none", str(folder))
        for made in ("/run/lock", "/run/netns"):
            Path(made).mkdir()
        _make_network()

    def left(self) -> Iterator[str]:
        """Yield what runs in its cgroups, and the cgroups that agents and runtimes have left."""
        for pid in self._pids():
            command = b""
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            yield f"process {pid}: {command.replace(bytes(1), b' ').decode(errors='replace')[:200]}"
        for group in self._groups():
            for path in group.rglob("*"):
                if path.is_dir() and path.name.startswith(MADE):
                    yield f"cgroup {path}"

    def _pids(self) -> set[int]:
        files = (file for group in self._groups() for file in (group / "cgroup.procs", *group.rglob("cgroup.procs")))
        found: set[int] = set()
        for file in files:
            with contextlib.suppress(OSError):
                found.update(map(int, file.read_text().split()))
        return found

    def remove(self, patience: float = LAST_TO_GO) -> list[str]:
        """End what still runs there, after some seconds in which it may end by itself. Return what was left."""
        give_up = time.monotonic() + patience
        while (left := sorted(self.left())) and time.monotonic() < give_up:
            time.sleep(0.1)
        give_up = time.monotonic() + LAST_TO_GO
        while (pids := self._pids()) and time.monotonic() < give_up:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for group in self._groups():
                for file in group.rglob("freezer.state"):  # what is frozen does not die
                    file.write_text("THAWED")
            time.sleep(0.02)
        for group in self._groups():
            for path in sorted((group, *group.rglob("*")), reverse=True):
                if path.is_dir():
                    with contextlib.suppress(OSError):
                        path.rmdir()
        return left


def _let_go_of_mounts(temporary: Path) -> None:
    """Unmount here what other tests that run now have mounted: they look whether somebody keeps it."""
    table = MountTable.read()
    for folder in map(Path, (*FOLDERS, tempfile.gettempdir())):
        for mount in table.below(folder):
            is_ours = any(each.is_relative_to(mount.point) for each in (PROJECT, temporary, folder))
            if not is_ours:
                subprocess.run(["umount", "--lazy", str(mount.point)], capture_output=True, check=False)


def _show_own_devices() -> None:
    """Mount /sys again: it shows the network devices of whoever mounted it."""
    from trikubelet.embedded.keeper import linux

    below = [mount.point for mount in MountTable.read().mounts if SYS in mount.point.parents]
    kept = {place: os.open(place, os.O_PATH) for place in below}
    run("mount", "-t", "sysfs", "none", str(SYS))
    for place, descriptor in kept.items():
        linux.mount(f"/proc/self/fd/{descriptor}", str(place), None, linux.MS_BIND)
        os.close(descriptor)


def _make_network() -> None:
    """Make a loopback device and a device with a way to everywhere, behind which nobody answers."""
    for words in (
        "link set lo up",
        "link add eth0 type veth peer name outside",
        "link set outside up",
        "link set eth0 up",
        "address add 192.0.2.2/24 dev eth0",
        "route add default via 192.0.2.1",
    ):
        run("ip", *words.split())
    if Path("/proc/sys/net/ipv6").exists():
        run("ip", "address", "add", "fd00::2/64", "dev", "eth0", "nodad")
        run("ip", "route", "add", "default", "via", "fd00::1")
