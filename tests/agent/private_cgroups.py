"""A cgroup root of a test's own, in every hierarchy of the machine, and what lies below it."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import trio

from tests.patience import PATIENCE
from trikubelet.cgroups.driver_choice import file_driver
from trikubelet.cgroups.hierarchy import Hierarchies
from trikubelet.cgroups.interface import CgroupDriver
from trikubelet.cgroups.kernel_files import KernelFiles
from trikubelet.cgroups.settings import CgroupSettings
from trikubelet.cgroups.version import read_hierarchies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trikubelet.cgroups.settings import CgroupReading

_numbers = itertools.count()


@attrs.frozen
class PrivateCgroups:
    """Names below are paths from the root: `kubepods/burstable`."""

    root: str
    driver: CgroupDriver
    hierarchies: Hierarchies

    @property
    def fields(self) -> dict[str, Any]:
        """Of a KubeletConfiguration."""
        return {
            "cgroupRoot": f"/{self.root}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": ["pods"],
            "failCgroupV1": False,
        }

    def path(self, name: str) -> str:
        """From the root of a hierarchy."""
        return f"/{self.root}/{name}"

    def exists(self, name: str) -> bool:
        return trio.run(self.driver.exists, self._name(name))

    def read(self, name: str) -> CgroupReading:
        return trio.run(self.driver.read, self._name(name))

    def file(self, controller: str, name: str, file: str) -> str:
        """The text of a kernel file."""
        point = self.hierarchies.controllers.get(controller) or self.hierarchies.unified
        return KernelFiles().read(f"{point}{self.path(name)}/{file}").strip()

    def pods(self) -> set[str]:
        """The names of all pods' groups, in whatever hierarchy they are."""
        tiers = ("kubepods", "kubepods/burstable", "kubepods/besteffort")
        return {
            f"{tier}/{found}"
            for tier in tiers
            for point in self.hierarchies.mount_points
            for found in KernelFiles().folders(f"{point}{self.path(tier)}")
            if found.startswith("pod")
        }

    def holds(self, pid: int, name: str) -> bool:
        """Whether a process is somewhere below a group, in the hierarchy that limits memory."""
        point = self.hierarchies.controllers.get("memory") or self.hierarchies.unified
        kernel = KernelFiles()
        return any(pid in kernel.processes(folder) for folder in kernel.below(f"{point}{self.path(name)}"))

    @contextmanager
    def leftover(self, name: str, owner: Path | str = "") -> Iterator[subprocess.Popen[bytes]]:
        """A group with a process in it that nobody asked for. `owner`: the root folder of the agent that made it."""
        trio.run(self.driver.make, self._name(name), CgroupSettings(), str(owner))
        process = subprocess.Popen(["sleep", "1000"])
        try:
            for point in dict.fromkeys((*self.hierarchies.controllers.values(),)) or (self.hierarchies.unified,):
                KernelFiles().write(f"{point}{self.path(name)}/cgroup.procs", str(process.pid))
            yield process
        finally:
            process.kill()
            process.wait()

    def _name(self, name: str) -> tuple[str, ...]:
        return (self.root, *name.split("/"))


@contextmanager
def private_cgroups() -> Iterator[PrivateCgroups]:
    """Made, and removed with everything below. Raises OSError where the machine has no cgroups to write."""
    hierarchies = read_hierarchies()
    driver = file_driver(hierarchies)
    root = f"trikubelet-test-{os.getpid()}-{next(_numbers)}"
    try:
        trio.run(driver.create, (root,), CgroupSettings())
        yield PrivateCgroups(root, driver, hierarchies)
    finally:
        _sweep(hierarchies, root)


def _sweep(hierarchies: Hierarchies, root: str) -> None:
    """Again and again: an agent that was ended just now may still make a group in a thread, or a command in one."""
    kernel = KernelFiles()
    give_up = time.monotonic() + PATIENCE
    while left := [path for point in hierarchies.mount_points for path in kernel.below(f"{point}/{root}")]:
        assert time.monotonic() < give_up, f"these groups do not go: {left}"
        for path in left:
            for pid in kernel.processes(path):
                kernel.kill(pid)
            with suppress(OSError):
                kernel.delete(path)
        time.sleep(0.01)
