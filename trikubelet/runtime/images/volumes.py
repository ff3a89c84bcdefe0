"""Images that pods mount as volumes (KEP-4639): pulled after the sandbox, given to the runtime with each mount.

An image that cannot be had does not end the sync: the containers that mount it fail one by one, so that each shows
ErrImagePull or ImagePullBackOff as if it were its own image. A runtime from before this feature would drop the mount
without a word and start the container; such runtimes are known by name and version, as they say nothing else of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trikubelet.rpc.cri import v1
from trikubelet.runtime.containers.container import CREATE_CONTAINER_CONFIG_ERROR
from trikubelet.runtime.images.manager import ImageError, ImageRequest
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.api import Container, Pod, Secret
    from trikubelet.runtime.images.manager import ImageManager

log = get_logger("runtime")

ImageVolumes = dict[str, v1.ImageSpec | ImageError]
"""By the volume's name: the image, or why it is not to be had."""

_FIRST_VERSIONS: Final = {"containerd": (2, 1), "cri-o": (1, 31)}


def version_problem(runtime_name: str, runtime_version: str) -> str:
    """Why this runtime cannot mount images; empty when it can, as far as is known."""
    first = _FIRST_VERSIONS.get(runtime_name)
    version = re.match(r"v?(\d+)\.(\d+)", runtime_version)
    if first is None or version is None or (int(version[1]), int(version[2])) >= first:
        return ""
    return f"image volumes need containerd 2.1 or CRI-O 1.31; this node runs {runtime_name} {runtime_version}"


async def pull_image_volumes(
    images: ImageManager,
    pod: Pod,
    sandbox_config: v1.PodSandboxConfig,
    secrets: Sequence[Secret] = (),
    *,
    problem: str = "",
) -> ImageVolumes:
    """Make the images of all the pod's image volumes present (kubelet: `getImageVolumes`).

    `problem`: why the runtime cannot mount any; then none is pulled.
    """
    found: ImageVolumes = {}
    for volume in pod.spec.volumes:
        if volume.image is None:
            continue
        if problem:
            found[volume.name] = ImageError(CREATE_CONTAINER_CONFIG_ERROR, problem)
            continue
        request = ImageRequest(volume.image.reference, volume.image.pull_policy, container=None)
        try:
            image = await images.ensure(pod, request, sandbox_config, secrets)
        except ImageError as error:
            log.warning("no image for volume", pod=pod.full_name, volume=volume.name, problem=str(error))
            found[volume.name] = error
        else:
            found[volume.name] = v1.ImageSpec(
                image=image.reference,
                user_specified_image=volume.image.reference,
                annotations=dict(pod.metadata.annotations),
            )
    return found


def mounted_images(
    volumes: Mapping[str, v1.ImageSpec | ImageError], container: Container
) -> tuple[dict[str, v1.ImageSpec], list[ImageError]]:
    """The images among a container's mounts by volume name, and the problems of those that are not to be had."""
    images: dict[str, v1.ImageSpec] = {}
    problems: list[ImageError] = []
    for mount in container.volume_mounts:
        match volumes.get(mount.name):
            case ImageError() as problem:
                problems.append(problem)
            case v1.ImageSpec() as image:
                images[mount.name] = image
    return images, problems
