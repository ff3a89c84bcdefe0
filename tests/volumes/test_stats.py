"""How much volumes hold."""

from __future__ import annotations

import errno
import itertools
import os
import random
import subprocess
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.volumes.test_removal import nest
from trikubelet.clock import SystemClock, TrioClock
from trikubelet.linux import trees
from trikubelet.linux.mounter import Mounter
from trikubelet.linux.trees import MAX_OPEN, disk_usage
from trikubelet.supervision import follow
from trikubelet.volumes import stats
from trikubelet.volumes.disk import MAX_THREADS
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.model import MountedVolume, VolumeSpec, VolumeUsage
from trikubelet.volumes.removal import remove_folder
from trikubelet.volumes.stats import UsageRecords, VolumeMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from trio.testing import MockClock


def du(folder: Path) -> tuple[int, int]:
    """What du(1) says: bytes and inodes."""

    def ask(*options: str) -> int:
        command = ["du", "--summarize", "--one-file-system", *options, str(folder)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0])

    return ask("--block-size=1"), ask("--inodes")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_each_file_counts_once_with_its_blocks_on_disk(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_bytes(b"x" * 100_000)
    (tmp_path / "a/b/same").hardlink_to(tmp_path / "a/file")
    (tmp_path / "a/small").write_text("x")
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(2**30)
    (tmp_path / "link").symlink_to("/usr")
    (tmp_path / "dangling").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    used, inodes = disk_usage(tmp_path, lambda: None)
    assert (used, inodes) == du(tmp_path)
    assert inodes == 9
    assert 100_000 < used < 200_000


@pytest.mark.parametrize("depth", [MAX_OPEN - 1, MAX_OPEN, MAX_OPEN + 1, 3000])
def test_folders_may_be_nested_deeper_than_a_path_can_say(tmp_path: Path, depth: int) -> None:
    volume, before, most = tmp_path / "volume", descriptors(), 0
    volume.mkdir()
    nest(volume, depth)

    def look() -> None:
        nonlocal most
        most = max(most, descriptors())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "ENTRIES_BETWEEN_CHECKS", 1)
        found = disk_usage(volume, look)
    expected = du(volume)
    remove_folder(volume, lambda: None)  # it is too deep for pytest
    assert found == expected
    assert most <= before + MAX_OPEN + 5
    assert descriptors() == before


def test_many_branches_far_down_are_all_walked(tmp_path: Path) -> None:
    folder = tmp_path
    for level in range(MAX_OPEN + 10):
        for name in ("x", "y"):
            (folder / name).mkdir()
        (folder / "x" / f"file-{level}").write_text("x")
        folder = folder / "y"
    assert disk_usage(tmp_path, lambda: None) == du(tmp_path)


@pytest.mark.root
def test_other_file_systems_inside_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"x" * 10_000)
    inside = tmp_path / "inside"
    inside.mkdir()
    before = disk_usage(tmp_path, lambda: None)
    mounter = Mounter()
    mounter.tmpfs(inside, size=None, mode=0o755, group=None, noswap=False)
    try:
        (inside / "other").write_bytes(b"x" * 50_000)
        used, inodes = disk_usage(tmp_path, lambda: None)
        assert used <= before[0]
        assert inodes == before[1] - 1, "the folder of the mount is the other's"
    finally:
        mounter.unmount(inside)


def test_a_folder_that_is_moved_far_down_is_noticed(tmp_path: Path) -> None:
    """Up is found by the name of the parent: it must not lead out of the volume."""
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    outside.mkdir()
    deep = volume
    for _ in range(MAX_OPEN + 20):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "last").write_text("x")
    entries = 0

    def move() -> None:
        nonlocal entries
        entries += 1
        if entries == MAX_OPEN + 21:
            (volume / "d/d").rename(outside / "d")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "ENTRIES_BETWEEN_CHECKS", 1)
        with pytest.raises(OSError, match="moved while it was measured"):
            disk_usage(volume, move)
    assert entries == MAX_OPEN + 21


