"""One import's work in its own directory: from an archive, or from blobs that a registry sent, to layers and records
that only need to be moved into place.

Blocking: everything here runs in a worker thread, and asks `checkpoint` often whether it is still wanted.
"""

from __future__ import annotations

import ctypes
import os
import re
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from trikubelet.embedded.images import docker_save, oci_layout
from trikubelet.embedded.images.archive import ArchivedImage, ArchivedLayer, digest_of, open_archive
from trikubelet.embedded.images.disk_space import check_space
from trikubelet.embedded.images.errors import ArchiveError, ImagePinnedError
from trikubelet.embedded.images.host import HOST_IMAGE_NAME
from trikubelet.embedded.images.lower import LowerLayers
from trikubelet.embedded.images.memory import MemoryBudget
from trikubelet.embedded.images.model import (
    ImageDocuments,
    LayerFormat,
    StoredImage,
    UnpackLimits,
    check_config_size,
    config_from_spec,
)
from trikubelet.embedded.images.records import ImageRecords, LayerRecord, packed_layer, read_layer, write_layer
from trikubelet.embedded.images.reference import Reference
from trikubelet.embedded.images.tar_stream import (
    Checkpoint,
    DigestReader,
    Readable,
    broken_input_is_an_archive_error,
    decompressed,
)
from trikubelet.embedded.images.unpack import LayerUnpacker, UnpackBudget
from trikubelet.formats.values import frozen
from trikubelet.linux.trees import disk_usage, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from trikubelet.embedded.images.capabilities import Capabilities
    from trikubelet.embedded.images.platform import Platform

_LOOK_AT_DISK_EVERY = 32
"""Files or blocks of a quarter of a MiB."""
_NO_REPOSITORY_CHARACTERS = re.compile(r"[^a-z0-9]+")


@frozen
class StagedImage:
    """An image whose layers are unpacked, in the staging directory or, from an earlier import, in the store."""

    image: StoredImage
    """Its layer paths are those in the store."""
    names: tuple[Reference, ...]
    digests: tuple[str, ...]
    documents: ImageDocuments | None = None
    """None of an image that is in the store."""


@contextmanager
def _errors_keep_no_variables() -> Iterator[None]:
    """Free what the functions of an error's traceback had in memory. The error itself may live on in a cycle, such as
    the one that `trio.to_thread` makes, until Python's collector finds it. What a comprehension takes from the function
    around it is not freed (Python 3.11)."""
    try:
        yield
    except BaseException as error:
        each: BaseException | None = error
        while each is not None:
            traceback.clear_frames(each.__traceback__)
            each = each.__cause__ or each.__context__
        raise


class PackedLayers(Protocol):
    """Where an image's packed layers are."""

    def open_layer(self, layer: ArchivedLayer, kept: Path) -> AbstractContextManager[Readable]:
        """Its bytes, which are in the file `kept` once they have all been read. Called in a worker thread; may wait."""
        ...


