"""What was seen of a pod's containers."""

from __future__ import annotations

from datetime import datetime

from attrs import field

from trikubelet.api.quantity import Quantity
from trikubelet.api.resources import ResourceRequirements
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, Int32, wire
from trikubelet.formats.values import frozen


@frozen(repr=False)
class ContainerStateWaiting(APIObject):
    """The container does not run yet, or not again yet."""

    reason: str = ""
    message: str = ""


@frozen(repr=False)
class ContainerStateRunning(APIObject):
    """The container runs."""

    started_at: datetime | None = None


@frozen(repr=False)
class ContainerStateTerminated(APIObject):
    """The container has ended."""

    exit_code: Int32 = field(default=0, metadata=REQUIRED)
    signal: Int32 = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    container_id: str = field(default="", metadata=wire("containerID"))


@frozen(repr=False)
class ContainerState(APIObject):
    """At most one of the three is set; none means waiting."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


@frozen(repr=False)
class ImageVolumeStatus(APIObject):
    """The image that an image volume was made from."""

    image_ref: str = ""


@frozen(repr=False)
class VolumeStatus(APIObject):
    """What is known of a mounted volume by its kind."""

    image: ImageVolumeStatus | None = None


@frozen(repr=False)
class VolumeMountStatus(APIObject):
    """How a volume was mounted in fact."""

    name: str = field(default="", metadata=REQUIRED)
    mount_path: str = field(default="", metadata=REQUIRED)
    read_only: bool = False
    recursive_read_only: str | None = None
    volume_status: VolumeStatus | None = None


@frozen(repr=False)
class LinuxContainerUser(APIObject):
    """The ids that the first process of a container got."""

    uid: int = field(default=0, metadata=REQUIRED)
    gid: int = field(default=0, metadata=REQUIRED)
    supplemental_groups: tuple[int, ...] = ()


@frozen(repr=False)
class ContainerUser(APIObject):
    """The user that the first process of a container got."""

    linux: LinuxContainerUser | None = None


@frozen(repr=False)
class ResourceHealth(APIObject):
    """Health of one device."""

    resource_id: str = field(default="", metadata=wire("resourceID", required=True))
    health: str = ""
    message: str | None = None


@frozen(repr=False)
class ResourceStatus(APIObject):
    """Health of the devices of one resource."""

    name: str = field(default="", metadata=REQUIRED)
    resources: tuple[ResourceHealth, ...] = ()


@frozen(repr=False)
class ContainerStatus(APIObject):
    """One container of a pod, as the agent reports it."""

    name: str = field(default="", metadata=REQUIRED)
    state: ContainerState = field(default=ContainerState())
    last_state: ContainerState = field(default=ContainerState())
    ready: bool = field(default=False, metadata=REQUIRED)
    restart_count: Int32 = field(default=0, metadata=REQUIRED)
    image: str = field(default="", metadata=REQUIRED)
    image_id: str = field(default="", metadata=wire("imageID", required=True))
    container_id: str = field(default="", metadata=wire("containerID"))
    started: bool | None = None
    allocated_resources: dict[str, Quantity] = field(default=EMPTY)
    resources: ResourceRequirements | None = None
    volume_mounts: tuple[VolumeMountStatus, ...] = ()
    user: ContainerUser | None = None
    allocated_resources_status: tuple[ResourceStatus, ...] = ()
    stop_signal: str | None = None
