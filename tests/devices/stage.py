"""A device manager that runs, with plugins in memory: no socket but its own, which nobody uses here."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio
import trio.testing

from tests.device_plugin import ToyPlugin
from trikubelet.devices.manager import DeviceManager
from trikubelet.devices.server import FOLDER, Registration
from trikubelet.devices.v1beta1 import RegisterRequest
from trikubelet.grpc import Channel, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.api import Pod


@attrs.define(eq=False)
class Stage:
    """What a test has in its hands."""

    nursery: trio.Nursery
    root: Path
    sockets: dict[Path, ToyPlugin] = attrs.field(factory=dict)
    """Where plugins listen."""
    lives: dict[ToyPlugin, set[trio.CancelScope]] = attrs.field(factory=dict)
    """Around each connection to a plugin."""
    active: set[str] = attrs.field(factory=set)
    sources_ready: bool = True
    running: set[tuple[str, str]] = attrs.field(factory=set)
    changes: int = 0
    """How often the node heard of others resources."""
    ill: list[set[str]] = attrs.field(factory=list)
    """Pods, each time that some heard of their devices' health."""
    manager: DeviceManager = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.manager = self.new_manager()

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    def new_manager(self) -> DeviceManager:
        manager = DeviceManager(
            self.folder,
            active=lambda: self.active,
            sources_ready=lambda: self.sources_ready,
            runs=lambda uid, container: (uid, container) in self.running,
            connect=self.connect,
        )
        manager.on_change(self._changed)
        manager.on_health(lambda pods: self.ill.append(set(pods)))
        return manager

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

    async def register(self, plugin: ToyPlugin, socket: str = "toy.sock", *, version: str = "v1beta1") -> None:
        """As it would by the agent's socket. Raises GRPCError. Returns when its devices are known."""
        self.listen(plugin, socket)
        request = RegisterRequest(version=version, endpoint=socket, resource_name=plugin.resource)
        connections, measures = self.manager._connections, self.manager.measures
        await Registration(self.folder, connections, measures).register(request)
        await settle()

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
        await self.manager._checkpoint.durable()

    async def _run(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.manager.run)
                task_status.started(scope)

    def _changed(self) -> None:
        self.changes += 1


async def settle() -> None:
    """Until nothing can happen any more without the clock."""
    await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def device_stage(root: Path) -> AsyncIterator[Stage]:
    """A manager runs while the context lasts."""
    async with trio.open_nursery() as nursery:
        stage = Stage(nursery, root)
        await stage.run_manager()
        yield stage
        nursery.cancel_scope.cancel()
