"""A folder that shows a machine as /sys does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.linux.machine_topology import MachineTopology

if TYPE_CHECKING:
    from pathlib import Path


class SystemFolder:
    """Writes what the kernel shows of a machine below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.system = root / "sys/devices/system"
        self._made: set[Path] = set()

    def cpu(self, number: int, core: int, socket: int) -> None:
        self.write(f"cpu/cpu{number}/topology/core_id", f"{core}\n")
        self.write(f"cpu/cpu{number}/topology/physical_package_id", f"{socket}\n")

    def cache(self, cpu: int, index: int, level: int, number: int, shared: str) -> None:
        for name, text in (("level", level), ("id", number), ("shared_cpu_map", shared)):
            self.write(f"cpu/cpu{cpu}/cache/index{index}/{name}", f"{text}\n")

    def node(self, number: int, *cpus: int) -> None:
        (self.system / f"node/node{number}").mkdir(parents=True)
        for cpu in cpus:
            (self.system / f"node/node{number}/cpu{cpu}").mkdir()

    def write(self, path: str, text: str) -> None:
        file = self.system / path
        if file.parent not in self._made:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(file.parent)
        file.write_text(text)

    def read(self) -> MachineTopology:
        return MachineTopology.read(self.root)
