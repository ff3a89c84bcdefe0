"""Removing images from a simulated node whose disk fills up."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from grpclib.const import Status

from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.images.gc import ImageCollectionError, ImageCollector, ImageHolds, read_disk_space
from trikubelet.runtime.images.gc_choice import DiskSpace, ImageGCPolicy
from trikubelet.runtime.images.pull_records.model import ImageCredentials, VerificationPolicy
from trikubelet.runtime.images.pull_records.records import PullRecords
from trikubelet.runtime.images.pull_records.store import RecordStore
from trikubelet.volumes.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime
    from typing import NoReturn

    from trio.testing import MockClock

SIZE = 100
FULL = ImageGCPolicy(min_age=0)


@attrs.define
class Stage:
    """A node with images, and a disk that holds them and other things."""

    node: Node
    folder: Path
    holds: ImageHolds = attrs.field(factory=ImageHolds)
    other_bytes: int = 0
    capacity: int = 1000
    disk_error: OSError | None = None
    left: list[set[str]] = attrs.field(factory=list)

    async def disk_space(self, path: str) -> DiskSpace:
        assert path == "/var/lib/simulated"
        if self.disk_error is not None:
            raise self.disk_error
        return DiskSpace(self.capacity, self.capacity - self.other_bytes - self.node.sim.images.used_bytes())

    async def on_collected(self, left: Collection[str], asked: datetime) -> None:
        assert asked == self.node.clock.now()
        self.left.append({name for name in left if name.startswith("sha256:")})

    def collector(self, policy: ImageGCPolicy = FULL, **more: Any) -> ImageCollector:
        return ImageCollector(
            ImageClient(self.node.channel),
            RuntimeClient(self.node.channel),
            policy=policy,
            recorder=self.node.recorder,
            clock=self.node.clock,
            holds=self.holds,
            on_collected=self.on_collected,
            disk_space=self.disk_space,
            **more,
        )

    def add(self, *names: str, **more: Any) -> None:
        for name in names:
            self.node.sim.images.add(name, size=SIZE, **more)

    def there(self) -> set[str]:
        found = (image.reference for image in self.node.sim.images.present())
        return {name.removeprefix("docker.io/library/").removesuffix(":latest") for name in found}

    def said(self) -> list[tuple[str, str]]:
        events = self.node.recorder.node_events()
        return [(event.reason, event.message) for event in events for _ in range(event.count)]


@pytest.fixture
def stage(node: Node, tmp_path: Path) -> Stage:
    return Stage(node, tmp_path)


async def run_pod(node: Node, image: str, name: str = "web", **fields: Any) -> None:
    await node.sync(make_pod(make_container(image=image, **fields), name=name))


async def test_nothing_goes_while_there_is_room(autojump_clock: MockClock, stage: Stage) -> None:
    stage.add("a", "b")
    stage.other_bytes = 640
    await stage.collector().collect()
    assert stage.there() == {"a", "b"}
    assert stage.left == []


async def test_unused_images_go_until_the_low_threshold_is_reached(autojump_clock: MockClock, stage: Stage) -> None:
    collector = stage.collector()
    stage.add("a", "used")
    await run_pod(stage.node, "used")
    await collector.collect()
    await trio.sleep(1)
    stage.add("b", "c")
    stage.other_bytes = 480
    await collector.collect()
    # 880 of 1000 bytes are used, 800 may be: one image is enough, the one that has been there longest.
    assert stage.there() == {"b", "c", "used"}
    assert len(stage.left) == 1
    assert len(stage.left[0]) == 3


@pytest.mark.parametrize("evicts", [False, True])
async def test_images_that_others_brought_stay(autojump_clock: MockClock, stage: Stage, evicts: bool) -> None:
    ours = PullRecords(RecordStore(stage.folder), VerificationPolicy(), stage.node.clock)
    stage.add("ours", "theirs")
    for image in stage.node.sim.images.present():
        if "ours" in image.reference:
            ours.record_pull(image.reference, image.id, ImageCredentials())
    collector = stage.collector(pulled_here=ours.image_refs)
    stage.other_bytes = 900
    if evicts:
        assert await collector.delete_unused_images() == SIZE
    else:
        with pytest.raises(ImageCollectionError):
            await collector.collect()
    assert stage.there() == {"theirs"}


async def test_the_image_of_an_ended_container_stays(autojump_clock: MockClock, stage: Stage) -> None:
    stage.add("a")
    await run_pod(stage.node, "a", image_pull_policy="Never")
    stage.node.sim.end_container(stage.node.sim.running_containers()[0])
    stage.other_bytes = 900
    with pytest.raises(ImageCollectionError):
        await stage.collector().collect()
    assert stage.there() == {"a"}


async def test_pinned_and_young_images_stay_and_users_are_told(autojump_clock: MockClock, stage: Stage) -> None:
    collector = stage.collector(ImageGCPolicy())
    stage.add("pinned", pinned=True)
    stage.add("a")
    stage.other_bytes = 700
    message = (
        "Insufficient free disk space on the node's image filesystem (90% of 1000 B used). Failed to free sufficient "
        "space by deleting unused images (freed 0 bytes). Investigate disk usage, as it could be used by active "
        "images, logs, volumes, or other data."
    )
    with pytest.raises(ImageCollectionError) as raised:
        await collector.collect()
    assert str(raised.value) == message
    assert stage.said() == [("FreeDiskSpaceFailed", message)]
    await trio.sleep(120)
    await collector.collect()
    assert stage.there() == {"pinned"}


async def test_an_image_that_cannot_be_removed_does_not_save_the_next(autojump_clock: MockClock, stage: Stage) -> None:
    stage.add("a", "b", "c")
    stage.other_bytes = 560
    stage.node.sim.faults.fail_next("RemoveImage", message="in use by a ghost")
    with pytest.raises(ImageCollectionError) as raised:
        await stage.collector().collect()
    assert str(raised.value) == (
        "wanted to free 60 bytes, but freed 100 bytes space with errors in image deletion: "
        "rpc error: code = Unknown desc = in use by a ghost"
    )
    assert len(stage.there()) == 2


async def test_an_image_that_was_unused_for_too_long_goes_whatever_the_disk_says(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.add("a", "used")
    await run_pod(stage.node, "used")
    collector = stage.collector(ImageGCPolicy(high_threshold_percent=100, low_threshold_percent=80, max_age=3600))
    async with trio.open_nursery() as nursery:
        await nursery.start(collector.run)
        await trio.sleep(3600 + 1)
        assert stage.there() == {"a", "used"}
        await trio.sleep(300)
        assert stage.there() == {"used"}
        nursery.cancel_scope.cancel()


async def test_removals_for_age_that_fail_are_told_of(autojump_clock: MockClock, stage: Stage) -> None:
    stage.add("a")
    collector = stage.collector(ImageGCPolicy(max_age=4000))
    stage.node.sim.faults.fail_next("RemoveImage", times=2, message="no")
    async with trio.open_nursery() as nursery:
        await nursery.start(collector.run)
        await trio.sleep(5000)
        nursery.cancel_scope.cancel()
    message = (
        "wanted to free images older than 1h6m40s, encountered errors in image deletion: "
        "rpc error: code = Unknown desc = no"
    )
    # The first failure is only logged.
    assert stage.said() == [("ImageGCFailed", message)]
    assert stage.there() == set()


async def test_only_failures_in_a_row_are_an_event(autojump_clock: MockClock, stage: Stage) -> None:
    faults = stage.node.sim.faults
    async with trio.open_nursery() as nursery:
        faults.fail_next("ListImages", status=Status.UNAVAILABLE, message="gone")
        await nursery.start(stage.collector().run)
        await trio.sleep(301)
        faults.fail_next("ListImages", times=3, status=Status.UNAVAILABLE, message="gone")
        await trio.sleep(900)
        nursery.cancel_scope.cancel()
    assert stage.said() == [("ImageGCFailed", "rpc error: code = Unavailable desc = gone")] * 2


async def test_a_disk_without_any_room_is_an_invalid_one(autojump_clock: MockClock, stage: Stage) -> None:
    stage.capacity = 0
    with pytest.raises(ImageCollectionError, match="invalid capacity 0 on image filesystem"):
        await stage.collector().collect()
    assert stage.said() == [("InvalidDiskCapacity", "invalid capacity 0 on image filesystem")]


async def test_a_disk_of_another_machine_does_not_matter(autojump_clock: MockClock, stage: Stage) -> None:
    stage.disk_error = FileNotFoundError("elsewhere")
    await stage.collector().collect()
    stage.disk_error = PermissionError("no")
    with pytest.raises(ImageCollectionError, match="failed to get image stats: no"):
        await stage.collector().collect()


async def test_a_policy_to_remove_nothing_still_watches_which_images_are_used(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.add("a")
    stage.other_bytes = 900
    collector = stage.collector(ImageGCPolicy(high_threshold_percent=100))
    async with trio.open_nursery() as nursery:
        await nursery.start(collector.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert stage.there() == {"a"}
    assert [one.image.id for one in collector.records()] == [stage.node.sim.images.present()[0].id]


async def test_all_unused_images_go_when_the_disk_is_needed(autojump_clock: MockClock, stage: Stage) -> None:
    stage.add("a", "b", "used")
    await run_pod(stage.node, "used")
    assert await stage.collector().delete_unused_images() == 2 * SIZE
    assert stage.there() == {"used"}
    assert len(stage.left) == 1
    stage.add("c")
    stage.node.sim.faults.fail_next("RemoveImage", message="no")
    with pytest.raises(ImageCollectionError, match="wanted to free 9223372036854775807 bytes, but freed 0 bytes"):
        await stage.collector().delete_unused_images()


async def test_a_mounted_image_is_in_use(autojump_clock: MockClock, stage: Stage) -> None:
    stage.add("a", "volume", "main")
    await run_pod(stage.node, "main")
    [container] = stage.node.sim.running_containers()
    volume = stage.node.sim.images.find("volume")
    assert volume is not None
    container.config.mounts.append(v1.Mount(container_path="/data", image=v1.ImageSpec(image=volume.id)))
    collector = stage.collector()
    await collector.delete_unused_images()
    assert stage.there() == {"main", "volume"}
    before = stage.node.sim.calls.count("ContainerStatus")
    await collector.delete_unused_images()
    assert stage.node.sim.calls.count("ContainerStatus") == before


async def test_the_image_of_sandboxes_stays_where_the_runtime_does_not_pin_it(
    autojump_clock: MockClock, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.add("a", "registry.k8s.io/pause:3.6")
    status = RuntimeClient.status

    async def with_config(self: RuntimeClient, verbose: bool = False) -> v1.StatusResponse:
        reply = await status(self, verbose)
        reply.info["config"] = json.dumps({"sandboxImage": "registry.k8s.io/pause:3.6"}) if verbose else ""
        return reply

    monkeypatch.setattr(RuntimeClient, "status", with_config)
    await stage.collector().delete_unused_images()
    assert stage.there() == {"registry.k8s.io/pause:3.6"}


async def test_an_image_for_a_container_that_is_about_to_be_made_stays(autojump_clock: MockClock, stage: Stage) -> None:
    stage.add("a", "b")
    async with stage.holds.hold("a"):
        await stage.collector().delete_unused_images()
    assert stage.there() == {"a"}
    await stage.collector().delete_unused_images()
    assert stage.there() == set()


async def test_a_container_that_is_made_during_a_collection_keeps_its_image(
    autojump_clock: MockClock, stage: Stage
) -> None:
    """Its image was unused when the collection began, and it is no longer about to be made when its turn comes."""
    stage.add("a", "b", "c")
    stage.node.sim.delays["RemoveImage"] = 1.0
    collector = stage.collector()

    started: set[str] = set()

    async def start() -> None:
        await trio.sleep(0.5)
        last = max(stage.there(), key=lambda name: _id(stage, name))
        async with stage.holds.hold(last):
            await run_pod(stage.node, last, image_pull_policy="Never")
        started.add(last)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await collector.delete_unused_images()
    assert stage.there() == started


def _id(stage: Stage, name: str) -> str:
    image = stage.node.sim.images.find(name)
    assert image is not None
    return image.id


async def test_a_start_waits_while_an_image_is_being_removed(autojump_clock: MockClock, stage: Stage) -> None:
    stage.add("a")
    stage.node.sim.delays["RemoveImage"] = 1.0
    found: list[bool] = []

    async def start() -> None:
        await trio.sleep(0.5)
        async with stage.holds.hold("a"):
            found.append("a" in stage.there())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await stage.collector().delete_unused_images()
    assert found == [False]


async def test_a_name_that_cannot_be_looked_up_ends_the_collection(autojump_clock: MockClock, stage: Stage) -> None:
    stage.add("a")
    stage.node.sim.faults.fail_next("ImageStatus", status=Status.UNAVAILABLE)
    async with stage.holds.hold("a", "Not A Name"):
        with pytest.raises(CRIError):
            await stage.collector().delete_unused_images()
    assert stage.there() == {"a"}


async def test_the_space_of_a_real_disk(tmp_path: Path) -> None:
    space = await read_disk_space(Disk(), str(tmp_path))
    assert 0 < space.available <= space.capacity
    with pytest.raises(FileNotFoundError):
        await read_disk_space(Disk(), str(tmp_path / "missing"))


async def test_a_disk_that_hangs_is_asked_once_and_fails_the_collection(
    autojump_clock: MockClock, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, began, asked = threading.Event(), threading.Event(), []

    def hang(path: str) -> NoReturn:
        asked.append(path)
        began.set()
        answered.wait(60)
        raise OSError

    monkeypatch.setattr(os, "statvfs", hang)
    collector = stage.collector()
    collector._disk_space = partial(read_disk_space, Disk())
    try:
        for _ in range(3):
            with pytest.raises(ImageCollectionError, match=r"failed to get image stats: .* does not answer"):
                await collector.collect()
        await trio.to_thread.run_sync(began.wait, 60)
    finally:
        answered.set()
    assert len(asked) == 1


async def test_a_disk_that_hangs_keeps_nobody_from_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, ended = threading.Event(), threading.Event()

    def hang(_: str) -> NoReturn:
        answered.wait(10)
        ended.set()
        raise OSError

    monkeypatch.setattr(os, "statvfs", hang)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_disk_space, Disk(), str(tmp_path))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert not ended.is_set()
    finally:
        answered.set()
