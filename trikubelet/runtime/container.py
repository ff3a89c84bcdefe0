"""Starting one container, and removing one.

A start is a line of steps: image, configuration, create, start. Each has its reason when it fails, which becomes the
container's waiting reason, and its event. What a failed or cancelled start leaves behind (a container that was created
and never started) is seen by the next inspection, and the plan starts another in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import Container, Pod
from trikubelet.cri import v1
from trikubelet.cri.errors import CRIError
from trikubelet.events import EventType
from trikubelet.logs import get_logger
from trikubelet.runtime.container_config import (
    ContainerInputs,
    container_config,
    hosts_file_mount,
    sub_path_of,
    termination_file_mount,
    volume_mount,
    wants_hosts_file,
)
from trikubelet.runtime.downward import Addresses
from trikubelet.runtime.environment import container_environment
from trikubelet.runtime.errors import ContainerConfigError, SandboxConfigError
from trikubelet.runtime.images import ImageError, PresentImage
from trikubelet.runtime.labels import CONTAINER_NAME, read_identity
from trikubelet.runtime.log_paths import container_log_path, legacy_symlink_name
from trikubelet.runtime.model import PodRuntimeStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trikubelet.api import VolumeMount
    from trikubelet.cri.client import RuntimeClient
    from trikubelet.events import EventRecorder
    from trikubelet.runtime.container_config import PodMounts
    from trikubelet.runtime.images import ImageManager
    from trikubelet.runtime.options import RuntimeOptions
    from trikubelet.runtime.pod_files import PodFiles

log = get_logger("runtime")

CREATE_CONTAINER_CONFIG_ERROR: Final = "CreateContainerConfigError"
CREATE_CONTAINER_ERROR: Final = "CreateContainerError"
RUN_CONTAINER_ERROR: Final = "RunContainerError"


@attrs.frozen
class StartError(Exception):
    """A container could not be started. `reason` is what its status waits with."""

    reason: str
    message: str
    retry_at: float | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@attrs.frozen
class StartRequest:
    """A container to start, and where."""

    pod: Pod
    container: Container
    status: PodRuntimeStatus
    """What was last seen of the pod: for the restart count, and an ephemeral container's target."""
    sandbox_id: str
    sandbox_config: v1.PodSandboxConfig
    pod_ips: Sequence[str]


