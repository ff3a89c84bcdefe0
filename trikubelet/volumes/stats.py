"""How much volumes hold (kubelet: `pkg/volume/metrics_*`, `volume_stat_calculator.go`).

A volume with a file system of its own is asked in one call; one that shares the node's disk has to be walked. Both may
take long, a share that is away forever. So measuring has threads of its own, a few, and gives up after a while: a walk
then ends soon, and a path whose last question is still open is not asked again. What is known is kept for readers,
which never wait.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.model import VolumeUsage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path
    from random import Random

    from trikubelet.clock import WallClock
    from trikubelet.volumes.model import MountedVolume

T = TypeVar("T")

log = get_logger("volumes")

DEADLINE: Final = 120.0
"""Seconds for one volume."""
MAX_WALKS: Final = 2
MAX_QUESTIONS: Final = 4
MAX_OPEN: Final = 64
"""Folders that a walk holds open, of those on the way from the top to where it is."""
ENTRIES_BETWEEN_CHECKS: Final = 1000
BLOCK: Final = 512
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class VolumeMeter:
    """Measures, on threads. One for the whole agent.

    All methods raise VolumeError; `volume` is the name for it.
    """

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._walks = trio.CapacityLimiter(MAX_WALKS)
        self._questions = trio.CapacityLimiter(MAX_QUESTIONS)
        self._open_questions: set[Path] = set()

    async def tree(self, volume: str, folder: Path) -> VolumeUsage:
        """What a folder takes of the file system that it is on, and how much of that there is."""

        def measure() -> tuple[int, int, os.statvfs_result]:
            used, inodes = disk_usage(folder, trio.from_thread.check_cancelled)
            return used, inodes, os.statvfs(folder)

        used, inodes, figures = await self._ask(volume, folder, measure, self._walks)
        return attrs.evolve(_usage_of_file_system(figures, self._clock), used=used, inodes_used=inodes)

    async def file_system(self, volume: str, path: Path) -> VolumeUsage:
        """The figures of the whole file system at a path."""
        figures = await self._ask(volume, path, lambda: os.statvfs(path), self._questions)
        return _usage_of_file_system(figures, self._clock)

    async def device(self, volume: str, device: Path) -> VolumeUsage:
        """The size of a block device, which does not know what of it is used."""
        size = await self._ask(volume, device, lambda: device_size(device), self._questions)
        return VolumeUsage(at=self._clock.now(), capacity=size)

    async def _ask(self, volume: str, path: Path, question: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        if path in self._open_questions:
            raise VolumeError(volume, f"{path}: its file system has not answered since it was last asked")

        def ask() -> T:
            self._open_questions.add(path)
            try:
                return question()
            finally:
                self._open_questions.discard(path)

        try:
            with trio.fail_after(DEADLINE):
                return await trio.to_thread.run_sync(ask, limiter=limiter, abandon_on_cancel=True)
        except trio.TooSlowError:
            raise VolumeError(volume, f"{path}: expected to be measured within {DEADLINE:.0f} s, was not") from None
        except OSError as error:
            raise VolumeError(volume, f"cannot measure {path}: {error.strerror}") from error


class UsageRecords:
    """What pods' volumes held when they were last measured. `run` measures each pod every one to two periods, and
    does nothing for a period that is not positive (seconds; volumeStatsAggPeriod)."""

    def __init__(
        self,
        measure: Callable[[MountedVolume], Awaitable[VolumeUsage | None]],
        mounted: Callable[[], Mapping[str, Mapping[str, MountedVolume]]],
        *,
        period: float,
        rng: Random,
    ) -> None:
        """`measure`: `VolumeKind.usage` of the volume's kind. `mounted`: volumes by UID and name in the pod."""
        self._measure = measure
        self._mounted = mounted
        self._period = period
        self._rng = rng
        self._due: dict[str, float] = {}
        """In Trio time, by UID; infinite while it is measured."""
        self._records: dict[str, dict[str, VolumeUsage]] = {}
        self.measured: Broadcast[str] = Broadcast()
        """UIDs of pods that were measured: see `of`."""

    def of(self, uid: str) -> Mapping[str, VolumeUsage]:
        """By the name in the pod; empty until it was measured."""
        return self._records.get(uid, {})

    async def run(self) -> None:
        """Measure until cancelled."""
        if self._period <= 0:
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            while True:
                now, pods = trio.current_time(), self._mounted()
                for known in (self._due, self._records):
                    for uid in known.keys() - pods.keys():
                        del known[uid]
                for uid in pods:
                    if self._due.get(uid, now) <= now:
                        self._due[uid] = float("inf")
                        nursery.start_soon(self._measure_pod, uid)
                # Pods that come are seen after a period, as the next that is due is.
                await trio.sleep_until(min([now + self._period, *self._due.values()]))

    async def _measure_pod(self, uid: str) -> None:
        found: dict[str, VolumeUsage] = {}
        for name, volume in dict(self._mounted().get(uid, {})).items():
            try:
                usage = await self._measure(volume)
            except VolumeError as error:
                log.info("volume cannot be measured", uid=uid, volume=name, problem=error.problem)
                continue
            if usage is not None:
                found[name] = usage
        if uid in self._due:
            self._records[uid] = found
            self._due[uid] = trio.current_time() + self._period * (1 + self._rng.random())
            self.measured.send(uid)


