"""Other programs on this machine that manage pods or containers: kubelets, k3s, podman, other agents.

They are found in /proc, by the names and arguments of processes. A node of a cluster in containers (kind) has a kubelet
of its own, with process ids and cgroups of its own: it is no neighbour. So only processes in the namespaces of this
process count, and those that this process may not look at do not.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.node.port_holder import locked_root_dir, open_files

if TYPE_CHECKING:
    from collections.abc import Sequence

PROC: Final = Path("/proc")
_KUBELETS: Final = {
    "kubelet": "the Go kubelet",
    "kubelite": "MicroK8s",
    "k3s": "k3s",
    "k3s-server": "k3s",
    "k3s-agent": "k3s",
}
"""Programs with a kubelet in them, by the name of the process."""
_KUBELET_ROOT_DIR: Final = "/var/lib/kubelet"
_K3S_COMMANDS: Final = frozenset({"server", "agent"})
_NAMESPACES: Final = ("pid", "cgroup")
_CGROUP_ROOT: Final = re.compile(r"""(?:^|["'])cgroupRoot["']?[ \t]*:[ \t]*["']?([^"'\s#,}]+)""", re.MULTILINE)
"""In YAML and in JSON."""
KUBELET_SHARES_RUNTIME: Final = "a kubelet that uses the same runtime ends this agent's pods, as it does not know them"
STOP_KUBELET: Final = (
    "stop it, or give this agent a root folder, a cgroupRoot and a runtime that the kubelet does not use"
)
OTHER_RUNTIME: Final = "use --runtime-endpoint embedded, or a runtime of this agent's own"
_MOST_BYTES: Final = 1 << 20
"""Longest arguments and configuration that are read."""


@frozen
class PodManager:
    """A program that manages pods, or containers, on this machine."""

    name: str
    pid: int
    cgroup_root: str | None = None
    """Cgroup root of a kubelet. None: the program is no kubelet."""
    root_dir: str = ""
    """Root folder of another agent or a kubelet; empty for other programs."""

    @property
    def is_kubelet(self) -> bool:
        return self.cgroup_root is not None

    def __str__(self) -> str:
        where = f", root folder {self.root_dir}" if self.root_dir and not self.is_kubelet else ""
        return f"{self.name} (pid {self.pid}{where})"


def other_pod_managers(root_dir: Path, proc: Path = PROC) -> list[PodManager]:
    """Find the programs, but for an agent with this root folder. Only the first process of podman is listed.

    Reads two small files for each process. Raises OSError where there is no /proc.
    """
    own = _namespaces(proc / "self")
    found: dict[tuple[str, str, str | None], PodManager] = {}
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):  # noqa: PTH208 - names only
        if pid == os.getpid():
            continue
        try:
            manager = _manager(proc / str(pid), pid)
            if manager is None or _namespaces(proc / str(pid)) != own:
                continue
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
        if manager.is_kubelet or manager.root_dir != str(root_dir.resolve()):
            found.setdefault((manager.name, manager.root_dir, manager.cgroup_root), manager)
    return list(found.values())


def conflicting_kubelet(managers: Sequence[PodManager], root_dir: Path, cgroup_root: str | None) -> PodManager | None:
    """The kubelet that manages the same pods as an agent with this root folder: each would end the other's.

    `cgroup_root`: that of a node of a cluster, empty for the root of the hierarchies; None without a cluster.
    """
    mark = str(root_dir.resolve())
    for one in managers:
        same_pods = cgroup_root is not None and _normal(one.cgroup_root or "") == _normal(cgroup_root)
        if one.is_kubelet and (same_pods or str(Path(one.root_dir).resolve()) == mark):
            return one
    return None


def describe(managers: Sequence[PodManager]) -> str:
    """The programs in words, with their process ids."""
    return ", ".join(map(str, managers))


def _manager(folder: Path, pid: int) -> PodManager | None:
    """What the process is; None for one that manages nothing. Raises OSError."""
    name = (folder / "comm").read_text(errors="replace").strip()
    if not (name in _KUBELETS or name in ("podman", "conmon") or name.startswith(("python", "trikubelet"))):
        return None
    with (folder / "cmdline").open("rb") as file:
        arguments = file.read(_MOST_BYTES).decode(errors="replace").split("\0")
    if not arguments[0]:
        return None  # it has ended, and nobody has asked how
    if name in _KUBELETS:
        if not _is_trusted(folder, name):
            return None
        if name == "k3s" and arguments[1:2] and arguments[1] not in _K3S_COMMANDS:
            return None  # k3s is its own kubectl, too
        named = _flag(arguments, "root-dir") or _KUBELET_ROOT_DIR
        return PodManager(_KUBELETS[name], pid, cgroup_root=_cgroup_root(folder, arguments), root_dir=named)
    if name == "podman" or (name == "conmon" and "podman" in map(_base, arguments)):
        return PodManager("podman", pid)
    if "trikubelet" in map(_base, arguments):
        root_dir = locked_root_dir(open_files(str(folder)))
        return None if root_dir is None else PodManager("another trikubelet", pid, root_dir=root_dir)
    return None


def _is_trusted(folder: Path, name: str) -> bool:
    """True if root or this user runs the program, and it is no other program by a link of this name. Raises OSError.

    Any user may run a program of root's, such as `su`, by a link of any name.
    """
    program = _base(os.readlink(folder / "exe"))  # noqa: PTH115 - a text, no path
    return folder.stat().st_uid in (0, os.geteuid()) and program.startswith(name.partition("-")[0])


def _base(argument: str) -> str:
    return PurePath(argument).name


def _cgroup_root(folder: Path, arguments: Sequence[str]) -> str:
    """A kubelet's cgroup root, by its arguments or its configuration file, as a kubelet finds it. Raises OSError."""
    named = _flag(arguments, "cgroup-root")
    config = _flag(arguments, "config")
    if named is None and config:
        inside = folder / "root" / config.lstrip("/") if config.startswith("/") else folder / "cwd" / config
        try:
            match = _CGROUP_ROOT.search(_read_regular(inside).decode(errors="replace"))
        except OSError:
            match = None  # removed since it started: then the default is the best guess
        named = None if match is None else match[1]
    return named or "/"


def _read_regular(path: Path) -> bytes:
    """Raises OSError. A FIFO, whose reader waits for a writer, is empty."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _flag(arguments: Sequence[str], name: str) -> str | None:
    """A flag's value: `--NAME=VALUE`, `--NAME VALUE`, or k3s's `--kubelet-arg=NAME=VALUE`."""
    found = None
    for position, argument in enumerate(arguments):
        flag, equals, value = argument.removeprefix("--kubelet-arg=").lstrip("-").partition("=")
        if flag == name:
            found = value if equals else "".join(arguments[position + 1 : position + 2])
    return found


def _namespaces(folder: Path) -> tuple[str, ...]:
    """Raises OSError."""
    return tuple(os.readlink(folder / "ns" / kind) for kind in _NAMESPACES)  # noqa: PTH115 - a text, no path


def _normal(cgroup_root: str) -> str:
    return "/".join(part for part in cgroup_root.split("/") if part)
