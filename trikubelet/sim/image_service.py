"""CRI's ImageService on the simulated node's images."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

import trio
from grpclib.exceptions import GRPCError

from trikubelet.rpc.cri import v1
from trikubelet.sim.images import ImageShelf, PullError, SimulatedImage

if TYPE_CHECKING:
    from trikubelet.sim.calls import CallDesk
    from trikubelet.sim.machine import Machine


class SimulatedImageService(v1.ImageServiceBase):
    """One per simulated runtime; `SimulatedRuntime` builds it."""

    def __init__(self, images: ImageShelf, machine: Machine, desk: CallDesk) -> None:
        self.mountpoint = "/var/lib/simulated"
        self._images = images
        self._machine = machine
        self._desk = desk

    async def list_images(self, list_images_request: v1.ListImagesRequest) -> v1.ListImagesResponse:
        wanted = list_images_request.filter.image.image

        async def effect() -> v1.ListImagesResponse:
            if wanted:
                image = self._images.find(wanted)
                return v1.ListImagesResponse(images=[_message(image)] if image else [])
            return v1.ListImagesResponse(images=[_message(image) for image in self._images.present()])

        return await self._desk.serve("ListImages", (), effect)

    async def image_status(self, image_status_request: v1.ImageStatusRequest) -> v1.ImageStatusResponse:
        reference = image_status_request.image.image

        async def effect() -> v1.ImageStatusResponse:
            image = self._images.find(reference)
            return v1.ImageStatusResponse(image=_message(image)) if image else v1.ImageStatusResponse()

        return await self._desk.serve("ImageStatus", (reference,), effect)

    async def pull_image(self, pull_image_request: v1.PullImageRequest) -> v1.PullImageResponse:
        reference = pull_image_request.image.image
        username, password = _account(pull_image_request.auth)

        async def effect() -> v1.PullImageResponse:
            await trio.sleep(self._images.pull_seconds(reference))
            result = self._images.pull(reference, username, password)
            if isinstance(result, PullError):
                raise GRPCError(result.status, result.message)
            return v1.PullImageResponse(image_ref=result.id)

        return await self._desk.serve("PullImage", (reference,), effect)

    async def remove_image(self, remove_image_request: v1.RemoveImageRequest) -> v1.RemoveImageResponse:
        reference = remove_image_request.image.image

        async def effect() -> v1.RemoveImageResponse:
            self._images.remove(reference)
            return v1.RemoveImageResponse()

        return await self._desk.serve("RemoveImage", (reference,), effect)

    async def image_fs_info(self, image_fs_info_request: v1.ImageFsInfoRequest) -> v1.ImageFsInfoResponse:
        async def effect() -> v1.ImageFsInfoResponse:
            usage = v1.FilesystemUsage(
                timestamp=self._machine.timestamp(),
                fs_id=v1.FilesystemIdentifier(mountpoint=self.mountpoint),
                used_bytes=v1.UInt64Value(value=self._images.used_bytes()),
                inodes_used=v1.UInt64Value(value=len(self._images.present())),
            )
            return v1.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])

        return await self._desk.serve("ImageFsInfo", (), effect)


def _account(auth: v1.AuthConfig) -> tuple[str, str]:
    """User and password, both empty where there are none."""
    if auth.username or not auth.auth:
        return auth.username, auth.password
    username, _, password = b64decode(auth.auth).decode().partition(":")
    return username, password


def _message(image: SimulatedImage) -> v1.Image:
    message = v1.Image(
        id=image.id,
        repo_tags=list(image.tags),
        repo_digests=[image.digest_reference],
        size=image.size,
        username=image.username,
        spec=v1.ImageSpec(image=image.reference),
        pinned=image.pinned,
    )
    if image.uid is not None:
        message.uid = v1.Int64Value(value=image.uid)
    return message
