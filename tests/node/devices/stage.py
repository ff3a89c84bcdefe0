"""A device manager that runs, with plugins in memory."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from tests.node.devices.plugin_sockets import PluginSockets
from trikubelet.node.devices.manager import DeviceManager
from trikubelet.node.devices.server import FOLDER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.device_plugin import ToyPlugin
    from trikubelet.api import Pod
    from trikubelet.broadcast import Subscription


@attrs.define(eq=False)
class Stage:
    """What a test has in its hands."""

    nursery: trio.Nursery
    root: Path
    active: set[str] = attrs.field(factory=set)
    sources_ready: bool = True
    numa_nodes: tuple[int, ...] = (0, 1)
    """The machine's."""
    running: set[tuple[str, str]] = attrs.field(factory=set)
    changes: int = 0
    """How often the node heard of others resources."""
    ill: list[set[str]] = attrs.field(factory=list)
    """Pods, each time that some heard of their devices' health."""
    sockets: PluginSockets = attrs.field(init=False)
    manager: DeviceManager = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sockets = PluginSockets(self.nursery, self.folder)
        self.manager = self.new_manager()

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    def new_manager(self) -> DeviceManager:
        return DeviceManager(
            self.folder,
            needed=lambda uid: uid in self.active,
            sources_ready=lambda: self.sources_ready,
            connect=self.sockets.connect,
            numa_nodes=self.numa_nodes,
        )

    async def register(self, plugin: ToyPlugin, socket: str = "toy.sock", *, version: str = "v1beta1") -> None:
        """As it would by the agent's socket. Raises GRPCError. Returns when its devices are known."""
        await self.sockets.register(self.manager, plugin, socket, version=version)

    def listen(self, plugin: ToyPlugin, socket: str = "toy.sock") -> None:
        """The plugin can be connected to from now on."""
        self.sockets.listen(plugin, socket)

    def kill(self, plugin: ToyPlugin) -> None:
        """The plugin's process is gone: nobody listens, and its connections break."""
        self.sockets.kill(plugin)

    async def admit(self, pod: Pod) -> None:
        """As the agent would. Raises AllocationError."""
        self.active.add(pod.metadata.uid)
        try:
            await self.manager.allocate(pod)
        except BaseException:
            self.active.discard(pod.metadata.uid)
            raise

    def has(self, uid: str, container: str = "main") -> list[str]:
        """Ids of a container's devices."""
        return [device.id for device in self.manager.devices(uid, container)]

    def amounts(self, resource: str) -> tuple[int | None, int | None]:
        """Capacity and allocatable."""
        found = self.manager.resources()
        return found.capacity.get(resource), found.allocatable.get(resource)

    async def run_manager(self) -> trio.CancelScope:
        """A scope that ends it."""
        scope: trio.CancelScope = await self.nursery.start(self._run)
        return scope

    async def written(self) -> None:
        """Until the disk has all that is known."""
        await self.manager._checkpoint.file.durable()

    async def _run(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._count, self.manager.changed.subscribe())
                nursery.start_soon(self._collect, self.manager.health_changed.subscribe())
                await nursery.start(self.manager.run, lambda uid, container: (uid, container) in self.running)
                task_status.started(scope)

    async def _count(self, changes: Subscription[None]) -> None:
        async for _ in changes:
            self.changes += 1

    async def _collect(self, uids: Subscription[str]) -> None:
        async for uid in uids:
            self.ill.append({uid})


@asynccontextmanager
async def device_stage(root: Path) -> AsyncIterator[Stage]:
    """A manager runs while the context lasts."""
    async with trio.open_nursery() as nursery:
        stage = Stage(nursery, root)
        await stage.run_manager()
        yield stage
        nursery.cancel_scope.cancel()
