"""A logind without a message bus, which keeps the real one's rules: a shutdown begins at once, is made known, and waits
for inhibitors; while it waits it takes no new ones."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.node.shutdown.interface import LogindError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@attrs.define(eq=False)
class FakeInhibitor:
    logind: FakeLogind

    def keep(self) -> None:
        if self.logind.keeps:
            assert self.logind.kept is None, "there is place for one"
            self.logind.kept = self

    def leave(self) -> None:
        if self.logind.kept is not self:
            self.logind.inhibitors.discard(self)

    def release(self) -> None:
        if self.logind.kept is self:
            self.logind.kept = None
        self.logind.inhibitors.discard(self)


@attrs.define(eq=False)
class FakeSession:
    """Implements `LogindSession`."""

    logind: FakeLogind
    changes: trio.MemoryReceiveChannel[bool]

    async def is_shutting_down(self) -> bool:
        await self._answer()
        return self.logind.preparing

    async def longest_delay(self) -> float:
        await self._answer()
        return self.logind.longest_delay

    async def allow_delay(self, seconds: int) -> None:
        await self._answer()
        self.logind.overrides.append(seconds)
        if self.logind.obeys:
            self.logind.longest_delay = seconds

    async def inhibit(self) -> FakeInhibitor:
        await self._answer()
        if self.logind.preparing:
            raise LogindError("the operation is already running")
        inhibitor = FakeInhibitor(self.logind)
        self.logind.inhibitors.add(inhibitor)
        self.logind.taken += 1
        return inhibitor

    async def next_change(self) -> bool:
        try:
            return await self.changes.receive()
        except trio.EndOfChannel:
            raise LogindError("gone") from None

    async def _answer(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.logind.there:
            raise LogindError("gone")


@attrs.define(eq=False)
class FakeLogind:
    """Implements `Logind`."""

    longest_delay: float = 3600.0
    obeys: bool = True
    """Whether it can be made to wait longer."""
    there: bool = True
    preparing: bool = False
    inhibitors: set[FakeInhibitor] = attrs.field(factory=set)
    taken: int = 0
    """Inhibitors since the beginning."""
    overrides: list[int] = attrs.field(factory=list)
    sessions: int = 0
    keeps: bool = False
    """Whether the agent's service manager keeps an inhibitor."""
    kept: FakeInhibitor | None = None
    _listeners: set[trio.MemorySendChannel[bool]] = attrs.field(factory=set)

    def inherited(self) -> FakeInhibitor | None:
        return self.kept

    @asynccontextmanager
    async def session(self) -> AsyncIterator[FakeSession]:
        await trio.lowlevel.checkpoint()
        if not self.there:
            raise LogindError("nobody there")
        self.sessions += 1
        send, receive = trio.open_memory_channel[bool](math.inf)
        self._listeners.add(send)
        try:
            yield FakeSession(self, receive)
        finally:
            self._listeners.discard(send)

    def shut_down(self) -> None:
        self.preparing = True
        self._tell(True)

    def call_off(self) -> None:
        self.preparing = False
        self._tell(False)

    def lose_connections(self) -> None:
        """The message bus is started anew."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _tell(self, preparing: bool) -> None:
        for listener in self._listeners:
            listener.send_nowait(preparing)
