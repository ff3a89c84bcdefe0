"""Objects about CSI drivers (`storage.k8s.io/v1`): what a driver wants of nodes, and what is attached to which node."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attrs import field

from trikubelet.api.meta import KubernetesObject, ObjectMeta
from trikubelet.api.persistent_volumes import PersistentVolumeSpec
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, Int32
from trikubelet.formats.values import frozen

FS_GROUP_READ_WRITE_ONCE_WITH_FS_TYPE: Final = "ReadWriteOnceWithFSType"
FS_GROUP_FILE: Final = "File"
FS_GROUP_NONE: Final = "None"

LIFECYCLE_PERSISTENT: Final = "Persistent"
LIFECYCLE_EPHEMERAL: Final = "Ephemeral"


@frozen(repr=False)
class CSITokenRequest(APIObject):
    """A service account token that a driver wants of each pod (the API calls it `TokenRequest`, as it does another
    object). An empty audience is the API server's own."""

    audience: str = field(default="", metadata=REQUIRED)
    expiration_seconds: int | None = None


@frozen(repr=False)
class CSIDriverSpec(APIObject):
    """How volumes of a driver are to be treated. None is not false: an API server sets defaults, and for a driver
    without an object the kubelet has others."""

    attach_required: bool | None = None
    pod_info_on_mount: bool | None = None
    volume_lifecycle_modes: tuple[str, ...] = ()
    storage_capacity: bool | None = None
    fs_group_policy: str | None = None
    token_requests: tuple[CSITokenRequest, ...] = ()
    requires_republish: bool | None = None
    se_linux_mount: bool | None = None
    node_allocatable_update_period_seconds: int | None = None
    service_account_token_in_secrets: bool | None = None
    prevent_pod_scheduling_if_missing: bool | None = None


@frozen(repr=False)
class CSIDriver(KubernetesObject):
    """What a driver wants of the cluster; it has the driver's name."""

    api_version: str = "storage.k8s.io/v1"
    kind: str = "CSIDriver"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: CSIDriverSpec = field(factory=CSIDriverSpec)


@frozen(repr=False)
class VolumeAttachmentSource(APIObject):
    """The volume to attach, by the name of its object or by its specification."""

    persistent_volume_name: str | None = None
    inline_volume_spec: PersistentVolumeSpec | None = None


@frozen(repr=False)
class VolumeAttachmentSpec(APIObject):
    """What is to be attached where, and the driver that does it."""

    attacher: str = field(default="", metadata=REQUIRED)
    source: VolumeAttachmentSource = field(factory=VolumeAttachmentSource)
    node_name: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class VolumeError(APIObject):
    """Why attaching or detaching failed; `error_code` is the gRPC status."""

    time: datetime | None = None
    message: str = ""
    error_code: Int32 | None = None


@frozen(repr=False)
class VolumeAttachmentStatus(APIObject):
    """Whether a volume is attached, and what the driver told to hand to the node (`publish_context`)."""

    attached: bool = field(default=False, metadata=REQUIRED)
    attachment_metadata: dict[str, str] = field(default=EMPTY, repr=False)
    attach_error: VolumeError | None = None
    detach_error: VolumeError | None = None


@frozen(repr=False)
class VolumeAttachment(KubernetesObject):
    """The wish to have a volume attached to a node, and what came of it."""

    api_version: str = "storage.k8s.io/v1"
    kind: str = "VolumeAttachment"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: VolumeAttachmentSpec = field(factory=VolumeAttachmentSpec)
    status: VolumeAttachmentStatus = field(factory=VolumeAttachmentStatus)
