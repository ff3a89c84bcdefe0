"""A claim manager that runs, with drivers in memory and an API server without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import attrs
import trio
import trio.testing

from tests.dra_driver import ToyDriver
from tests.kube_client.scripted_client import ScriptedClient
from tests.node.dra.situations import make_claim
from trikubelet.clock import TrioClock
from trikubelet.node.dra.claims import ClaimGates
from trikubelet.node.dra.manager import ClaimManager, PodsOnNode
from trikubelet.plugins.handlers import Plugin
from trikubelet.rpc.grpc import Channel, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


NODE = "node-a"


@attrs.define(eq=False)
class Stage:
    """What a test has in its hands."""

    nursery: trio.Nursery
    root: Path
    gates: ClaimGates = attrs.field(factory=ClaimGates)
    needed: set[str] = attrs.field(factory=lambda: {"p", "q"})
    """Pods that are wanted, or run."""
    sources_ready: bool = True
    clock: TrioClock = attrs.field(factory=TrioClock)
    client: ScriptedClient = attrs.field(init=False)
    writes: list[bytes] = attrs.field(factory=list)
    """All that was written into files."""
    disk_is_full: bool = False
    before_write: Callable[[], object] = lambda: None
    after_write: Callable[[], object] = lambda: None
    """May cancel whoever writes."""
    told: list[str] = attrs.field(factory=list)
    """Pods that were said to need a look."""
    manager: ClaimManager = attrs.field(init=False)
    _life: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _sockets: dict[Path, ToyDriver] = attrs.field(factory=dict)
    _lives: dict[ToyDriver, set[trio.CancelScope]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.client = ScriptedClient(clock=self.clock)
        self.manager = self.new_manager()

    def new_manager(self) -> ClaimManager:
        return ClaimManager(
            self.root,
            self.client,
            NODE,
            PodsOnNode(sources_ready=lambda: self.sources_ready, needed=lambda uid: uid in self.needed),
            clock=self.clock,
            rng=Random(0),
            gates=self.gates,
            connect=self._connect,
            write=self._write,
        )

    def claims(self, *names: str, pods: tuple[str, ...] = ("p",)) -> None:
        """The API server has them, for these pods."""
        for name in names:
            self.client.put(make_claim(name, *pods))

    async def register(self, driver: ToyDriver, socket: str = "toy.sock") -> None:
        """The driver's plugin comes, as the registrar would have it. Raises PluginRefusedError."""
        self.listen(driver, socket)
        plugin = self.plugin(driver, socket)
        self.manager.plugin_handler.validate(plugin)
        await self.manager.plugin_handler.register(plugin)
        await settle()

    async def deregister(self, driver: ToyDriver, socket: str = "toy.sock") -> None:
        await self.manager.plugin_handler.deregister(self.plugin(driver, socket))
        await settle()

    def plugin(self, driver: ToyDriver, socket: str = "toy.sock") -> Plugin:
        return Plugin("DRAPlugin", driver.name, str(self.root / socket), driver.versions, self.root / f"reg-{socket}")

    def listen(self, driver: ToyDriver, socket: str = "toy.sock") -> None:
        """The driver can be connected to from now on."""
        self._sockets[self.root / socket] = driver

    def kill(self, driver: ToyDriver) -> None:
        """Its process is gone: nobody listens, and its connections break."""
        for path in [path for path, one in self._sockets.items() if one is driver]:
            del self._sockets[path]
        for scope in self._lives.pop(driver, ()):
            scope.cancel()

    async def run_manager(self) -> None:
        self._life = await self.nursery.start(self._run)

    async def restart(self) -> None:
        """The agent ends, and another one begins with what is on the disk."""
        await self.stop()
        self.manager = self.new_manager()
        await self.run_manager()

    async def stop(self) -> None:
        """The agent ends."""
        self._life.cancel()
        await settle()

    async def _run(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope, self.manager.changed.subscribe() as changed:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.manager.run)
                task_status.started(scope)
                async for uid in changed:
                    self.told.append(uid)

    async def _write(self, path: Path, content: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self.disk_is_full:
            raise OSError(28, "No space left on device")
        self.before_write()
        await trio.lowlevel.checkpoint()
        self.writes.append(content)
        path.write_bytes(content)
        self.after_write()
        await trio.lowlevel.checkpoint()

    def _connect(self, path: Path) -> Channel:
        async def stream() -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            driver = self._sockets.get(path)
            if driver is None:
                raise FileNotFoundError(2, "No such file or directory")
            ours, theirs = trio.testing.memory_stream_pair()
            self.nursery.start_soon(self._serve, driver, theirs)
            return ours

        return Channel(stream)

    async def _serve(self, driver: ToyDriver, stream: trio.abc.Stream) -> None:
        with trio.CancelScope() as scope:
            self._lives.setdefault(driver, set()).add(scope)
            await Server(driver.services).serve_stream(stream)


async def settle() -> None:
    """Until nothing can happen any more without the clock."""
    await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def claim_stage(root: Path, gates: ClaimGates = ClaimGates()) -> AsyncIterator[Stage]:  # noqa: B008 - frozen
    """A manager runs while the context lasts."""
    async with trio.open_nursery() as nursery:
        stage = Stage(nursery, root, gates)
        await stage.run_manager()
        yield stage
        nursery.cancel_scope.cancel()
