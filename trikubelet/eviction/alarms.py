"""What brings a measurement forward: the kernel tells that memory becomes scarce, so nobody has to wait for the period.

Two kinds, both awaited on Trio without a thread:

- *usage* (cgroup v1): an eventfd that is written to when a group's usage crosses a number of bytes, in either
  direction. That number follows the measurements, since file pages that nobody needs are part of the usage, and not of
  what a threshold is about (kubelet: `memoryThresholdNotifier`, `kernelMemcgNotification`).
- *stall* (pressure stall information): the kernel tells that tasks have waited for memory for longer than they should,
  whichever version cgroups are. The kubelet has nothing of the kind, and waits for its period on cgroup v2.

Neither decides anything: a task may stall for many reasons. So a stall that finds the node well is followed by a pause.

A stall is told as urgent data (EPOLLPRI), for which Trio cannot wait. But it can wait for an epoll descriptor that
waits for it. The kernel forgets a stall as soon as anybody has looked, so the return of Trio's wait is the alarm, and
to ask the epoll descriptor then would find nothing. A stall that comes in the moment in which Trio begins to wait is
lost; as long as tasks stall, another one is told two seconds later.
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

from trikubelet.eviction.model import MEMORY_SIGNALS, Observation, Signal, Threshold
from trikubelet.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trio_typing import TaskStatus

log = get_logger("eviction")

ALARM_PAUSE: Final = 1.0
"""Seconds after an alarm in which there is no other: a process that allocates and frees around a threshold must not
cost a core."""
VAIN_PAUSE: Final = 10.0
"""The same after a stall that has not led to anything."""
STALLED: Final = 150_000
WINDOW: Final = 2_000_000
"""Microseconds of each window in which some task has waited. Without CAP_SYS_RESOURCE windows are multiples of two
seconds."""
NODE_PRESSURE: Final = Path("/proc/pressure/memory")
_USAGE: Final = "memory.usage_in_bytes"


@attrs.frozen(kw_only=True)
class AlarmPlaces:
    """Where alarms can be set. Nowhere: then there are none."""

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


class Alarm(Protocol):
    """One thing to wait for. It holds a descriptor until it is closed."""

    async def wait(self) -> None:
        """Until it rings. Cancelling it loses nothing. Raises ClosedResourceError when it is closed meanwhile."""
        ...

    def close(self) -> None: ...


class UsageAlarm:
    """Rings when the usage of a group of cgroup v1 crosses a number of bytes."""

    def __init__(self, group: Path, usage: int, measured: int) -> None:
        """`measured`: what the group used when `usage` was chosen; if it has crossed that since, this rings at once.

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


class StallAlarm:
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


@attrs.define(eq=False)
class _Setting:
    """A threshold of memory with its alarm."""

    threshold: Threshold
    group: Path
    alarm: Alarm | None = None
    usage: int | None = None
    """At which the alarm is to ring."""
    changed: trio.Event = attrs.field(factory=trio.Event)


class Alarms:
    """All alarms of a node. Those that cannot be set are told once, and the node is measured by the period only."""

    def __init__(
        self,
        places: AlarmPlaces,
        thresholds: Iterable[Threshold],
        *,
        usage_alarm: Callable[[Path, int, int], Alarm] = UsageAlarm,
        stall_alarm: Callable[[Path], Alarm] = StallAlarm,
    ) -> None:
        self._pressure = places.pressure
        self._settings = [
            _Setting(threshold, places.groups[threshold.signal])
            for threshold in thresholds
            if threshold.signal in MEMORY_SIGNALS and threshold.signal in places.groups
        ]
        self._usage_alarm = usage_alarm
        self._stall_alarm = stall_alarm
        self._told: set[Path] = set()
        self._setting = trio.CapacityLimiter(1)
        """A kernel that hangs in it takes no thread from others."""
        self._over = False

    async def run(
        self,
        ring: Callable[[], None],
        in_need: Callable[[], bool],
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Call `ring` whenever one rings, until cancelled. `in_need`: whether the node is short of memory."""
        try:
            async with trio.open_nursery() as nursery:
                for setting in self._settings:
                    nursery.start_soon(self._wait_for_usage, setting, ring)
                if self._pressure is not None:
                    nursery.start_soon(self._wait_for_stalls, self._pressure, ring, in_need)
                task_status.started()
        finally:
            self._over = True
            for setting in self._settings:
                if setting.alarm is not None:
                    setting.alarm.close()
                    setting.alarm = None

    async def follow(self, observations: Mapping[Signal, Observation]) -> None:
        """Set the alarms on usage by what was measured just now."""
        for setting in self._settings:
            observed = observations.get(setting.threshold.signal)
            if observed is None or observed.used is None:
                continue
            usage = usage_at_threshold(setting.threshold, observed)
            if usage is not None and usage != setting.usage:
                await self._set(setting, usage, observed.used)

    async def _set(self, setting: _Setting, usage: int, measured: int) -> None:
        try:
            alarm = await trio.to_thread.run_sync(
                self._usage_alarm, setting.group, usage, measured, limiter=self._setting
            )
        except OSError as error:
            self._tell(setting.group, error)
            return
        if self._over:
            alarm.close()
            return
        before, setting.alarm, setting.usage = setting.alarm, alarm, usage
        if before is not None:
            before.close()
        setting.changed.set()
        setting.changed = trio.Event()

    async def _wait_for_usage(self, setting: _Setting, ring: Callable[[], None]) -> None:
        while True:
            if setting.alarm is None:
                await setting.changed.wait()
                continue
            try:
                await setting.alarm.wait()
            except trio.ClosedResourceError:
                continue  # Another one has been set.
            log.info("memory usage crossed a threshold", signal=setting.threshold.signal.value, usage=setting.usage)
            ring()
            await trio.sleep(ALARM_PAUSE)

    async def _wait_for_stalls(self, path: Path, ring: Callable[[], None], in_need: Callable[[], bool]) -> None:
        try:
            alarm = self._stall_alarm(path)
        except OSError as error:
            self._tell(path, error)
            return
        try:
            while True:
                await alarm.wait()
                log.debug("tasks wait for memory")
                ring()
                await trio.sleep(ALARM_PAUSE)
                if not in_need():
                    await trio.sleep(VAIN_PAUSE - ALARM_PAUSE)
        finally:
            alarm.close()

    def _tell(self, path: Path, error: OSError) -> None:
        if path not in self._told:
            self._told.add(path)
            log.warning("the kernel cannot ring when memory becomes scarce here", path=str(path), problem=str(error))
