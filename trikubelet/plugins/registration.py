"""Registers the plugins whose sockets appear in a folder (kubelet: `pluginmanager`).

The story of a plugin: its socket appears (`watcher.py`). It is asked what it is (GetInfo), the handler of its type is
asked whether it will do (`validate`) and takes it into use (`register`), and the plugin is told so
(NotifyRegistrationStatus). Every failure is reported to it too, where that is possible, and the whole is tried
again, at first soon and then more and more seldom. When the socket goes the handler gives the plugin up (`deregister`).
A socket that was made anew is one that went and one that came. Nothing is kept over a restart of the agent: the sockets
are still there and register again.

One task follows each path, so what happens to one plugin has an order and waits for no other. Two paths may give one
name; the handler's calls for a name come one after the other. A plugin that was refused because another has its name is
asked again as soon as that one is gone.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio
from grpclib import GRPCError, Status

from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import define, frozen
from trikubelet.plugins.handlers import Plugin, PluginRefusedError
from trikubelet.rpc.grpc import SHORT_REPLY, open_unix_channel
from trikubelet.rpc.plugin_registration.v1 import InfoRequest, RegistrationStatus, RegistrationStub
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.plugins.handlers import PluginHandler
    from trikubelet.rpc.grpc import Channel

INFO_SECONDS: Final = 11.0
"""For connecting and GetInfo. (The kubelet gives ten and one.)"""
DIALS: Final = Backoff(first=0.02, longest=1.0)
"""Between attempts to connect: a socket appears a moment before somebody listens on it."""
NOTIFY_SECONDS: Final = 5.0
RETRIES: Final = Backoff(first=0.5, longest=122.0, jitter=0.1)
_open_channel = partial(open_unix_channel, max_reply_size=SHORT_REPLY)

log = get_logger("plugins")


class Sockets(Protocol):
    """What a `SocketWatch` tells."""

    @property
    def sockets(self) -> Mapping[Path, int]: ...

    async def changed(self) -> None: ...


class RegistrationError(Exception):
    """An attempt to register failed. Its text is the kubelet's."""


@frozen
class PluginStatus:
    """What a debugger wants to know of a socket."""

    socket: str
    plugin: str
    """Type and name, empty while it has not said."""
    wanted: bool
    """The socket is there; else its plugin is being given up."""
    registered: bool
    failures: int
    """Attempts that failed in a row."""
    problem: str


