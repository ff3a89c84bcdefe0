"""Removing images that no container uses, when the disk fills up or when they were not used for long.

The story of a collection, every five minutes: the runtime lists images and containers, and each image's record says
since when it is there and when it was last seen in use. What has been unused for too long goes. Then, where the file
system that holds the images is fuller than the high threshold, unused images go, the longest unused first, until the
low threshold is reached. One image that cannot be removed does not save the next.

Beyond what the kubelet does, nothing is removed that a container is about to be made of (`ImageHolds`), nor the image
of sandboxes where the runtime does not pin it (containerd before 1.7): a node without it can start no pod at all when
the registry is out of reach.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.container.messages import describe_duration
from trikubelet.formats.image_names import InvalidImageNameError, with_default_tag
from trikubelet.formats.values import frozen
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.images.gc_choice import (
    DiskSpace,
    ImageGCPolicy,
    ImageRecord,
    SeenImage,
    describe_problems,
    detect,
    in_order_of_removal,
    insufficient_space,
    old_enough,
    too_old,
    used_images,
)
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.spans import spanned
from trikubelet.volumes.disk import Disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from trio_typing import TaskStatus

    from trikubelet.clock import WallClock
    from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
    from trikubelet.telemetry.events import EventRecorder
    from trikubelet.telemetry.metrics import Counts
    from trikubelet.telemetry.spans import Spans

log = get_logger("images")

AGE: Final = "age"
SPACE: Final = "space"
"""Why images are removed (`ImageGarbageCollectedTotalReason…`)."""
IMAGE_GC_PERIOD: Final = 300.0
"""Seconds, as the kubelet's `ImageGCPeriod`."""


@frozen
class ImageCollectionError(Exception):
    """Images could not be removed, or not enough of them. The next collection tries again."""

    message: str

    def __str__(self) -> str:
        return self.message


