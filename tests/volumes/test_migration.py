"""Disks of clouds as volumes of their CSI drivers. The rows are those of the library that controllers use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.api import PersistentVolume, Volume, from_dict, to_dict
from trikubelet.node.csi_node import MIGRATED
from trikubelet.volumes.migration.translate import (
    MIGRATIONS,
    TranslationError,
    azure_account,
    ebs_volume_id,
    gce_access_modes,
    migration_of,
)

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
EAST = {ZONE: "us-east-1a", REGION: "us-east-1"}
OLD_EAST = {OLD_ZONE: "us-east-1a", OLD_REGION: "us-east-1"}
VMDK = "[vsanDatastore] 6785a85e-268e-6352-a2e8-02008b7afadd/kubernetes-dynamic-pvc-68734c9f.vmdk"
DISK_URI = "/subscriptions/12/resourceGroups/23/providers/Microsoft.Compute/disks/name"
GCE = {"gcePersistentDisk": {"pdName": "test-disk", "fsType": "ext4"}}
EBS = {"awsElasticBlockStore": {"volumeID": "vol01", "fsType": "ext3", "partition": 1, "readOnly": True}}
CINDER = {"cinder": {"volumeID": "vol1", "fsType": "ext4"}}
VSPHERE = {"vsphereVolume": {"volumePath": VMDK, "fsType": "ext4", "storagePolicyName": "vSAN Default Storage Policy"}}
AZURE_FILE = {"shareName": "sharename", "secretName": "secretname", "readOnly": True}


def requirement(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}


def persistent(
    source: dict[str, Any], labels: dict[str, str] | None = None, terms: tuple[Any, ...] = (), **more: Any
) -> PersistentVolume:
    spec = {**source, **({"nodeAffinity": affinity(*terms)} if terms else {}), **more.pop("spec", {})}
    return from_dict(PersistentVolume, {"metadata": {"name": "uuid", "labels": labels or {}, **more}, "spec": spec})


def translated(volume: PersistentVolume) -> PersistentVolume:
    migration = migration_of(volume.spec)
    assert migration is not None
    return migration.persistent(volume)


def inline(source: dict[str, Any], namespace: str = "") -> PersistentVolume:
    volume = from_dict(Volume, {"name": "name", **source})
    migration = migration_of(volume)
    assert migration is not None
    return migration.inline(volume, namespace)


def csi(volume: PersistentVolume) -> dict[str, Any]:
    found: dict[str, Any] = to_dict(volume)["spec"]["csi"]
    return found


def test_all_that_is_migrated_is_announced() -> None:
    assert MIGRATED == (
        "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,"
        "kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"
    )
    assert migration_of(from_dict(Volume, {"name": "x", "emptyDir": {}})) is None


@pytest.mark.parametrize(
    ("source", "labels", "terms", "expected"),
    [
        (GCE, OLD_EAST, (), [[requirement("topology.gke.io/zone", "us-east-1a")]]),
        (GCE, EAST, (), [[requirement("topology.gke.io/zone", "us-east-1a")]]),
        (GCE, {}, ([requirement(OLD_ZONE, "us-east-2a")],), [[requirement("topology.gke.io/zone", "us-east-2a")]]),
        (
            GCE,
            {},
            ([requirement("topology.gke.io/zone", "us-east-2a")],),
            [[requirement("topology.gke.io/zone", "us-east-2a")]],
        ),
        (
            GCE,
            OLD_EAST,
            ([requirement(OLD_ZONE, "us-east-2a")],),
            [[requirement("topology.gke.io/zone", "us-east-2a")]],
        ),
        (
            GCE,
            {OLD_ZONE: "europe-west1-b__europe-west1-c"},
            (),
            [[requirement("topology.gke.io/zone", "europe-west1-b", "europe-west1-c")]],
        ),
        (
            GCE,
            {ZONE: "europe-west1-b__europe-west1-c"},
            ([requirement(ZONE, "europe-west1-f", "europe-west1-g")],),
            [[requirement("topology.gke.io/zone", "europe-west1-f", "europe-west1-g")]],
        ),
        (
            GCE,
            {},
            ([requirement(ZONE, "europe-west1-f")], [requirement(ZONE, "europe-west1-g")]),
            [
                [requirement("topology.gke.io/zone", "europe-west1-f")],
                [requirement("topology.gke.io/zone", "europe-west1-g")],
            ],
        ),
        (
            GCE,
            {},
            ([requirement(OLD_ZONE, "us-east-2a"), requirement(OLD_REGION, "us-east-2")],),
            [[requirement("topology.gke.io/zone", "us-east-2a"), requirement(REGION, "us-east-2")]],
        ),
        (EBS, OLD_EAST, (), [[requirement("topology.ebs.csi.aws.com/zone", "us-east-1a")]]),
        (
            EBS,
            EAST,
            ([requirement(ZONE, "us-east-2a")],),
            [[requirement("topology.ebs.csi.aws.com/zone", "us-east-2a")]],
        ),
        (CINDER, OLD_EAST, (), [[requirement("topology.cinder.csi.openstack.org/zone", "us-east-1a")]]),
        (
            CINDER,
            OLD_EAST,
            ([requirement(OLD_ZONE, "us-east-2a")],),
            [[requirement("topology.cinder.csi.openstack.org/zone", "us-east-2a")]],
        ),
        (
            VSPHERE,
            {OLD_ZONE: "z1", OLD_REGION: "r1"},
            (),
            [[requirement("topology.csi.vmware.com/zone", "z1"), requirement("topology.csi.vmware.com/region", "r1")]],
        ),
        (
            VSPHERE,
            {},
            ([requirement(ZONE, "z1"), requirement(REGION, "r1")],),
            [[requirement("topology.csi.vmware.com/zone", "z1"), requirement("topology.csi.vmware.com/region", "r1")]],
        ),
    ],
)
def test_a_nodes_zone_has_the_drivers_label(
    source: dict[str, Any], labels: dict[str, str], terms: tuple[Any, ...], expected: list[Any]
) -> None:
    found = translated(persistent(source, labels, terms))
    assert to_dict(found)["spec"]["nodeAffinity"] == affinity(*expected)


def test_a_zone_of_blanks_is_none() -> None:
    assert translated(persistent(EBS, {ZONE: " __ "})).spec.node_affinity is None


@pytest.mark.parametrize(
    ("source", "more", "expected"),
    [
        (
            EBS,
            {},
            {
                "driver": "ebs.csi.aws.com",
                "volumeHandle": "vol01",
                "readOnly": True,
                "fsType": "ext3",
                "volumeAttributes": {"partition": "1"},
            },
        ),
        (
            CINDER,
            {},
            {"driver": "cinder.csi.openstack.org", "volumeHandle": "vol1", "fsType": "ext4"},
        ),
        (
            {"azureDisk": {"diskURI": DISK_URI, "cachingMode": "cachingmode", "fsType": "fstype", "readOnly": True}},
            {},
            {
                "driver": "disk.csi.azure.com",
                "volumeHandle": DISK_URI,
                "fsType": "fstype",
                "readOnly": True,
                "volumeAttributes": {"cachingmode": "cachingmode", "fstype": "fstype", "kind": "Managed"},
            },
        ),
        (
            {"azureFile": {**AZURE_FILE, "secretNamespace": "secretnamespace"}},
            {"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}},
            {
                "driver": "file.csi.azure.com",
                "volumeHandle": "rg#secretname#sharename#uuid#secretnamespace",
                "readOnly": True,
                "volumeAttributes": {"sharename": "sharename"},
                "nodeStageSecretRef": {"name": "secretname", "namespace": "secretnamespace"},
            },
        ),
        (
            {"azureFile": {**AZURE_FILE, "secretName": "azure-storage-account-acc-secret"}},
            {"spec": {"claimRef": {"namespace": "claims"}}},
            {
                "driver": "file.csi.azure.com",
                "volumeHandle": "#acc#sharename#uuid#claims",
                "readOnly": True,
                "volumeAttributes": {"sharename": "sharename"},
                "nodeStageSecretRef": {"name": "azure-storage-account-acc-secret", "namespace": "claims"},
            },
        ),
        (
            VSPHERE,
            {},
            {
                "driver": "csi.vsphere.vmware.com",
                "volumeHandle": VMDK,
                "fsType": "ext4",
                "volumeAttributes": {"storagepolicyname": "vSAN Default Storage Policy"},
            },
        ),
        (
            {"portworxVolume": {"volumeID": "ID", "fsType": "type"}},
            {
                "annotations": {
                    "openstorage.io/auth-secret-name": "auth",
                    "openstorage.io/auth-secret-namespace": "px",
                }
            },
            {
                "driver": "pxd.portworx.com",
                "volumeHandle": "ID",
                "fsType": "type",
                **{
                    f"{which}SecretRef": {"name": "auth", "namespace": "px"}
                    for which in ("controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand")
                },
            },
        ),
        (
            {"portworxVolume": {"volumeID": "ID"}},
            {"annotations": {"openstorage.io/auth-secret-name": "auth"}},
            {"driver": "pxd.portworx.com", "volumeHandle": "ID"},
        ),
    ],
)
def test_a_persistent_volume_names_the_driver(
    source: dict[str, Any], more: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = translated(persistent(source, **more))
    assert csi(found) == expected
    [field] = source
    assert field not in to_dict(found)["spec"], "the old source is gone"


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ({}, "zones/UNSPECIFIED"),
        ({OLD_ZONE: "europe-west1-b"}, "zones/europe-west1-b"),
        ({ZONE: "europe-west1-b"}, "zones/europe-west1-b"),
        ({OLD_ZONE: "us-a1-b", ZONE: "europe-west1-b"}, "zones/us-a1-b"),
        ({ZONE: "europe-west1-b__europe-west1-c"}, "regions/europe-west1"),
    ],
)
def test_a_disk_of_google_is_named_by_its_zone_or_region(labels: dict[str, str], place: str) -> None:
    found = csi(translated(persistent(GCE, labels)))
    assert found["volumeHandle"] == f"projects/UNSPECIFIED/{place}/disks/test-disk"
    assert found["volumeAttributes"] == {"partition": ""}


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((), ()),
        (("ReadWriteOnce",), ("ReadWriteOnce",)),
        (("ReadOnlyMany",), ("ReadOnlyMany",)),
        (("ReadWriteMany",), ("ReadWriteOnce",)),
        (("ReadOnlyMany", "ReadWriteOnce"), ("ReadWriteOnce",)),
        (("ReadWriteOnce", "ReadWriteMany"), ("ReadWriteOnce",)),
        (("ReadWriteMany", "ReadOnlyMany"), ("ReadWriteOnce",)),
        (("ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany"), ("ReadWriteOnce",)),
        (("ReadWriteOncePod",), ("ReadWriteOnce",)),
    ],
)
def test_a_disk_of_google_never_has_many_writers(modes: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert gce_access_modes(modes) == expected


@pytest.mark.parametrize(
    ("volume_id", "expected"),
    [
        ("vol-02399794d890f9375", "vol-02399794d890f9375"),
        ("aws:///vol-02399794d890f9375", "vol-02399794d890f9375"),
        ("aws://us-west-2a/vol-02399794d890f9375", "vol-02399794d890f9375"),
    ],
)
def test_a_disk_of_amazon_has_several_names(volume_id: str, expected: str) -> None:
    assert ebs_volume_id(volume_id) == expected


@pytest.mark.parametrize(
    ("source", "name", "mode", "expected"),
    [
        (
            EBS,
            "ebs.csi.aws.com-vol01",
            "ReadWriteOnce",
            {
                "driver": "ebs.csi.aws.com",
                "volumeHandle": "vol01",
                "readOnly": True,
                "fsType": "ext3",
                "volumeAttributes": {"partition": "1"},
            },
        ),
        (
            {"gcePersistentDisk": {"pdName": "foo", "readOnly": True, "partition": 3}},
            "pd.csi.storage.gke.io-foo",
            "ReadOnlyMany",
            {
                "driver": "pd.csi.storage.gke.io",
                "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/foo",
                "readOnly": True,
                "volumeAttributes": {"partition": "3"},
            },
        ),
        (
            CINDER,
            "cinder.csi.openstack.org-vol1",
            "ReadWriteOnce",
            {"driver": "cinder.csi.openstack.org", "volumeHandle": "vol1", "fsType": "ext4"},
        ),
        (
            {"azureDisk": {"diskName": "diskname", "diskURI": "datadiskuri", "cachingMode": ""}},
            "datadiskuri",
            "ReadWriteOnce",
            {"driver": "disk.csi.azure.com", "volumeHandle": "datadiskuri", "volumeAttributes": {"kind": "Managed"}},
        ),
        (
            {"azureFile": AZURE_FILE},
            "#secretname#sharename#name#default",
            "ReadWriteMany",
            {
                "driver": "file.csi.azure.com",
                "volumeHandle": "#secretname#sharename#name#default",
                "readOnly": True,
                "volumeAttributes": {"sharename": "sharename"},
                "nodeStageSecretRef": {"name": "secretname", "namespace": "default"},
            },
        ),
        (
            VSPHERE,
            f"csi.vsphere.vmware.com-{VMDK}",
            "ReadWriteOnce",
            {
                "driver": "csi.vsphere.vmware.com",
                "volumeHandle": VMDK,
                "fsType": "ext4",
                "volumeAttributes": {"storagepolicyname": "vSAN Default Storage Policy"},
            },
        ),
        (
            {"portworxVolume": {"volumeID": "ID", "fsType": "type", "readOnly": True}},
            "pxd.portworx.com-ID",
            "ReadOnlyMany",
            {"driver": "pxd.portworx.com", "volumeHandle": "ID", "fsType": "type"},
        ),
    ],
)
def test_an_inline_volume_becomes_a_persistent_one(
    source: dict[str, Any], name: str, mode: str, expected: dict[str, Any]
) -> None:
    found = inline(source)
    assert (found.metadata.name, found.spec.access_modes, found.spec.volume_mode) == (name, (mode,), "Filesystem")
    assert csi(found) == expected


def test_the_secret_of_a_pods_share_is_in_the_pods_namespace() -> None:
    found = csi(inline({"azureFile": AZURE_FILE}, "test"))
    assert found["volumeHandle"] == "#secretname#sharename#name#test"
    assert found["nodeStageSecretRef"] == {"name": "secretname", "namespace": "test"}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"azureDisk": {"diskURI": DISK_URI, "kind": "Dedicated"}}, r"kind\(Dedicated\) is not supported in csi"),
        ({"azureFile": AZURE_FILE}, "could not find a secret namespace in PersistentVolumeSource or ClaimRef"),
        (
            {"awsElasticBlockStore": {"volumeID": "aws://us-west-2a/02399794d890f9375"}},
            r"failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume \(aws://us-west-2a/",
        ),
    ],
)
def test_what_the_driver_cannot_serve_is_refused(source: dict[str, Any], text: str) -> None:
    with pytest.raises(TranslationError, match=text):
        translated(persistent(source))


@pytest.mark.parametrize(
    ("secret", "account"),
    [
        ("azure-storage-account-acc-secret", "acc"),
        ("x-azure-storage-account-a-secret-b-secret-y", "a-secret-b"),
        ("azure-storage-account--secret", "azure-storage-account--secret"),
        ("azure-storage-account-acc", "azure-storage-account-acc"),
        ("-secret", "-secret"),
        ("", ""),
    ],
)
def test_a_secret_of_azure_is_named_after_its_account(secret: str, account: str) -> None:
    assert azure_account(secret) == account


_TEXT = st.text(max_size=30) | st.sampled_from(["aws://a/b", "a-b-c__d-e-f", "azure-storage-account-x-secret", "__"])
_FIELDS = ("volumeID", "pdName", "diskName", "diskURI", "kind", "cachingMode", "shareName", "secretName", "volumePath")


@given(
    field=st.sampled_from(sorted(MIGRATIONS)),
    source=st.dictionaries(st.sampled_from(_FIELDS), _TEXT),
    labels=st.dictionaries(st.sampled_from([ZONE, REGION, OLD_ZONE, OLD_REGION]), _TEXT),
    keys=st.lists(st.lists(st.sampled_from([ZONE, OLD_ZONE, OLD_REGION, "other"]), max_size=3), max_size=3),
)
def test_whatever_a_volume_says_it_is_translated_or_refused(
    field: str, source: dict[str, str], labels: dict[str, str], keys: list[list[str]]
) -> None:
    head, *tail = field.split("_")
    name = head + "".join(word.capitalize() for word in tail)
    terms = tuple([requirement(key, "a") for key in term] for term in keys)
    try:
        volume = persistent({name: source}, labels, terms)
        found = to_dict(translated(volume))["spec"]
    except TranslationError:
        return
    assert found["csi"]["driver"] == MIGRATIONS[field].driver
    assert name not in found


@pytest.mark.parametrize("zones", ["europe-west1-b__us-east1-c", "europe-west1-b__nowhere"])
def test_zones_of_no_one_region_are_refused(zones: str) -> None:
    with pytest.raises(TranslationError, match="failed to get region from zones"):
        translated(persistent(GCE, {ZONE: zones}))


def test_every_kind_has_the_field_in_pods_and_in_persistent_volumes() -> None:
    volume, spec = from_dict(Volume, {"name": "x"}), persistent({}).spec
    assert all(hasattr(holder, field) for field in MIGRATIONS for holder in (volume, spec))
