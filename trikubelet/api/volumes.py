"""Volumes that a node agent can provide itself or by a CSI driver."""

from __future__ import annotations

from attrs import field

from trikubelet.api.environment import ObjectFieldSelector, ResourceFieldSelector
from trikubelet.api.meta import LabelSelector, ObjectMeta
from trikubelet.api.quantity import Quantity
from trikubelet.api.references import LocalObjectReference, TypedLocalObjectReference, TypedObjectReference
from trikubelet.api.resources import VolumeResourceRequirements
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, Int32, wire
from trikubelet.api.storage_volumes import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    AzureFileVolumeSource,
    CephFSVolumeSource,
    CinderVolumeSource,
    FCVolumeSource,
    FlexVolumeSource,
    FlockerVolumeSource,
    GCEPersistentDiskVolumeSource,
    GlusterfsVolumeSource,
    ISCSIVolumeSource,
    NFSVolumeSource,
    PhotonPersistentDiskVolumeSource,
    PortworxVolumeSource,
    QuobyteVolumeSource,
    RBDVolumeSource,
    ScaleIOVolumeSource,
    StorageOSVolumeSource,
    VsphereVirtualDiskVolumeSource,
)
from trikubelet.formats.values import frozen


@frozen(repr=False)
class HostPathVolumeSource(APIObject):
    """A file or directory of the node."""

    path: str = field(default="", metadata=REQUIRED)
    type: str | None = None


@frozen(repr=False)
class EmptyDirVolumeSource(APIObject):
    """A directory that lives as long as the pod, on disk (medium empty), in memory or on huge pages."""

    medium: str = ""
    size_limit: Quantity | None = None


@frozen(repr=False)
class KeyToPath(APIObject):
    """Which key becomes which file, and with what mode."""

    key: str = field(default="", metadata=REQUIRED)
    path: str = field(default="", metadata=REQUIRED)
    mode: Int32 | None = None


@frozen(repr=False)
class SecretVolumeSource(APIObject):
    """The keys of a secret as files."""

    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: Int32 | None = None
    optional: bool | None = None


@frozen(repr=False)
class ConfigMapVolumeSource(APIObject):
    """The keys of a config map as files."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: Int32 | None = None
    optional: bool | None = None


@frozen(repr=False)
class DownwardAPIVolumeFile(APIObject):
    """A field or resource of the pod as a file."""

    path: str = field(default="", metadata=REQUIRED)
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: Int32 | None = None


@frozen(repr=False)
class DownwardAPIVolumeSource(APIObject):
    """Fields of the pod as files."""

    items: tuple[DownwardAPIVolumeFile, ...] = ()
    default_mode: Int32 | None = None


@frozen(repr=False)
class SecretProjection(APIObject):
    """Keys of a secret, in a projected volume."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


@frozen(repr=False)
class ConfigMapProjection(APIObject):
    """Keys of a config map, in a projected volume."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


@frozen(repr=False)
class DownwardAPIProjection(APIObject):
    """Fields of the pod, in a projected volume."""

    items: tuple[DownwardAPIVolumeFile, ...] = ()


@frozen(repr=False)
class ServiceAccountTokenProjection(APIObject):
    """A token of the pod's service account, renewed before it expires (seconds)."""

    audience: str = ""
    expiration_seconds: int | None = None
    path: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class ClusterTrustBundleProjection(APIObject):
    """Trust anchors of the cluster as one PEM file."""

    name: str | None = None
    signer_name: str | None = None
    label_selector: LabelSelector | None = None
    optional: bool | None = None
    path: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class PodCertificateProjection(APIObject):
    """A key and a certificate for the pod, renewed before it expires."""

    signer_name: str = ""
    key_type: str = ""
    max_expiration_seconds: Int32 | None = None
    credential_bundle_path: str = ""
    key_path: str = ""
    certificate_chain_path: str = ""
    user_annotations: dict[str, str] = field(default=EMPTY)


