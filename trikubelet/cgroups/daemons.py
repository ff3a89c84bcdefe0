"""Groups of the node's own processes: the agent's (`kubeletCgroups`), and one for all that have none (`systemCgroups`).

They are looked at every minute, as by the kubelet (`ensureProcessInContainerWithOOMScore`, `ensureSystemCgroups`). The
agent is moved when it is somewhere else. To the system's group go the processes of the root group, but for the first
one and the kernel's own threads, which would be held up by its limits. What cannot be moved is said, and tried again.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.cgroups.errors import CgroupError, kernel_error
from trikubelet.cgroups.names import from_cgroupfs
from trikubelet.cgroups.settings import CgroupSettings
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.cgroups.files_v1 import V1Files
    from trikubelet.cgroups.files_v2 import V2Files
    from trikubelet.cgroups.names import CgroupName

PERIOD: Final = 60.0
"""Seconds between two looks."""
ROUNDS: Final = 11
"""Processes of the root group may have children while they are moved."""
INIT: Final = 1

log = get_logger("cgroups")


class DaemonCgroups:
    """Moves processes. `run` it."""

    def __init__(
        self,
        driver: V1Files | V2Files,
        *,
        agent: str = "",
        system: str = "",
        pid: int | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        """`agent`, `system`: paths from the root of the hierarchies; empty: nobody is moved there.

        Raises ValueError for a path that no group can have, and for the root as the system's.
        """
        self._driver = driver
        self._agent = from_cgroupfs(agent) if agent else None
        self._system = from_cgroupfs(system) if system else None
        if self._system == ():
            raise ValueError('systemCgroups: the root group ("/") cannot be the one of the system: name another')
        self._pid = os.getpid() if pid is None else pid
        self._proc = proc

    async def run(self) -> None:
        """Until cancelled. What fails is logged."""
        while True:
            await self.ensure()
            await trio.sleep(PERIOD)

    async def ensure(self) -> None:
        """Look once, and move what is in the wrong place."""
        for name, move in ((self._system, self._move_system), (self._agent, self._move_agent)):
            if name is None:
                continue
            try:
                await move(name)
            except CgroupError as error:
                log.warning("failed to ensure state", group="/" + "/".join(name), error=str(error))

    async def _move_agent(self, name: CgroupName) -> None:
        if await self._driver.on_thread(name, "list processes", partial(self._holds_agent, name)):
            return
        await self._driver.make(name, CgroupSettings())
        await self._move(name, [self._pid])
        log.info("the agent has moved to its group", group=self._driver.literal(name))

    async def _move_system(self, name: CgroupName) -> None:
        problem: CgroupError | None = None
        for _ in range(ROUNDS):
            pids = await self._driver.on_thread((), "list processes", self._strays)
            if not pids:
                return
            await self._driver.make(name, CgroupSettings())
            try:
                await self._move(name, pids)
            except CgroupError as error:
                problem = error
        if problem is not None:
            raise problem

    async def _move(self, name: CgroupName, pids: list[int]) -> None:
        """Raises CgroupError, when all have been tried."""
        kernel = self._driver.kernel

        def move() -> OSError | None:
            problem = None
            for folder in self._folders(name):
                for pid in pids:
                    try:
                        kernel.write(f"{folder}/cgroup.procs", str(pid))
                    except ProcessLookupError:
                        continue  # it has ended
                    except OSError as error:
                        problem = error
            return problem

        problem = await self._driver.on_thread(name, "move processes", move)
        if problem is not None:
            raise kernel_error(self._driver.literal(name), "move processes", problem)

    def _strays(self) -> list[int]:
        """Processes of the root group that are neither the first one nor the kernel's.

        On v1, of the hierarchy of devices, as in the kubelet: in others many are in the root that have a group.
        """
        hierarchies = self._driver.hierarchies
        root = hierarchies.controllers.get("devices", hierarchies.unified)
        pids = [] if root is None else self._driver.kernel.processes(str(root))
        return sorted(pid for pid in pids if pid not in (0, INIT) and not self._is_kernels(pid))

    def _is_kernels(self, pid: int) -> bool:
        """A thread of the kernel runs no file; neither does a process that has ended."""
        try:
            (self._proc / str(pid) / "exe").readlink()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def _holds_agent(self, name: CgroupName) -> bool:
        """Whether the agent is in the group already, in every hierarchy that has it."""
        folders = self._folders(name)
        return bool(folders) and all(self._pid in self._driver.kernel.processes(folder) for folder in folders)

    def _folders(self, name: CgroupName) -> list[str]:
        return [folder for folder in self._driver.folders(name) if self._driver.kernel.exists(folder)]