class Staging:
    """The staging directory of one import."""

    def __init__(
        self,
        directory: Path,
        records: ImageRecords,
        *,
        capabilities: Capabilities,
        limits: UnpackLimits,
        platform: Platform,
        checkpoint: Checkpoint,
    ) -> None:
        self.directory = directory
        self._records = records
        self._capabilities = capabilities
        self._limits = limits
        self._platform = platform
        self._memory = MemoryBudget(limits.max_kept_bytes)
        self._wanted = checkpoint
        self._checkpoints = 0

    def _checkpoint(self) -> None:
        """Whether the work is still wanted, and from time to time whether the disk has room for it."""
        self._wanted()
        self._checkpoints += 1
        if self._checkpoints % _LOOK_AT_DISK_EVERY == 0:
            check_space(self.directory)

    @_errors_keep_no_variables()
    def stage(self, archive: Path, name: str | None) -> list[StagedImage]:
        """Unpack every image of the archive. Raises ArchiveError, InvalidReferenceError, ImagePinnedError, OSError."""
        with open_archive(archive, self.directory, self._limits, self._memory, self._checkpoint) as files:
            if oci_layout.INDEX in files:
                images = oci_layout.find_images(files, self._platform)
            elif docker_save.MANIFEST in files or docker_save.REPOSITORIES in files:
                images = docker_save.find_images(files, self._platform)
            else:
                raise ArchiveError(
                    f"{str(archive)!r} is no image archive: expected an OCI image layout ({oci_layout.INDEX}) "
                    f"or the output of 'docker save' ({docker_save.MANIFEST})"
                )
            if name is not None and len({image.id for image in images}) != 1:
                raise ArchiveError(f"the archive holds {len(images)} images, which cannot all be named {name!r}")
            staged: list[StagedImage] = []
            for image in images:  # no comprehension: see `_errors_keep_no_variables`
                staged.append(self._stage_image(files, image, _names(image, name, archive)))
        _sync_file_system(self.directory)
        return staged

    @_errors_keep_no_variables()
    def stage_pulled(self, image: ArchivedImage, packed: PackedLayers, name: Reference) -> StagedImage:
        """Unpack an image whose packed layers were checked already. Raises ArchiveError, ImagePinnedError, OSError."""
        if name.repository == HOST_IMAGE_NAME:
            raise ImagePinnedError(HOST_IMAGE_NAME)
        self._memory.take(5 * sum(map(len, image.documents)))  # as bytes, and as text that may be four times as wide
        staged = self._stage_image(packed, image, (name,))
        _sync_file_system(self.directory)
        return staged

    def missing_layers(self, image: ArchivedImage) -> list[ArchivedLayer]:
        """Those that have to be unpacked, as the store lacks what they become."""
        chain_ids = _chain_ids(image)
        if self._overlay:
            return [
                layer
                for layer, chain_id in zip(image.layers, chain_ids, strict=True)
                if not self._find(_name(chain_id))
            ]
        return [] if self._find(_flat_name(chain_ids)) else list(image.layers)

    def move_layers(self, images: Sequence[StagedImage]) -> None:
        """Put the staged layers into the store. One that somebody else has put there meanwhile is as good."""
        for layer in {path.parent.name for staged in images for path in staged.image.layers}:
            source, target = self.directory / layer, self._records.layers_dir / layer
            if (target / "layer.json").is_file():
                continue
            remove_tree(target)
            source.rename(target)

    def _stage_image(self, files: PackedLayers, image: ArchivedImage, names: tuple[Reference, ...]) -> StagedImage:
        check_config_size(image.spec)
        config = config_from_spec(image.spec)
        layers = self._overlay_layers(files, image) if self._overlay else (self._flat_root(files, image),)
        stored = StoredImage(
            id=image.id,
            repo_tags=(),
            repo_digests=(),
            size=sum(self._record(layer).content_bytes for layer in layers),
            config=config,
            layers=tuple(self._records.layer_path(layer) for layer in layers),
            layer_format=self._capabilities.layer_format,
        )
        return StagedImage(stored, names, image.digests, ImageDocuments(image.spec, _texts(image.documents)))

    @property
    def _overlay(self) -> bool:
        return self._capabilities.layer_format is LayerFormat.OVERLAY

    def _overlay_layers(self, files: PackedLayers, image: ArchivedImage) -> tuple[str, ...]:
        """Unpack each layer that neither the store nor this import has yet. Returns their names, lowest first."""
        budget = UnpackBudget(self._limits, self._memory)
        names: list[str] = []
        for layer, chain_id in zip(image.layers, _chain_ids(image), strict=True):
            name = _name(chain_id)
            if self._find(name) is None:
                lower = LowerLayers([os.fspath(self._place(below) / "fs") for below in names])
                before = budget.content_bytes
                with self._memory.for_a_while():
                    unpacker = self._unpacker(name, budget, lower)
                    packed = self._apply(files, layer, unpacker, name, 0)
                    self._complete(name, unpacker, budget.content_bytes - before, (packed,))
            names.append(name)
        if not names:  # an image without layers is an empty directory
            names.append(self._empty_layer())
        return tuple(names)

    def _flat_root(self, files: PackedLayers, image: ArchivedImage) -> str:
        name = _flat_name(_chain_ids(image))
        if self._find(name) is None:
            budget = UnpackBudget(self._limits, self._memory)
            packed: list[str] = []
            with self._memory.for_a_while():
                unpacker = self._unpacker(name, budget, LowerLayers(()))
                for layer in image.layers:  # no comprehension: see `_errors_keep_no_variables`
                    packed.append(self._apply(files, layer, unpacker, name, len(packed)))
                self._complete(name, unpacker, budget.content_bytes, tuple(packed))
        return name

    def _empty_layer(self) -> str:
        name = "empty"
        if self._find(name) is None:
            budget = UnpackBudget(self._limits, self._memory)
            self._complete(name, self._unpacker(name, budget, LowerLayers(())), 0, ())
        return name

    def _unpacker(self, name: str, budget: UnpackBudget, lower: LowerLayers) -> LayerUnpacker:
        root = self._part(name) / "fs"
        root.mkdir(parents=True, mode=0o755)
        return LayerUnpacker(
            root,
            self._capabilities.layer_format,
            budget=budget,
            checkpoint=self._checkpoint,
            lower=lower,
            privileged=self._capabilities.privileged,
        )

    def _apply(self, files: PackedLayers, layer: ArchivedLayer, unpacker: LayerUnpacker, name: str, number: int) -> str:
        """Unpack one layer, and make sure that it was the one that the image's configuration means.

        The packed one is kept. Returns its digest.
        """
        subject = f"layer {layer.file}"
        kept = packed_layer(self._part(name), number)
        with files.open_layer(layer, kept) as stream, broken_input_is_an_archive_error(subject):
            packed = self._digest_reader(stream, subject, "" if layer.checked else layer.digest or "sha256")
            plain = self._digest_reader(decompressed(packed, subject=subject), subject, layer.diff_id)
            unpacker.apply(plain, subject=subject)
            plain.drain()
            packed.drain()
        if layer.digest and not layer.checked and packed.digest != layer.digest:
            raise ArchiveError(f"its content has the digest {packed.digest}, expected {layer.digest}", entry=layer.file)
        if plain.digest != layer.diff_id:
            raise ArchiveError(
                f"unpacked it has the digest {plain.digest}; the image's configuration says {layer.diff_id}",
                entry=layer.file,
            )
        return layer.digest or packed.digest

    def _digest_reader(self, stream: Readable, subject: str, digest: str) -> DigestReader:
        """Around a layer's stream, to compare with that digest, or for one of that algorithm.

        Counts against the limits, and can be stopped.
        """
        limit = self._limits.max_layer_bytes
        algorithm = digest.partition(":")[0]
        return DigestReader(stream, limit=limit, subject=subject, checkpoint=self._checkpoint, algorithm=algorithm)

    def _part(self, name: str) -> Path:
        return self.directory / f"{name}.part"

    def _complete(self, name: str, unpacker: LayerUnpacker, content_bytes: int, packed: tuple[str, ...]) -> None:
        unpacker.finish()
        part = self._part(name)
        disk_bytes, inodes = disk_usage(part / "fs")
        kept = [packed_layer(part, number).stat() for number in range(len(packed))]
        disk_bytes += sum(status.st_blocks * 512 for status in kept)
        write_layer(part, LayerRecord(content_bytes, disk_bytes, inodes + len(kept), packed))
        part.rename(self.directory / name)

    def _find(self, name: str) -> Path | None:
        """A layer in the store or of this import. One without its record was not moved whole, and does not count."""
        for parent in (self._records.layers_dir, self.directory):
            if (parent / name / "layer.json").is_file():
                return parent / name
        return None

    def _place(self, name: str) -> Path:
        return self._find(name) or self.directory / name

    def _record(self, name: str) -> LayerRecord:
        return read_layer(self._place(name))


