"""From the specification of a cloud's disk to that of its CSI driver's volume: one function for each kind.

Names, handles and attributes are facts that drivers, controllers and schedulers share. An inline volume becomes a
persistent volume as well, with a made-up name: it is attached and staged like one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api import (
    CSIPersistentVolumeSource,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeSpec,
    SecretReference,
    Volume,
)
from trikubelet.api.persistent_volumes import (
    READ_ONLY_MANY,
    READ_WRITE_MANY,
    READ_WRITE_ONCE,
    VOLUME_MODE_FILESYSTEM,
)
from trikubelet.formats.values import frozen
from trikubelet.volumes.migration import topology

if TYPE_CHECKING:
    from trikubelet.api import AzureDiskVolumeSource

EBS: Final = "ebs.csi.aws.com"
AZURE_DISK: Final = "disk.csi.azure.com"
AZURE_FILE: Final = "file.csi.azure.com"
CINDER: Final = "cinder.csi.openstack.org"
GCE_PD: Final = "pd.csi.storage.gke.io"
PORTWORX: Final = "pxd.portworx.com"
VSPHERE: Final = "csi.vsphere.vmware.com"

_MANAGED: Final = "Managed"
_UNSPECIFIED: Final = "UNSPECIFIED"
_RESOURCE_GROUP: Final = "kubernetes.io/azure-file-resource-group"
_DEFAULT_NAMESPACE: Final = "default"
_AUTH_SECRET: Final = ("openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace")
_STORAGE_POLICY: Final = "storagepolicyname"
_AROUND_ACCOUNT: Final = ("azure-storage-account-", "-secret")
"""In the name of an Azure secret."""


class TranslationError(Exception):
    """The volume says something that its CSI driver has no words for."""


@frozen
class Migration:
    """A kind whose volumes a CSI driver serves."""

    plugin: str
    """As CSINode announces it."""
    driver: str
    persistent: Callable[[PersistentVolume], PersistentVolume]
    """Raises TranslationError."""
    inline: Callable[[Volume, str], PersistentVolume]
    """The second argument is the pod's namespace. Raises TranslationError."""


def migration_of(source: Volume | PersistentVolumeSpec) -> Migration | None:
    """None for a volume of another kind."""
    return next((one for field, one in MIGRATIONS.items() if getattr(source, field) is not None), None)


def _inline(name: str, source: CSIPersistentVolumeSource, *modes: str) -> PersistentVolume:
    spec = PersistentVolumeSpec(csi=source, access_modes=modes, volume_mode=VOLUME_MODE_FILESYSTEM)
    return PersistentVolume(metadata=ObjectMeta(name=name), spec=spec)


def _with_source(volume: PersistentVolume, field: str, source: CSIPersistentVolumeSource) -> PersistentVolume:
    old: dict[str, Any] = {field: None}
    return attrs.evolve(volume, spec=attrs.evolve(volume.spec, csi=source, **old))


def _only(mode_if_read_only: str, *, read_only: bool) -> str:
    return mode_if_read_only if read_only else READ_WRITE_ONCE


# Amazon


def _ebs_inline(volume: Volume, _namespace: str) -> PersistentVolume:
    source = _ebs(volume)
    return _inline(f"{EBS}-{source.volume_handle}", source, READ_WRITE_ONCE)


def _ebs_persistent(volume: PersistentVolume) -> PersistentVolume:
    source = _ebs(volume.spec)
    volume = topology.with_zone_key(volume, f"topology.{EBS}/zone")
    return _with_source(volume, "aws_elastic_block_store", source)


def _ebs(holder: Volume | PersistentVolumeSpec) -> CSIPersistentVolumeSource:
    disk = holder.aws_elastic_block_store
    assert disk is not None
    return CSIPersistentVolumeSource(
        driver=EBS,
        volume_handle=ebs_volume_id(disk.volume_id),
        read_only=disk.read_only,
        fs_type=disk.fs_type,
        volume_attributes={"partition": str(disk.partition)},
    )


def ebs_volume_id(volume_id: str) -> str:
    """Of `vol-1`, `aws:///vol-1` or `aws://zone/vol-1`: `vol-1`. Raises TranslationError."""
    if not volume_id.startswith("aws://"):
        return volume_id
    found = volume_id.removeprefix("aws://").partition("/")[2].strip("/")
    if not re.fullmatch(r"vol-[^/]*", found):
        what = f"Invalid format for AWS volume ({volume_id})"
        raise TranslationError(f"failed to translate Kubernetes ID to EBS Volume ID {what}")
    return found


# Azure


def _azure_disk_inline(volume: Volume, _namespace: str) -> PersistentVolume:
    assert volume.azure_disk is not None
    disk = attrs.evolve(volume.azure_disk, caching_mode=volume.azure_disk.caching_mode or None)
    return _inline(disk.disk_uri, _azure_disk(disk), READ_WRITE_ONCE)


