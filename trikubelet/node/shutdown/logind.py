"""Logind over the system's message bus (kubelet: `nodeshutdown/systemd`)."""

from __future__ import annotations

import contextlib
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.linux import sd_notify
from trikubelet.linux.dbus import SYSTEM_BUS, Bus, BusError, Interface, open_bus
from trikubelet.node.shutdown.interface import LogindError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

LOGIND: Final = Interface("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
SYSTEMD: Final = Interface("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
WHAT: Final = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
"""The inhibitor's arguments: what, who, why and mode."""
OVERRIDE: Final = Path("/etc/systemd/logind.conf.d/99-kubelet.conf")
KEPT_AS: Final = "shutdown-inhibitor"
"""The service manager's name for the inhibitor."""
_SIGHUP: Final = 1


@frozen
class SystemLogind:
    """The machine's logind."""

    bus: str = SYSTEM_BUS
    override: Path = OVERRIDE
    """The file that tells logind of a longer delay."""

    def inherited(self) -> FileInhibitor | None:
        descriptors = sd_notify.kept(KEPT_AS)
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        return FileInhibitor(descriptors[0], is_kept=True) if descriptors else None

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        with _logind_errors():
            async with open_bus(self.bus) as bus:
                await bus.get(LOGIND, "InhibitDelayMaxUSec", "t")  # the bus starts it where it does not run
                async with bus.signals(LOGIND, "PrepareForShutdown") as signals:
                    yield Session(bus, signals, self.override)


@frozen
class Session:
    """Implements `LogindSession`."""

    bus: Bus
    signals: trio.MemoryReceiveChannel[tuple[Any, ...]]
    override: Path

    async def is_shutting_down(self) -> bool:
        with _logind_errors():
            return bool(await self.bus.get(LOGIND, "PreparingForShutdown", "b"))

    async def longest_delay(self) -> float:
        with _logind_errors():
            microseconds: int = await self.bus.get(LOGIND, "InhibitDelayMaxUSec", "t")
        return microseconds / 1e6

    async def allow_delay(self, seconds: int) -> None:
        try:
            await trio.to_thread.run_sync(self._write_override, seconds)
        except OSError as error:
            raise LogindError(
                f"logind has to be told to wait longer, and {self.override} cannot be written ({error.strerror}): "
                f"set InhibitDelayMaxSec={seconds} in /etc/systemd/logind.conf"
            ) from error
        with _logind_errors():
            await self.bus.call(SYSTEMD, "KillUnit", "ssi", "systemd-logind.service", "all", _SIGHUP)

    async def inhibit(self) -> FileInhibitor:
        with _logind_errors():
            (descriptor,) = await self.bus.call(LOGIND, "Inhibit", "ssss", *WHAT, answer="h")
        return FileInhibitor(descriptor.to_raw_fd())

    async def next_change(self) -> bool:
        try:
            arguments = await self.signals.receive()
        except trio.EndOfChannel:
            raise LogindError("logind or the message bus has gone, or was started anew") from None
        if len(arguments) != 1 or not isinstance(arguments[0], bool):
            raise LogindError(f"expected a boolean with logind's signal PrepareForShutdown, got {arguments!r}")
        return arguments[0]

    def _write_override(self, seconds: int) -> None:
        self.override.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.override.write_text(f"# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds}\n")
        self.override.chmod(0o644)


class FileInhibitor:
    """An inhibitor is held by a file descriptor, and so ends with its processes at the latest."""

    def __init__(self, descriptor: int, *, is_kept: bool = False) -> None:
        """`is_kept`: the service manager has it too."""
        self._descriptor: int | None = descriptor
        self._is_kept = is_kept

    def keep(self) -> None:
        if self._descriptor is not None:
            sd_notify.keep(KEPT_AS, self._descriptor)
            self._is_kept = True

    def leave(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def release(self) -> None:
        if self._is_kept:
            sd_notify.forget(KEPT_AS)
            self._is_kept = False
        self.leave()


@contextlib.contextmanager
def _logind_errors() -> Iterator[None]:
    try:
        yield
    except BusError as error:
        raise LogindError(str(error)) from error
