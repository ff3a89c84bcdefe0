"""The plugin of each resource.

Plugins restart, and then register anew, often on another socket. The newer one takes over as soon as it is connected
to: what the older one tells from then on is not listened to, calls that it has to answer yet may end. A newer one that
cannot be connected to changes nothing. The newer one is the one that registered last, not the one that was connected to
last.

When a plugin ends, nothing is tried again: a plugin that goes on registers again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.formats.values import frozen
from trikubelet.node.devices.endpoint import Endpoint, PluginError, connected
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.supervision import contain
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from trio_typing import TaskStatus

    from trikubelet.node.devices.manager import DeviceManager
    from trikubelet.node.devices.model import PluginDevice
    from trikubelet.rpc.grpc import Channel


log = get_logger("devices")


@frozen(eq=False)
class _Plugin:
    number: int
    """A later registration has a higher one."""
    endpoint: Endpoint


class PluginConnections:
    """Which plugin serves which resource.

    Registrations come from calls that end with their answer, and from two places (`server`: the gRPC service, and the
    handler of `plugins_registry`, which another part runs), so a plugin's task lives in the nursery of `run`, kept
    here.
    """

    def __init__(
        self,
        manager: DeviceManager,
        connect: Callable[[Path], AbstractAsyncContextManager[Channel]] = open_unix_channel,
    ) -> None:
        self._manager = manager
        self._connect = connect
        self._plugins: dict[str, _Plugin] = {}
        self._registrations = 0
        self._nursery: trio.Nursery | None = None

    def get(self, resource: str) -> Endpoint | None:
        """The plugin of a resource, or the last one it had: that is stopped then."""
        plugin = self._plugins.get(resource)
        return None if plugin is None else plugin.endpoint

    def forget(self, resource: str) -> None:
        """The resource's plugin has ended for good."""
        plugin = self._plugins.get(resource)
        if plugin is not None and plugin.endpoint.stopped:
            del self._plugins[resource]

    async def connect(self, resource: str, socket: Path) -> None:
        """A plugin registers. Raises PluginError; nothing has changed then. Cancelling it gives the plugin up, unless
        it has taken over."""
        if self._nursery is None:
            raise PluginError("no plugins are taken: the agent starts, or ends")
        self._registrations += 1
        await self._nursery.start(contain, self._keep, resource, socket, self._registrations)

    def disconnect(self, resource: str, socket: Path) -> None:
        """The plugin says that it ends. Nothing happens when another one has taken over."""
        endpoint = self.get(resource)
        if endpoint is not None and endpoint.socket == socket:
            endpoint.stop()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen to plugins until cancelled. They are just left then."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def _keep(self, resource: str, socket: Path, number: int, *, task_status: TaskStatus[None]) -> None:
        async with connected(resource, socket, self._connect) as endpoint:
            self._take_over(_Plugin(number, endpoint))
            task_status.started()
            try:
                await endpoint.listen(lambda devices: self._receive(endpoint, devices))
            except PluginError as error:
                log.warning("device plugin ended", resource=resource, socket=str(socket), error=str(error))
            if self.get(resource) is endpoint:
                self._manager.plugin_ended(resource)
            await endpoint.drained()

    def _take_over(self, plugin: _Plugin) -> None:
        resource = plugin.endpoint.resource
        older = self._plugins.get(resource)
        if older is not None and older.number > plugin.number:
            raise PluginError(f"another plugin has registered for {resource} meanwhile")
        self._plugins[resource] = plugin
        if older is not None:
            older.endpoint.stop()
        log.info("device plugin connected", resource=resource, socket=str(plugin.endpoint.socket))
        self._manager.plugin_connected(resource)

    def _receive(self, endpoint: Endpoint, devices: Sequence[PluginDevice]) -> None:
        if self.get(endpoint.resource) is endpoint:
            self._manager.plugin_listed(endpoint.resource, devices)
