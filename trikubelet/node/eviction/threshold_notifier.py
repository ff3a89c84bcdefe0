"""What brings a measurement forward: the kernel notifies when memory becomes scarce, before the period is over.

Two kinds, both awaited on Trio without a thread:

- *usage* (cgroup v1): an eventfd that is written to when a group's usage crosses a number of bytes, in either
  direction. That number follows the measurements, since inactive file pages are part of the usage, and not of
  what a threshold is about (kubelet: `memoryThresholdNotifier`, `kernelMemcgNotification`).
- *stall* (pressure stall information): the kernel notifies when tasks have waited for memory for too long,
  whichever version cgroups are. The kubelet has nothing of the kind, and waits for its period on cgroup v2.

Neither decides anything: a task may stall for many reasons. So a stall that finds the node well is followed by a pause.

A stall is signalled as urgent data (EPOLLPRI), for which Trio cannot wait. But it can wait for an epoll descriptor that
waits for it. The kernel forgets a stall as soon as anybody has looked, so the return of Trio's wait is the
notification, and to ask the epoll descriptor then would find nothing. A stall that comes in the moment in which Trio
begins to wait is lost; as long as tasks stall, another one comes two seconds later.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.config.eviction_values import MEMORY_SIGNALS, Signal, Threshold
from trikubelet.formats.values import define, frozen
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trio_typing import TaskStatus

    from trikubelet.node.eviction.model import Observation

log = get_logger("eviction")

NOTIFICATION_PAUSE: Final = 1.0
"""Seconds after a notification in which there is no other: a process that allocates and frees around a threshold must
not cost a core."""
VAIN_PAUSE: Final = 10.0
"""The same after a stall that has not led to anything."""
STALLED: Final = 150_000
WINDOW: Final = 2_000_000
"""Microseconds of each window in which some task has waited. Without CAP_SYS_RESOURCE windows are multiples of two
seconds."""
NODE_PRESSURE: Final = Path("/proc/pressure/memory")
_USAGE: Final = "memory.usage_in_bytes"


@frozen(kw_only=True)
class NotifierPlaces:
    """Where the kernel can be asked to notify. Nowhere: then it does not."""

    groups: Mapping[Signal, Path] = attrs.field(factory=dict)
    """Folders of cgroup v1's memory hierarchy: the root for the node, that of all pods for what is allocatable."""
    pressure: Path | None = None
    """`/proc/pressure/memory`"""


def usage_at_threshold(threshold: Threshold, observed: Observation) -> int | None:
    """At which usage of a group a threshold of memory is crossed; None when its usage is not known. Pure.

    Kubelet: `UpdateThreshold`.
    """
    if observed.used is None:
        return None
    unneeded = observed.used - (observed.capacity - observed.available)
    return observed.capacity - threshold.value.of(observed.capacity).value() + unneeded


class Notifier(Protocol):
    """One thing to wait for. It holds a descriptor until it is closed."""

    async def wait(self) -> None:
        """Until the kernel notifies. Cancelling it loses nothing.

        Raises ClosedResourceError when it is closed meanwhile.
        """
        ...

    def close(self) -> None: ...


