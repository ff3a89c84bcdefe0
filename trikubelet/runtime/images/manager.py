"""Getting a container's image: there already, pulled, waiting to be pulled again, or an error that says why not.

The story of one request: the name is read and completed, the pull policy decides whether the runtime is asked first,
and the pull records whether the pod may use what is there. A pull that failed lately waits (ten seconds doubling to
five minutes, per pod and image), the others leave their intent and queue for their turn. Credentials are tried one
after the other. Events tell each step in the kubelet's words (`image_manager.go`).

Images that pods mount as volumes (KEP-4639) are pulled after the sandbox and given to the runtime with each mount. One
that cannot be had does not end the sync: the containers that mount it fail one by one, so that each shows ErrImagePull
or ImagePullBackOff as if it were its own image.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import betterproto
import trio
from grpclib.const import Status

from trikubelet.api import Container, Pod
from trikubelet.broadcast import Broadcast
from trikubelet.container.abilities import is_older
from trikubelet.container.messages import describe_duration
from trikubelet.formats.image_names import InvalidImageNameError, parse_image_name, with_default_tag
from trikubelet.formats.values import frozen
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.backoff import KeyedBackoff
from trikubelet.runtime.containers.security import ImageUser
from trikubelet.runtime.images.credentials.keyring import TrackedCredential
from trikubelet.runtime.images.pull_credentials import (
    CredentialsError,
    NoCredentials,
    PullCredentials,
    auth_config,
    image_credentials,
)
from trikubelet.runtime.images.pull_records.records import IntentError, is_called
from trikubelet.runtime.metrics import RuntimeMetrics, image_size_word
from trikubelet.runtime.results import CREATE_CONTAINER_CONFIG_ERROR, IMAGE_PULL_BACK_OFF
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from trikubelet.api import Secret
    from trikubelet.rpc.cri.client import ImageClient
    from trikubelet.runtime.images.pull_credentials import Credentials
    from trikubelet.runtime.images.pull_rate import PullRate
    from trikubelet.runtime.images.pull_records.records import PullRecords
    from trikubelet.telemetry.events import EventRecorder

ERR_IMAGE_PULL: Final = "ErrImagePull"
ERR_IMAGE_NEVER_PULL: Final = "ErrImageNeverPull"
IMAGE_INSPECT_ERROR: Final = "ImageInspectError"
INVALID_IMAGE_NAME: Final = "InvalidImageName"

# Errors of the runtime that have a name of their own, and how the kubelet words them (cri-api: `errors`).
_NAMED_PULL_ERRORS: Final = {
    "RegistryUnavailable": "the registry is unavailable",
    "SignatureValidationFailed": "the signature validation failed",
}
PULL_FAILURES: Final = frozenset({ERR_IMAGE_PULL, IMAGE_PULL_BACK_OFF, *_NAMED_PULL_ERRORS})
"""Reasons of a container whose image could not be pulled."""
_END_UNKNOWN: Final = frozenset({Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.CANCELLED})
_MAX_PULL_MESSAGES: Final = 1000
_UNKNOWN: Final = "unknown"
log = get_logger("runtime")


_FIRST_VERSIONS: Final = {"containerd": (2, 1), "cri-o": (1, 31)}


@frozen
class ImageError(Exception):
    """A container's image is not to be had now."""

    reason: str
    """The container's waiting reason: `ErrImagePull`, `ImagePullBackOff`, …"""
    message: str
    retry_at: float | None = None
    """Trio time of the end of the backoff."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@frozen
class ImageRequest:
    """An image that a pod needs."""

    image: str
    """As the pod names it."""
    policy: str
    """The pull policy: `Always`, `IfNotPresent` or `Never`."""
    container: Container | None
    """The container that runs it, which events name; None for an image that becomes a volume."""


@frozen
class PresentImage:
    """An image that the runtime has."""

    reference: str
    """The name to create containers with."""
    user: ImageUser


@frozen
class _Wanted:
    """A request, and what has been found out for it."""

    pod: Pod
    request: ImageRequest
    spec: v1.ImageSpec
    sandbox_config: v1.PodSandboxConfig
    credentials: PullCredentials

    @property
    def image(self) -> str:
        return self.request.image

    @property
    def backoff_key(self) -> str:
        return _backoff_key(self.pod, self.image)


@frozen
class _Pulled:
    """An image that came."""

    reference: str
    credential: TrackedCredential | None
    took: float
    """Seconds."""
    waited: float
    """Seconds, with the wait for its turn."""


@frozen
class _PullError(Exception):
    """No credential brought the image."""

    message: str
    end_known: bool
    """Whether the runtime said so. Else the image may have come, or come yet."""


class ImageManager:
    """Makes images present. One for all pods, since pulls wait for each other."""

    def __init__(
        self,
        images: ImageClient,
        recorder: EventRecorder,
        *,
        serialize: bool = True,
        max_parallel: int | None = None,
        rate: PullRate | None = None,
        credentials: Credentials | None = None,
        records: PullRecords | None = None,
        metrics: RuntimeMetrics | None = None,
        steps: Steps | None = None,
    ) -> None:
        """`serialize`: one pull at a time; else at most `max_parallel` (None: any number).

        Without `rate` pulls begin as fast as they are asked for, without `credentials` they go without any, and
        without `records` every pod may use every image that is present.
        """
        self._images = images
        self._recorder = recorder
        self._turns = trio.CapacityLimiter(1 if serialize else max_parallel or math.inf)
        self._rate = rate
        self._credentials = credentials or NoCredentials()
        self._records = records
        self._metrics = metrics or RuntimeMetrics()
        self._steps = steps or Steps()
        self._backoff = KeyedBackoff.for_images()
        self._messages: OrderedDict[str, str] = OrderedDict()
        self.retry_wanted: Broadcast[str] = Broadcast()
        """UIDs of pods whose images may be there now."""

    async def ensure(
        self,
        pod: Pod,
        request: ImageRequest,
        sandbox_config: v1.PodSandboxConfig,
        secrets: Sequence[Secret] = (),
        *,
        found: v1.Image | None = None,
    ) -> PresentImage:
        """Make an image present, pulling it where the policy or the pull records say so.

        `secrets` are the pod's pull secrets. `found`: what `look` has found for this request a moment ago. Raises
        ImageError. Cancelling gives the turn back and ends the pull.
        """
        present = required = _UNKNOWN
        image = None if request.policy == "Always" else found
        try:
            wanted = self._read(pod, request, sandbox_config, secrets)
            if request.policy != "Always":
                if image is None:
                    with self._step(wanted, "ImageStatus"):
                        image = await self._inspect(wanted)
                present = "false" if image is None else "true"
                if image is not None:
                    required = "true" if await self._must_pull(wanted, image.id) else "false"
                    if required == "false":
                        return self._there_already(wanted, image)
                if request.policy == "Never":
                    # In the same words for an image that the pod must not know of.
                    message = f'Container image "{wanted.image}" is not present with pull policy of Never'
                    self._warn(wanted, ERR_IMAGE_NEVER_PULL, message)
                    raise ImageError(ERR_IMAGE_NEVER_PULL, message)
            required = "true"
            return await self._pull(wanted, image)
        finally:
            self._metrics.image_requests[request.policy.lower(), present, required] += 1

    async def look(self, pod: Pod, name: str) -> v1.Image | None:
        """An image that the runtime has, ahead of its container's turn; `name` as the pod gives it. None where it has
        none or that is not known: then `ensure` asks itself, and tells what is wrong."""
        try:
            return await self._images.image_status(_image_spec(pod, with_default_tag(name)))
        except (InvalidImageNameError, CRIError) as error:
            log.debug("image not looked at ahead", pod=pod.full_name, image=name, problem=str(error))
            return None

    def try_again(self, pod: Pod, image: str) -> None:
        """Forget that pulls of the pod's image failed, and have the pod synced: the image may be there now."""
        self._backoff.reset(_backoff_key(pod, image))
        self.retry_wanted.send(pod.metadata.uid)

    def _there_already(self, wanted: _Wanted, image: v1.Image) -> PresentImage:
        access = "" if self._records is None else " and can be accessed by the pod"
        self._record(wanted, "Pulled", f'Container image "{wanted.image}" already present on machine{access}')
        return PresentImage(image.id, _image_user(image))

    def _read(
        self, pod: Pod, request: ImageRequest, sandbox_config: v1.PodSandboxConfig, secrets: Sequence[Secret]
    ) -> _Wanted:
        try:
            name = with_default_tag(request.image)
            repository = parse_image_name(name).repository
        except InvalidImageNameError as error:
            message = f'Failed to apply default image tag "{request.image}": {error}'
            self._event(pod, request, EventType.WARNING, "InspectFailed", message)
            raise ImageError(INVALID_IMAGE_NAME, message) from error
        spec = _image_spec(pod, name)
        credentials = PullCredentials(self._credentials, repository, pod, secrets)
        return _Wanted(pod, request, spec, sandbox_config, credentials)

    async def _inspect(self, wanted: _Wanted) -> v1.Image | None:
        try:
            return await self._images.image_status(wanted.spec)
        except CRIError as error:
            raise self._not_inspected(wanted, error) from error

    def _not_inspected(self, wanted: _Wanted, error: CRIError) -> ImageError:
        message = f'Failed to inspect image "{wanted.image}": {error}'
        self._warn(wanted, "InspectFailed", message)
        return ImageError(IMAGE_INSPECT_ERROR, message)

    async def _must_pull(self, wanted: _Wanted, image_ref: str) -> bool:
        if self._records is None:
            return False
        try:
            return await self._records.must_pull(wanted.image, image_ref, wanted.credentials.of_pod)
        except CredentialsError as error:
            raise ImageError(ERR_IMAGE_PULL, str(error)) from error

    async def _pull(self, wanted: _Wanted, seen: v1.Image | None) -> PresentImage:
        self._refuse_in_backoff(wanted)
        try:
            pulled = await self._pull_on_record(wanted, seen, await wanted.credentials.found())
        except CredentialsError as error:
            raise ImageError(ERR_IMAGE_PULL, str(error)) from error
        except IntentError as error:
            message = f'Failed to record image pull intent for container image "{wanted.image}": {error}'
            raise ImageError(ERR_IMAGE_PULL, message) from error
        except _PullError as error:
            raise self._failed(wanted, error.message) from error
        self._backoff.collect(trio.current_time())
        return await self._present(wanted, pulled)

    async def _pull_on_record(
        self, wanted: _Wanted, seen: v1.Image | None, credentials: Sequence[TrackedCredential]
    ) -> _Pulled:
        """Pull, with an intent before it and a record after it. Raises IntentError and _PullError."""
        if self._records is None:
            return await self._pull_in_turn(wanted, credentials)
        with self._records.pulling(wanted.image, present=await self._present_id(wanted, seen)) as intent:
            try:
                pulled = await self._pull_in_turn(wanted, credentials)
            except _PullError as error:
                if error.end_known:
                    intent.failed()
                raise
            intent.succeeded(pulled.reference, image_credentials(pulled.credential))
        return pulled

    async def _present_id(self, wanted: _Wanted, seen: v1.Image | None) -> str:
        """Which image has the name now; empty for none. Raises ImageError where it cannot be told: a pull that is cut
        off would take the image that is there from all pods."""
        if wanted.request.policy != "Always":
            return "" if seen is None else seen.id
        try:
            image = await self._images.image_status(wanted.spec)
        except CRIError as error:  # a broken image, which a pull may mend
            log.debug("cannot look which image is there before a pull", image=wanted.image, problem=str(error))
            image = await self._listed(wanted)
        return "" if image is None else image.id

    async def _listed(self, wanted: _Wanted) -> v1.Image | None:
        try:
            images = await self._images.list_images()
        except CRIError as error:
            raise self._not_inspected(wanted, error) from error
        return next((image for image in images if is_called(image, wanted.spec.image)), None)

    async def _pull_in_turn(self, wanted: _Wanted, credentials: Sequence[TrackedCredential]) -> _Pulled:
        self._messages.pop(wanted.backoff_key, None)
        self._record(wanted, "Pulling", f'Pulling image "{wanted.image}"')
        asked = trio.current_time()
        with self._step(wanted, "turn to pull"):
            await self._turns.acquire()
        try:
            began = trio.current_time()
            if self._rate is not None and not self._rate.take(began):
                raise _PullError("pull QPS exceeded", end_known=True)
            with self._step(wanted, "PullImage"):
                reference, credential = await self._try_each(wanted, credentials)
            ended = trio.current_time()
        finally:
            self._turns.release()
        return _Pulled(reference, credential, ended - began, ended - asked)

    def _step(self, wanted: _Wanted, what: str) -> AbstractContextManager[None]:
        container = "" if wanted.request.container is None else wanted.request.container.name
        return self._steps.step(wanted.pod.metadata.uid, what, container=container, subject=wanted.image)

    async def _try_each(
        self, wanted: _Wanted, credentials: Sequence[TrackedCredential]
    ) -> tuple[str, TrackedCredential | None]:
        """Pull with one credential after the other until one does; without any when there are none."""
        problems: list[CRIError] = []
        for credential in credentials or (None,):
            auth = None if credential is None else auth_config(credential)
            try:
                return await self._images.pull_image(wanted.spec, auth, wanted.sandbox_config), credential
            except CRIError as error:
                problems.append(error)
        end_known = all(problem.status not in _END_UNKNOWN for problem in problems)
        raise _PullError(_words_of_all(problems), end_known)

    async def _present(self, wanted: _Wanted, pulled: _Pulled) -> PresentImage:
        """Tell that the image came. What it runs as must be known, or its container could run as a wrong user."""
        image, problem = v1.Image(), None
        try:
            image = await self._images.image_status(wanted.spec) or image
        except CRIError as error:
            problem = error
        message = (
            f'Successfully pulled image "{wanted.image}" in {describe_duration(pulled.took)} '
            f"({describe_duration(pulled.waited)} including waiting). Image size: {image.size} bytes."
        )
        self._record(wanted, "Pulled", message)
        self._metrics.image_pulls.observe((image_size_word(image.size),), pulled.waited)
        if problem is not None and wanted.request.container is not None:
            raise ImageError(CREATE_CONTAINER_CONFIG_ERROR, str(problem)) from problem
        return PresentImage(pulled.reference, _image_user(image))

    def _failed(self, wanted: _Wanted, problem: str) -> ImageError:
        self._warn(wanted, "Failed", f'Failed to pull image "{wanted.image}": {problem}')
        now = trio.current_time()
        self._backoff.advance(wanted.backoff_key, now, now)
        failure = _pull_failure(wanted.image, problem)
        self._messages[wanted.backoff_key] = str(failure)
        if len(self._messages) > _MAX_PULL_MESSAGES:
            self._messages.popitem(last=False)
        return failure

    def back_off_end(self, pod: Pod, image: str) -> float | None:
        """Trio time before which the pod's image is not pulled again, since that failed; None where it did not."""
        key = _backoff_key(pod, image)
        return self._backoff.expires_at(key) if self._backoff.wait_of(key) else None

    def _refuse_in_backoff(self, wanted: _Wanted) -> None:
        key = wanted.backoff_key
        if not self._backoff.in_backoff_since_update(key, trio.current_time()):
            return
        message = f'Back-off pulling image "{wanted.image}"'
        self._record(wanted, "BackOff", message)
        if key in self._messages:
            message = f"{message}: {self._messages[key]}"
        raise ImageError(IMAGE_PULL_BACK_OFF, message, self._backoff.expires_at(key))

    def _record(self, wanted: _Wanted, reason: str, message: str) -> None:
        self._event(wanted.pod, wanted.request, EventType.NORMAL, reason, message)

    def _warn(self, wanted: _Wanted, reason: str, message: str) -> None:
        self._event(wanted.pod, wanted.request, EventType.WARNING, reason, message)

    def _event(self, pod: Pod, request: ImageRequest, type_: EventType, reason: str, message: str) -> None:
        container = None if request.container is None else request.container.name
        self._recorder.pod_event(pod, type_, reason, message, container=container)


