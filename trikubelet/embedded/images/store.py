"""The image store: which images there are, how one comes in, and how it goes.

    root/images/<id>.json        a record per image
    root/layers/<name>/fs        unpacked layers, named by content, shared between images
    root/layers/<name>/packed-0  what it was unpacked from, so that a saved image is the same one
    root/staging/<token>/        imports at work, and what is about to be deleted

An import unpacks in `staging`, then moves its layers into place and writes the record last, so an image is there whole
or not at all. Layers are not counted: one that no record names, moved aside or not, is deleted (`collect_garbage`). Two
locks keep processes apart: imports hold `imports.lock` together, and only its exclusive holder may delete layers;
`records.lock` is held for the moment in which records change, since a tag moves from one image to another. A process
that dies leaves both free, and its staging directory is deleted by the next collection.
"""

from __future__ import annotations

import os
import platform as machine
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import attrs
import trio

from trikubelet.embedded.images.capabilities import Capabilities, probe_capabilities
from trikubelet.embedded.images.errors import (
    ImageGoneError,
    ImageInUseError,
    ImagePinnedError,
    InvalidReferenceError,
)
from trikubelet.embedded.images.file_lock import held_lock, lock_if_free
from trikubelet.embedded.images.host import HOST_IMAGE_ID, HOST_IMAGE_NAME, HOST_SPEC, host_image
from trikubelet.embedded.images.model import LayerFormat, StoredImage, UnpackLimits
from trikubelet.embedded.images.platform import Platform, host_platform
from trikubelet.embedded.images.records import ImageRecords, read_layer
from trikubelet.embedded.images.reference import Reference, id_prefix
from trikubelet.formats.values import frozen
from trikubelet.linux.inotify import Inotify, Mask
from trikubelet.linux.trees import remove_tree
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.clock import WallClock
    from trikubelet.embedded.images.save import SavedName
    from trikubelet.embedded.images.staging import StagedImage, Staging

log = get_logger("images")

_RECORDS_TIMEOUT = 30.0
_IMPORTS_TIMEOUT = 120.0
_CLEANUP_TIMEOUT = 60.0
_IMPORTS_AT_ONCE = 2

ImageUsers = Callable[[str], Sequence[str]]
"""Ids of the containers that are made of the image with this id."""


@frozen
class StoreUsage:
    """What the store takes on disk."""

    path: Path
    used_bytes: int
    inodes_used: int


def _nobody(image_id: str) -> Sequence[str]:
    return ()