async def test_a_tree_is_measured_with_the_file_system_it_is_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    usage = await VolumeMeter(SystemClock()).tree("work", tmp_path)
    figures = os.statvfs(tmp_path)
    assert (usage.used, usage.inodes_used) == du(tmp_path)
    assert usage.capacity == figures.f_blocks * figures.f_frsize
    assert usage.inodes == figures.f_files
    assert usage.available is not None
    assert 0 < usage.available <= usage.capacity
    assert abs((usage.at - datetime.now(UTC)).total_seconds()) < 60


@pytest.mark.root
async def test_a_volume_with_a_file_system_of_its_own_has_its_figures(tmp_path: Path) -> None:
    mounter = Mounter()
    mounter.tmpfs(tmp_path, size=2**20, mode=0o755, group=None, noswap=False)
    try:
        (tmp_path / "file").write_bytes(b"x" * 8192)
        usage = await VolumeMeter(SystemClock()).file_system("work", tmp_path)
    finally:
        mounter.unmount(tmp_path)
    assert attrs.astuple(usage)[1:4] == (8192, 2**20, 2**20 - 8192)
    assert usage.inodes_used == 2
    assert usage.inodes is not None
    assert usage.inodes_free == usage.inodes - 2


async def test_a_device_tells_its_size(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.write_bytes(b"x" * 4096)
    usage = await VolumeMeter(SystemClock()).device("disk", device)
    assert (usage.capacity, usage.used, usage.inodes) == (4096, None, None)


async def test_what_cannot_be_measured_is_named(tmp_path: Path) -> None:
    meter = VolumeMeter(SystemClock())
    for ask in (meter.tree, meter.file_system, meter.device):
        with pytest.raises(VolumeError, match=r'volume "work": cannot measure .*/gone: No such file'):
            await ask("work", tmp_path / "gone")


async def test_a_share_that_is_away_is_asked_once_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answered, asked = threading.Event(), []
    real, share = os.statvfs, tmp_path / "share"

    def statvfs(path: Path) -> os.statvfs_result:
        if path == share:
            asked.append(path)
            answered.wait()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    meter = VolumeMeter(SystemClock())
    try:
        with monkeypatch.context() as hurry:
            hurry.setattr(stats, "DEADLINE", 0.1)
            with pytest.raises(VolumeError, match="expected to be measured within"):
                await meter.file_system("share", share)
        for _ in range(10):
            with pytest.raises(VolumeError, match="has not answered since it was last asked"):
                await meter.file_system("share", share)
        assert (await meter.file_system("work", tmp_path)).capacity
        assert len(asked) == 1
    finally:
        answered.set()


async def test_how_long_it_took_is_counted_by_what_was_asked(tmp_path: Path) -> None:
    meter = VolumeMeter(SystemClock())
    (tmp_path / "device").write_bytes(b"x")
    await meter.tree("work", tmp_path)
    await meter.file_system("work", tmp_path)
    await meter.device("disk", tmp_path / "device")
    with pytest.raises(VolumeError):
        await meter.device("disk", tmp_path / "gone")
    assert {labels: one.count for labels, one in meter.durations.items()} == {("du",): 1, ("statfs",): 1, ("block",): 2}


class Share:
    """Its file system does not answer, at any of its paths, until it is told to."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.asked: list[str] = []

    def statvfs(self, path: Path) -> os.statvfs_result:
        if "share" in path.parts:
            self.asked.append(path.name)
            self.answer.wait()
        return STATVFS(path)

    def disk_usage(self, folder: Path, checkpoint: Callable[[], None]) -> tuple[int, int]:
        self.statvfs(folder)
        return disk_usage(folder, checkpoint)


STATVFS = os.statvfs


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Share]:
    for number in range(12):
        (tmp_path / f"share/{number}").mkdir(parents=True)
    share = Share()
    monkeypatch.setattr(os, "statvfs", share.statvfs)
    monkeypatch.setattr(stats, "disk_usage", share.disk_usage)
    yield share
    share.answer.set()


@pytest.mark.parametrize("ask", ["file_system", "tree"])
async def test_shares_that_are_away_make_no_other_volume_fail(
    ask: str, share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = VolumeMeter(SystemClock())
    with monkeypatch.context() as hurry:
        hurry.setattr(stats, "DEADLINE", 0.05)
        for number in range(12):
            with pytest.raises(VolumeError, match="expected to be measured within"):
                await getattr(meter, ask)("share", tmp_path / f"share/{number}")
    with trio.fail_after(60):
        assert (await getattr(meter, ask)("work", tmp_path)).capacity


async def test_waiting_for_a_thread_does_not_count(
    share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter, measured = VolumeMeter(SystemClock()), []

    async def measure(path: Path) -> None:
        measured.append(await meter.file_system("work", path))

    async with trio.open_nursery() as nursery:
        for number in range(MAX_THREADS):
            nursery.start_soon(measure, tmp_path / f"share/{number}")
        while len(share.asked) < MAX_THREADS:
            await trio.sleep(0.001)
        monkeypatch.setattr(stats, "DEADLINE", 0.2)
        nursery.start_soon(measure, tmp_path)
        await trio.sleep(0.4)
        assert measured == []
        monkeypatch.setattr(stats, "DEADLINE", 60)
        share.answer.set()
    assert len(measured) == MAX_THREADS + 1


async def test_shares_that_are_away_make_room_before_their_deadline(
    share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "QUESTION_PATIENCE", 0.01)
    meter = VolumeMeter(SystemClock())
    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(meter.file_system, "share", tmp_path / f"share/{number}")
        while len(share.asked) < MAX_THREADS:
            await trio.sleep(0.001)
        with trio.fail_after(60):
            assert (await meter.file_system("work", tmp_path)).capacity
        share.answer.set()


async def test_walks_take_no_thread_from_questions(share: Share, tmp_path: Path) -> None:
    meter = VolumeMeter(SystemClock())
    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(meter.tree, "share", tmp_path / f"share/{number}")
        while len(share.asked) < stats.MAX_WALKS:
            await trio.sleep(0.001)
        with trio.fail_after(60):
            assert (await meter.file_system("work", tmp_path)).capacity
        share.answer.set()


async def test_a_share_that_is_back_is_measured_again(
    share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = VolumeMeter(SystemClock())
    with monkeypatch.context() as hurry:
        hurry.setattr(stats, "DEADLINE", 0.05)
        with pytest.raises(VolumeError, match="expected to be measured within"):
            await meter.file_system("share", tmp_path / "share/1")
    share.answer.set()
    with trio.fail_after(60):
        while True:
            try:
                usage = await meter.file_system("share", tmp_path / "share/1")
                break
            except VolumeError:
                await trio.sleep(0.001)
    assert usage.capacity


async def test_a_walk_that_nobody_waits_for_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "ENTRIES_BETWEEN_CHECKS", 1)
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    ended, scope = threading.Event(), trio.CancelScope()

    def walk(folder: Path, checkpoint: object) -> tuple[int, int]:
        assert callable(checkpoint)

        def cancelling() -> None:
            trio.from_thread.run_sync(scope.cancel)
            checkpoint()

        try:
            return disk_usage(folder, cancelling)
        except trio.Cancelled:
            ended.set()
            raise

    monkeypatch.setattr(stats, "disk_usage", walk)
    with scope:
        await VolumeMeter(SystemClock()).tree("work", tmp_path)
    assert scope.cancelled_caught
    assert await trio.to_thread.run_sync(ended.wait, 10)


# Records


def volume(name: str) -> MountedVolume:
    return MountedVolume(VolumeSpec(name, name, "kubernetes.io/empty-dir"), path=None)


@attrs.define
class Measured:
    """Volumes, and when each was measured."""

    pods: dict[str, dict[str, MountedVolume]]
    times: dict[str, list[float]] = attrs.field(factory=dict)
    takes: float = 0
    failing: frozenset[str] = frozenset()

    def mounted(self) -> Mapping[str, Mapping[str, MountedVolume]]:
        return self.pods

    async def measure(self, volume: MountedVolume) -> VolumeUsage | None:
        name = volume.spec.name
        self.times.setdefault(name, []).append(trio.current_time())
        await trio.sleep(self.takes)
        if name in self.failing:
            raise VolumeError(name, "no answer")
        return None if name == "silent" else VolumeUsage(at=TrioClock().now(), used=len(self.times[name]))


def records(measured: Measured, period: float = 60) -> UsageRecords:
    return UsageRecords(measured.measure, measured.mounted, period=period, rng=random.Random(1))


async def run_for(kept: UsageRecords, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await kept.run()


async def test_each_pod_is_measured_at_once_and_then_once_in_one_to_two_periods(autojump_clock: MockClock) -> None:
    measured = Measured({"a": {"one": volume("one"), "silent": volume("silent")}, "b": {"two": volume("two")}})
    kept = records(measured)
    await run_for(kept, 1000)
    for times in measured.times.values():
        assert times[0] == measured.times["one"][0]
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert len(pauses) > 5
        assert all(60 <= pause <= 120 for pause in pauses)
    assert measured.times["one"] != measured.times["two"], "not all at the same moment"
    assert kept.of("a").keys() == {"one"}
    assert kept.of("b")["two"].used == len(measured.times["two"])


async def test_a_slow_volume_holds_up_only_its_own_pod(autojump_clock: MockClock) -> None:
    measured = Measured({"slow": {"slow": volume("slow")}}, takes=1000)
    kept = records(measured)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.run)
        await trio.sleep(1)
        measured.pods["quick"] = {"quick": volume("quick")}
        measured.takes = 0
        await trio.sleep(300)
        assert kept.of("quick")["quick"].used
        assert len(measured.times["slow"]) == 1
        nursery.cancel_scope.cancel()


async def test_who_wants_to_know_is_told_of_each_measurement(autojump_clock: MockClock) -> None:
    measured = Measured({"a": {"one": volume("one")}}, takes=5)
    kept = records(measured)
    told: list[tuple[float, str, int | None]] = []
    began = trio.current_time()

    def note(uid: str) -> None:
        told.append((trio.current_time() - began, uid, kept.of(uid)["one"].used))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, kept.measured.subscribe(), note)
        await run_for(kept, 20)
        nursery.cancel_scope.cancel()
    assert told == [(5, "a", 1)]


async def test_a_pod_that_is_gone_leaves_no_record(autojump_clock: MockClock) -> None:
    measured = Measured({"a": {"one": volume("one")}}, takes=5)
    kept = records(measured)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.run)
        await trio.sleep(10)
        assert kept.of("a")
        measured.takes = 100
        await trio.sleep(150)
        del measured.pods["a"]
        await trio.sleep(300)
        assert kept.of("a") == {}
        nursery.cancel_scope.cancel()


async def test_what_could_not_be_measured_again_has_no_record(autojump_clock: MockClock) -> None:
    measured = Measured({"a": {"one": volume("one"), "two": volume("two")}})
    kept = records(measured)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.run)
        await trio.sleep(1)
        assert kept.of("a").keys() == {"one", "two"}
        measured.failing = frozenset({"one"})
        await trio.sleep(130)
        assert kept.of("a").keys() == {"two"}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("period", [0, -1])
async def test_without_a_period_nothing_is_measured(autojump_clock: MockClock, period: float) -> None:
    measured = Measured({"a": {"one": volume("one")}})
    kept = records(measured, period)
    await run_for(kept, 1000)
    assert measured.times == {}
    assert kept.of("a") == {}