def _chain_ids(image: ArchivedImage) -> list[str]:
    """What each layer is called upon those below it (OCI image specification: ChainID)."""
    chain_ids: list[str] = []
    for layer in image.layers:
        below = chain_ids[-1] if chain_ids else ""
        chain_ids.append(digest_of(f"{below} {layer.diff_id}".encode()) if below else layer.diff_id)
    return chain_ids


def _texts(documents: Sequence[bytes]) -> tuple[str, ...]:
    """None if one of them is no UTF-8: JSON may be something else, and those who save images expect what is usual."""
    try:
        return tuple(document.decode() for document in documents)
    except UnicodeDecodeError:
        return ()


def _name(chain_id: str) -> str:
    return chain_id.replace(":", "-")


def _flat_name(chain_ids: Sequence[str]) -> str:
    return "flat-" + _name(chain_ids[-1] if chain_ids else "")


def _names(image: ArchivedImage, name: str | None, archive: Path) -> tuple[Reference, ...]:
    """The image's full names: the one asked for, else those of the archive.

    A tag alone gets the archive's file name as its repository.
    """
    texts = (name,) if name is not None else image.names
    if not texts and image.bare_tag:
        stem = _NO_REPOSITORY_CHARACTERS.sub("-", archive.name.partition(".")[0].lower()).strip("-")
        texts = (f"localhost/{stem or 'image'}:{image.bare_tag}",)
    references = tuple(Reference.parse(text) for text in texts)
    if any(reference.repository == HOST_IMAGE_NAME for reference in references):
        raise ImagePinnedError(HOST_IMAGE_NAME)
    return references


def _sync_file_system(directory: Path) -> None:
    """Have the unpacked files on disk before a record speaks of them. Falls back to syncing everything."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None).syncfs(fd) != 0:
            os.sync()
    finally:
        os.close(fd)
