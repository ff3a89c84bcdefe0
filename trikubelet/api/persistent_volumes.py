"""Storage that outlives pods: persistent volumes, and the claims that pods name them by.

A persistent volume's source is written beside its other fields, so it has fields here for every kind of storage and
exactly one of them is set. Sources that need credentials name secrets with a namespace: unlike a pod's volume, a
persistent volume has none of its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attrs import field

from trikubelet.api.meta import KubernetesObject, ObjectMeta
from trikubelet.api.quantity import Quantity
from trikubelet.api.references import ObjectReference, SecretReference
from trikubelet.api.scheduling import NodeSelector
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, Int32, wire
from trikubelet.api.storage_volumes import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    FCVolumeSource,
    FlockerVolumeSource,
    GCEPersistentDiskVolumeSource,
    NFSVolumeSource,
    PhotonPersistentDiskVolumeSource,
    PortworxVolumeSource,
    QuobyteVolumeSource,
    VsphereVirtualDiskVolumeSource,
)
from trikubelet.api.volumes import HostPathVolumeSource, PersistentVolumeClaimSpec
from trikubelet.formats.values import frozen

READ_WRITE_ONCE: Final = "ReadWriteOnce"
READ_ONLY_MANY: Final = "ReadOnlyMany"
READ_WRITE_MANY: Final = "ReadWriteMany"
READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"

VOLUME_MODE_BLOCK: Final = "Block"
VOLUME_MODE_FILESYSTEM: Final = "Filesystem"

CLAIM_PENDING: Final = "Pending"
CLAIM_BOUND: Final = "Bound"
CLAIM_LOST: Final = "Lost"


@frozen(repr=False)
class AzureFilePersistentVolumeSource(APIObject):
    """A file share of Azure."""

    secret_name: str = field(default="", metadata=REQUIRED)
    share_name: str = field(default="", metadata=REQUIRED)
    read_only: bool = False
    secret_namespace: str | None = field(default=None, metadata=REQUIRED)


@frozen(repr=False)
class CephFSPersistentVolumeSource(APIObject):
    """A Ceph file system."""

    monitors: tuple[str, ...] = field(default=(), metadata=REQUIRED)
    path: str = ""
    user: str = ""
    secret_file: str = ""
    secret_ref: SecretReference | None = None
    read_only: bool = False


@frozen(repr=False)
class CinderPersistentVolumeSource(APIObject):
    """A volume of OpenStack."""

    volume_id: str = field(default="", metadata=wire("volumeID", required=True))
    fs_type: str = ""
    read_only: bool = False
    secret_ref: SecretReference | None = None


@frozen(repr=False)
class CSIPersistentVolumeSource(APIObject):
    """A volume of a CSI driver; `volume_handle` is the driver's name for it."""

    driver: str = field(default="", metadata=REQUIRED)
    volume_handle: str = field(default="", metadata=REQUIRED)
    read_only: bool = False
    fs_type: str = ""
    volume_attributes: dict[str, str] = field(default=EMPTY)
    controller_publish_secret_ref: SecretReference | None = None
    node_stage_secret_ref: SecretReference | None = None
    node_publish_secret_ref: SecretReference | None = None
    controller_expand_secret_ref: SecretReference | None = None
    node_expand_secret_ref: SecretReference | None = None


@frozen(repr=False)
class FlexPersistentVolumeSource(APIObject):
    """A volume of an exec-based plugin."""

    driver: str = field(default="", metadata=REQUIRED)
    fs_type: str = ""
    secret_ref: SecretReference | None = None
    read_only: bool = False
    options: dict[str, str] = field(default=EMPTY)


@frozen(repr=False)
class GlusterfsPersistentVolumeSource(APIObject):
    """A Gluster volume."""

    endpoints: str = field(default="", metadata=REQUIRED)
    path: str = field(default="", metadata=REQUIRED)
    read_only: bool = False
    endpoints_namespace: str | None = None


@frozen(repr=False)
class ISCSIPersistentVolumeSource(APIObject):
    """An iSCSI disk."""

    target_portal: str = field(default="", metadata=REQUIRED)
    iqn: str = field(default="", metadata=REQUIRED)
    lun: Int32 = field(default=0, metadata=REQUIRED)
    iscsi_interface: str = ""
    fs_type: str = ""
    read_only: bool = False
    portals: tuple[str, ...] = ()
    chap_auth_discovery: bool = False
    chap_auth_session: bool = False
    secret_ref: SecretReference | None = None
    initiator_name: str | None = None


@frozen(repr=False)
class LocalVolumeSource(APIObject):
    """A directory or a block device of one node; `fs_type` is for devices."""

    path: str = field(default="", metadata=REQUIRED)
    fs_type: str | None = None


@frozen(repr=False)
class RBDPersistentVolumeSource(APIObject):
    """A Ceph block device."""

    monitors: tuple[str, ...] = field(default=(), metadata=REQUIRED)
    image: str = field(default="", metadata=REQUIRED)
    fs_type: str = ""
    pool: str = ""
    user: str = ""
    keyring: str = ""
    secret_ref: SecretReference | None = None
    read_only: bool = False