def _azure_disk_persistent(volume: PersistentVolume) -> PersistentVolume:
    assert volume.spec.azure_disk is not None
    return _with_source(volume, "azure_disk", _azure_disk(volume.spec.azure_disk))


def _azure_disk(disk: AzureDiskVolumeSource) -> CSIPersistentVolumeSource:
    if disk.kind is not None and disk.kind.lower() != _MANAGED.lower():
        raise TranslationError(f"kind({disk.kind}) is not supported in csi migration")
    attributes = {"kind": _MANAGED, "cachingmode": disk.caching_mode, "fstype": disk.fs_type}
    return CSIPersistentVolumeSource(
        driver=AZURE_DISK,
        volume_handle=disk.disk_uri,
        read_only=bool(disk.read_only),
        fs_type=disk.fs_type or "",
        volume_attributes={key: value for key, value in attributes.items() if value is not None},
    )


def _azure_file_inline(volume: Volume, namespace: str) -> PersistentVolume:
    share = volume.azure_file
    assert share is not None
    secret = SecretReference(name=share.secret_name, namespace=namespace or _DEFAULT_NAMESPACE)
    source = _azure_file(secret, share.share_name, volume.name, read_only=share.read_only)
    return _inline(source.volume_handle, source, READ_WRITE_MANY)


def _azure_file_persistent(volume: PersistentVolume) -> PersistentVolume:
    share, claim = volume.spec.azure_file, volume.spec.claim_ref
    assert share is not None
    namespace = share.secret_namespace
    if namespace is None:
        namespace = "" if claim is None else claim.namespace
    if not namespace:
        raise TranslationError("could not find a secret namespace in PersistentVolumeSource or ClaimRef")
    secret = SecretReference(name=share.secret_name, namespace=namespace)
    group = volume.metadata.annotations.get(_RESOURCE_GROUP, "")
    source = _azure_file(secret, share.share_name, volume.metadata.name, group=group, read_only=share.read_only)
    return _with_source(volume, "azure_file", source)


def _azure_file(
    secret: SecretReference, share: str, name: str, *, group: str = "", read_only: bool
) -> CSIPersistentVolumeSource:
    """`name`: what tells the volume from others of the same share; `group`: the resource group."""
    account = azure_account(secret.name)
    return CSIPersistentVolumeSource(
        driver=AZURE_FILE,
        volume_handle="#".join((group, account, share, name, secret.namespace)),
        read_only=read_only,
        volume_attributes={"sharename": share},
        node_stage_secret_ref=secret,
    )


def azure_account(secret: str) -> str:
    """The storage account that a secret is for, by the secret's name, which else stands for it. In linear time."""
    before, after = _AROUND_ACCOUNT
    begin = secret.find(before) + len(before)
    end = secret.rfind(after, begin + 1)
    return secret[begin:end] if before in secret and end > 0 else secret


# OpenStack


def _cinder_inline(volume: Volume, _namespace: str) -> PersistentVolume:
    source = _cinder(volume)
    return _inline(f"{CINDER}-{source.volume_handle}", source, READ_WRITE_ONCE)


def _cinder_persistent(volume: PersistentVolume) -> PersistentVolume:
    source = _cinder(volume.spec)
    return _with_source(topology.with_zone_key(volume, f"topology.{CINDER}/zone"), "cinder", source)


def _cinder(holder: Volume | PersistentVolumeSpec) -> CSIPersistentVolumeSource:
    disk = holder.cinder
    assert disk is not None
    return CSIPersistentVolumeSource(
        driver=CINDER, volume_handle=disk.volume_id, read_only=disk.read_only, fs_type=disk.fs_type
    )


# Google


def _gce_inline(volume: Volume, _namespace: str) -> PersistentVolume:
    assert volume.gce_persistent_disk is not None
    source = _gce(volume, f"zones/{_UNSPECIFIED}")
    mode = _only(READ_ONLY_MANY, read_only=source.read_only)
    return _inline(f"{GCE_PD}-{volume.gce_persistent_disk.pd_name}", source, mode)


def _gce_persistent(volume: PersistentVolume) -> PersistentVolume:
    labels = volume.metadata.labels
    zones = topology.zones_of(labels.get(topology.OLD_ZONE, "") or labels.get(topology.ZONE, ""))
    zone = zones[0] if zones else _UNSPECIFIED
    place = f"regions/{_gce_region(zones)}" if len(zones) > 1 else f"zones/{zone}"
    source = _gce(volume.spec, place)
    volume = _with_source(topology.with_zone_key(volume, "topology.gke.io/zone"), "gce_persistent_disk", source)
    modes = gce_access_modes(volume.spec.access_modes)
    return attrs.evolve(volume, spec=attrs.evolve(volume.spec, access_modes=modes))


