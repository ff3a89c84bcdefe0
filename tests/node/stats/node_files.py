"""A node's /proc and cgroups as files in a folder, in each of the three layouts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from trikubelet.node.stats.cgroup_places import CgroupPlaces
from trikubelet.node.stats.measure import Meter, NodePaths

if TYPE_CHECKING:
    from collections.abc import Mapping

Layout = Literal["v2", "v1", "hybrid"]
MIB = 2**20
GIB = 2**30
V1 = ("cpu,cpuacct", "memory", "blkio", "pids")

PRESSURE = """\
some avg10=1.50 avg60=0.75 avg300=0.25 total=2000000
full avg10=0.50 avg60=0.20 avg300=0.10 total=1000000
"""
_ZEROS = "0 " * 4
NET_DEV = f"""\
Inter-|   Receive    |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:  999 9 0 0 {_ZEROS} 999 9 0 0 {_ZEROS}
  eth0: 1000 10 1 2 {_ZEROS} 2000 20 3 4 {_ZEROS}
 wlan0:   50 5 0 0 {_ZEROS} 60 6 0 0 {_ZEROS}
 veth1:   77 7 0 0 {_ZEROS} 88 8 0 0 {_ZEROS}
"""


@attrs.define
class NodeFiles:
    """Below `root`: `proc`, `sys`, `cgroup`, the agent's own folder and the logs."""

    root: Path
    layout: Layout = "v2"

    def __attrs_post_init__(self) -> None:
        for folder in ("proc/self", "proc/1", "cgroup", "agent", "logs", "sys/dev/block"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        lines = [
            f"20 1 0:1 {root} {folder} rw,relatime shared:9 - {kind} {kind} {options}\n"
            for kind, root, folder, options in self._mounts()
        ]
        self.write("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n" + "".join(lines))
        for _, _, folder, _ in self._mounts():
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.machine()

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    @property
    def paths(self) -> NodePaths:
        return NodePaths(
            root_dir=self.root / "agent", pod_logs_dir=self.root / "logs", proc=self.proc, sys=self.root / "sys"
        )

    def places(self) -> CgroupPlaces:
        return CgroupPlaces(self.proc)

    def meter(self, **changes: Any) -> Meter:
        """Its readings all have the time at which the collection began."""
        return Meter(attrs.evolve(self.paths, **changes), lambda: 0.0)

    def write(self, path: str, text: object) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text))
        return file

    def machine(self) -> None:
        self.write("proc/stat", "cpu  100 10 50 1000 5 2 3 1 0 0\nbtime 1700000000\n")
        self.write("proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 1048576 kB\nSwapTotal: 1024 kB\nSwapFree: 1000 kB\n")
        self.write("proc/loadavg", "1.36 3.49 4.53 2/3518 3715089\n")
        self.write("proc/sys/kernel/pid_max", "4194304\n")
        self.write("proc/sys/kernel/threads-max", "127000\n")
        self.write("proc/1/net/dev", NET_DEV)
        if self.layout == "v2":
            self.write("cgroup/cpu.stat", "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\n")
            self.write(
                "cgroup/memory.stat", f"anon {GIB}\nfile {GIB}\ninactive_file {GIB // 2}\npgfault 7\npgmajfault 1\n"
            )
        else:
            self.write("cgroup/cpu,cpuacct/cpuacct.usage", 5_000_000_000)
            self.write("cgroup/memory/memory.usage_in_bytes", 2 * GIB)
            self.write("cgroup/memory/memory.stat", f"total_rss {GIB}\ntotal_inactive_file {GIB // 2}\ntotal_swap 0\n")

    def group(self, path: str, *, cpu: int = 0, memory: int = 0, pid: int = 0, **files: object) -> None:
        """A group with the usual files: `cpu` in nanoseconds, `memory` in bytes of which a tenth is inactive file."""
        if self.layout == "v2":
            self._group_v2(path, cpu, memory)
        else:
            self._group_v1(path, cpu, memory)
        for folder in self._folders(path):
            self.write(f"{folder}/cgroup.procs", f"{pid}\n" if pid else "")
        if pid:
            self.process(pid, path)
        for name, content in files.items():
            self.write(f"{self._folders(path)[0]}/{name.replace('__', '.')}", content)

    def process(
        self, pid: int, path: str | Mapping[str, str], *, net: str = NET_DEV, namespace: str = "net:[2]"
    ) -> None:
        """A process in a group: of all trees the same, or by controllers as in /proc/PID/cgroup."""
        trees = {"v2": [""], "v1": list(V1), "hybrid": [*V1, ""]}[self.layout]
        by_tree = path if not isinstance(path, str) else dict.fromkeys(trees, path)
        self.write(f"proc/{pid}/cgroup", "".join(f"1:{tree}:{where}\n" for tree, where in by_tree.items()))
        self.write(f"proc/{pid}/net/dev", net)
        for who, inside in ((str(pid), namespace), ("self", "net:[1]")):
            link = self.root / f"proc/{who}/ns/net"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(inside)

    def _mounts(self) -> list[tuple[str, str, str, str]]:
        v1 = [("cgroup", "/", f"{self.root}/cgroup/{names}", f"rw,{names}") for names in V1]
        if self.layout == "v2":
            return [("cgroup2", "/", f"{self.root}/cgroup", "rw")]
        unified = [("cgroup2", "/", f"{self.root}/cgroup/unified", "rw")]
        return v1 if self.layout == "v1" else v1 + unified

    def _folders(self, path: str) -> list[str]:
        if self.layout == "v2":
            return [f"cgroup{path}"]
        return [
            *(f"cgroup/{names}{path}" for names in V1),
            *([f"cgroup/unified{path}"] if self.layout == "hybrid" else []),
        ]

    def _group_v2(self, path: str, cpu: int, memory: int) -> None:
        folder = f"cgroup{path}"
        self.write(f"{folder}/cpu.stat", f"usage_usec {cpu // 1000}\nuser_usec 1\nsystem_usec 2\n")
        self.write(f"{folder}/memory.current", memory)
        self.write(f"{folder}/memory.max", "max\n")
        self.write(
            f"{folder}/memory.stat",
            f"anon {memory // 2}\nfile 5\ninactive_file {memory // 10}\npgfault 3\npgmajfault 1\n",
        )

    def _group_v1(self, path: str, cpu: int, memory: int) -> None:
        self.write(f"cgroup/cpu,cpuacct{path}/cpuacct.usage", cpu)
        folder = f"cgroup/memory{path}"
        self.write(f"{folder}/memory.usage_in_bytes", memory)
        self.write(f"{folder}/memory.limit_in_bytes", 9223372036854771712)
        self.write(
            f"{folder}/memory.stat",
            f"total_rss {memory // 2}\ntotal_inactive_file {memory // 10}\ntotal_pgfault 3\ntotal_pgmajfault 1\n",
        )