class UsageNotifier:
    """Rings when the usage of a group of cgroup v1 crosses a number of bytes."""

    def __init__(self, group: Path, usage: int, measured: int) -> None:
        """`measured`: what the group used when `usage` was chosen; if it has crossed that since, this notifies at once.

        Raises OSError. Blocks for some milliseconds: the kernel waits for all processors.
        """
        self.usage = usage
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            with (group / _USAGE).open("rb") as watched, (group / "cgroup.event_control").open("wb", 0) as control:
                control.write(f"{self._fd} {watched.fileno()} {usage}".encode())
                if (int(watched.read()) >= usage) != (measured >= usage):
                    os.eventfd_write(self._fd, 1)
        except OSError:
            os.close(self._fd)
            raise

    async def wait(self) -> None:
        while True:
            if self._fd < 0:
                raise trio.ClosedResourceError
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd)
                return
            await trio.lowlevel.wait_readable(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            trio.lowlevel.notify_closing(self._fd)
            os.close(self._fd)
            self._fd = -1


class StallNotifier:
    """Rings when tasks wait for memory, at most once in each window."""

    def __init__(self, pressure: Path, *, stalled: int = STALLED, window: int = WINDOW) -> None:
        """Both in microseconds. Raises OSError; ENODEV or ENOENT where the kernel does not count stalls."""
        self._fd = os.open(pressure, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # The kernel overwrites the last byte.
            os.write(self._fd, f"some {stalled} {window}\0".encode())
            self._epoll = select.epoll()
        except OSError:
            os.close(self._fd)
            raise
        self._epoll.register(self._fd, select.EPOLLPRI)

    async def wait(self) -> None:
        if self._epoll.closed:
            raise trio.ClosedResourceError
        if not self._epoll.poll(0):
            await trio.lowlevel.wait_readable(self._epoll.fileno())

    def close(self) -> None:
        if not self._epoll.closed:
            trio.lowlevel.notify_closing(self._epoll.fileno())
            self._epoll.close()
            os.close(self._fd)


@define(eq=False)
class _Setting:
    """A threshold of memory with its notifier."""

    threshold: Threshold
    group: Path
    notifier: Notifier | None = None
    usage: int | None = None
    """At which the kernel is to notify."""
    changed: Broadcast[None] = attrs.field(factory=Broadcast)


class ThresholdNotifier:
    """All notifiers of a node. Those that cannot be set are logged once; then the node is measured every period."""

    def __init__(
        self,
        places: NotifierPlaces,
        thresholds: Iterable[Threshold],
        *,
        usage_notifier: Callable[[Path, int, int], Notifier] = UsageNotifier,
        stall_notifier: Callable[[Path], Notifier] = StallNotifier,
    ) -> None:
        self._pressure = places.pressure
        self._settings = [
            _Setting(threshold, places.groups[threshold.signal])
            for threshold in thresholds
            if threshold.signal in MEMORY_SIGNALS and threshold.signal in places.groups
        ]
        self._usage_notifier = usage_notifier
        self._stall_notifier = stall_notifier
        self._logged: set[Path] = set()
        self._setting = trio.CapacityLimiter(1)
        """A kernel that hangs in it takes no thread from others."""
        self._over = False

    async def run(
        self,
        crossed: Broadcast[None],
        in_need: Callable[[], bool],
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send on `crossed` whenever one notifies, until cancelled. `in_need`: whether the node is short of memory."""
        try:
            async with trio.open_nursery() as nursery:
                for setting in self._settings:
                    nursery.start_soon(supervise, self._wait_for_usage, setting, crossed)
                if self._pressure is not None:
                    nursery.start_soon(supervise, self._wait_for_stalls, self._pressure, crossed, in_need)
                task_status.started()
        finally:
            self._over = True
            for setting in self._settings:
                if setting.notifier is not None:
                    setting.notifier.close()
                    setting.notifier = None

    async def follow(self, observations: Mapping[Signal, Observation]) -> None:
        """Set the notifiers of usage by what was measured just now."""
        for setting in self._settings:
            observed = observations.get(setting.threshold.signal)
            if observed is None or observed.used is None:
                continue
            usage = usage_at_threshold(setting.threshold, observed)
            if usage is not None and usage != setting.usage:
                await self._set(setting, usage, observed.used)

    async def _set(self, setting: _Setting, usage: int, measured: int) -> None:
        try:
            notifier = await trio.to_thread.run_sync(
                self._usage_notifier, setting.group, usage, measured, limiter=self._setting
            )
        except OSError as error:
            self._log_once(setting.group, error)
            return
        if self._over:
            notifier.close()
            return
        before, setting.notifier, setting.usage = setting.notifier, notifier, usage
        if before is not None:
            before.close()
        setting.changed.send(None)

    async def _wait_for_usage(self, setting: _Setting, crossed: Broadcast[None]) -> None:
        while True:
            if setting.notifier is None:
                await setting.changed.wait()
                continue
            try:
                await setting.notifier.wait()
            except trio.ClosedResourceError:
                continue  # Another one has been set.
            log.info("memory usage crossed a threshold", signal=setting.threshold.signal.value, usage=setting.usage)
            crossed.send(None)
            await trio.sleep(NOTIFICATION_PAUSE)

    async def _wait_for_stalls(self, path: Path, crossed: Broadcast[None], in_need: Callable[[], bool]) -> None:
        try:
            notifier = self._stall_notifier(path)
        except OSError as error:
            self._log_once(path, error)
            return
        try:
            while True:
                await notifier.wait()
                log.debug("tasks wait for memory")
                crossed.send(None)
                await trio.sleep(NOTIFICATION_PAUSE)
                if not in_need():
                    await trio.sleep(VAIN_PAUSE - NOTIFICATION_PAUSE)
        finally:
            notifier.close()

    def _log_once(self, path: Path, error: OSError) -> None:
        if path not in self._logged:
            self._logged.add(path)
            log.warning("the kernel cannot notify when memory becomes scarce here", path=str(path), problem=str(error))
