"""The driver `cgroupfs` on cgroup v2: one tree, in which each group turns controllers on for those below it.

Killing is one write to `cgroup.kill` (Linux 5.14), after which `cgroup.events` says when the last process is gone: an
event, not a poll. Older kernels get the freezer and signals.

A memory limit below what is in use is taken: the kernel reclaims, then kills. A caller that does not want that looks at
the usage first, as resizing does.
"""

from __future__ import annotations

import contextlib
import errno
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import trio

from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.files import GroupFiles
from trikubelet.cgroups.hierarchy import V2_ENABLED, V2_GROUP_CONTROLLERS
from trikubelet.cgroups.settings import NO_LIMIT, NO_QUOTA, CgroupReading, CgroupSettings, shares_of_weight, v2_files
from trikubelet.linux.inotify import Inotify, Mask

if TYPE_CHECKING:
    from trikubelet.cgroups.names import CgroupName

_EVENT_TIMEOUT: Final = 1.0
"""Seconds until a round is over though no event came."""
_THAW_DEADLINE: Final = 5.0


class V2Files(GroupFiles):
    """A driver (`interface.CgroupDriver`)."""

    @property
    def version(self) -> Literal[1, 2]:
        return 2

    @property
    def _root(self) -> str:
        assert self.hierarchies.unified is not None, "a hierarchy of version 2 has a mount point"
        return str(self.hierarchies.unified)

    def _folder(self, name: CgroupName) -> str:
        return f"{self._root}{self.literal(name).rstrip('/')}"

    def _controllers(self, folder: str) -> set[str]:
        return set(self.kernel.read(f"{folder}/cgroup.controllers").split())

    def _missing(self, name: CgroupName) -> list[str]:
        folder = self._folder(name)
        needed = V2_GROUP_CONTROLLERS & self._controllers(self._root)
        try:
            return sorted(needed - self._controllers(folder))
        except FileNotFoundError:
            return sorted(needed) or [folder]

    def _create(self, name: CgroupName, settings: CgroupSettings) -> None:
        path, made = self._root, False
        for part in self.literal(name).strip("/").split("/"):
            self._enable(name, path)
            path = f"{path}/{part}"
            made = self.kernel.make(path)
        try:
            self._set(name, settings)
        except OSError:
            # A group without its limits would be taken for a whole one the next time.
            if made:
                self._delete([path])
            raise

    def _enable(self, name: CgroupName, folder: str) -> None:
        """Turn controllers on for the groups below `folder`."""
        control = f"{folder}/cgroup.subtree_control"
        wanted = sorted((V2_ENABLED & self._controllers(folder)) - set(self.kernel.read(control).split()))
        if not wanted:
            return
        try:
            self.kernel.write(control, " ".join(f"+{controller}" for controller in wanted))
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise CgroupError(
                    self.literal(name),
                    f"cannot turn on {', '.join(wanted)} below {folder}: processes are in that group itself, "
                    "which cgroup v2 allows only in one without groups to limit; move them into a group below it",
                    number=errno.EBUSY,
                ) from error
            raise

    def _set(self, name: CgroupName, settings: CgroupSettings) -> None:
        """Write all that can be written, then raise the first error."""
        folder = self._folder(name)
        problem: OSError | None = None
        for file, text in v2_files(settings, self.hierarchies.page_sizes):
            try:
                self.kernel.write(f"{folder}/{file}", text)
            except FileNotFoundError as error:
                if not self.kernel.exists(folder):
                    raise
                controller = file.partition(".")[0]
                if controller in self._controllers(folder):
                    if ".rsvd." not in file:
                        problem = problem or error
                else:
                    self.not_limited(controller)
            except OSError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _read(self, name: CgroupName) -> CgroupReading:
        folder = self._folder(name)
        controllers = self._controllers(folder)
        shares = quota = period = limit = usage = None
        if "cpu" in controllers:
            weight = self.kernel.number(f"{folder}/cpu.weight")
            shares = None if weight is None else shares_of_weight(weight)
            of_period, _, length = self.kernel.read(f"{folder}/cpu.max").strip().partition(" ")
            quota, period = NO_QUOTA if of_period == "max" else int(of_period), int(length)
        if "memory" in controllers:
            limit = self.kernel.number(f"{folder}/memory.max")
            limit = NO_LIMIT if limit is None else limit
            usage = self.kernel.number(f"{folder}/memory.current")
        return CgroupReading(shares, quota, period, limit, usage)

    async def kill_round(self, name: CgroupName, folders: list[str]) -> None:
        folder = self._folder(name)

        def kill() -> bool:
            try:
                self.kernel.write(f"{folder}/cgroup.kill", "1")
            except FileNotFoundError:
                return False
            return True

        with contextlib.ExitStack() as watches:
            events = _watch(folder, watches)
            if not await self.on_thread(name, "kill processes", kill):
                await self._kill_frozen(name, folder, folders)
            elif events is not None:
                with trio.move_on_after(_EVENT_TIMEOUT):
                    while await self.on_thread(name, "read", partial(self._populated, folder)):
                        await events.wait()

    def _populated(self, folder: str) -> bool:
        try:
            return "populated 1" in self.kernel.read(f"{folder}/cgroup.events")
        except FileNotFoundError:
            return False

    async def _kill_frozen(self, name: CgroupName, folder: str, folders: list[str]) -> None:
        """For kernels before 5.14. A frozen process dies of SIGKILL here, unlike in v1."""

        def freeze(text: str) -> None:
            try:
                self.kernel.write(f"{folder}/cgroup.freeze", text)
            except FileNotFoundError:
                return

        try:
            await self.on_thread(name, "freeze", partial(freeze, "1"))
            await super().kill_round(name, folders)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _THAW_DEADLINE):
                await self.on_thread(name, "thaw", partial(freeze, "0"))


def _watch(folder: str, watches: contextlib.ExitStack) -> Inotify | None:
    """What reports the end of the last process; None where the group is gone, or the machine has no watch left."""
    try:
        events = watches.enter_context(Inotify())
        events.watch(Path(folder) / "cgroup.events", Mask.MODIFY)
    except OSError:
        return None
    return events