@frozen(repr=False)
class ScaleIOPersistentVolumeSource(APIObject):
    """A ScaleIO volume."""

    gateway: str = field(default="", metadata=REQUIRED)
    system: str = field(default="", metadata=REQUIRED)
    secret_ref: SecretReference | None = field(default=None, metadata=REQUIRED)
    ssl_enabled: bool = False
    protection_domain: str = ""
    storage_pool: str = ""
    storage_mode: str = ""
    volume_name: str = ""
    fs_type: str = ""
    read_only: bool = False


@frozen(repr=False)
class StorageOSPersistentVolumeSource(APIObject):
    """A StorageOS volume."""

    volume_name: str = ""
    volume_namespace: str = ""
    fs_type: str = ""
    read_only: bool = False
    secret_ref: ObjectReference | None = None


@frozen(repr=False)
class VolumeNodeAffinity(APIObject):
    """Which nodes can reach a volume; None: all."""

    required: NodeSelector | None = None


@frozen(repr=False)
class PersistentVolumeSpec(APIObject):
    """A volume's source, size, and the claim that it is bound to."""

    capacity: dict[str, Quantity] = field(default=EMPTY)
    gce_persistent_disk: GCEPersistentDiskVolumeSource | None = None
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    glusterfs: GlusterfsPersistentVolumeSource | None = None
    nfs: NFSVolumeSource | None = None
    rbd: RBDPersistentVolumeSource | None = None
    iscsi: ISCSIPersistentVolumeSource | None = None
    cinder: CinderPersistentVolumeSource | None = None
    cephfs: CephFSPersistentVolumeSource | None = None
    fc: FCVolumeSource | None = None
    flocker: FlockerVolumeSource | None = None
    flex_volume: FlexPersistentVolumeSource | None = None
    azure_file: AzureFilePersistentVolumeSource | None = None
    vsphere_volume: VsphereVirtualDiskVolumeSource | None = None
    quobyte: QuobyteVolumeSource | None = None
    azure_disk: AzureDiskVolumeSource | None = None
    photon_persistent_disk: PhotonPersistentDiskVolumeSource | None = None
    portworx_volume: PortworxVolumeSource | None = None
    scale_io: ScaleIOPersistentVolumeSource | None = field(default=None, metadata=wire("scaleIO"))
    local: LocalVolumeSource | None = None
    storageos: StorageOSPersistentVolumeSource | None = None
    csi: CSIPersistentVolumeSource | None = None
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    persistent_volume_reclaim_policy: str = ""
    storage_class_name: str = ""
    mount_options: tuple[str, ...] = ()
    volume_mode: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    volume_attributes_class_name: str | None = None


@frozen(repr=False)
class PersistentVolumeStatus(APIObject):
    """Whether a volume is free, bound, released or broken."""

    phase: str = ""
    message: str = ""
    reason: str = ""
    last_phase_transition_time: datetime | None = None


@frozen(repr=False)
class PersistentVolume(KubernetesObject):
    """A piece of storage of the cluster. It has no namespace."""

    api_version: str = "v1"
    kind: str = "PersistentVolume"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: PersistentVolumeSpec = field(factory=PersistentVolumeSpec)
    status: PersistentVolumeStatus = field(factory=PersistentVolumeStatus)


@frozen(repr=False)
class PersistentVolumeClaimCondition(APIObject):
    """What is going on with a claim: `Resizing` or `FileSystemResizePending`, for example."""

    type: str = field(default="", metadata=REQUIRED)
    status: str = field(default="", metadata=REQUIRED)
    last_probe_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


@frozen(repr=False)
class ModifyVolumeStatus(APIObject):
    """How far the change to another class of attributes is."""

    target_volume_attributes_class_name: str = ""
    status: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class PersistentVolumeClaimStatus(APIObject):
    """What a claim got. `capacity` is what the file system has, which may lag behind the volume's own."""

    phase: str = ""
    access_modes: tuple[str, ...] = ()
    capacity: dict[str, Quantity] = field(default=EMPTY)
    conditions: tuple[PersistentVolumeClaimCondition, ...] = ()
    allocated_resources: dict[str, Quantity] = field(default=EMPTY)
    allocated_resource_statuses: dict[str, str] = field(default=EMPTY)
    current_volume_attributes_class_name: str | None = None
    modify_volume_status: ModifyVolumeStatus | None = None


@frozen(repr=False)
class PersistentVolumeClaim(KubernetesObject):
    """A pod's way to name storage: a claim of its namespace, bound to a persistent volume."""

    api_version: str = "v1"
    kind: str = "PersistentVolumeClaim"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: PersistentVolumeClaimSpec = field(factory=PersistentVolumeClaimSpec)
    status: PersistentVolumeClaimStatus = field(factory=PersistentVolumeClaimStatus)