@frozen(repr=False)
class VolumeProjection(APIObject):
    """One part of a projected volume; exactly one field is set."""

    secret: SecretProjection | None = None
    downward_api: DownwardAPIProjection | None = field(default=None, metadata=wire("downwardAPI"))
    config_map: ConfigMapProjection | None = None
    service_account_token: ServiceAccountTokenProjection | None = None
    cluster_trust_bundle: ClusterTrustBundleProjection | None = None
    pod_certificate: PodCertificateProjection | None = None


@frozen(repr=False)
class ProjectedVolumeSource(APIObject):
    """Several sources in one directory."""

    sources: tuple[VolumeProjection, ...] = field(default=(), metadata=REQUIRED)
    default_mode: Int32 | None = None


@frozen(repr=False)
class ImageVolumeSource(APIObject):
    """The files of an OCI image or artifact, read-only."""

    reference: str = ""
    pull_policy: str = ""


@frozen(repr=False)
class CSIVolumeSource(APIObject):
    """An inline volume of a CSI driver."""

    driver: str = field(default="", metadata=REQUIRED)
    read_only: bool | None = None
    fs_type: str | None = None
    volume_attributes: dict[str, str] = field(default=EMPTY)
    node_publish_secret_ref: LocalObjectReference | None = None


@frozen(repr=False)
class PersistentVolumeClaimVolumeSource(APIObject):
    """The volume bound to a claim of the pod's namespace."""

    claim_name: str = field(default="", metadata=REQUIRED)
    read_only: bool = False


@frozen(repr=False)
class PersistentVolumeClaimSpec(APIObject):
    """What a claim asks of a volume."""

    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: VolumeResourceRequirements = field(factory=VolumeResourceRequirements)
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    data_source: TypedLocalObjectReference | None = None
    data_source_ref: TypedObjectReference | None = None
    volume_attributes_class_name: str | None = None


@frozen(repr=False)
class PersistentVolumeClaimTemplate(APIObject):
    """The claim that is made for the pod."""

    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: PersistentVolumeClaimSpec = field(factory=PersistentVolumeClaimSpec)


@frozen(repr=False)
class EphemeralVolumeSource(APIObject):
    """A volume whose claim is made with the pod and goes with it."""

    volume_claim_template: PersistentVolumeClaimTemplate | None = None


@frozen(repr=False)
class GitRepoVolumeSource(APIObject):
    """A git checkout; switched off in today's Kubernetes."""

    repository: str = field(default="", metadata=REQUIRED)
    revision: str = ""
    directory: str = ""


@frozen(repr=False)
class Volume(APIObject):
    """A named volume of a pod; exactly one source is set."""

    name: str = field(default="", metadata=REQUIRED)
    host_path: HostPathVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDiskVolumeSource | None = None
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    git_repo: GitRepoVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    nfs: NFSVolumeSource | None = None
    iscsi: ISCSIVolumeSource | None = None
    glusterfs: GlusterfsVolumeSource | None = None
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    rbd: RBDVolumeSource | None = None
    flex_volume: FlexVolumeSource | None = None
    cinder: CinderVolumeSource | None = None
    cephfs: CephFSVolumeSource | None = None
    flocker: FlockerVolumeSource | None = None
    downward_api: DownwardAPIVolumeSource | None = field(default=None, metadata=wire("downwardAPI"))
    fc: FCVolumeSource | None = None
    azure_file: AzureFileVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    vsphere_volume: VsphereVirtualDiskVolumeSource | None = None
    quobyte: QuobyteVolumeSource | None = None
    azure_disk: AzureDiskVolumeSource | None = None
    photon_persistent_disk: PhotonPersistentDiskVolumeSource | None = None
    projected: ProjectedVolumeSource | None = None
    portworx_volume: PortworxVolumeSource | None = None
    scale_io: ScaleIOVolumeSource | None = field(default=None, metadata=wire("scaleIO"))
    storageos: StorageOSVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    image: ImageVolumeSource | None = None
