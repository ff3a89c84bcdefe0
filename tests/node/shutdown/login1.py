"""logind's part in a shutdown, on a private bus: `python -m tests.node.shutdown.login1 ADDRESS`, or in a test's
nursery.

It keeps logind's rules: a shutdown is made known and then waits for all inhibitors; while it waits none is given. Who
drives it calls `ShutDown` and `CallOff`, methods of its own, and reads the property `Inhibitors`.
"""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio
from jeepney import DBusAddress, Properties, new_method_call
from jeepney.io.blocking import open_dbus_connection

from tests.private_bus import RefusalError, Service, service
from trikubelet.node.shutdown.logind import LOGIND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@attrs.define(eq=False)
class Login1:
    nursery: trio.Nursery
    longest_delay: int = 3600
    """Seconds."""
    preparing: bool = False
    asked: list[tuple[str, ...]] = attrs.field(factory=list)
    inhibitors: int = 0
    service: Service | None = None

    async def inhibit(self, *what: str) -> tuple[str, tuple[Any, ...]]:
        self.asked.append(what)
        if self.preparing:
            raise RefusalError("org.freedesktop.login1.OperationInProgress", "The operation is already running")
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        self.inhibitors += 1
        self.nursery.start_soon(self._until_released, ours)
        self.nursery.start_soon(self._close_when_sent, theirs)
        return "h", (theirs,)

    async def shut_down(self) -> tuple[str, tuple[Any, ...]]:
        self.preparing = True
        await self._tell()
        return "", ()

    async def call_off(self) -> tuple[str, tuple[Any, ...]]:
        self.preparing = False
        await self._tell()
        return "", ()

    def property(self, name: str) -> tuple[str, Any]:
        match name:
            case "InhibitDelayMaxUSec":
                return "t", self.longest_delay * 1_000_000
            case "PreparingForShutdown":
                return "b", self.preparing
            case "Inhibitors":
                return "u", self.inhibitors
        raise RefusalError("org.freedesktop.DBus.Error.UnknownProperty", name)

    async def _tell(self) -> None:
        assert self.service is not None
        await self.service.emit("PrepareForShutdown", "b", self.preparing)

    async def _until_released(self, descriptor: int) -> None:
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            self.inhibitors -= 1
            os.close(descriptor)

    async def _close_when_sent(self, descriptor: int) -> None:
        """The answer has the lock, or waits for it, before this task first runs: nothing yields in between."""
        assert self.service is not None
        try:
            async with self.service.connection.send_lock:
                pass
        finally:
            os.close(descriptor)


@asynccontextmanager
async def login1(address: str, **facts: Any) -> AsyncIterator[Login1]:
    async with trio.open_nursery() as nursery:
        made = Login1(nursery, **facts)
        methods = {"Inhibit": made.inhibit, "ShutDown": made.shut_down, "CallOff": made.call_off}
        async with service(address, LOGIND, methods, made.property) as made.service:
            yield made
        nursery.cancel_scope.cancel()


@attrs.frozen
class Login1Client:
    """Drives one in another process."""

    address: str

    def call(self, method: str) -> None:
        self._ask(new_method_call(_ADDRESS, method))

    @property
    def inhibitors(self) -> int:
        ((_, count),) = self._ask(Properties(_ADDRESS).get("Inhibitors"))
        return int(count)

    def _ask(self, message: Any) -> tuple[Any, ...]:
        with open_dbus_connection(self.address) as connection:
            return tuple(connection.send_and_get_reply(message).body)


_ADDRESS = DBusAddress(LOGIND.path, bus_name=LOGIND.service, interface=LOGIND.name)


async def main(address: str) -> None:
    async with login1(address):
        print("ready", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
