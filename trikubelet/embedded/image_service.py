"""CRI's ImageService on the embedded runtime's image store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from grpclib import GRPCError
from grpclib.const import Status

from trikubelet.embedded.images.errors import ImageError, ImageInUseError, ImagePinnedError, InvalidReferenceError
from trikubelet.embedded.images.host import HOST_IMAGE_NAME
from trikubelet.embedded.images.reference import Reference, bare_repository, id_prefix
from trikubelet.embedded.registry.credentials import CredentialsFormatError, read_credentials
from trikubelet.embedded.registry.errors import PullError, PullFailure
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from trikubelet.clock import WallClock
    from trikubelet.embedded.images.model import StoredImage
    from trikubelet.embedded.images.store import ImageStore, ImageUsers, StoreUsage
    from trikubelet.embedded.registry.puller import Puller

_IMAGES_PER_MESSAGE = 100
_LONGEST_ID: Final = 10

# As containerd answers. What the runtime could not reach is no UNAVAILABLE, which would mean the runtime itself.
_STATUS_OF_FAILURE: Final = {
    PullFailure.NOT_FOUND: Status.NOT_FOUND,
    PullFailure.NO_PLATFORM: Status.NOT_FOUND,
    PullFailure.DENIED: Status.PERMISSION_DENIED,
    PullFailure.UNREACHABLE: Status.UNKNOWN,
    PullFailure.WRONG_CONTENT: Status.FAILED_PRECONDITION,
    PullFailure.NO_SPACE: Status.RESOURCE_EXHAUSTED,
    PullFailure.CONFIGURATION: Status.INVALID_ARGUMENT,
}
_WITHOUT_REGISTRY: Final = (
    "without a registry, bring it in with 'trikubelet images import FILE' (an OCI or docker archive, as 'docker save' "
    "writes it)"
)
_OR_HOST_IMAGE: Final = f", or use '{HOST_IMAGE_NAME}', this machine's own root filesystem"


def _nobody(image_id: str) -> Sequence[str]:
    return ()


class EmbeddedImageService(v1.ImageServiceBase):
    """Serves the store. `users` gives the containers that are made of an image, so that it is not removed under
    them. `puller` brings images into the same store.
    """

    def __init__(
        self,
        store: ImageStore,
        puller: Puller,
        *,
        clock: WallClock,
        users: ImageUsers = _nobody,
        containers_root: Path | None = None,
    ) -> None:
        self._store = store
        self._puller = puller
        self._clock = clock
        self._users = users
        self._containers_root = containers_root

    async def list_images(self, list_images_request: v1.ListImagesRequest) -> v1.ListImagesResponse:
        return v1.ListImagesResponse(images=self._matching(list_images_request.filter))

    async def stream_images(
        self, stream_images_request: v1.StreamImagesRequest
    ) -> AsyncIterator[v1.StreamImagesResponse]:
        images = self._matching(stream_images_request.filter)
        for start in range(0, len(images), _IMAGES_PER_MESSAGE):
            yield v1.StreamImagesResponse(images=images[start : start + _IMAGES_PER_MESSAGE])

    async def image_status(self, image_status_request: v1.ImageStatusRequest) -> v1.ImageStatusResponse:
        """An absent image is an empty reply, not an error (CRI)."""
        image = self._store.resolve(image_status_request.image.image)
        if image is None:
            return v1.ImageStatusResponse()
        info = _verbose_info(image, self._store.spec(image)) if image_status_request.verbose else {}
        return v1.ImageStatusResponse(image=_to_message(image), info=info)

    async def pull_image(self, pull_image_request: v1.PullImageRequest) -> v1.PullImageResponse:
        """Asks the registry, also for an image that is there: its tag may have moved, the credentials may not suffice.

        A name that was imported stays what it is: no registry is asked for it.
        """
        wanted = pull_image_request.image.image
        image = self._store.resolve(wanted)
        try:
            name = Reference.parse(wanted)
        except InvalidReferenceError as error:
            if image is not None:
                return v1.PullImageResponse(image_ref=image.id)
            if id_prefix(wanted) is not None:
                raise GRPCError(Status.NOT_FOUND, f"no image with the id {wanted!r} is on this machine") from error
            raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from error
        if image is not None and str(name) not in image.pulled:
            return v1.PullImageResponse(image_ref=image.id)
        if name.repository == HOST_IMAGE_NAME:
            raise GRPCError(
                Status.NOT_FOUND,
                f"image {wanted!r} is this machine's own root filesystem, which is not offered in a cluster, nor by "
                "`runtime serve`, without --host-image",
            )
        auth = pull_image_request.auth
        try:
            credentials = read_credentials(
                name.repository.partition("/")[0],
                username=auth.username,
                password=auth.password,
                auth=auth.auth,
                server_address=auth.server_address,
                identity_token=auth.identity_token,
                registry_token=auth.registry_token,
            )
            return v1.PullImageResponse(image_ref=await self._puller.pull(name, credentials))
        except CredentialsFormatError as error:
            raise GRPCError(Status.INVALID_ARGUMENT, f"{name}: {error}") from error
        except PullError as error:
            hint = ""
            if error.failure in (PullFailure.NOT_FOUND, PullFailure.UNREACHABLE):
                hint = f"; {_WITHOUT_REGISTRY}{_OR_HOST_IMAGE if self._store.host else ''}"
            raise GRPCError(_STATUS_OF_FAILURE[error.failure], f"failed to pull image {error}{hint}") from error
        except (ImageError, OSError) as error:
            raise GRPCError(Status.UNKNOWN, f"failed to pull image {name}: {error}") from error

    async def remove_image(self, remove_image_request: v1.RemoveImageRequest) -> v1.RemoveImageResponse:
        """Removes the image with all its names. One that is not there is fine (CRI)."""
        try:
            await self._store.remove(remove_image_request.image.image, users=self._users)
        except (ImageInUseError, ImagePinnedError) as error:
            raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from error
        return v1.RemoveImageResponse()

    async def image_fs_info(self, image_fs_info_request: v1.ImageFsInfoRequest) -> v1.ImageFsInfoResponse:
        """Layers and containers are reported as two file systems only where the runtime keeps containers elsewhere."""
        images = self._filesystem(self._store.usage())
        containers = [images]
        if self._containers_root is not None:
            fs_id = v1.FilesystemIdentifier(mountpoint=str(self._containers_root))
            containers = [v1.FilesystemUsage(timestamp=images.timestamp, fs_id=fs_id)]
        return v1.ImageFsInfoResponse(image_filesystems=[images], container_filesystems=containers)

    def _filesystem(self, usage: StoreUsage) -> v1.FilesystemUsage:
        return v1.FilesystemUsage(
            timestamp=int(self._clock.now().timestamp() * 1e9),
            fs_id=v1.FilesystemIdentifier(mountpoint=str(usage.path)),
            used_bytes=v1.UInt64Value(value=usage.used_bytes),
            inodes_used=v1.UInt64Value(value=usage.inodes_used),
        )

    def _matching(self, wanted: v1.ImageFilter) -> list[v1.Image]:
        """A repository alone means all of its images, as in `crictl images REPOSITORY`."""
        if not wanted.image.image:
            return [_to_message(image) for image in self._store.list()]
        one, repository = self._store.resolve(wanted.image.image), bare_repository(wanted.image.image)
        found = [image for image in self._store.list() if repository is not None and _is_of(image, repository)]
        if one is not None and one.id not in {image.id for image in found}:
            found.append(one)
        return [_to_message(image) for image in found]


def _is_of(image: StoredImage, repository: str) -> bool:
    return any(
        name.startswith((f"{repository}:", f"{repository}@")) for name in (*image.repo_tags, *image.repo_digests)
    )


def _to_message(image: StoredImage) -> v1.Image:
    message = v1.Image(
        id=image.id,
        repo_tags=list(image.repo_tags),
        repo_digests=list(image.repo_digests),
        size=image.size,
        pinned=image.pinned,
    )
    user = image.config.user.partition(":")[0]
    if user.isascii() and user.isdecimal() and len(user) <= _LONGEST_ID and int(user) < 1 << 31:
        message.uid = v1.Int64Value(value=int(user))
    else:
        message.username = user
    return message


def _verbose_info(image: StoredImage, spec: Mapping[str, Any]) -> dict[str, str]:
    """What `crictl inspecti` shows, in containerd's shape."""
    layers = [str(layer) for layer in image.layers]
    return {"info": json.dumps({"imageSpec": spec, "layers": layers, "format": image.layer_format.value})}
