"""The plugins of all drivers: how they register, and whether they can be reached (kubelet: `DRAPluginManager`).

A driver may have several plugins at once, while one takes over from another for instance. The one that registered last
is asked, of those that can be reached if there are any. So that a plugin's death is known before it is asked for
something, each has a connection for as long as it is registered; when that breaks it is made anew again and again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from grpclib import GRPCError

from trikubelet.backoff import Backoff
from trikubelet.formats.values import define
from trikubelet.node.dra.plugin import DRAPlugin, DRAPluginError, chosen_service
from trikubelet.plugins.handlers import Plugin, PluginRefusedError
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from trio_typing import TaskStatus

    from trikubelet.node.dra.metrics import ClaimMetrics
    from trikubelet.rpc.grpc import Channel

    Watch = Callable[[DRAPlugin], Awaitable[None]]

PLUGIN_TYPE: Final = "DRAPlugin"
RECONNECTS: Final = Backoff(first=0.1, longest=3.0)
"""Between looks at whether a plugin can be reached."""

log = get_logger("claims")


@define(eq=False)
class _Registered:
    """A plugin, and the scope around all that is done for it."""

    plugin: DRAPlugin
    scope: trio.CancelScope


class DRAPlugins:
    """A `PluginHandler`. Also tells which plugin of a driver is to be asked."""

    def __init__(
        self,
        connect: Callable[[Path], AbstractAsyncContextManager[Channel]],
        metrics: ClaimMetrics,
        *,
        changed: Callable[[str], object],
        watch: Watch | None = None,
    ) -> None:
        """`changed` is called with a driver's name whenever one of its plugins comes, goes, or can be reached or not.
        `watch` runs for each plugin while it is registered."""
        self._connect = connect
        self._metrics = metrics
        self._changed = changed
        self._watch = watch
        self._registered: dict[str, list[_Registered]] = {}
        """By driver; who came last comes last."""
        self._nursery: trio.Nursery | None = None

    def get(self, driver: str) -> DRAPlugin:
        """The one to ask. Raises DRAPluginError when there is none."""
        plugins = [one.plugin for one in self._registered.get(driver, ())]
        if not plugins:
            raise DRAPluginError(f"DRA driver {driver} is not registered")
        return next((one for one in reversed(plugins) if one.connected), plugins[-1])

    def usable(self, driver: str) -> bool:
        """Whether one of its plugins can be reached."""
        return any(one.plugin.connected for one in self._registered.get(driver, ()))

    def all(self) -> list[DRAPlugin]:
        return [one.plugin for _, plugins in sorted(self._registered.items()) for one in plugins]

    # As a handler of plugins.

    def validate(self, plugin: Plugin) -> None:
        """Refuses what speaks no version that we know."""
        _service_of(plugin)

    async def register(self, plugin: Plugin) -> None:
        """A plugin may come beside another one of its driver, but not at the same socket."""
        if any(one.plugin.endpoint == plugin.endpoint for one in self._registered.get(plugin.name, ())):
            raise PluginRefusedError(
                f"endpoint {plugin.endpoint} already registered for DRA driver plugin {plugin.name}"
            )
        service = _service_of(plugin)
        if self._nursery is None:
            raise PluginRefusedError("no plugins are taken: the agent starts, or ends")
        await self._nursery.start(contain, self._keep, plugin, service)

    async def deregister(self, plugin: Plugin) -> None:
        """Calls to it that are under way fail."""
        await trio.lowlevel.checkpoint()
        for one in self._registered.get(plugin.name, ()):
            if one.plugin.endpoint == plugin.endpoint:
                self._remove(one)
                one.scope.cancel()
                break

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections to plugins until cancelled. They are just left then."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def _keep(self, plugin: Plugin, service: str, *, task_status: TaskStatus[None]) -> None:
        with trio.CancelScope() as scope:
            async with self._connect(Path(plugin.endpoint)) as channel:
                one = _Registered(DRAPlugin(plugin.name, plugin.endpoint, service, channel, self._metrics), scope)
                self._registered.setdefault(plugin.name, []).append(one)
                log.info("DRA plugin registered", driver=plugin.name, endpoint=plugin.endpoint, service=service)
                self._changed(plugin.name)
                task_status.started()
                try:
                    await self._serve(one.plugin)
                finally:
                    self._remove(one)

    async def _serve(self, plugin: DRAPlugin) -> None:
        async with trio.open_nursery() as nursery:
            if self._watch is not None:
                nursery.start_soon(supervise, self._watch, plugin)
            nursery.start_soon(supervise, self._follow_connection, plugin)

    async def _follow_connection(self, plugin: DRAPlugin) -> None:
        pause = RECONNECTS.first
        while True:
            try:
                connection = await plugin.channel.wait_for_connection()
            except GRPCError:
                await trio.sleep(pause)
                pause = RECONNECTS.after(pause)
                continue
            pause = RECONNECTS.first
            try:
                self._connection_changed(plugin, connected=True)
                await connection.ended.wait()
            finally:
                self._connection_changed(plugin, connected=False)
            await trio.sleep(pause)

    def _connection_changed(self, plugin: DRAPlugin, *, connected: bool) -> None:
        plugin.connected = connected
        log.debug("connection to DRA plugin", driver=plugin.driver, endpoint=plugin.endpoint, connected=connected)
        if any(one.plugin is plugin for one in self._registered.get(plugin.driver, ())):
            self._changed(plugin.driver)

    def _remove(self, one: _Registered) -> None:
        driver = one.plugin.driver
        plugins = self._registered.get(driver, [])
        if one not in plugins:
            return
        plugins.remove(one)
        if not plugins:
            del self._registered[driver]
        log.info("DRA plugin unregistered", driver=driver, endpoint=one.plugin.endpoint)
        self._changed(driver)


def _service_of(plugin: Plugin) -> str:
    """Raises PluginRefusedError."""
    try:
        return chosen_service(plugin.versions)
    except ValueError as error:
        raise PluginRefusedError(
            f"invalid supported gRPC versions of DRA driver plugin {plugin.name} at endpoint {plugin.endpoint}: {error}"
        ) from error
