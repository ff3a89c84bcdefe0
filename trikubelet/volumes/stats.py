"""How much volumes hold (kubelet: `pkg/volume/metrics_*`, `volume_stat_calculator.go`).

A volume with a file system of its own is asked in one call; one that shares the node's disk has to be walked. Both may
take long, a share that is away forever. So measuring has threads of its own (`disk.py`) and gives up after a while: a
walk then ends soon, and a path whose last question is still open is not asked again. What is known is kept for
readers, which never wait.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.linux.trees import disk_usage
from trikubelet.supervision import contain
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Histograms
from trikubelet.volumes.disk import QUESTION_PATIENCE, WALK_PATIENCE, ForeignPaths
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
"""Seconds for one volume, without the wait for a thread."""
MAX_WALKS: Final = 2
TOGETHER: Final = 1 / 12
"""Of a period: pods that are due within it are measured together, as each time that an idle agent wakes up costs."""


class VolumeMeter:
    """Measures, on threads. One for the whole agent.

    All methods raise VolumeError; `volume` is the name for it.
    """

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._walks = ForeignPaths(patience=WALK_PATIENCE, threads=MAX_WALKS)
        self._questions = ForeignPaths(patience=QUESTION_PATIENCE)
        self.durations = Histograms()
        """Seconds, in the kubelet's words: a walk is `du`, a call `statfs`, a device `block`."""

    async def tree(self, volume: str, folder: Path) -> VolumeUsage:
        """What a folder takes of the file system that it is on, and how much of that there is."""

        def measure() -> tuple[int, int, os.statvfs_result]:
            used, inodes = disk_usage(folder, trio.from_thread.check_cancelled)
            return used, inodes, os.statvfs(folder)

        used, inodes, figures = await self._ask(volume, folder, measure, self._walks, "du")
        return attrs.evolve(_usage_of_file_system(figures, self._clock), used=used, inodes_used=inodes)

    async def file_system(self, volume: str, path: Path) -> VolumeUsage:
        """The figures of the whole file system at a path."""
        figures = await self._ask(volume, path, lambda: os.statvfs(path), self._questions, "statfs")
        return _usage_of_file_system(figures, self._clock)

    async def device(self, volume: str, device: Path) -> VolumeUsage:
        """The size of a block device, which does not know what of it is used."""
        size = await self._ask(volume, device, lambda: device_size(device), self._questions, "block")
        return VolumeUsage(at=self._clock.now(), capacity=size)

    async def _ask(self, volume: str, path: Path, question: Callable[[], T], paths: ForeignPaths, source: str) -> T:
        if paths.is_open(path):
            raise VolumeError(volume, f"{path}: its file system has not answered since it was last asked")
        began = trio.current_time()
        try:
            return await paths.ask(path, question, DEADLINE)
        except trio.TooSlowError:
            raise VolumeError(volume, f"{path}: expected to be measured within {DEADLINE:.0f} s, was not") from None
        except OSError as error:
            raise VolumeError(volume, f"cannot measure {path}: {error.strerror}") from error
        finally:
            self.durations.observe((source,), trio.current_time() - began)


class UsageRecords:
    """What pods' volumes held when they were last measured. `run` measures each pod with volumes about every one to two
    periods, and does nothing for a period that is not positive (seconds; volumeStatsAggPeriod)."""

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
            self._due.clear()  # begun again, it measures everything anew
            while True:
                now = trio.current_time()
                pods = {uid: volumes for uid, volumes in self._mounted().items() if volumes}
                for known in (self._due, self._records):
                    for uid in known.keys() - pods.keys():
                        del known[uid]
                for uid, volumes in pods.items():
                    if self._due.get(uid, now) <= now + self._period * TOGETHER:
                        self._due[uid] = float("inf")
                        nursery.start_soon(contain, self._measure_pod, uid, volumes)
                # Pods that come are seen after a period, as the next that is due is.
                await trio.sleep_until(min([now + self._period, *self._due.values()]))

    async def _measure_pod(self, uid: str, volumes: Mapping[str, MountedVolume]) -> None:
        found: dict[str, VolumeUsage] = {}
        try:
            for name, volume in volumes.items():
                try:
                    usage = await self._measure(volume)
                except VolumeError as error:
                    log.info("volume cannot be measured", uid=uid, volume=name, problem=error.problem)
                    continue
                if usage is not None:
                    found[name] = usage
        finally:
            if uid in self._due:
                self._due[uid] = trio.current_time() + self._period * (1 + self._rng.random())
        if uid in self._due:
            self._records[uid] = found
            self.measured.send(uid)


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
