"""Images as volumes (KEP-4639): the runtime mounts them itself, so nothing is to be done (`runtime.images.manager`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.volumes.kinds.node_kind import NodeKind
from trikubelet.volumes.model import MountedVolume

if TYPE_CHECKING:
    from trikubelet.volumes.model import SetUpRequest, VolumeSpec

IMAGE: Final = "kubernetes.io/image"


class ImageKind(NodeKind):
    plugin = IMAGE

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        await trio.lowlevel.checkpoint()
        return MountedVolume(request.spec, path=None, read_only=True)

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        await trio.lowlevel.checkpoint()

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        await trio.lowlevel.checkpoint()
        return None