async def read_disk_space(disk: Disk, path: str) -> DiskSpace:
    """Size and free space of a path's file system. Raises OSError, and `trio.TooSlowError` for one that hangs. When
    cancelled, such a one is left alone."""
    status = await disk.run_foreign(path, partial(os.statvfs, path))
    return DiskSpace(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


class ImageCollector:
    """Image garbage collection (kubelet: `realImageGCManager`). Cancelling it leaves each image whole or removed.

    `on_collected` is awaited after images were removed, with the ids and names of all images that are left, and the
    time before they were asked for: what is kept about images that are gone can go too.
    """

    def __init__(
        self,
        images: ImageClient,
        runtime: RuntimeClient,
        *,
        policy: ImageGCPolicy,
        recorder: EventRecorder,
        clock: WallClock,
        holds: ImageHolds | None = None,
        on_collected: Callable[[Collection[str], datetime], Awaitable[None]] | None = None,
        disk_space: Callable[[str], Awaitable[DiskSpace]] | None = None,
        removed: Counts | None = None,
        spans: Spans | None = None,
        pulled_here: Callable[[], Awaitable[Collection[str]]] | None = None,
    ) -> None:
        """`removed`: where images are counted, by why they went. `spans` tells of collections.

        `pulled_here`: asks for the ids of the images that may be removed; None: all.
        """
        self._images = images
        self._runtime = runtime
        self._policy = policy
        self._recorder = recorder
        self._clock = clock
        self._holds = holds or ImageHolds()
        self._on_collected = on_collected
        self._disk_space = disk_space or partial(read_disk_space, Disk())
        self._records: dict[str, ImageRecord] = {}
        self._mounted: dict[str, frozenset[str]] = {}
        """By container id, the images that it has mounted: they never change."""
        self._removed: Counts = Counter() if removed is None else removed
        self._spans = spans
        self._pulled_here = pulled_here
        self._turn = trio.Lock()
        self._began = math.inf
        self._failed_before = False
        self._told_of_absent_disk = False

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Collect at once and then every five minutes, until cancelled."""
        self._began = min(self._began, trio.current_time())
        task_status.started()
        while True:
            await self._collect_and_report()
            await trio.sleep(IMAGE_GC_PERIOD)

    async def collect(self) -> None:
        """One collection (`GarbageCollect`). Raises CRIError when the runtime cannot be asked, ImageCollectionError."""
        name, scope = "Images/GarbageCollect", "k8s.io/kubernetes/pkg/kubelet/images"
        async with self._turn:
            with spanned(self._spans, name, scope=scope), self._holds.collection():
                now, candidates = await self._candidates()
                old = too_old(candidates, self._policy, now=now, began=self._began)
                removed, _, problems = await self._remove(old, why=AGE)
                if problems:
                    raise ImageCollectionError(
                        f"wanted to free images older than {describe_duration(self._policy.max_age)}, "
                        f"encountered errors in image deletion: {describe_problems(problems)}"
                    )
                rest = [record for record in candidates if record.image.id not in removed]
                await self._free_space(old_enough(rest, self._policy, now=now))

    async def delete_unused_images(self) -> int:
        """Remove every unused image that is old enough, because the disk is needed. Returns how many bytes were freed.

        Raises as `collect`.
        """
        async with self._turn:
            with self._holds.collection():
                now, candidates = await self._candidates()
                wanted = old_enough(candidates, self._policy, now=now)
                log.info("unused images are removed", images=len(wanted))
                _, freed, problems = await self._remove(wanted)
        if problems:
            raise _deletion_errors(2**63 - 1, freed, problems)
        return freed

    def records(self) -> Sequence[ImageRecord]:
        """The records of the node's images, as of the last look."""
        return list(self._records.values())

    # A collection

    async def _collect_and_report(self) -> None:
        try:
            if self._policy.collects:
                await self.collect()
            else:
                # What is asked for later, when the disk is needed, depends on when images were seen in use.
                async with self._turn:
                    await self._detect()
        except Exception as error:  # noqa: BLE001 - comes again, and nothing else depends on it
            text = str(error)
            log.warning("image garbage collection failed", problem=text)
            if self._failed_before and self._policy.collects:
                self._recorder.node_event(EventType.WARNING, "ImageGCFailed", text)
            self._failed_before = True
        else:
            self._failed_before = False

    async def _candidates(self) -> tuple[float, list[ImageRecord]]:
        """The time of the look, and what may be removed, in order."""
        now, used = await self._detect()
        candidates = in_order_of_removal(self._records.values(), used)
        if candidates and self._pulled_here is not None:
            ours = await self._pulled_here()
            candidates = [one for one in candidates if not one.image.names.isdisjoint(ours) or one.image.id in ours]
        kept = await self._sandbox_images() if candidates else frozenset()
        return now, [record for record in candidates if record.image.id not in kept]

    async def _detect(self) -> tuple[float, frozenset[str]]:
        """Bring the records up to date (`detectImages`); returns the ids of images in use."""
        # Images first: one that is pulled and used in between is not in the list, and not used by mistake.
        images = [_seen(image) for image in await self._images.list_images()]
        containers = await self._runtime.list_everyones_containers()
        references = {container.image_id or container.image_ref for container in containers}
        references |= await self._mounted_images(containers)
        used = used_images(images, references)
        now = trio.current_time()
        self._records = detect(self._records, images, used, now)
        return now, used

    async def _mounted_images(self, containers: Iterable[v1.Container]) -> set[str]:
        """Images that containers have as volumes. Each container is asked once."""
        mounted: dict[str, frozenset[str]] = {}
        for container in containers:
            known = self._mounted.get(container.id)
            if known is None:
                try:
                    status = (await self._runtime.container_status(container.id)).status
                except CRIError as error:
                    if error.not_found:
                        continue
                    raise
                known = frozenset(
                    name for mount in status.mounts for name in (mount.image.image, mount.image.image_ref) if name
                )
            mounted[container.id] = known
        self._mounted = mounted
        return {name for names in mounted.values() for name in names}

    async def _sandbox_images(self) -> frozenset[str]:
        """The id of the image that sandboxes are made of, where the runtime tells its name but does not pin it."""
        information = (await self._runtime.status(verbose=True)).info.get("config", "")
        try:
            name = json.loads(information).get("sandboxImage") if information else None
        except (ValueError, AttributeError):
            name = None
        return await self._ids_of([name]) if isinstance(name, str) else frozenset()

    async def _ids_of(self, names: Iterable[str]) -> frozenset[str]:
        """The ids of the images that the names mean now. The runtime is asked: a short name may be of any registry."""
        found = set()
        for name in names:
            try:
                image = await self._images.image_status(v1.ImageSpec(image=with_default_tag(name)))
            except InvalidImageNameError:
                continue
            if image is not None:
                found.add(image.id)
        return frozenset(found)

    async def _free_space(self, candidates: Sequence[ImageRecord]) -> None:
        """Remove what the thresholds ask for. Raises ImageCollectionError."""
        space = await self._space()
        if space is None:
            return
        if space.capacity == 0:
            message = "invalid capacity 0 on image filesystem"
            self._recorder.node_event(EventType.WARNING, "InvalidDiskCapacity", message)
            raise ImageCollectionError(message)
        wanted = space.bytes_to_free(self._policy)
        if wanted is None:
            return
        log.info("the image file system is too full", usage_percent=space.usage_percent, bytes_to_free=wanted)
        _, freed, problems = await self._remove(candidates, wanted)
        if problems:
            raise _deletion_errors(wanted, freed, problems)
        if freed < wanted:
            message = insufficient_space(space, freed)
            self._recorder.node_event(EventType.WARNING, "FreeDiskSpaceFailed", message)
            raise ImageCollectionError(message)

    async def _space(self) -> DiskSpace | None:
        """The space of the disk with the images, None where that is not a disk of this machine."""
        filesystems = (await self._images.image_fs_info()).image_filesystems
        if not filesystems:
            raise ImageCollectionError("the runtime names no image filesystem: its use cannot be told")
        path = filesystems[0].fs_id.mountpoint
        try:
            return await self._disk_space(path)
        except FileNotFoundError:
            if not self._told_of_absent_disk:
                log.info("the image file system is not to be seen here: its use does not matter", path=path)
            self._told_of_absent_disk = True
            return None
        except OSError as error:
            raise ImageCollectionError(f"failed to get image stats: {error}") from error
        except trio.TooSlowError:
            raise ImageCollectionError(f"failed to get image stats: {path} does not answer") from None

    async def _remove(
        self, records: Sequence[ImageRecord], wanted: float = math.inf, *, why: str = SPACE
    ) -> tuple[frozenset[str], int, list[str]]:
        """Remove images in turn until `wanted` bytes are free: their ids, bytes freed, and what went wrong."""
        removed: set[str] = set()
        freed, problems = 0, []
        for record in records:
            image = record.image
            async with self._holds.removal() as names:
                if image.id in await self._ids_of(names):
                    continue
                try:
                    await self._images.remove_image(v1.ImageSpec(image=image.id))
                except CRIError as error:
                    problems.append(str(error))
                    continue
            log.info("image removed", image=image.id, names=sorted(image.names), size=image.size)
            self._records.pop(image.id, None)
            removed.add(image.id)
            self._removed[(why,)] += 1
            freed += image.size
            if freed >= wanted:
                break
        if removed:
            await self._tell_what_is_left()
        return frozenset(removed), freed, problems

    async def _tell_what_is_left(self) -> None:
        if self._on_collected is None:
            return
        before = self._clock.now()
        try:
            images = [_seen(image) for image in await self._images.list_images()]
        except CRIError as error:
            log.warning("what is left after a collection is not known", problem=str(error))
            return
        await self._on_collected(frozenset[str]().union(*({image.id} | image.names for image in images)), before)


def _seen(image: v1.Image) -> SeenImage:
    return SeenImage(image.id, image.size, image.pinned, frozenset((*image.repo_tags, *image.repo_digests)))


def _deletion_errors(wanted: int, freed: int, problems: Sequence[str]) -> ImageCollectionError:
    return ImageCollectionError(
        f"wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: "
        f"{describe_problems(problems)}"
    )


class ImageHolds:
    """Names of images that containers are about to be made of. One for the node.

    An image's minimum age is no promise: it can be set to nothing, and it does not help an image that has lain on the
    node for long, was found present a moment ago, and is removed before its container exists. So a start holds the name
    of its image for all that time, and a collection learns which names are held.

    The two meet in one lock, held for the removal of one image, and by a start only while it notes a name: an image is
    either noted before its removal is decided, or looked for after it is gone.
    """

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._since: set[str] | None = None
        """All names held since the present collection began: their containers may be younger than what it knows."""
        self._deciding = trio.Lock()

    @asynccontextmanager
    async def hold(self, *images: str) -> AsyncIterator[None]:
        """Keep images, by the names that pods give them, from before they are looked for until the container exists.

        Waits while an image is being removed.
        """
        async with self._deciding:
            self._held.update(images)
            if self._since is not None:
                self._since.update(images)
        try:
            yield
        finally:
            self._held.subtract(images)
            for image in images:
                if not self._held[image]:
                    del self._held[image]

    @contextmanager
    def collection(self) -> Iterator[None]:
        """The time from looking which images are used to the last removal. One at a time."""
        self._since = set(self._held)
        try:
            yield
        finally:
            self._since = None

    @asynccontextmanager
    async def removal(self) -> AsyncIterator[frozenset[str]]:
        """The time of deciding on one image and removing it, within a collection; gives the names that must stay."""
        async with self._deciding:
            yield frozenset(self._since or ())
