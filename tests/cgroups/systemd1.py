"""systemd's part in the driver `systemd`, on a private bus: it makes a folder for each slice in a tree of files that
behaves as cgroup v2 does, and remembers what it was told."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests.cgroups.fake_v2 import FakeKernel
from tests.private_bus import Handler, RefusalError, Service, service
from trikubelet.cgroups.names import SYSTEMD, from_systemd
from trikubelet.cgroups.systemd import MANAGER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

PREFIX = "org.freedesktop.systemd1."


@attrs.define(eq=False)
class Systemd1:
    root: Path
    kernel: FakeKernel
    version: str = "252.39-1~deb12u1"
    units: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """Properties by unit."""
    calls: list[tuple[str, str]] = attrs.field(factory=list)
    """Method and unit."""
    result: str | None = "done"
    """Of every job; None: they never end."""
    jobs: int = 0
    service: Service | None = None

    def folder(self, unit: str) -> Path:
        return self.root / SYSTEMD.literal(from_systemd(unit)).lstrip("/")

    async def start(
        self, unit: str, mode: str, properties: list[tuple[str, tuple[str, Any]]], others: list[Any]
    ) -> tuple[str, tuple[Any, ...]]:
        assert (mode, others) == ("replace", [])
        self.calls.append(("StartTransientUnit", unit))
        if unit in self.units:
            raise RefusalError(PREFIX + "UnitExists", f"Unit {unit} already exists.")
        if self.result == "done":
            self.units[unit] = _values(properties)
            for above in reversed((self.folder(unit), *self.folder(unit).parents)):
                if above.is_relative_to(self.root) and not above.exists():
                    self.kernel.make(str(above))
        return await self._job(unit)

    async def stop(self, unit: str, mode: str) -> tuple[str, tuple[Any, ...]]:
        assert mode == "replace"
        self.calls.append(("StopUnit", unit))
        if unit not in self.units:
            raise RefusalError(PREFIX + "NoSuchUnit", f"Unit {unit} not loaded.")
        if self.result == "done":
            del self.units[unit]
            if not self.kernel.folders(str(self.folder(unit))):
                self.kernel.delete(str(self.folder(unit)))
        return await self._job(unit)

    async def set(
        self, unit: str, runtime: bool, properties: list[tuple[str, tuple[str, Any]]]
    ) -> tuple[str, tuple[Any, ...]]:
        assert runtime, "nothing of a pod outlives the machine's next start"
        self.calls.append(("SetUnitProperties", unit))
        if unit not in self.units:
            raise RefusalError(PREFIX + "NoSuchUnit", f"Unit {unit} not loaded.")
        self.units[unit] |= _values(properties)
        return "", ()

    async def reset(self, unit: str) -> tuple[str, tuple[Any, ...]]:
        self.calls.append(("ResetFailedUnit", unit))
        raise RefusalError(PREFIX + "NoSuchUnit", f"Unit {unit} not loaded.")

    def property(self, name: str) -> tuple[str, Any]:
        assert name == "Version"
        return "s", self.version

    async def _job(self, unit: str) -> tuple[str, tuple[Any, ...]]:
        """It may have ended before the caller hears its number."""
        self.jobs += 1
        path = f"/org/freedesktop/systemd1/job/{self.jobs}"
        assert self.service is not None
        await self.service.emit("JobRemoved", "uoss", 4711, "/org/freedesktop/systemd1/job/4711", unit, "failed")
        if self.result is not None:
            await self.service.emit("JobRemoved", "uoss", self.jobs, path, unit, self.result)
        return "o", (path,)


def _values(properties: Iterable[tuple[str, tuple[str, Any]]]) -> dict[str, Any]:
    return {name: value for name, (_signature, value) in properties}


@asynccontextmanager
async def systemd1(address: str, root: Path, kernel: FakeKernel, **facts: Any) -> AsyncIterator[Systemd1]:
    made = Systemd1(root, kernel, **facts)
    methods: dict[str, Handler] = {
        "StartTransientUnit": made.start,
        "StopUnit": made.stop,
        "SetUnitProperties": made.set,
        "ResetFailedUnit": made.reset,
    }
    async with service(address, MANAGER, methods, made.property) as made.service:
        yield made