class ContainerStarter:
    """Starts and removes containers."""

    def __init__(
        self,
        runtime: RuntimeClient,
        images: ImageManager,
        recorder: EventRecorder,
        files: PodFiles,
        mounts: PodMounts,
        options: RuntimeOptions,
    ) -> None:
        self._runtime = runtime
        self._images = images
        self._recorder = recorder
        self._files = files
        self._mounts = mounts
        self._options = options

    async def start(self, request: StartRequest) -> str:
        """Bring a container to run; returns its id (kubelet: `startContainer`).

        Raises StartError, after the event for it. Cancelled, it may leave a container that was created or started.
        """
        pod, container = request.pod, request.container
        try:
            image = await self._images.ensure(pod, container, request.sandbox_config)
        except ImageError as error:
            self._failed(request, error.reason)
            raise StartError(error.reason, error.message, error.retry_at) from error
        restart_count = self._restart_count(request)
        try:
            config = self._config(request, image, restart_count)
        except (ContainerConfigError, SandboxConfigError, OSError) as error:
            self._failed(request, str(error))
            raise StartError(CREATE_CONTAINER_CONFIG_ERROR, str(error)) from error
        try:
            container_id = await self._runtime.create_container(request.sandbox_id, config, request.sandbox_config)
        except CRIError as error:
            self._failed(request, error.message)
            raise StartError(CREATE_CONTAINER_ERROR, error.message) from error
        self._tell(request, "Created", "Container created")
        try:
            await self._runtime.start_container(container_id)
        except CRIError as error:
            # An id in an event's text would make each of them a new event.
            self._failed(request, error.message.replace(container_id, container.name))
            raise StartError(RUN_CONTAINER_ERROR, error.message) from error
        self._tell(request, "Started", "Container started")
        log.info("container started", pod=pod.full_name, container=container.name, container_id=container_id)
        self._files.link_log(pod, container.name, container_id, container_log_path(container.name, restart_count))
        return container_id

    async def remove(self, container_id: str, *, keep_logs: bool = False) -> None:
        """Remove an ended container, its logs first, so that logs without a container cannot stay behind.

        Raises CRIError and OSError. A container that is gone is removed.
        """
        if not keep_logs:
            try:
                status = (await self._runtime.container_status(container_id)).status
            except CRIError as error:
                if error.not_found:
                    return
                raise
            owner = read_identity(status.labels)
            name = status.labels.get(CONTAINER_NAME, "")
            link = legacy_symlink_name(container_id, name, owner.name, owner.namespace)
            await self._files.remove_logs(status.log_path, link)
        try:
            await self._runtime.remove_container(container_id)
        except CRIError as error:
            if not error.not_found:
                raise

    def _restart_count(self, request: StartRequest) -> int:
        """One more than the last run's; after a reboot that made the runtime forget it, the logs tell."""
        last = request.status.find_container(request.container.name)
        if last is not None:
            return last.restart_count + 1
        try:
            return self._files.restart_count(request.pod, request.container)
        except OSError as error:
            log.warning(
                "cannot tell the restart count from the logs",
                pod=request.pod.full_name,
                container=request.container.name,
                problem=str(error),
            )
            return 0

    def _config(self, request: StartRequest, image: PresentImage, restart_count: int) -> v1.ContainerConfig:
        pod, container = request.pod, request.container
        target_id = self._target_id(request)
        environment = container_environment(
            pod,
            container,
            addresses=Addresses(request.pod_ips, self._options.host_ips),
            allocatable=self._options.allocatable,
        )
        mounts = self._volume_mounts(pod, container, environment)
        if wants_hosts_file(pod, container, request.pod_ips):
            mounts.append(hosts_file_mount(self._files.write_hosts_file(pod, request.pod_ips)))
        if container.termination_message_path:
            mounts.append(termination_file_mount(container, self._files.make_termination_file(pod, container)))
        self._files.make_container_logs_directory(pod, container)
        inputs = ContainerInputs(
            restart_count=restart_count,
            image_ref=image.reference,
            image_user=image.user,
            environment=environment,
            mounts=mounts,
            target_id=target_id,
        )
        return container_config(pod, container, inputs, self._options)

    def _target_id(self, request: StartRequest) -> str:
        target = getattr(request.container, "target_container_name", "")
        if not target:
            return ""
        status = request.status.find_container(target)
        if status is None:
            raise ContainerConfigError(f"unable to find target container {target}")
        return status.id.id

    def _volume_mounts(self, pod: Pod, container: Container, environment: Mapping[str, str]) -> list[v1.Mount]:
        if container.volume_devices:
            names = ", ".join(device.name for device in container.volume_devices)
            raise ContainerConfigError(f"volumeDevices are not supported: {names}")
        return [
            volume_mount(pod, mount, self._mount_source(pod, container, mount, environment))
            for mount in container.volume_mounts
        ]

    def _mount_source(self, pod: Pod, container: Container, mount: VolumeMount, environment: Mapping[str, str]) -> Path:
        volume = self._mounts.host_path(pod, mount.name)
        if volume is None:
            raise ContainerConfigError(f'cannot find volume "{mount.name}" to mount into container "{container.name}"')
        sub_path = sub_path_of(mount, environment)
        if not sub_path:
            return volume
        try:
            return self._mounts.resolve_subpath(volume, sub_path)
        except (OSError, ValueError) as error:
            # The details are about the node's files, which are not the pod's to know.
            log.warning("subPath is not usable", pod=pod.full_name, volume=mount.name, problem=str(error))
            raise ContainerConfigError(
                f'failed to prepare subPath for volumeMount "{mount.name}" of container "{container.name}"'
            ) from error

    def _tell(self, request: StartRequest, reason: str, message: str) -> None:
        name = request.container.name
        self._recorder.pod_event(request.pod, EventType.NORMAL, reason, message, container=name)

    def _failed(self, request: StartRequest, problem: str) -> None:
        name = request.container.name
        self._recorder.pod_event(request.pod, EventType.WARNING, "Failed", f"Error: {problem}", container=name)
        log.warning("container could not be started", pod=request.pod.full_name, container=name, problem=problem)