class ImageStore:
    """The images of one folder, and the host image where it is wanted. Other processes may work on the same folder.

    The constructor makes the folder (mode 0700: images hold setuid programs of foreign origin, which no local user may
    reach). Raises OSError where it cannot.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: WallClock,
        limits: UnpackLimits | None = None,
        layer_format: LayerFormat | None = None,
        platform: Platform | None = None,
        host: bool = True,
    ) -> None:
        """`host`: whether there is the host image."""
        self._root = root
        self._clock = clock
        self._limits = limits or UnpackLimits()
        self.platform = platform or host_platform(machine.machine())
        self._records = ImageRecords(root)
        self._staging_dir = root / "staging"
        for directory in (root, self._records.images_dir, self._records.layers_dir, self._staging_dir):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        capabilities = probe_capabilities(root)
        if layer_format is not None:
            capabilities = attrs.evolve(capabilities, layer_format=layer_format)
        self._capabilities: Capabilities = capabilities
        self.host = host_image() if host else None
        self._limiter = trio.CapacityLimiter(_IMPORTS_AT_ONCE)
        self._changing = trio.Lock()

    @property
    def layer_format(self) -> LayerFormat:
        """How new images are unpacked here."""
        return self._capabilities.layer_format

    def resolve(self, reference: str) -> StoredImage | None:
        """The image of a name, digest, id or the first 12 or more digits of an id; None where there is none.

        A text that is no reference at all gives None too. Costs a few file stats: it sees what other processes did.
        """
        images = self._load()
        prefix = id_prefix(reference)
        if prefix is not None and len(prefix) == 64:
            return images.get(f"sha256:{prefix}")
        try:
            name = str(Reference.parse(reference))
        except InvalidReferenceError:
            name = ""
        for image in _newest_first(images):
            if name in image.repo_tags or name in image.repo_digests:
                return image
        if prefix is None:
            return None
        found = [image for image_id, image in images.items() if image_id.startswith(f"sha256:{prefix}")]
        return found[0] if len(found) == 1 else None

    def spec(self, image: StoredImage) -> Mapping[str, Any]:
        """The image's OCI configuration, read from disk. Raises OSError, ValueError."""
        return HOST_SPEC if image.is_host else self._records.documents(image.id).spec

    async def import_archive(self, path: Path, *, name: str | None = None) -> tuple[str, ...]:
        """Bring in every image of an OCI or docker archive; for an OCI layout of many platforms this machine's.

        Returns the images' full names, for one without a name its id. `name` replaces the archive's names, and then it
        may hold one image only. A name that another image had moves to the new one.

        Raises ArchiveError, InvalidReferenceError, ImagePinnedError, OSError. Then, and when cancelled, nothing stays.
        """
        async with self.staging() as staging:
            staged = await trio.to_thread.run_sync(staging.stage, path, name, limiter=self._limiter)
            await self.commit(staged, staging)
        names = tuple(dict.fromkeys(str(reference) for image in staged for reference in image.names))
        log.info("images imported", archive=str(path), images=", ".join(names) or "without a name")
        await self.collect_garbage()  # an import at work keeps removals from deleting layers
        return names or tuple(dict.fromkeys(image.image.id for image in staged))

    def ids_of(self, names: Iterable[str]) -> dict[str, str]:
        """Of those that are there, by name."""
        return {name: image.id for name in names if (image := self.resolve(name)) is not None}

    @asynccontextmanager
    async def staging(self) -> AsyncIterator[Staging]:
        """A place to unpack images in; what was not committed when the context ends is gone."""
        from trikubelet.embedded.images.staging import Staging  # loads tar and gzip, which only an import needs

        async with held_lock(self._root / "imports.lock", shared=True, timeout=_IMPORTS_TIMEOUT):
            async with self._staging_directory() as directory:
                yield Staging(
                    directory,
                    self._records,
                    capabilities=self._capabilities,
                    limits=self._limits,
                    platform=self.platform,
                    checkpoint=trio.from_thread.check_cancelled,
                )

    async def commit(
        self, images: Sequence[StagedImage], staging: Staging | None = None, *, pulled: bool = False
    ) -> None:
        """Make images visible under their names, which other images lose; `pulled`: names that a registry gave.

        Without `staging` they must be in the store already: then they get the names. Raises ImageGoneError.
        """
        async with self._changing_records():
            await trio.to_thread.run_sync(
                self._commit, staging, images, self._clock.now(), pulled, limiter=self._limiter
            )

    async def remove(self, reference: str, *, users: ImageUsers = _nobody) -> StoredImage | None:
        """Remove an image with all its names, and the layers that no other image has. Returns it, None if not there.

        `users` is asked at the last moment. Raises ImagePinnedError, ImageInUseError. When it is cancelled after the
        record is gone, the layers go with the next collection.
        """
        async with self._changing_records():
            image = self.resolve(reference)
            if image is None:
                return None
            if image.pinned:
                raise ImagePinnedError(image.name)
            if using := users(image.id):
                raise ImageInUseError(image.name, using)
            self._records.delete(image.id)
        log.info("image removed", image=image.name, id=image.id)
        await self.collect_garbage()
        return image

    async def collect_garbage(self) -> int:
        """Delete layers that no image names, and what interrupted imports left. Returns how many directories went.

        Does nothing while an import is at work, here or in another process. To be called once at start. A directory
        that cannot be deleted is logged, and tried again the next time. Raises OSError where they cannot be listed.
        """
        garbage = await trio.to_thread.run_sync(self._set_garbage_aside, limiter=self._limiter)
        removed = 0
        for directory in garbage:
            try:
                await trio.to_thread.run_sync(remove_tree, directory, limiter=self._limiter)
                removed += 1
            except OSError as error:
                log.warning("cannot delete", path=str(directory), error=str(error))
        return removed

    @contextmanager
    def watched(self) -> Iterator[Callable[[], Awaitable[object]]]:
        """Yields what waits until images came, changed or went, by whatever process. Raises OSError."""
        with Inotify() as inotify:
            inotify.watch(self._records.images_dir, Mask.MOVED_TO | Mask.DELETE)
            yield inotify.wait

    async def tag(self, reference: str, name: Reference) -> StoredImage | None:
        """Give an image one more name, which another image may lose. Returns it, None if there is none.

        Raises ImageGoneError, and ImagePinnedError for the host image's name and for the host image.
        """
        from trikubelet.embedded.images.staging import StagedImage

        image = self.resolve(reference)
        if image is None:
            return None
        if image.is_host or name.repository == HOST_IMAGE_NAME:
            raise ImagePinnedError(HOST_IMAGE_NAME)
        await self.commit([StagedImage(image, (name,), ())])
        return self.resolve(image.id)

    async def save(self, images: Sequence[SavedName], out: IO[bytes]) -> None:
        """Write images as an OCI archive (`save`). Raises OSError, ImagePinnedError for the host image."""
        from trikubelet.embedded.images.save import write_archive

        if any(saved.image.is_host for saved in images):
            raise ImagePinnedError(HOST_IMAGE_NAME)
        async with self.staging() as staging:  # keeps layers from being deleted
            await trio.to_thread.run_sync(
                write_archive,
                images,
                self._records.documents,
                out,
                staging.directory,
                trio.from_thread.check_cancelled,
                limiter=self._limiter,
            )

    async def untag(self, name: str) -> bool:
        """Take one of several names from an image. False where it is not one of several: then `remove` is meant."""
        async with self._changing_records():
            image = self.resolve(name)
            try:
                full = str(Reference.parse(name))
            except InvalidReferenceError:
                return False
            if image is None or image.is_host or full not in image.repo_tags or len(image.repo_tags) < 2:
                return False
            kept = tuple(tag for tag in image.repo_tags if tag != full)
            pulled = tuple(tag for tag in image.pulled if tag != full)
            self._records.write(attrs.evolve(image, repo_tags=kept, pulled=pulled))
        log.info("image name removed", name=full, id=image.id)
        return True

    def usage(self) -> StoreUsage:
        """What all layers take on disk, as measured when they were unpacked."""
        used_bytes = inodes = 0
        for directory in self._records.layers_dir.iterdir():
            try:
                layer = read_layer(directory)
            except (OSError, ValueError, LookupError):
                continue  # it is on its way out, and counts no more
            used_bytes += layer.disk_bytes
            inodes += layer.inodes
        return StoreUsage(self._root, used_bytes, inodes)

    def list(self) -> Sequence[StoredImage]:
        """Every image: the host image first, then the newest imports."""
        return _newest_first(self._load())

    def _load(self) -> Mapping[str, StoredImage]:
        images = self._records.load()
        return images if self.host is None else {HOST_IMAGE_ID: self.host, **images}

    @asynccontextmanager
    async def _staging_directory(self) -> AsyncIterator[Path]:
        directory = self._staging_dir / f"import-{os.urandom(8).hex()}"
        directory.mkdir(mode=0o700)
        try:
            yield directory
        finally:
            with trio.move_on_after(_CLEANUP_TIMEOUT, shield=True):
                try:
                    await trio.to_thread.run_sync(remove_tree, directory, abandon_on_cancel=True)
                except OSError as error:  # the next collection tries again
                    log.warning("cannot delete", path=str(directory), error=str(error))

    @asynccontextmanager
    async def _changing_records(self) -> AsyncIterator[None]:
        async with self._changing:
            async with held_lock(self._root / "records.lock", shared=False, timeout=_RECORDS_TIMEOUT):
                yield

    def _commit(self, staging: Staging | None, staged: Sequence[StagedImage], now: datetime, pulled: bool) -> None:
        """Runs in a thread that cannot be cancelled, under the records' lock."""
        if staging is not None:
            staging.move_layers(staged)
        for new in staged:
            images = self._records.load()
            tags = tuple(str(name) for name in new.names if name.tag)
            repositories = [name.repository for name in new.names]
            digests = [f"{repository}@{digest}" for repository in repositories for digest in new.digests]
            known = images.get(new.image.id)
            if staging is None and known is None:
                raise ImageGoneError(new.image.id)
            for other in images.values():
                kept = tuple(tag for tag in other.repo_tags if tag not in tags)
                if other.id != new.image.id and kept != other.repo_tags:
                    self._records.write(attrs.evolve(other, repo_tags=kept))
            names = (*tags, *digests)
            before = tuple(name for name in (known.pulled if known else ()) if name not in names)
            image = attrs.evolve(
                new.image,
                repo_tags=tuple(dict.fromkeys((*(known.repo_tags if known else ()), *tags))),
                repo_digests=tuple(dict.fromkeys((*(known.repo_digests if known else ()), *digests))),
                imported_at=now,
                pulled=(*before, *names) if pulled else before,
            )
            # Another time it may have come without its manifest, as docker save tells none.
            documents = [new.documents] if new.documents is not None else []
            documents += [self._records.documents(image.id)] if known is not None else []
            self._records.write(image, max(documents, key=lambda each: len(each.texts)))

    def _set_garbage_aside(self) -> Sequence[Path]:
        """Under the lock, move unreferenced layers out of the way: deleting them then may take its time."""
        with lock_if_free(self._root / "imports.lock") as alone:
            if not alone:
                return ()
            for directory in self._unused_layers():
                directory.rename(self._staging_dir / f"removed-{os.urandom(8).hex()}")
            return list(self._staging_dir.iterdir())

    def _unused_layers(self) -> Sequence[Path]:
        """Layers that no record names, moved aside or not. None of them, if one that was moved aside cannot tell."""
        used = {layer.parent.name for image in self._records.load().values() for layer in image.layers}
        try:
            used |= self._records.layers_set_aside()
        except ValueError as error:
            log.warning(
                "unused image layers are kept, as containers may run on those of an image whose record cannot be read; "
                "import that image again and remove it, or delete the file",
                error=str(error),
            )
            return ()
        return [directory for directory in self._records.layers_dir.iterdir() if directory.name not in used]


def _newest_first(images: Mapping[str, StoredImage]) -> Sequence[StoredImage]:
    """The host image, then the others from the newest on: a name that two records claim is the newer one's."""

    def age(image: StoredImage) -> float:
        return -image.imported_at.timestamp() if image.imported_at is not None else float("-inf")

    return sorted(images.values(), key=age)