@define(eq=False)
class _Socket:
    """One path, while a socket lies there or its plugin is not given up yet."""

    path: Path
    appearance: int | None
    """Which socket is there now; None when it is gone."""
    moved_on: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Around all that is done for one appearance."""
    try_again: Broadcast[None] = attrs.field(factory=Broadcast)
    plugin: Plugin | None = None
    """What it said that it is."""
    held: Plugin | None = None
    """What its handler was asked to register, and has not given up yet."""
    registered: bool = False
    failures: int = 0
    problem: str = ""


class PluginRegistrar:
    """Follows the sockets of a folder. Types may be added while it runs."""

    def __init__(
        self,
        sockets: Sockets,
        handlers: Mapping[str, PluginHandler] | None = None,
        *,
        rng: Random,
        connect: Callable[[Path], AbstractAsyncContextManager[Channel]] = _open_channel,
    ) -> None:
        """`sockets`: used by this alone. `handlers` by the plugins' type."""
        self._sockets = sockets
        self._handlers = dict(handlers or {})
        self._rng = rng
        self._connect = connect
        self._followed: dict[Path, _Socket] = {}
        self._locks: defaultdict[tuple[str, str], trio.Lock] = defaultdict(trio.Lock)

    def add_handler(self, type_: str, handler: PluginHandler) -> None:
        """Plugins of the type that wait for their next try have it now."""
        self._handlers[type_] = handler
        self._try_again(lambda socket: socket.plugin is None or socket.plugin.type == type_)

    def statistics(self) -> list[PluginStatus]:
        return [
            PluginStatus(
                socket=str(socket.path),
                plugin="" if socket.plugin is None else f"{socket.plugin.type} {socket.plugin.name}",
                wanted=socket.appearance is not None,
                registered=socket.registered,
                failures=socket.failures,
                problem=socket.problem,
            )
            for _, socket in sorted(self._followed.items())
        ]

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started at once. Cancelling leaves plugins registered: they work while no agent runs."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            await supervise(self._follow_sockets, nursery)

    async def _follow_sockets(self, nursery: trio.Nursery) -> None:
        while True:
            self._compare(nursery)
            await self._sockets.changed()

    def _compare(self, nursery: trio.Nursery) -> None:
        wanted = self._sockets.sockets
        for path, socket in self._followed.items():
            if wanted.get(path) != socket.appearance:
                socket.appearance = wanted.get(path)
                socket.moved_on.cancel()
        for path in wanted.keys() - self._followed.keys():
            self._followed[path] = _Socket(path, wanted[path])
            nursery.start_soon(supervise, self._follow, self._followed[path])

    def _try_again(self, concerned: Callable[[_Socket], bool]) -> None:
        for socket in self._followed.values():
            if not socket.registered and concerned(socket):
                socket.try_again.send(None)

    async def _follow(self, socket: _Socket) -> None:
        """All that comes and goes at one path, one after the other."""
        while socket.appearance is not None:
            await self._give_up(socket)  # what an attempt held that failed unexpectedly
            socket.plugin, socket.failures, socket.problem = None, 0, ""
            with trio.CancelScope() as socket.moved_on:
                await self._register(socket)
                await trio.sleep_forever()
            await self._give_up(socket)
        del self._followed[socket.path]

    async def _register(self, socket: _Socket) -> None:
        """Return once the plugin is registered and knows it."""
        with socket.try_again.subscribe() as again:
            while True:
                again.drop(None)
                try:
                    await self._attempt(socket)
                except RegistrationError as error:
                    socket.failures += 1
                    socket.problem = str(error)
                else:
                    socket.failures, socket.problem = 0, ""
                    log.info("plugin registered", plugin=str(socket.plugin))
                    return
                pause = RETRIES.delay(socket.failures, self._rng.random())
                log.warning(
                    "plugin not registered", socket=str(socket.path), error=socket.problem, retry_in=round(pause, 1)
                )
                with trio.move_on_after(pause):
                    await again.receive()

    async def _attempt(self, socket: _Socket) -> None:
        async with self._connect(socket.path) as channel:
            stub = RegistrationStub(channel)
            plugin = socket.plugin = await self._introduced(stub, socket.path)
            try:
                async with self._one_at_a_time(plugin):
                    await self._hand_over(socket, plugin)
                    await self._confirm(stub, socket, plugin)
            except PluginRefusedError as error:
                await self._notify_refused(stub, socket.path, str(error))
                raise RegistrationError(str(error)) from error

    async def _introduced(self, stub: RegistrationStub, path: Path) -> Plugin:
        refusal: GRPCError | None = None
        pause = DIALS.first
        with trio.move_on_after(INFO_SECONDS):
            while True:
                try:
                    info = await stub.get_info(InfoRequest())
                except GRPCError as error:
                    refusal = error
                    if error.status is not Status.UNAVAILABLE:
                        break
                else:
                    endpoint = info.endpoint or str(path)
                    return Plugin(info.type, info.name, endpoint, tuple(info.supported_versions), path)
                await trio.sleep(pause)
                pause = DIALS.after(pause)
        raise RegistrationError(
            f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, "
            f"err: {_error_text(refusal, INFO_SECONDS)}"
        )

    async def _hand_over(self, socket: _Socket, plugin: Plugin) -> None:
        """Let the handler have it. Raises PluginRefusedError."""
        handler = self._handlers.get(plugin.type)
        if handler is None:
            raise PluginRefusedError(
                f"RegisterPlugin error -- no handler registered for plugin type: {plugin.type} at socket {socket.path}"
            )
        try:
            handler.validate(plugin)
        except PluginRefusedError as error:
            raise PluginRefusedError(f"RegisterPlugin error -- plugin validation failed with err: {error}") from error
        socket.held = plugin
        try:
            await handler.register(plugin)
        except PluginRefusedError as error:
            socket.held = None
            raise PluginRefusedError(f"RegisterPlugin error -- plugin registration failed with err: {error}") from error

    async def _confirm(self, stub: RegistrationStub, socket: _Socket, plugin: Plugin) -> None:
        """A plugin that does not take the confirmation may act as if it were not used: it is given up."""
        try:
            await self._notify(stub, RegistrationStatus(plugin_registered=True))
        except (GRPCError, trio.TooSlowError) as error:
            await self._deregister(socket, plugin)
            raise RegistrationError(
                f"RegisterPlugin error -- failed to send registration status at socket {socket.path}, "
                f"err: {_error_text(error, NOTIFY_SECONDS)}"
            ) from error
        socket.registered = True

    async def _notify_refused(self, stub: RegistrationStub, path: Path, problem: str) -> None:
        try:
            await self._notify(stub, RegistrationStatus(plugin_registered=False, error=problem))
        except (GRPCError, trio.TooSlowError) as error:
            log.warning(
                "plugin not told of its refusal",
                socket=str(path),
                error=_error_text(error, NOTIFY_SECONDS),
                refusal=problem,
            )

    async def _notify(self, stub: RegistrationStub, status: RegistrationStatus) -> None:
        with trio.fail_after(NOTIFY_SECONDS):
            await stub.notify_registration_status(status)

    async def _give_up(self, socket: _Socket) -> None:
        if (plugin := socket.held) is not None:
            log.info("plugin gone", plugin=str(plugin))
            async with self._one_at_a_time(plugin):
                await self._deregister(socket, plugin)

    async def _deregister(self, socket: _Socket, plugin: Plugin) -> None:
        """Plugins of its name may have waited for that."""
        await self._handlers[plugin.type].deregister(plugin)
        socket.held, socket.registered = None, False
        self._try_again(lambda other: other is not socket and other.plugin is not None and _alike(other.plugin, plugin))

    @asynccontextmanager
    async def _one_at_a_time(self, plugin: Plugin) -> AsyncIterator[None]:
        key = (plugin.type, plugin.name)
        lock = self._locks[key]
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(key, None)


def _alike(one: Plugin, other: Plugin) -> bool:
    return (one.type, one.name) == (other.type, other.name)


def _error_text(error: GRPCError | trio.TooSlowError | None, seconds: float) -> str:
    if isinstance(error, GRPCError):
        return f"{error.status.name}: {error.message or 'no reason given'}"
    return f"no answer within {seconds:g} s"
