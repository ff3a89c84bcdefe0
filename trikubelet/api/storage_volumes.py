"""Volumes of particular storage systems. Most are served by CSI drivers today."""

from __future__ import annotations

from attrs import field

from trikubelet.api.references import LocalObjectReference
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, Int32, wire
from trikubelet.formats.values import frozen


@frozen(repr=False)
class AWSElasticBlockStoreVolumeSource(APIObject):
    """A disk of Amazon EBS."""

    volume_id: str = field(default="", metadata=wire("volumeID", required=True))
    fs_type: str = ""
    partition: Int32 = 0
    read_only: bool = False


@frozen(repr=False)
class AzureDiskVolumeSource(APIObject):
    """A data disk of Azure."""

    disk_name: str = field(default="", metadata=REQUIRED)
    disk_uri: str = field(default="", metadata=wire("diskURI", required=True))
    caching_mode: str | None = None
    fs_type: str | None = None
    read_only: bool | None = None
    kind: str | None = None


@frozen(repr=False)
class AzureFileVolumeSource(APIObject):
    """A file share of Azure."""

    secret_name: str = field(default="", metadata=REQUIRED)
    share_name: str = field(default="", metadata=REQUIRED)
    read_only: bool = False


@frozen(repr=False)
class CephFSVolumeSource(APIObject):
    """A Ceph file system."""

    monitors: tuple[str, ...] = field(default=(), metadata=REQUIRED)
    path: str = ""
    user: str = ""
    secret_file: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False


@frozen(repr=False)
class CinderVolumeSource(APIObject):
    """A volume of OpenStack."""

    volume_id: str = field(default="", metadata=wire("volumeID", required=True))
    fs_type: str = ""
    read_only: bool = False
    secret_ref: LocalObjectReference | None = None


@frozen(repr=False)
class FCVolumeSource(APIObject):
    """A Fibre Channel disk, by WWN and LUN or by WWID."""

    target_wwns: tuple[str, ...] = field(default=(), metadata=wire("targetWWNs"))
    lun: Int32 | None = None
    fs_type: str = ""
    read_only: bool = False
    wwids: tuple[str, ...] = ()


@frozen(repr=False)
class FlexVolumeSource(APIObject):
    """A volume of an exec-based plugin."""

    driver: str = field(default="", metadata=REQUIRED)
    fs_type: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False
    options: dict[str, str] = field(default=EMPTY)


@frozen(repr=False)
class FlockerVolumeSource(APIObject):
    """A data set of Flocker."""

    dataset_name: str = ""
    dataset_uuid: str = field(default="", metadata=wire("datasetUUID"))


@frozen(repr=False)
class GCEPersistentDiskVolumeSource(APIObject):
    """A persistent disk of Google Cloud."""

    pd_name: str = field(default="", metadata=REQUIRED)
    fs_type: str = ""
    partition: Int32 = 0
    read_only: bool = False


@frozen(repr=False)
class GlusterfsVolumeSource(APIObject):
    """A Gluster volume."""

    endpoints: str = field(default="", metadata=REQUIRED)
    path: str = field(default="", metadata=REQUIRED)
    read_only: bool = False


@frozen(repr=False)
class ISCSIVolumeSource(APIObject):
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
    secret_ref: LocalObjectReference | None = None
    initiator_name: str | None = None


@frozen(repr=False)
class NFSVolumeSource(APIObject):
    """A directory of an NFS server."""

    server: str = field(default="", metadata=REQUIRED)
    path: str = field(default="", metadata=REQUIRED)
    read_only: bool = False


@frozen(repr=False)
class PhotonPersistentDiskVolumeSource(APIObject):
    """A disk of VMware Photon."""

    pd_id: str = field(default="", metadata=wire("pdID", required=True))
    fs_type: str = ""


@frozen(repr=False)
class PortworxVolumeSource(APIObject):
    """A Portworx volume."""

    volume_id: str = field(default="", metadata=wire("volumeID", required=True))
    fs_type: str = ""
    read_only: bool = False


@frozen(repr=False)
class QuobyteVolumeSource(APIObject):
    """A Quobyte volume."""

    registry: str = field(default="", metadata=REQUIRED)
    volume: str = field(default="", metadata=REQUIRED)
    read_only: bool = False
    user: str = ""
    group: str = ""
    tenant: str = ""


@frozen(repr=False)
class RBDVolumeSource(APIObject):
    """A Ceph block device."""

    monitors: tuple[str, ...] = field(default=(), metadata=REQUIRED)
    image: str = field(default="", metadata=REQUIRED)
    fs_type: str = ""
    pool: str = ""
    user: str = ""
    keyring: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False


@frozen(repr=False)
class ScaleIOVolumeSource(APIObject):
    """A ScaleIO volume."""

    gateway: str = field(default="", metadata=REQUIRED)
    system: str = field(default="", metadata=REQUIRED)
    secret_ref: LocalObjectReference | None = field(default=None, metadata=REQUIRED)
    ssl_enabled: bool = False
    protection_domain: str = ""
    storage_pool: str = ""
    storage_mode: str = ""
    volume_name: str = ""
    fs_type: str = ""
    read_only: bool = False


@frozen(repr=False)
class StorageOSVolumeSource(APIObject):
    """A StorageOS volume."""

    volume_name: str = ""
    volume_namespace: str = ""
    fs_type: str = ""
    read_only: bool = False
    secret_ref: LocalObjectReference | None = None


@frozen(repr=False)
class VsphereVirtualDiskVolumeSource(APIObject):
    """A disk of vSphere."""

    volume_path: str = field(default="", metadata=REQUIRED)
    fs_type: str = ""
    storage_policy_name: str = ""
    storage_policy_id: str = field(default="", metadata=wire("storagePolicyID"))
