"""What the drivers of both versions do alike: work on threads, when a group is made, and its end.

Every call of the kernel is made on one of a few threads that are kept for it: a memory limit makes the kernel reclaim,
a freezer waits for disks, and a deletion was seen to take 12 ms where the next took 0.02. A thread that never returns
is left behind after a deadline.

Removing waits: a group stays busy until its last process is gone, which is soon after it was killed, but not at once.
"""

from __future__ import annotations

import abc
import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from trikubelet.backoff import Backoff
from trikubelet.cgroups.errors import CgroupBusyError, CgroupError, CgroupNameError, kernel_error
from trikubelet.cgroups.kernel_files import KernelFiles
from trikubelet.cgroups.names import CGROUPFS
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.cgroups.hierarchy import Hierarchies
    from trikubelet.cgroups.names import CgroupName, Naming
    from trikubelet.cgroups.settings import CgroupReading, CgroupSettings

T = TypeVar("T")

THREADS: Final = 4
DEADLINE: Final = 30.0
"""Seconds for one piece of work of the kernel, waiting for a thread included."""
REMOVAL_TIMEOUT: Final = 5.0
"""Seconds until what was killed must be gone, and again until the group can be deleted."""
_KILLS: Final = Backoff(first=0.001, longest=1.0)
_DELETIONS: Final = Backoff(first=0.01, longest=1.0)
_BUSY: Final = frozenset({errno.EBUSY, errno.ENOTEMPTY})

log = get_logger("cgroups")