def disk_usage(folder: Path, checkpoint: Callable[[], None]) -> tuple[int, int]:
    """The bytes on disk and the inodes of a folder and all in it: each file once, however many names it has, and
    nothing of other file systems (kubelet: `fs.DiskUsage`).

    Blocks for long. What comes and goes meanwhile may be counted or not. `checkpoint` is called often, and may raise to
    end it. Raises OSError.
    """
    walk = _Walk(os.open(folder, _FOLDER), checkpoint)
    try:
        walk.run()
    finally:
        walk.close()
    return walk.used, walk.inodes


@attrs.define
class _Level:
    """A folder on the way to where a walk is."""

    descriptor: int
    """-1 when it was closed, since it is far up."""
    identity: tuple[int, int]
    pending: list[str]
    """Names of folders in it that are still to be walked."""


class _Walk:
    """By descriptors, so that no path is too long and no link is followed. Pods may nest folders by the thousand."""

    def __init__(self, top: int, checkpoint: Callable[[], None]) -> None:
        info = os.fstat(top)
        self.used = info.st_blocks * BLOCK
        self.inodes = 1
        self._checkpoint = checkpoint
        self._seen = 0
        self._device = info.st_dev
        self._counted: set[int] = set()
        """Inodes that have more names."""
        self._way = [_Level(top, (info.st_dev, info.st_ino), [])]

    def run(self) -> None:
        self._way[0].pending = self._count(self._way[0].descriptor)
        while True:
            level = self._way[-1]
            if level.pending:
                self._descend(level, level.pending.pop())
            elif len(self._way) > 1:
                self._ascend()
            else:
                return

    def close(self) -> None:
        for level in self._way:
            if level.descriptor >= 0:
                os.close(level.descriptor)
        self._way.clear()

    def _descend(self, level: _Level, name: str) -> None:
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=level.descriptor)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return  # it is gone, or something else is there: it was counted as it was
            raise
        info = os.fstat(descriptor)
        self._way.append(_Level(descriptor, (info.st_dev, info.st_ino), []))
        if info.st_dev == self._device:
            self._way[-1].pending = self._count(descriptor)
        if len(self._way) > MAX_OPEN:
            far = self._way[-MAX_OPEN - 1]
            if far.descriptor >= 0:
                os.close(far.descriptor)
                far.descriptor = -1

    def _ascend(self) -> None:
        left, parent = self._way[-1], self._way[-2]
        if parent.descriptor < 0:
            parent.descriptor = os.open("..", _FOLDER, dir_fd=left.descriptor)
            info = os.fstat(parent.descriptor)
            if (info.st_dev, info.st_ino) != parent.identity:
                raise OSError(errno.EAGAIN, "a folder was moved while it was measured")
        self._way.pop()
        os.close(left.descriptor)

    def _count(self, folder: int) -> list[str]:
        """Add what is in a folder; returns the folders in it."""
        folders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self._seen += 1
                if self._seen % ENTRIES_BETWEEN_CHECKS == 0:
                    self._checkpoint()
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if info.st_dev != self._device:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif info.st_nlink > 1:
                    if info.st_ino in self._counted:
                        continue
                    self._counted.add(info.st_ino)
                self.used += info.st_blocks * BLOCK
                self.inodes += 1
        return folders


def device_size(device: Path) -> int:
    """Bytes. Raises OSError."""
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)


def _usage_of_file_system(figures: os.statvfs_result, clock: WallClock) -> VolumeUsage:
    return VolumeUsage(
        at=clock.now(),
        used=(figures.f_blocks - figures.f_bfree) * figures.f_frsize,
        capacity=figures.f_blocks * figures.f_frsize,
        available=figures.f_bavail * figures.f_frsize,
        inodes=figures.f_files,
        inodes_used=figures.f_files - figures.f_ffree,
        inodes_free=figures.f_ffree,
    )
