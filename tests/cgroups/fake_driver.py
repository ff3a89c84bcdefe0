"""A driver without a kernel: groups are entries of a dict, and what is done with them is a list."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Literal

from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.names import CGROUPFS, CgroupName, Naming
from trikubelet.cgroups.settings import CgroupReading, CgroupSettings, cpu_weight, merged, shares_of_weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class FakeDriver:
    def __init__(self, *groups: CgroupName, naming: Naming = CGROUPFS, version: Literal[1, 2] = 1) -> None:
        self.groups: dict[CgroupName, CgroupSettings] = {name: CgroupSettings() for name in groups}
        self.steps: list[tuple[str, CgroupName]] = []
        self.failures: dict[tuple[str, CgroupName], list[CgroupError]] = {}
        """What the next calls raise, by method and group."""
        self.owners: dict[CgroupName, str] = {}
        """Marks on groups."""
        self.usage = 0
        self._naming = naming
        self._version: Literal[1, 2] = version

    @property
    def version(self) -> Literal[1, 2]:
        return self._version

    def fail(self, method: str, name: CgroupName, errors: Iterable[CgroupError]) -> None:
        self.failures[method, name] = list(errors)

    def steps_on(self, method: str) -> list[CgroupName]:
        return [name for step, name in self.steps if step == method]

    def literal(self, name: CgroupName) -> str:
        return self._naming.literal(name)

    def name_of(self, literal: str) -> CgroupName:
        return self._naming.parse(literal)

    async def missing(self, name: CgroupName) -> list[str]:
        self._step("missing", name)
        return [] if name in self.groups or not name else [f"/sys/fs/cgroup/memory{self.literal(name)}"]

    async def exists(self, name: CgroupName) -> bool:
        self._step("exists", name)
        return name in self.groups

    async def create(self, name: CgroupName, settings: CgroupSettings) -> None:
        self._step("create", name)
        for depth in range(1, len(name)):
            self.groups.setdefault(name[:depth], CgroupSettings())
        self.groups[name] = merged(self.groups.get(name, CgroupSettings()), settings)

    async def make(self, name: CgroupName, settings: CgroupSettings, owner: str = "") -> bool:
        made = not await self.exists(name)
        if made:
            await self.create(name, settings)
        if owner:
            self.owners.setdefault(name, owner)
        return made

    async def mark(self, name: CgroupName, owner: str) -> None:
        self.owners[name] = owner

    async def marks(self, names: Sequence[CgroupName]) -> dict[CgroupName, frozenset[str]]:
        there = [name for name in names if name in self.groups]
        return {name: frozenset({self.owners[name]} if name in self.owners else ()) for name in there}

    async def discard(self, name: CgroupName) -> None:
        self._step("discard", name)
        if not any(group[:-1] == name for group in self.groups):
            self.groups.pop(name, None)
            self.owners.pop(name, None)

    async def processes(self, name: CgroupName) -> list[int]:
        return []

    async def update(self, name: CgroupName, settings: CgroupSettings) -> None:
        self._step("update", name)
        self.groups[name] = merged(self._there(name), settings)

    async def read(self, name: CgroupName) -> CgroupReading:
        self._step("read", name)
        found = self._there(name)
        shares = found.cpu_shares
        if shares is not None and self._version == 2:
            shares = shares_of_weight(cpu_weight(shares))
        return CgroupReading(shares, found.cpu_quota, found.cpu_period, found.memory, self.usage)

    async def children(self, name: CgroupName) -> list[CgroupName]:
        self._step("children", name)
        return sorted(group for group in self.groups if group[:-1] == name and group)

    async def kill(self, name: CgroupName) -> None:
        self._step("kill", name)

    async def remove(self, name: CgroupName) -> None:
        self._step("remove", name)
        for group in [group for group in self.groups if group[: len(name)] == name]:
            del self.groups[group]
            self.owners.pop(group, None)

    def _step(self, method: str, name: CgroupName) -> None:
        self.steps.append((method, name))
        waiting = self.failures.get((method, name))
        if waiting:
            raise waiting.pop(0)

    def _there(self, name: CgroupName) -> CgroupSettings:
        if name not in self.groups:
            raise CgroupError(self.literal(name), "could not read: No such file or directory", number=errno.ENOENT)
        return self.groups[name]
