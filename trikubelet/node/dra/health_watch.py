"""Follows what plugins tell of their devices' health, and keeps it (`health.py` has the rules).

Plugins need not tell. One that does not know the service is asked again when it was started anew; a stream that ended
is begun again after a while, and meanwhile nothing is known of the driver's devices.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from grpclib import GRPCError, Status

from trikubelet.broadcast import Broadcast
from trikubelet.formats.go_checkpoint import GoCheckpointError
from trikubelet.node.dra.checkpoint import replace_file
from trikubelet.node.dra.health import HealthBook, told
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from trio_typing import TaskStatus

    from trikubelet.clock import WallClock
    from trikubelet.node.dra.checkpoint import Write
    from trikubelet.node.dra.health import DeviceName
    from trikubelet.node.dra.plugin import DRAPlugin
    from trikubelet.rpc.dra_health import v1alpha1

WATCH_PERIOD: Final = 5.0
"""Between streams."""

log = get_logger("claims")


class HealthWatch:
    """What is known of the health of devices."""

    def __init__(
        self,
        path: Path,
        clock: WallClock,
        changed: Callable[[str, Collection[DeviceName]], object],
        write: Write = replace_file,
    ) -> None:
        """`path`: of the file. `changed` is called with a driver and those of its devices that do otherwise."""
        self._path = path
        self._write_out = write
        self._clock = clock
        self._changed = changed
        self._book = HealthBook()
        self._tellers: dict[str, int] = {}
        """How many plugins of a driver tell of its devices."""
        self._unwritten = False
        self._news: Broadcast[None] = Broadcast()

    def get(self, driver: str, device: DeviceName) -> tuple[str, str]:
        """`Healthy`, `Unhealthy` or `Unknown`, and a message."""
        return self._book.get(driver, device, self._clock.now())

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep it, until cancelled. Started when what an earlier agent knew is known."""
        self._book = await trio.to_thread.run_sync(_read, self._path)
        task_status.started()
        await supervise(self._keep)

    async def follow(self, plugin: DRAPlugin) -> None:
        """Take what a plugin tells, until cancelled."""
        while True:
            if await self._follow_once(plugin) is Status.UNIMPLEMENTED:
                try:
                    connection = await plugin.channel.wait_for_connection()
                    await connection.ended.wait()
                    continue
                except GRPCError:
                    pass
            await trio.sleep(WATCH_PERIOD)

    async def _follow_once(self, plugin: DRAPlugin) -> Status:
        """How it ended."""
        driver = plugin.driver
        self._tellers[driver] = self._tellers.get(driver, 0) + 1
        try:
            await plugin.watch(partial(self._take, driver))
        except GRPCError as error:
            log.debug("no health of devices", driver=driver, endpoint=plugin.endpoint, error=str(error))
            return error.status
        finally:
            self._tellers[driver] -= 1
            if not self._tellers[driver]:
                del self._tellers[driver]
                self._tell(driver, self._book.clear(driver))
        return Status.OK

    def _take(self, driver: str, devices: Iterable[v1alpha1.DeviceHealth]) -> None:
        now = self._clock.now()
        self._tell(driver, self._book.update(driver, [told(one, now) for one in devices], now))
        self._news.send(None)  # it holds longer now

    def _tell(self, driver: str, devices: Collection[DeviceName]) -> None:
        if devices:
            self._unwritten = True
            self._news.send(None)
            self._changed(driver, devices)

    async def _keep(self) -> None:
        """Write down what has changed, and notice what holds no more."""
        with self._news.subscribe() as news:
            while True:
                if self._unwritten:
                    await self._write()
                expiry = self._book.next_expiry()
                if expiry is None:
                    await news.receive()
                else:
                    wait = expiry - self._clock.now() + timedelta(milliseconds=1)
                    with trio.move_on_after(max(0.0, wait.total_seconds())):
                        await news.receive()
                for driver, devices in self._book.expire(self._clock.now()).items():
                    self._tell(driver, devices)

    async def _write(self) -> None:
        self._unwritten = False
        try:
            await self._write_out(self._path, self._book.to_bytes())
        except OSError as error:
            log.warning("the health of devices is not kept", file=str(self._path), error=str(error))


def _read(path: Path) -> HealthBook:
    """Nothing is known where the file is not there, or broken."""
    try:
        return HealthBook.from_bytes(path.read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, GoCheckpointError) as error:
        log.warning("the health of devices is not known any more", file=str(path), error=str(error))
    return HealthBook()