def _gce(holder: Volume | PersistentVolumeSpec, place: str) -> CSIPersistentVolumeSource:
    """`place`: zone or region. The project is not known to the node, nor is the zone always."""
    disk = holder.gce_persistent_disk
    assert disk is not None
    return CSIPersistentVolumeSource(
        driver=GCE_PD,
        volume_handle=f"projects/{_UNSPECIFIED}/{place}/disks/{disk.pd_name}",
        read_only=disk.read_only,
        fs_type=disk.fs_type,
        volume_attributes={"partition": str(disk.partition) if disk.partition else ""},
    )


def _gce_region(zones: list[str]) -> str:
    """The region of zones such as `europe-west1-b`. Raises TranslationError."""
    parts = [zone.split("-") for zone in zones]
    wrong = next((zone for zone, part in zip(zones, parts, strict=True) if len(part) != 3), None)
    if wrong is not None:
        what = f"zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {wrong}"
        raise TranslationError(f"failed to get region from zones: {what}")
    regions = {"-".join(part[:2]) for part in parts}
    if len(regions) != 1:
        what = f"multiple or no regions gotten from zones, got: {sorted(regions)}"
        raise TranslationError(f"failed to get region from zones: {what}")
    return regions.pop()


def gce_access_modes(modes: tuple[str, ...]) -> tuple[str, ...]:
    """Many writers were never possible, but never refused either; the driver refuses them."""
    if not modes:
        return ()
    return (READ_ONLY_MANY,) if set(modes) == {READ_ONLY_MANY} else (READ_WRITE_ONCE,)


# Portworx


def _portworx_inline(volume: Volume, _namespace: str) -> PersistentVolume:
    disk = volume.portworx_volume
    assert disk is not None
    source = CSIPersistentVolumeSource(driver=PORTWORX, volume_handle=disk.volume_id, fs_type=disk.fs_type)
    return _inline(f"{PORTWORX}-{disk.volume_id}", source, _only(READ_ONLY_MANY, read_only=disk.read_only))


def _portworx_persistent(volume: PersistentVolume) -> PersistentVolume:
    disk, annotations = volume.spec.portworx_volume, volume.metadata.annotations
    assert disk is not None
    name, namespace = (annotations.get(key) for key in _AUTH_SECRET)
    secret = None if name is None or namespace is None else SecretReference(name=name, namespace=namespace)
    source = CSIPersistentVolumeSource(
        driver=PORTWORX,
        volume_handle=disk.volume_id,
        fs_type=disk.fs_type,
        controller_publish_secret_ref=secret,
        node_stage_secret_ref=secret,
        node_publish_secret_ref=secret,
        controller_expand_secret_ref=secret,
        node_expand_secret_ref=secret,
    )
    return _with_source(volume, "portworx_volume", source)


# vSphere


def _vsphere_inline(volume: Volume, _namespace: str) -> PersistentVolume:
    source = _vsphere(volume)
    return _inline(f"{VSPHERE}-{source.volume_handle}", source, READ_WRITE_ONCE)


def _vsphere_persistent(volume: PersistentVolume) -> PersistentVolume:
    source = _vsphere(volume.spec)
    volume = topology.with_zone_and_region_keys(
        volume, "topology.csi.vmware.com/zone", "topology.csi.vmware.com/region"
    )
    return _with_source(volume, "vsphere_volume", source)


def _vsphere(holder: Volume | PersistentVolumeSpec) -> CSIPersistentVolumeSource:
    disk = holder.vsphere_volume
    assert disk is not None
    policy = {_STORAGE_POLICY: disk.storage_policy_name} if disk.storage_policy_name else {}
    return CSIPersistentVolumeSource(
        driver=VSPHERE, volume_handle=disk.volume_path, fs_type=disk.fs_type, volume_attributes=policy
    )


MIGRATIONS: Final[Mapping[str, Migration]] = {
    "aws_elastic_block_store": Migration("kubernetes.io/aws-ebs", EBS, _ebs_persistent, _ebs_inline),
    "azure_disk": Migration("kubernetes.io/azure-disk", AZURE_DISK, _azure_disk_persistent, _azure_disk_inline),
    "azure_file": Migration("kubernetes.io/azure-file", AZURE_FILE, _azure_file_persistent, _azure_file_inline),
    "cinder": Migration("kubernetes.io/cinder", CINDER, _cinder_persistent, _cinder_inline),
    "gce_persistent_disk": Migration("kubernetes.io/gce-pd", GCE_PD, _gce_persistent, _gce_inline),
    "portworx_volume": Migration("kubernetes.io/portworx-volume", PORTWORX, _portworx_persistent, _portworx_inline),
    "vsphere_volume": Migration("kubernetes.io/vsphere-volume", VSPHERE, _vsphere_persistent, _vsphere_inline),
}
"""By the field of a pod's volume, and of a persistent volume's specification."""
