"""The driver `systemd`: groups are slices, of which systemd has to know, or it would tidy them away.

The story of a group: systemd is asked for a transient slice, and makes its folders when the job that it answers with is
done. What it does not know of, folders of other controllers and limits without a property, the file driver adds.
Changes take the same two steps, and at the end the slice is stopped, and what is left of its folders deleted.

Each piece of work has a connection to the message bus of its own, which costs about a millisecond: nothing has to be
kept alive between two pods, and a bus that was started anew is not noticed.
"""

from __future__ import annotations

import errno
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import trio

from trikubelet.cgroups.driver_choice import file_driver
from trikubelet.cgroups.errors import CgroupError, CgroupNameError, MemoryInUseError
from trikubelet.cgroups.names import SYSTEMD, systemd_unit
from trikubelet.cgroups.settings import CgroupSettings
from trikubelet.cgroups.systemd_properties import limit_properties, slice_properties, systemd_version
from trikubelet.linux.dbus import SYSTEM_BUS, Bus, BusError, BusReplyError, Interface, open_bus
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from trikubelet.cgroups.hierarchy import Hierarchies
    from trikubelet.cgroups.interface import CgroupDriver
    from trikubelet.cgroups.names import CgroupName
    from trikubelet.cgroups.settings import CgroupReading
    from trikubelet.cgroups.systemd_properties import Property

log = get_logger("cgroups")

