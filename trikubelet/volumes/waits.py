"""What a pod waits for of its volumes, for people: read from what is wanted, what is there, and what goes on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.volumes.desired_state import DesiredStateOfWorld
    from trikubelet.volumes.tracked_volumes import TrackedVolume, TrackedVolumes


@frozen
class VolumeWait:
    """A volume that is not there yet, or that is still there and has to go."""

    volume: str
    """Its name in the pod, else its own."""
    doing: str = ""
    """The operation that goes on, as `stage` or `tear down`; empty for none."""
    since: float | None = None
    """Trio time at which it began."""
    problem: str = ""
    """Why the last operation failed."""


def volume_waits(uid: str, desired: DesiredStateOfWorld, tracked: TrackedVolumes) -> tuple[VolumeWait, ...]:
    """Of a pod whose volumes are not all there, or not all gone. By the volumes' names."""
    return tuple(sorted(_waits(uid, desired, tracked), key=lambda wait: wait.volume))


def _waits(uid: str, desired: DesiredStateOfWorld, tracked: TrackedVolumes) -> Iterator[VolumeWait]:
    record = desired.get(uid)
    if record is None:
        for name in tracked.names_of(uid):
            volume = tracked.get(name)
            if volume is not None and tracked.is_left(name, uid, may_unstage=True):
                yield _wait(_inner_name(volume, uid), volume)
        return
    for name in record.expected:
        volume = tracked.get(record.names.get(name, ""))
        if volume is not None and desired.mounted(record, name) is None:
            yield _wait(name, volume)
        elif volume is None:
            yield VolumeWait(name, problem=record.problems.get(name, ""))


def _wait(name: str, volume: TrackedVolume) -> VolumeWait:
    running = volume.running
    if running is None:
        return VolumeWait(name, problem=volume.problem)
    return VolumeWait(name, running.action.value, running.began, volume.problem)


def _inner_name(volume: TrackedVolume, uid: str) -> str:
    mount = volume.actual.mounts.get(uid)
    return volume.name if mount is None else mount.spec.name
