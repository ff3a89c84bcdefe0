"""Plugins in memory, and how a device manager reaches them: no socket but its own, which nobody uses here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio
import trio.testing

from tests.device_plugin import ToyPlugin
from trikubelet.node.devices.server import Registration
from trikubelet.rpc.device_plugins.v1beta1 import RegisterRequest
from trikubelet.rpc.grpc import Channel, Server

if TYPE_CHECKING:
    from trikubelet.node.devices.manager import DeviceManager


@attrs.define(eq=False)
class PluginSockets:
    """Where plugins listen, in the place of a folder."""

    nursery: trio.Nursery
    folder: Path
    sockets: dict[Path, ToyPlugin] = attrs.field(factory=dict)
    lives: dict[ToyPlugin, set[trio.CancelScope]] = attrs.field(factory=dict)
    """Around each connection to a plugin."""

    def connect(self, path: Path) -> Channel:
        async def stream() -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            plugin = self.sockets.get(path)
            if plugin is None:
                raise FileNotFoundError(2, "No such file or directory")
            ours, theirs = trio.testing.memory_stream_pair()
            self.nursery.start_soon(self._serve, plugin, theirs)
            return ours

        return Channel(stream)

    async def _serve(self, plugin: ToyPlugin, stream: trio.abc.Stream) -> None:
        with trio.CancelScope() as scope:
            self.lives.setdefault(plugin, set()).add(scope)
            await Server([plugin]).serve_stream(stream)

    def listen(self, plugin: ToyPlugin, socket: str = "toy.sock") -> None:
        """The plugin can be connected to from now on."""
        self.sockets[self.folder / socket] = plugin

    def kill(self, plugin: ToyPlugin) -> None:
        """The plugin's process is gone: nobody listens, and its connections break."""
        for path in [path for path, one in self.sockets.items() if one is plugin]:
            del self.sockets[path]
        for scope in self.lives.pop(plugin, ()):
            scope.cancel()

    async def register(
        self, manager: DeviceManager, plugin: ToyPlugin, socket: str = "toy.sock", *, version: str = "v1beta1"
    ) -> None:
        """As it would by the agent's socket. Raises GRPCError. Returns when its devices are known."""
        self.listen(plugin, socket)
        request = RegisterRequest(version=version, endpoint=socket, resource_name=plugin.resource)
        await Registration(self.folder, manager._connections, manager.metrics).register(request)
        await settle()


async def settle() -> None:
    """Until nothing can happen any more without the clock."""
    await trio.testing.wait_all_tasks_blocked()