MANAGER: Final = Interface("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
JOB_WITHIN: Final = 30.0
"""Seconds for systemd to make or stop a slice."""
_ABOUT_JOB: Final = 4
"""Values of systemd's signal about a job that has ended: its number and path, the unit, and how it ended."""
_DONE: Final = "done"
_EXISTS: Final = "org.freedesktop.systemd1.UnitExists"
_NOT_THERE: Final = "org.freedesktop.systemd1.NoSuchUnit"


def systemd_driver(hierarchies: Hierarchies, bus: str = SYSTEM_BUS) -> SystemdSlices:
    """`bus`: the address of systemd's message bus."""
    return SystemdSlices(file_driver(hierarchies, naming=SYSTEMD), bus)


class SystemdSlices:
    """A driver (`interface.CgroupDriver`)."""

    def __init__(self, files: CgroupDriver, bus: str) -> None:
        """`files`: the driver of the same groups' folders."""
        self._files = files
        self._bus = bus
        self._systemd: int | None = None
        """Its version."""

    @property
    def version(self) -> Literal[1, 2]:
        return self._files.version

    def literal(self, name: CgroupName) -> str:
        return self._files.literal(name)

    def name_of(self, literal: str) -> CgroupName:
        return self._files.name_of(literal)

    async def missing(self, name: CgroupName) -> list[str]:
        return await self._files.missing(name)

    async def exists(self, name: CgroupName) -> bool:
        return await self._files.exists(name)

    async def read(self, name: CgroupName) -> CgroupReading:
        return await self._files.read(name)

    async def children(self, name: CgroupName) -> list[CgroupName]:
        return await self._files.children(name)

    async def kill(self, name: CgroupName) -> None:
        await self._files.kill(name)

    async def create(self, name: CgroupName, settings: CgroupSettings) -> None:
        unit = systemd_unit(_not_root(name))
        about = slice_properties(unit, systemd_unit(name[:-1]), self.version)
        async with self._connection(name) as bus:
            limits, exact = await self._limits(bus, settings)
            try:
                await self._job(bus, name, "StartTransientUnit", "ssa(sv)a(sa(sv))", (*about, *limits), [])
            except BusReplyError as error:
                if error.name != _EXISTS:
                    raise
                await self._set(bus, unit, limits)
        await self._files.create(name, exact)

    async def make(self, name: CgroupName, settings: CgroupSettings, owner: str = "") -> bool:
        made = not await self._files.exists(name)
        if made:
            await self.create(name, settings)
        if owner and not (await self._files.marks((name,))).get(name):
            await self._files.mark(name, owner)
        return made

    async def mark(self, name: CgroupName, owner: str) -> None:
        await self._files.mark(name, owner)

    async def marks(self, names: Sequence[CgroupName]) -> dict[CgroupName, frozenset[str]]:
        return await self._files.marks(names)

    async def update(self, name: CgroupName, settings: CgroupSettings) -> None:
        """A memory limit that the kernel refuses is taken back from systemd too."""
        unit = systemd_unit(_not_root(name))
        before = await self._files.read(name) if settings.memory and self.version == 1 else None
        async with self._connection(name) as bus:
            limits, exact = await self._limits(bus, settings)
            await self._set(bus, unit, limits)
            try:
                await self._files.update(name, exact)
            except MemoryInUseError:
                if before is not None and before.memory_limit is not None:
                    old, _ = await self._limits(bus, CgroupSettings(memory=before.memory_limit))
                    await self._set(bus, unit, old)
                raise

    async def remove(self, name: CgroupName) -> None:
        unit = systemd_unit(_not_root(name))
        async with self._connection(name) as bus:
            try:
                await self._job(bus, name, "StopUnit", "ss")
            except BusReplyError as error:
                if error.name != _NOT_THERE:
                    raise
            with suppress(BusReplyError):  # mostly it has not failed, and is not known any more
                await bus.call(MANAGER, "ResetFailedUnit", "s", unit)
        await self._files.remove(name)

    async def discard(self, name: CgroupName) -> None:
        """systemd kills what is in a slice that it stops, so one that holds anything is left to it."""
        if not await self._files.processes(name) and not await self._files.children(name):
            await self.remove(name)

    async def processes(self, name: CgroupName) -> list[int]:
        return await self._files.processes(name)

    async def _limits(self, bus: Bus, settings: CgroupSettings) -> tuple[list[Property], CgroupSettings]:
        if self._systemd is None:
            self._systemd = systemd_version(await bus.get(MANAGER, "Version", "s"))
        return limit_properties(settings, self.version, self._systemd)

    async def _set(self, bus: Bus, unit: str, properties: Sequence[Property]) -> None:
        if properties:
            await bus.call(MANAGER, "SetUnitProperties", "sba(sv)", unit, True, list(properties))

    async def _job(self, bus: Bus, name: CgroupName, method: str, signature: str, *arguments: Any) -> None:
        """Have systemd do something with the slice, and wait until it has."""
        unit = systemd_unit(name)
        async with bus.signals(MANAGER, "JobRemoved") as removed:
            details = map(_as_list, arguments)
            (job,) = await bus.call(MANAGER, method, signature, unit, "replace", *details, answer="o")
            result = "nothing"
            with trio.move_on_after(JOB_WITHIN):
                async for told in removed:
                    if len(told) != _ABOUT_JOB:
                        raise BusError(f"expected number, path, unit and result of a job with JobRemoved, got {told}")
                    if told[1] == job:
                        result = told[-1]
                        break
                else:
                    raise BusError("systemd or the message bus has gone, or was started anew")
            if result == _DONE:
                return
        with suppress(BusReplyError):
            await bus.call(MANAGER, "ResetFailedUnit", "s", unit)
        raise CgroupError(
            self.literal(name),
            f"systemd's job {method} for {unit} ended with {result} within {JOB_WITHIN:g} s, expected {_DONE}: "
            f"look at `systemctl status {unit}`",
        )

    @asynccontextmanager
    async def _connection(self, name: CgroupName) -> AsyncIterator[Bus]:
        """Raises CgroupError for whatever goes wrong on the bus."""
        try:
            async with open_bus(self._bus) as bus:
                yield bus
        except BusReplyError as error:
            number = errno.ENOENT if error.name == _NOT_THERE else 0
            raise CgroupError(self.literal(name), f"systemd refuses: {error}", number=number) from error
        except BusError as error:
            raise CgroupError(self.literal(name), f"systemd cannot be asked: {error}") from error


def _as_list(argument: Any) -> Any:
    return list(argument) if isinstance(argument, tuple) else argument


def _not_root(name: CgroupName) -> CgroupName:
    if not name:
        raise CgroupNameError("/", "the root slice is systemd's own and is never made, set or removed")
    return name
