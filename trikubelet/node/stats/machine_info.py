"""What `machine_…` says of the machine: what the node object says too, and its sockets and physical cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.formats.values import frozen
from trikubelet.node.stats.kernel_files import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.linux.machine import Machine


@frozen(kw_only=True)
class MachineInfo:
    """Numbers, bytes and names; empty what is not known."""

    cores: int = 0
    physical_cores: int = 0
    sockets: int = 0
    memory: int = 0
    swap: int = 0
    boot_id: str = ""
    machine_id: str = ""
    system_uuid: str = ""
    kernel_version: str = ""
    os_image: str = ""

    @classmethod
    def of(cls, machine: Machine, proc: Path) -> MachineInfo:
        """Reads /proc/cpuinfo; where that has no topology, as on ARM, each processor counts as a core of one socket."""
        cores, sockets = _topology(read_text(f"{proc}/cpuinfo") or "")
        return cls(
            cores=machine.cpus,
            physical_cores=len(cores) or machine.cpus,
            sockets=len(sockets) or 1,
            memory=machine.memory,
            swap=machine.swap,
            boot_id=machine.boot_id,
            machine_id=machine.machine_id,
            system_uuid=machine.system_uuid,
            kernel_version=machine.kernel_version,
            os_image=machine.os_image,
        )


def _topology(cpuinfo: str) -> tuple[set[tuple[str, str]], set[str]]:
    cores, sockets = set(), set()
    for processor in cpuinfo.split("\n\n"):
        fields = {}
        for line in processor.splitlines():
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
        if "physical id" in fields and "core id" in fields:
            sockets.add(fields["physical id"])
            cores.add((fields["physical id"], fields["core id"]))
    return cores, sockets
