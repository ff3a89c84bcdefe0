"""Giving a volume to a group, and telling the pod when it takes long."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio

from tests.captured_logs import capture_logs
from trikubelet.api import ObjectMeta, Pod
from trikubelet.clock import TrioClock
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError, uncertain
from trikubelet.volumes.fs_group import apply_fs_group, give_to_group
from trikubelet.volumes.model import SetUpRequest, VolumeSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

    from trio.testing import MockClock

T = TypeVar("T")
POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="uid-web"))


class SlowDisk(Disk):
    """Takes its time, and no thread."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def walk_foreign(self, where: Hashable, work: Callable[[], T], *, deadline: float) -> T:
        with trio.fail_after(deadline):
            await trio.sleep(self._seconds)
        raise OSError("the volume is gone")


async def messages(seconds: float, folder: Path) -> list[str]:
    recorder = EventRecorder(TrioClock())
    with pytest.raises((OSError, trio.TooSlowError)):
        await apply_fs_group(SlowDisk(seconds), recorder, POD, folder, 1000, change_policy="Always")
    events = recorder.events_of("uid-web")
    assert {event.reason for event in events} <= {"VolumePermissionChangeInProgress"}
    return [event.message for event in events for _ in range(event.count)]


async def test_a_pod_hears_of_a_volume_with_many_files(tmp_path: Path, autojump_clock: MockClock) -> None:
    folder = tmp_path / "uid-web" / "volumes" / "data"
    assert await messages(29, folder) == []
    (first,) = await messages(89, folder)
    assert first.startswith(
        "Setting volume ownership for uid-web/volumes/data is taking longer than expected, "
        "consider using OnRootMismatch - https://kubernetes.io/docs/"
    )
    assert (await messages(211, folder))[1:] == [
        "Setting volume ownership for uid-web/volumes/data, processed 0 files."
    ] * 3


async def test_a_volume_that_does_not_answer_is_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    start = trio.current_time()
    await messages(1e9, tmp_path)
    assert trio.current_time() - start == pytest.approx(4 * 3600, abs=1)


async def test_all_files_get_the_group(tmp_path: Path) -> None:
    volume = volume_with_a_file(tmp_path)
    progress = await apply_fs_group(
        Disk(), EventRecorder(TrioClock()), POD, volume, os.getgid(), change_policy="Always"
    )
    assert (progress.files, progress.failures) == (2, 0)
    assert modes(volume) == (0o2770, 0o660)


@pytest.mark.parametrize(("root_mode", "expected"), [(0o2770, 0o600), (0o2750, 0o660)])
async def test_a_root_that_is_right_spares_the_walk(tmp_path: Path, root_mode: int, expected: int) -> None:
    volume = volume_with_a_file(tmp_path)
    volume.chmod(root_mode)
    recorder = EventRecorder(TrioClock())
    await apply_fs_group(Disk(), recorder, POD, volume, os.getgid(), change_policy="OnRootMismatch")
    assert modes(volume) == (0o2770, expected)


@pytest.mark.parametrize(("seconds", "reason"), [(1, "the volume is gone"), (1e9, "the volume did not answer in time")])
async def test_a_volume_that_cannot_be_given_to_the_group_fails_with_the_reason(
    tmp_path: Path, autojump_clock: MockClock, seconds: float, reason: str
) -> None:
    asked = SetUpRequest(pod=POD, spec=VolumeSpec("data", "data", "kubernetes.io/csi"), path=tmp_path)
    with pytest.raises(VolumeError) as failed:
        await give_to_group(SlowDisk(seconds), EventRecorder(TrioClock()), asked, tmp_path, 1000)
    assert failed.value.problem == f"applyFSGroup failed for vol data: {reason}"
    assert not isinstance(failed.value, UncertainVolumeError), "that is for who knows what is there"
    with pytest.raises(UncertainVolumeError, match="gone"), uncertain("data"):
        raise VolumeError("data", "gone")


async def test_files_that_keep_their_group_are_told_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = volume_with_a_file(tmp_path)
    asked = SetUpRequest(pod=POD, spec=VolumeSpec("data", "data", "kubernetes.io/csi"), path=volume)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chown", refuse)
    monkeypatch.setattr(os, "fchown", refuse)
    with capture_logs() as lines:
        await give_to_group(Disk(), EventRecorder(TrioClock()), asked, volume, os.getgid() + 1)
    [line] = [line for line in lines if line["event"] == "fsGroup not set on some files"]
    assert (line["volume"], line["failures"]) == ("data", 2)
    assert "Operation not permitted" in line["first"]


def volume_with_a_file(tmp_path: Path) -> Path:
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700)
    (volume / "file").touch(mode=0o600)
    return volume


def modes(volume: Path) -> tuple[int, int]:
    return stat.S_IMODE(volume.stat().st_mode), stat.S_IMODE((volume / "file").stat().st_mode)
