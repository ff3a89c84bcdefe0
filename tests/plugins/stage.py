"""Plugins in memory, a folder of sockets that a test fills, and a handler that notes what it is asked."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import attrs
import trio
import trio.testing
from grpclib import GRPCError, Status

from trikubelet.plugins.handlers import Plugin, PluginRefusedError
from trikubelet.plugins.registration import PluginRegistrar
from trikubelet.rpc.grpc import Channel, Server
from trikubelet.rpc.plugin_registration.v1 import (
    InfoRequest,
    PluginInfo,
    RegistrationBase,
    RegistrationStatus,
    RegistrationStatusResponse,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class FakePlugin(RegistrationBase):
    """Introduces itself as it is told to, and notes what it hears of its registration."""

    def __init__(self, name: str = "d", type_: str = "Test", endpoint: str = "", versions: tuple[str, ...] = ("1",)):
        self.info = PluginInfo(type=type_, name=name, endpoint=endpoint, supported_versions=list(versions))
        self.told: list[str] = []
        """Empty texts for registrations."""
        self.listening = True
        self.info_takes = 0.0
        self.fails_to_hear = 0

    async def get_info(self, info_request: InfoRequest) -> PluginInfo:
        await trio.sleep(self.info_takes)
        return self.info

    async def notify_registration_status(self, registration_status: RegistrationStatus) -> RegistrationStatusResponse:
        if self.fails_to_hear:
            self.fails_to_hear -= 1
            raise GRPCError(Status.INTERNAL, "not now")
        assert registration_status.plugin_registered is not bool(registration_status.error)
        self.told.append(registration_status.error)
        return RegistrationStatusResponse()


class NotingHandler:
    """What it was asked, in order; refuses as the test says."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.registered: dict[str, Plugin] = {}
        self.invalid = ""
        self.refusal = ""
        self.takes = 0.0
        self.giving_up_takes = 0.0
        self.one_of_a_name = True
        self.faults = 0
        """So many registrations fail as none should."""

    def validate(self, plugin: Plugin) -> None:
        self.calls.append(f"validate {plugin.name} {plugin.endpoint} {','.join(plugin.versions)}")
        if self.invalid or (self.one_of_a_name and plugin.name in self.registered):
            raise PluginRefusedError(self.invalid or "the name is taken")

    async def register(self, plugin: Plugin) -> None:
        self.calls.append(f"register {plugin.name}")
        if self.faults:
            self.faults -= 1
            raise RuntimeError("nobody thought of that")
        self.registered[plugin.name] = plugin
        await trio.sleep(self.takes)
        if self.refusal:
            del self.registered[plugin.name]
            raise PluginRefusedError(self.refusal)

    async def deregister(self, plugin: Plugin) -> None:
        await trio.sleep(self.giving_up_takes)
        self.calls.append(f"deregister {plugin.name}")
        self.registered.pop(plugin.name, None)


class FakeSockets:
    """As a SocketWatch tells them."""

    def __init__(self) -> None:
        self.sockets: dict[Path, int] = {}
        self._count = 0
        self._change = trio.Event()

    def appear(self, path: Path) -> None:
        self._count += 1
        self.sockets[path] = self._count
        self._change.set()

    def vanish(self, path: Path) -> None:
        del self.sockets[path]
        self._change.set()

    async def changed(self) -> None:
        await self._change.wait()
        self._change = trio.Event()


@attrs.define
class Stage:
    """A registrar that runs."""

    registrar: PluginRegistrar
    handler: NotingHandler
    sockets: FakeSockets
    plugins: dict[Path, FakePlugin]
    root: trio.lowlevel.Task
    """The registrar's tasks are below this one."""

    def add(self, path: Path, plugin: FakePlugin) -> FakePlugin:
        self.plugins[path] = plugin
        self.sockets.appear(path)
        return plugin

    def status(self) -> list[tuple[str, bool]]:
        return [(each.plugin, each.registered) for each in self.registrar.statistics()]


@asynccontextmanager
async def registering() -> AsyncIterator[Stage]:
    """While the context lasts sockets are followed, with a handler for plugins of type `Test`."""
    plugins: dict[Path, FakePlugin] = {}
    async with trio.open_nursery() as nursery:

        def connect(path: Path) -> Channel:
            async def stream() -> trio.abc.Stream:
                await trio.lowlevel.checkpoint()
                if not plugins[path].listening:
                    raise ConnectionRefusedError(111, "Connection refused")
                ours, theirs = trio.testing.memory_stream_pair()
                nursery.start_soon(Server([plugins[path]]).serve_stream, theirs)
                return ours

            return Channel(stream)

        handler, sockets = NotingHandler(), FakeSockets()
        registrar = PluginRegistrar(sockets, {"Test": handler}, rng=Random(1), connect=connect)
        await nursery.start(registrar.run)
        yield Stage(registrar, handler, sockets, plugins, trio.lowlevel.current_task())
        nursery.cancel_scope.cancel()
