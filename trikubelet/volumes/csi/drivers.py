"""The CSI drivers that have registered on this node, and how to talk to them.

Written by the handler of registrations only. Each use of a driver opens a connection of its own and closes it: calls
are rare, and so a driver that was replaced, or that listens anew, is never reached over an old connection.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.rpc.grpc import SHORT_REPLY, Channel, open_unix_channel
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Histograms
from trikubelet.volumes.csi.client import CALL_TIMEOUT, NodeClient
from trikubelet.volumes.errors import TransientVolumeError
from trikubelet.volumes.metrics import STORAGE_BOUNDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

log = get_logger("csi")

_open_channel = partial(open_unix_channel, max_reply_size=SHORT_REPLY)


@frozen
class Driver:
    """A driver that serves CSI's Node service."""

    name: str
    endpoint: str
    """The path of its socket."""
    version: str = ""
    """Of CSI, the highest that both sides know, for example `1.0.0`."""


class Drivers:
    """By name. `connect` opens a channel to an endpoint."""

    def __init__(
        self,
        *,
        connect: Callable[[str], Channel] = _open_channel,
        timeout: float = CALL_TIMEOUT,
    ) -> None:
        self._connect = connect
        self._timeout = timeout
        self.durations = Histograms(STORAGE_BOUNDS)
        """Seconds of calls, by driver, call, code and whether the volume was migrated."""
        self.measuring = Histograms()
        """Seconds that it took to ask how much volumes hold, by driver."""
        self._drivers: dict[str, Driver] = {}
        self.changes: Broadcast[str] = Broadcast()
        """Names of drivers that came, moved or went."""

    def add(self, driver: Driver) -> None:
        """The driver can be used from now on. One of the same name is replaced."""
        if self._drivers.get(driver.name) == driver:
            return
        self._drivers[driver.name] = driver
        log.info("CSI driver registered", driver=driver.name, endpoint=driver.endpoint, version=driver.version)
        self.changes.send(driver.name)

    def remove(self, name: str, endpoint: str) -> None:
        """The driver at this endpoint is gone. Nothing happens when another has taken its name meanwhile."""
        driver = self._drivers.get(name)
        if driver is None or driver.endpoint != endpoint:
            return
        del self._drivers[name]
        log.info("CSI driver gone", driver=name, endpoint=endpoint)
        self.changes.send(name)

    def get(self, name: str) -> Driver | None:
        return self._drivers.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._drivers))

    async def wait(self, name: str) -> Driver:
        """The driver, once it has registered. Has no deadline of its own; cancelling it is fine."""
        while (driver := self._drivers.get(name)) is None:
            await self.changes.wait()
        return driver

    @asynccontextmanager
    async def client(self, name: str, *, volume: str = "", migrated: bool = False) -> AsyncIterator[NodeClient]:
        """The driver's Node service, connected with the first call. Raises TransientVolumeError when no such driver
        has registered; `volume` is the one that the error is about, `migrated` is for the count of calls."""
        driver = self._drivers.get(name)
        if driver is None:
            what = f"driver name {name} not found in the list of registered CSI drivers"
            raise TransientVolumeError(volume, what)
        async with self._connect(driver.endpoint) as channel:
            yield NodeClient(channel, timeout=self._timeout, driver=name, durations=self.durations, migrated=migrated)
