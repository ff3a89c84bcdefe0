"""The driver `cgroupfs` on cgroup v1: a folder in each hierarchy.

Killing freezes the group first, so that nothing in it can fork while its processes are killed; containers that are
frozen by themselves, as paused ones are, are thawed with it, or they could not die. A process may be in the group in
one hierarchy and not in the freezer's; the next round finds what it forked.

A memory limit below what is in use is refused by the kernel after it tried to reclaim (EBUSY); nothing is killed.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import trio

from trikubelet.cgroups.errors import CgroupError, MemoryInUseError
from trikubelet.cgroups.files import GroupFiles
from trikubelet.cgroups.hierarchy import V1_GROUP_CONTROLLERS
from trikubelet.cgroups.settings import NO_LIMIT, CgroupReading, CgroupSettings, v1_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.cgroups.names import CgroupName

_UNLIMITED: Final = 1 << 62
"""A greater memory limit is the kernel's word for none."""
_FREEZE_TIMEOUT: Final = 0.1
"""Seconds: a process that waits for a disk does not freeze before it has what it waits for."""
_THAW_DEADLINE: Final = 5.0


class V1Files(GroupFiles):
    """A driver (`interface.CgroupDriver`)."""

    @property
    def version(self) -> Literal[1, 2]:
        return 1

    def _missing(self, name: CgroupName) -> list[str]:
        literal = self.literal(name).rstrip("/")
        folders = {
            f"{point}{literal}"
            for controller, point in self.hierarchies.controllers.items()
            if controller in V1_GROUP_CONTROLLERS
        }
        return sorted(folder for folder in folders if not self.kernel.exists(folder))

    def _create(self, name: CgroupName, settings: CgroupSettings) -> None:
        literal = self.literal(name)
        made: list[str] = []
        try:
            for point in dict.fromkeys(self.hierarchies.controllers.values()):
                if self._make_folders(str(point), literal, cpuset=self.hierarchies.controllers.get("cpuset") == point):
                    made.append(f"{point}{literal}")
            self._set(name, settings)
        except (OSError, CgroupError):
            # Half of a group, or one without its limits, would be taken for a whole one the next time.
            self._delete(made)
            raise

    def _make_folders(self, point: str, literal: str, *, cpuset: bool) -> bool:
        """The group's folder and those above it in one hierarchy. Whether the group's own is new."""
        if not cpuset:
            try:
                return self.kernel.make(f"{point}{literal}")
            except FileNotFoundError:
                pass  # something above it is missing, which it seldom is
        new = False
        for folder in _way(point, literal):
            new = self.kernel.make(folder)
            if cpuset:
                self._fill_cpuset(folder)
        return new

    def _fill_cpuset(self, folder: str) -> None:
        """A new group takes no process before it has processors and memory nodes."""
        above = folder.rpartition("/")[0]
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not self.kernel.read(f"{folder}/{name}").strip():
                self.kernel.write(f"{folder}/{name}", self.kernel.read(f"{above}/{name}").strip())

    def _set(self, name: CgroupName, settings: CgroupSettings) -> None:
        """Write all that can be written, then raise the first error."""
        literal = self.literal(name)
        files = v1_files(settings, self.hierarchies.page_sizes)
        again: list[tuple[str, str]] = []
        problem: OSError | CgroupError | None = None
        for controller, file, text in files:
            point = self.hierarchies.controllers.get(controller)
            if point is None:
                self.not_limited(controller)
                continue
            folder = f"{point}{literal}"
            try:
                self.kernel.write(f"{folder}/{file}", text)
            except OSError as error:
                if file == "cpu.cfs_period_us" and error.errno == errno.EINVAL and settings.cpu_quota:
                    # The old quota does not fit into the new period: the new one may.
                    again.append((f"{folder}/{file}", text))
                elif ".rsvd." not in file or error.errno != errno.ENOENT or not self.kernel.exists(folder):
                    problem = problem or self._refused(literal, folder, file, text, error)
        for path, text in again:
            try:
                self.kernel.write(path, text)
            except OSError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _refused(self, literal: str, folder: str, file: str, text: str, error: OSError) -> OSError | CgroupError:
        if file != "memory.limit_in_bytes" or error.errno != errno.EBUSY:
            return error
        try:
            usage = self.kernel.number(f"{folder}/memory.usage_in_bytes")
        except OSError:
            usage = None
        return MemoryInUseError(literal, limit=int(text), usage=usage)

    def _read(self, name: CgroupName) -> CgroupReading:
        literal = self.literal(name).rstrip("/")
        cpu, memory = (self.hierarchies.controllers.get(controller) for controller in ("cpu", "memory"))
        shares = quota = period = limit = usage = None
        if cpu is not None:
            shares = self.kernel.number(f"{cpu}{literal}/cpu.shares")
            quota = self.kernel.number(f"{cpu}{literal}/cpu.cfs_quota_us")
            period = self.kernel.number(f"{cpu}{literal}/cpu.cfs_period_us")
        if memory is not None:
            limit = self.kernel.number(f"{memory}{literal}/memory.limit_in_bytes")
            usage = self.kernel.number(f"{memory}{literal}/memory.usage_in_bytes")
        if limit is not None and limit >= _UNLIMITED:
            limit = NO_LIMIT
        return CgroupReading(shares, quota, period, limit, usage)

    async def kill_round(self, name: CgroupName, folders: list[str]) -> None:
        freezer = self.hierarchies.controllers.get("freezer")
        frozen = f"{freezer}{self.literal(name)}" if freezer is not None else None
        try:
            if frozen is not None:
                await self._freeze(name, frozen)
            await super().kill_round(name, folders)
        finally:
            if frozen is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _THAW_DEADLINE):
                    await self.on_thread(name, "thaw", partial(self._thaw, frozen))

    async def _freeze(self, name: CgroupName, folder: str) -> None:
        """Freeze, and go on without where that takes too long."""
        state = f"{folder}/freezer.state"

        def is_frozen() -> bool:
            try:
                return self.kernel.read(state).strip() == "FROZEN"
            except FileNotFoundError:
                return True

        def freeze() -> bool:
            try:
                self.kernel.write(state, "FROZEN")
            except FileNotFoundError:
                return True
            return is_frozen()

        done = await self.on_thread(name, "freeze", freeze)
        with trio.move_on_after(_FREEZE_TIMEOUT):
            while not done:
                await trio.sleep(0.001)
                done = await self.on_thread(name, "freeze", is_frozen)

    def _thaw(self, folder: str) -> None:
        for path in reversed(self.kernel.below(folder)):
            try:
                self.kernel.write(f"{path}/freezer.state", "THAWED")
            except FileNotFoundError:
                continue


def _way(point: str, literal: str) -> Iterator[str]:
    """Every folder from below the mount point down to the group."""
    path = point
    for part in literal.strip("/").split("/"):
        path = f"{path}/{part}"
        yield path