class GroupFiles(abc.ABC):
    """Groups as folders in one or more hierarchies. The drivers of both versions build on it."""

    # What a version does in its own way, blocking. Raise CgroupError and OSError.

    @abc.abstractmethod
    def _missing(self, name: CgroupName) -> list[str]: ...

    @abc.abstractmethod
    def _create(self, name: CgroupName, settings: CgroupSettings) -> None: ...

    @abc.abstractmethod
    def _set(self, name: CgroupName, settings: CgroupSettings) -> None: ...

    @abc.abstractmethod
    def _read(self, name: CgroupName) -> CgroupReading: ...

    def __init__(
        self, hierarchies: Hierarchies, *, naming: Naming = CGROUPFS, kernel: KernelFiles | None = None
    ) -> None:
        self.hierarchies = hierarchies
        self.kernel = kernel or KernelFiles()
        self._naming = naming
        self._limiter = trio.CapacityLimiter(THREADS)
        self._not_limited: set[str] = set()
        self._told_unmarked = False

    def literal(self, name: CgroupName) -> str:
        return self._naming.literal(name)

    def name_of(self, literal: str) -> CgroupName:
        return self._naming.parse(literal)

    def folders(self, name: CgroupName) -> list[str]:
        """The group's folder in every hierarchy, whether it is there or not."""
        literal = self.literal(name).rstrip("/")
        return [f"{point}{literal}" for point in self.hierarchies.mount_points]

    async def missing(self, name: CgroupName) -> list[str]:
        return await self.on_thread(name, "look for it", partial(self._missing, name))

    async def exists(self, name: CgroupName) -> bool:
        return not await self.missing(name)

    async def create(self, name: CgroupName, settings: CgroupSettings) -> None:
        await self.on_thread(name, "create", partial(self._create, name, settings))

    async def make(self, name: CgroupName, settings: CgroupSettings, owner: str = "") -> bool:
        return await self.on_thread(name, "create", partial(self._make, name, settings, owner))

    async def mark(self, name: CgroupName, owner: str) -> None:
        await self.on_thread(name, "mark", partial(self._mark, name, owner))

    async def marks(self, names: Sequence[CgroupName]) -> dict[CgroupName, frozenset[str]]:
        def read_all() -> dict[CgroupName, frozenset[str]]:
            seen = {name: self._marks(name) for name in names}
            return {name: marks for name, marks in seen.items() if marks is not None}

        return await self.on_thread(names[0], "read its owner", read_all) if names else {}

    async def update(self, name: CgroupName, settings: CgroupSettings) -> None:
        await self.on_thread(name, "set limits", partial(self._set, name, settings))

    async def read(self, name: CgroupName) -> CgroupReading:
        return await self.on_thread(name, "read", partial(self._read, name))

    async def children(self, name: CgroupName) -> list[CgroupName]:
        literal = self.literal(name).rstrip("/")
        folders = self.folders(name)

        def list_names() -> list[str]:
            return sorted({child for folder in folders for child in self.kernel.folders(folder)})

        found = [
            self._naming.parse(f"{literal}/{child}") for child in await self.on_thread(name, "list groups", list_names)
        ]
        # With systemd there are scopes too, whose names only look like those of slices.
        return [child for child in found if child[:-1] == name]

    async def processes(self, name: CgroupName) -> list[int]:
        """Pids of everything in the group and below it, in any hierarchy."""
        return await self.on_thread(name, "list processes", partial(self.pids, self.folders(name)))

    async def kill(self, name: CgroupName) -> None:
        """Kill in rounds: what a round misses, since it was forked or moved meanwhile, the next one finds."""
        literal, folders = self.literal(name), self.folders(_not_root(name))
        deadline, pause, killed = trio.current_time() + REMOVAL_TIMEOUT, _KILLS.first, False
        while left := await self.on_thread(name, "list processes", partial(self.pids, folders)):
            if killed and trio.current_time() >= deadline:
                shown = ", ".join(map(str, left[:10]))
                raise CgroupBusyError(literal, f"processes are still there after SIGKILL: {shown}", tuple(left))
            await self.kill_round(name, folders)
            killed = True
            await trio.sleep(pause)
            pause = _KILLS.after(pause)

    async def kill_round(self, name: CgroupName, folders: list[str]) -> None:
        """Kill what is inside now."""
        await self.on_thread(name, "kill processes", partial(self.kill_pids, folders))

    async def remove(self, name: CgroupName) -> None:
        literal, folders = self.literal(name), self.folders(_not_root(name))
        deadline, pause = trio.current_time() + REMOVAL_TIMEOUT, _DELETIONS.first
        while kept := await self.on_thread(name, "delete", partial(self._delete, folders)):
            if trio.current_time() + pause > deadline:
                left = await self.processes(name)
                why = f"processes {', '.join(map(str, left[:10]))}" if left else "nothing that can be seen"
                raise CgroupBusyError(literal, f"cannot delete {kept[0]}: it is kept by {why}", tuple(left))
            await trio.sleep(pause)
            pause = _DELETIONS.after(pause)

    async def discard(self, name: CgroupName) -> None:
        await self.on_thread(name, "delete", partial(self._discard, self.folders(_not_root(name))))

    def _make(self, name: CgroupName, settings: CgroupSettings, owner: str) -> bool:
        missing = self._missing(name)
        if missing:
            self._create(name, settings)
        if owner and not self._marks(name):
            self._mark(name, owner)
        return bool(missing)

    def _mark(self, name: CgroupName, owner: str) -> None:
        """Mark the group's folder in each hierarchy. Blocking."""
        for folder in self.folders(name):
            if self.kernel.exists(folder) and not self.kernel.mark(folder, owner):
                self._say_unmarked(folder)

    def _say_unmarked(self, folder: str) -> None:
        if not self._told_unmarked:
            self._told_unmarked = True
            log.info("cgroups cannot carry the mark of their owner: this agent goes by its root folder", group=folder)

    def _marks(self, name: CgroupName) -> frozenset[str] | None:
        """The marks on the group's folders; None where the group is in no hierarchy. Blocking."""
        found: set[str] | None = None
        for folder in self.folders(name):
            try:
                found = (found or set()) | self.kernel.marks(folder)
            except FileNotFoundError:
                continue
        return None if found is None else frozenset(found)

    def _discard(self, folders: list[str]) -> None:
        for folder in folders:
            try:
                self.kernel.delete(folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in _BUSY:
                    raise

    def _delete(self, folders: list[str]) -> list[str]:
        """Delete what can be; the groups that are kept. Blocking."""
        kept: list[str] = []
        for folder in folders:
            for path in self.kernel.below(folder):
                try:
                    self.kernel.delete(path)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno not in _BUSY:
                        raise
                    kept.append(path)
        return kept

    def pids(self, folders: list[str]) -> list[int]:
        """Pids of everything in these groups and below them. Blocking."""
        found: set[int] = set()
        for folder in folders:
            for path in self.kernel.below(folder):
                found.update(self.kernel.processes(path))
        return sorted(found)

    def kill_pids(self, folders: list[str]) -> None:
        """SIGKILL one by one, except to this process and to those that it cannot name. Blocking."""
        for pid in self.pids(folders):
            if pid not in (0, os.getpid()):
                self.kernel.kill(pid)

    def not_limited(self, controller: str) -> None:
        """Say once that a limit cannot be set, since it would go unnoticed otherwise."""
        if controller not in self._not_limited:
            self._not_limited.add(controller)
            log.warning("cgroup controller is not there, what it limits is not limited", controller=controller)

    async def on_thread(self, name: CgroupName, action: str, work: Callable[[], T]) -> T:
        """Do blocking work. Raises CgroupError, also when it takes longer than `DEADLINE`; cancelling it, or that,
        leaves the thread behind with its work."""
        try:
            with trio.fail_after(DEADLINE):
                return await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)
        except trio.TooSlowError:
            raise CgroupError(
                self.literal(name), f"could not {action}: the kernel has not answered for {DEADLINE:.0f} s"
            ) from None
        except OSError as error:
            raise kernel_error(self.literal(name), action, error) from error


def _not_root(name: CgroupName) -> CgroupName:
    if not name:
        raise CgroupNameError("/", "the root holds the whole machine and is never emptied")
    return name
