"""One pull, from a name to an image in the store.

Layers come into files of the staging directory, several at once, and a worker thread unpacks them in their order as
they are complete, and moves each into its place. So a pull takes a few buffers of memory, and on disk the image, packed
and unpacked. Whatever ends it early, the staging directory goes.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import trio

from trikubelet.clock import WallClock
from trikubelet.embedded.images.disk_space import check_space
from trikubelet.embedded.images.errors import ArchiveError, ImageGoneError
from trikubelet.embedded.images.reference import Reference
from trikubelet.embedded.images.staging import StagedImage
from trikubelet.embedded.images.store import ImageStore
from trikubelet.embedded.registry.blobs import BlobReader, file_name
from trikubelet.embedded.registry.client import open_client
from trikubelet.embedded.registry.credentials import Credentials
from trikubelet.embedded.registry.documents import read_image, resolve
from trikubelet.embedded.registry.errors import HostError, HostsFileError, PullError, PullFailure
from trikubelet.embedded.registry.hosts import find_hosts
from trikubelet.embedded.registry.progress import PullProgress
from trikubelet.embedded.registry.retry import Timeouts
from trikubelet.formats.values import frozen
from trikubelet.scopes import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.embedded.images.archive import ArchivedLayer
    from trikubelet.embedded.images.model import StoredImage
    from trikubelet.embedded.images.staging import Staging
    from trikubelet.embedded.registry.client import RegistryClient
    from trikubelet.embedded.registry.documents import PulledImage

_LAYERS_AT_ONCE: Final = 3
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@frozen
class Pull:
    """What one pull needs to know."""

    store: ImageStore
    reference: Reference
    credentials: Credentials
    hosts_dirs: Sequence[Path]
    timeouts: Timeouts
    clock: WallClock
    progress: PullProgress

    async def run(self) -> str:
        """The id of the image, which is in the store then under its name. Raises PullError.

        Then, and when cancelled, nothing of it stays.
        """
        registry, _, repository = self.reference.repository.partition("/")
        with self._errors():
            hosts = await trio.to_thread.run_sync(find_hosts, registry, self.hosts_dirs)
            async with open_client(
                hosts, repository, self.credentials, timeouts=self.timeouts, clock=self.clock
            ) as client:
                digest = await resolve(client, self.reference)
                known = self.store.resolve(f"{self.reference.repository}@{digest}") if digest else None
                if known is not None:
                    try:
                        await self.store.commit([self._staged(known, digest)], pulled=True)
                        return known.id
                    except ImageGoneError:
                        pass
                image = await read_image(client, self.reference, digest, self.store.platform)
                await self._bring_in(client, image)
                return image.image.id

    def _staged(self, image: StoredImage, digest: str) -> StagedImage:
        return StagedImage(image, (self.reference,), (digest,))

    async def _bring_in(self, client: RegistryClient, image: PulledImage) -> None:
        async with self.store.staging() as staging:
            missing = await trio.to_thread.run_sync(staging.missing_layers, image.image)
            layers = _Layers(staging, Counter(layer.file for layer in missing), self.progress)
            sizes = {digest: image.sizes[digest] for digest in layers.uses}
            self.progress.layers, self.progress.total_bytes = len(missing), sum(sizes.values())
            await trio.to_thread.run_sync(check_space, staging.directory, self.progress.total_bytes)
            staged = await layers.read_and_unpack(client, image, sizes, self.reference)
            await self.store.commit([staged], staging, pulled=True)
        await self.store.collect_garbage()  # a pull at work keeps removals from deleting layers

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises everything that is to be expected as PullError."""
        reference = str(self.reference)
        try:
            yield
        except HostError as error:
            raise PullError(error.failure, reference, error.reason) from error
        except HostsFileError as error:
            raise PullError(PullFailure.CONFIGURATION, reference, str(error)) from error
        except ArchiveError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL:
                raise PullError(PullFailure.NO_SPACE, reference, f"no space left on the disk: {error}") from error
            raise PullError(PullFailure.WRONG_CONTENT, reference, str(error)) from error
        except OSError as error:
            if error.errno in _FULL:
                raise PullError(PullFailure.NO_SPACE, reference, _no_space(error)) from error
            raise


def _no_space(error: OSError) -> str:
    where = "" if error.filename is None else f" of {error.filename}"
    return f"no space left on the disk{where}: {error.strerror}"


class _Layers:
    """The packed layers of a pull: one task per layer reads, one thread takes them in order (`PackedLayers`)."""

    def __init__(self, staging: Staging, uses: Counter[str], progress: PullProgress) -> None:
        self.uses = uses
        """How often each layer's file will be opened, by digest: an image may have the same layer twice."""
        self._staging = staging
        self._folder = staging.directory / "blobs"
        self._progress = progress
        self._complete = {digest: trio.Event() for digest in uses}

    async def read_and_unpack(
        self, client: RegistryClient, image: PulledImage, sizes: dict[str, int], name: Reference
    ) -> StagedImage:
        """Raises HostError, ArchiveError, ImagePinnedError, OSError."""
        self._folder.mkdir()
        thread = trio.CapacityLimiter(1)  # of its own, as it waits for layers
        reader = BlobReader(client, self._folder, self._received)
        to_read = iter(sizes.items())
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(_LAYERS_AT_ONCE):
                    nursery.start_soon(self._read, reader, to_read)
                staged = await trio.to_thread.run_sync(
                    self._staging.stage_pulled, image.image, self, name, limiter=thread
                )
        except BaseExceptionGroup as group:
            errors = [error for error in leaves(group) if not isinstance(error, trio.Cancelled)]
            if not errors:
                raise
            raise errors[0] from errors[0].__cause__
        return staged

    async def _read(self, reader: BlobReader, to_read: Iterator[tuple[str, int]]) -> None:
        for digest, size in to_read:
            await reader.read(digest, size)
            self._complete[digest].set()

    def _received(self, count: int) -> None:
        self._progress.received_bytes += count

    @contextmanager
    def open_layer(self, layer: ArchivedLayer, kept: Path) -> Iterator[IO[bytes]]:
        """Waits until the layer is here. In the worker thread."""
        trio.from_thread.run(self._complete[layer.file].wait)
        path = self._folder / file_name(layer.file)
        kept.hardlink_to(path)
        self.uses[layer.file] -= 1
        if not self.uses[layer.file]:
            path.unlink()
        with kept.open("rb") as stream:
            yield stream
        self._progress.layers_done += 1
