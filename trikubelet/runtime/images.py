"""Getting a container's image: there already, pulled, waiting to be pulled again, or an error that says why not.

The story of one request: the name is read and completed, the pull policy decides whether the runtime is asked first,
a pull that failed lately waits (ten seconds doubling to five minutes, per pod and image), the others queue for their
turn, and events tell each step in the kubelet's words (`image_manager.go`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import attrs
import betterproto
import trio

from trikubelet.cri import v1
from trikubelet.cri.errors import CRIError
from trikubelet.events import EventType
from trikubelet.runtime.backoff import Backoff
from trikubelet.runtime.image_names import InvalidImageNameError, with_default_tag
from trikubelet.runtime.results import IMAGE_PULL_BACK_OFF
from trikubelet.runtime.security import ImageUser
from trikubelet.runtime.wording import describe_duration, describe_error

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.cri.client import ImageClient
    from trikubelet.events import EventRecorder

ERR_IMAGE_PULL: Final = "ErrImagePull"
ERR_IMAGE_NEVER_PULL: Final = "ErrImageNeverPull"
IMAGE_INSPECT_ERROR: Final = "ImageInspectError"
INVALID_IMAGE_NAME: Final = "InvalidImageName"

# Errors of the runtime that have a name of their own, and how the kubelet words them (cri-api: `errors`).
_NAMED_PULL_ERRORS: Final = {
    "RegistryUnavailable": "the registry is unavailable",
    "SignatureValidationFailed": "the signature validation failed",
}
_MAX_PULL_MESSAGES: Final = 1000


@attrs.frozen
class ImageError(Exception):
    """A container's image is not to be had now."""

    reason: str
    """The container's waiting reason: `ErrImagePull`, `ImagePullBackOff`, …"""
    message: str
    retry_at: float | None = None
    """Trio time of the end of the backoff."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@attrs.frozen
class PresentImage:
    """An image that the runtime has."""

    reference: str
    """What to create containers with."""
    user: ImageUser


class ImageManager:
    """Makes images present. One for all pods, since pulls wait for each other."""

    def __init__(
        self, images: ImageClient, recorder: EventRecorder, *, serialize: bool = True, max_parallel: int | None = None
    ) -> None:
        """`serialize`: one pull at a time; else at most `max_parallel` (None: any number)."""
        self._images = images
        self._recorder = recorder
        self._turns = trio.CapacityLimiter(1 if serialize else max_parallel or math.inf)
        self._backoff = Backoff.for_images()
        self._messages: OrderedDict[str, str] = OrderedDict()

    async def ensure(self, pod: Pod, container: Container, sandbox_config: v1.PodSandboxConfig) -> PresentImage:
        """Make the container's image present, pulling it where the policy says so.

        Raises ImageError. Cancelling gives the turn back and ends the pull.
        """
        try:
            name = with_default_tag(container.image)
        except InvalidImageNameError as error:
            message = f'Failed to apply default image tag "{container.image}": {error}'
            self._warn(pod, container, "InspectFailed", message)
            raise ImageError(INVALID_IMAGE_NAME, message) from error
        spec = v1.ImageSpec(image=name, annotations=dict(pod.metadata.annotations))
        if container.image_pull_policy != "Always":
            image = await self._inspect(pod, container, spec)
            if image is not None:
                self._tell(
                    pod,
                    container,
                    "Pulled",
                    f'Container image "{container.image}" already present on machine and can be accessed by the pod',
                )
                return PresentImage(image.id, _image_user(image))
            if container.image_pull_policy == "Never":
                message = f'Container image "{container.image}" is not present with pull policy of Never'
                self._warn(pod, container, ERR_IMAGE_NEVER_PULL, message)
                raise ImageError(ERR_IMAGE_NEVER_PULL, message)
        return await self._pull(pod, container, spec, sandbox_config)

    async def _inspect(self, pod: Pod, container: Container, spec: v1.ImageSpec) -> v1.Image | None:
        try:
            return await self._images.image_status(spec)
        except CRIError as error:
            message = f'Failed to inspect image "{container.image}": {describe_error(error)}'
            self._warn(pod, container, "InspectFailed", message)
            raise ImageError(IMAGE_INSPECT_ERROR, message) from error

    async def _pull(
        self, pod: Pod, container: Container, spec: v1.ImageSpec, sandbox_config: v1.PodSandboxConfig
    ) -> PresentImage:
        image = container.image
        key = f"{pod.metadata.uid}_{image}"
        self._refuse_in_backoff(pod, container, key)
        self._messages.pop(key, None)
        self._tell(pod, container, "Pulling", f'Pulling image "{image}"')
        asked = trio.current_time()
        try:
            async with self._turns:
                began = trio.current_time()
                reference = await self._images.pull_image(spec, None, sandbox_config)
                ended = trio.current_time()
        except CRIError as error:
            self._warn(pod, container, "Failed", f'Failed to pull image "{image}": {describe_error(error)}')
            now = trio.current_time()
            self._backoff.advance(key, now, now)
            failure = _pull_failure(image, error)
            self._remember(key, str(failure))
            raise failure from error
        pulled = await self._inspect(pod, container, spec) or v1.Image()
        took, waited = describe_duration(ended - began), describe_duration(ended - asked)
        message = (
            f'Successfully pulled image "{image}" in {took} ({waited} including waiting). '
            f"Image size: {pulled.size} bytes."
        )
        self._tell(pod, container, "Pulled", message)
        self._backoff.collect(ended)
        return PresentImage(reference, _image_user(pulled))

    def _refuse_in_backoff(self, pod: Pod, container: Container, key: str) -> None:
        if not self._backoff.in_backoff_since_update(key, trio.current_time()):
            return
        message = f'Back-off pulling image "{container.image}"'
        self._tell(pod, container, "BackOff", message)
        if key in self._messages:
            message = f"{message}: {self._messages[key]}"
        raise ImageError(IMAGE_PULL_BACK_OFF, message, self._backoff.expires_at(key))

    def _remember(self, key: str, message: str) -> None:
        self._messages[key] = message
        if len(self._messages) > _MAX_PULL_MESSAGES:
            self._messages.popitem(last=False)

    def _tell(self, pod: Pod, container: Container, reason: str, message: str) -> None:
        self._recorder.pod_event(pod, EventType.NORMAL, reason, message, container=container.name)

    def _warn(self, pod: Pod, container: Container, reason: str, message: str) -> None:
        self._recorder.pod_event(pod, EventType.WARNING, reason, message, container=container.name)


def _image_user(image: v1.Image) -> ImageUser:
    """A number wins over a name; an image with neither runs as root."""
    if betterproto.serialized_on_wire(image.uid):
        return ImageUser(image.uid.value)
    return ImageUser(None, image.username) if image.username else ImageUser(0)


def _pull_failure(image: str, error: CRIError) -> ImageError:
    for name, words in _NAMED_PULL_ERRORS.items():
        if error.message.startswith(name):
            return ImageError(name, f"image pull failed for {image} because {words}{error.message.removeprefix(name)}")
    return ImageError(ERR_IMAGE_PULL, describe_error(error))