def _image_spec(pod: Pod, name: str) -> v1.ImageSpec:
    return v1.ImageSpec(image=name, annotations=dict(pod.metadata.annotations))


def _backoff_key(pod: Pod, image: str) -> str:
    return f"{pod.metadata.uid}_{image}"


def _image_user(image: v1.Image) -> ImageUser:
    """A number wins over a name; an image with neither runs as root."""
    if betterproto.serialized_on_wire(image.uid):
        return ImageUser(image.uid.value)
    return ImageUser(None, image.username) if image.username else ImageUser(0)


def _words_of_all(problems: Sequence[CRIError]) -> str:
    """Each problem once, as Go's error lists print them. Errors without a code are printed without one."""
    words = dict.fromkeys(problem.message if problem.status is Status.UNKNOWN else str(problem) for problem in problems)
    return next(iter(words)) if len(words) == 1 else f"[{', '.join(words)}]"


def _pull_failure(image: str, problem: str) -> ImageError:
    for name, words in _NAMED_PULL_ERRORS.items():
        if problem.startswith(name):
            return ImageError(name, f"image pull failed for {image} because {words}{problem.removeprefix(name)}")
    return ImageError(ERR_IMAGE_PULL, problem)


ImageVolumes = dict[str, v1.ImageSpec | ImageError]
"""By the volume's name: the image, or why it is not to be had."""


def version_problem(runtime_name: str, runtime_version: str) -> str:
    """Why this runtime cannot mount images; empty when it can, as far as is known."""
    if not is_older(runtime_name, runtime_version, _FIRST_VERSIONS):
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
