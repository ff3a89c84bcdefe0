"""Storage and certificates of pods as an API server sends them, and as it expects them."""

from __future__ import annotations

import importlib
from datetime import UTC, datetime
from typing import Any

import pytest

from trikubelet import api
from trikubelet.api import (
    APIObject,
    ClusterTrustBundle,
    Condition,
    CSIDriver,
    CSIDriverSpec,
    CSIPersistentVolumeSource,
    CSITokenRequest,
    HostPathVolumeSource,
    KubernetesObject,
    LocalVolumeSource,
    NFSVolumeSource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimCondition,
    PersistentVolumeSpec,
    PodCertificateRequest,
    PodCertificateRequestSpec,
    Quantity,
    SecretReference,
    VolumeAttachment,
    VolumeAttachmentStatus,
    VolumeError,
    from_dict,
    to_dict,
)

MODULES = ("persistent_volumes", "csi_objects", "certificate_objects")
VOLUME: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "pv-1", "finalizers": ["kubernetes.io/pv-protection"]},
    "spec": {
        "capacity": {"storage": "10Gi"},
        "csi": {
            "driver": "disk.example.com",
            "volumeHandle": "vol-1",
            "fsType": "ext4",
            "volumeAttributes": {"zone": "a"},
            "nodeStageSecretRef": {"name": "s", "namespace": "storage"},
        },
        "accessModes": ["ReadWriteOnce"],
        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": "data", "uid": "u"},
        "persistentVolumeReclaimPolicy": "Delete",
        "mountOptions": ["noatime"],
        "volumeMode": "Filesystem",
        "nodeAffinity": {
            "required": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}
                ]
            }
        },
        "aNewField": True,
    },
    "status": {"phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"},
}


def test_a_volume_has_its_source_beside_its_other_fields() -> None:
    volume = from_dict(PersistentVolume, VOLUME)
    assert volume.spec.csi == CSIPersistentVolumeSource(
        driver="disk.example.com",
        volume_handle="vol-1",
        fs_type="ext4",
        volume_attributes={"zone": "a"},
        node_stage_secret_ref=SecretReference("s", "storage"),
    )
    assert volume.spec.capacity == {"storage": Quantity("10Gi")}
    assert volume.spec.claim_ref == ObjectReference(kind="PersistentVolumeClaim", namespace="ns", name="data", uid="u")
    assert volume.spec.mount_options == ("noatime",)
    requirement = NodeSelectorRequirement("kubernetes.io/hostname", "In", ("a",))
    affinity = volume.spec.node_affinity
    assert affinity is not None
    assert affinity.required == NodeSelector((NodeSelectorTerm(match_expressions=(requirement,)),))
    assert to_dict(volume) == VOLUME


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            {"hostPath": {"path": "/data", "type": "Directory"}},
            PersistentVolumeSpec(host_path=HostPathVolumeSource("/data", "Directory")),
        ),
        ({"local": {"path": "/dev/sdb"}}, PersistentVolumeSpec(local=LocalVolumeSource("/dev/sdb"))),
        (
            {"nfs": {"server": "s", "path": "/e", "readOnly": True}},
            PersistentVolumeSpec(nfs=NFSVolumeSource("s", "/e", read_only=True)),
        ),
    ],
)
def test_kinds_of_sources(source: dict[str, Any], expected: PersistentVolumeSpec) -> None:
    assert from_dict(PersistentVolumeSpec, source) == expected
    assert to_dict(expected) == source


def test_every_source_of_a_volume_has_a_name() -> None:
    names = [
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "hostPath",
        "glusterfs",
        "nfs",
        "rbd",
        "iscsi",
        "cinder",
        "cephfs",
        "fc",
        "flocker",
        "flexVolume",
        "azureFile",
        "vsphereVolume",
        "quobyte",
        "azureDisk",
        "photonPersistentDisk",
        "portworxVolume",
        "scaleIO",
        "local",
        "storageos",
        "csi",
    ]
    spec = from_dict(PersistentVolumeSpec, {name: {} for name in names})
    assert spec.unknown_fields == {}
    assert set(to_dict(spec)) == set(names)


def test_a_claim_says_what_it_got() -> None:
    wire: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "ns"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}},
            "volumeName": "pv-1",
        },
        "status": {
            "phase": "Bound",
            "capacity": {"storage": "5Gi"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        },
    }
    claim = from_dict(PersistentVolumeClaim, wire)
    assert claim.spec.volume_name == "pv-1"
    assert claim.status.capacity == {"storage": Quantity("5Gi")}
    assert claim.status.conditions == (PersistentVolumeClaimCondition(type="FileSystemResizePending", status="True"),)
    assert to_dict(claim) == wire


def test_a_driver_says_how_its_volumes_are_treated() -> None:
    wire: dict[str, Any] = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": "disk.example.com"},
        "spec": {
            "attachRequired": False,
            "podInfoOnMount": True,
            "fsGroupPolicy": "File",
            "tokenRequests": [{"audience": ""}, {"audience": "vault", "expirationSeconds": 600}],
            "requiresRepublish": True,
            "seLinuxMount": False,
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
            "nodeAllocatableUpdatePeriodSeconds": 60,
        },
    }
    driver = from_dict(CSIDriver, wire)
    assert driver.spec == CSIDriverSpec(
        attach_required=False,
        pod_info_on_mount=True,
        fs_group_policy=api.FS_GROUP_FILE,
        token_requests=(CSITokenRequest(""), CSITokenRequest("vault", 600)),
        requires_republish=True,
        se_linux_mount=False,
        volume_lifecycle_modes=("Persistent", "Ephemeral"),
        node_allocatable_update_period_seconds=60,
    )
    assert to_dict(driver) == wire


def test_an_attachment_says_whether_it_is_one() -> None:
    status = {
        "attached": False,
        "attachmentMetadata": {"device": "sdb"},
        "attachError": {"time": "2026-01-01T00:00:00Z", "message": "no room", "errorCode": 8},
    }
    attachment = from_dict(
        VolumeAttachment,
        {"spec": {"attacher": "d", "nodeName": "a", "source": {"persistentVolumeName": "pv-1"}}, "status": status},
    )
    assert attachment.spec.source.persistent_volume_name == "pv-1"
    assert attachment.status == VolumeAttachmentStatus(
        attachment_metadata={"device": "sdb"},
        attach_error=VolumeError(datetime(2026, 1, 1, tzinfo=UTC), "no room", 8),
    )
    assert to_dict(attachment.status) == status
    assert "sdb" not in repr(attachment)


def test_trust_bundles_are_text() -> None:
    wire = {"metadata": {"name": "x"}, "spec": {"signerName": "example.com/ca", "trustBundle": "-----BEGIN"}}
    bundle = from_dict(ClusterTrustBundle, wire)
    assert (bundle.api_version, bundle.spec.trust_bundle) == ("certificates.k8s.io/v1beta1", "-----BEGIN")


def test_a_request_for_a_pods_certificate() -> None:
    spec = PodCertificateRequestSpec(
        "example.com/pods", "web", "u1", "default", "u2", "a", "u3", 3600, stub_pkcs10_request=b"der"
    )
    wire = {
        "signerName": "example.com/pods",
        "podName": "web",
        "podUID": "u1",
        "serviceAccountName": "default",
        "serviceAccountUID": "u2",
        "nodeName": "a",
        "nodeUID": "u3",
        "maxExpirationSeconds": 3600,
        "stubPKCS10Request": "ZGVy",
    }
    assert to_dict(spec) == wire
    assert from_dict(PodCertificateRequestSpec, wire) == spec
    status = {
        "conditions": [
            {
                "type": "Issued",
                "status": "True",
                "reason": "R",
                "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
        "certificateChain": "-----BEGIN",
        "beginRefreshAt": "2026-01-01T01:00:00Z",
    }
    request = from_dict(PodCertificateRequest, {"status": status})
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert request.status.conditions == (Condition("Issued", "True", 0, when, "R", "m"),)
    assert request.status.begin_refresh_at == datetime(2026, 1, 1, 1, tzinfo=UTC)
    assert to_dict(request)["status"] == status


CLASSES = [
    value
    for name in api.__all__
    if isinstance(value := getattr(api, name), type)
    and issubclass(value, APIObject)
    and value.__module__.rpartition(".")[2] in MODULES
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_is_read_and_written(cls: type[APIObject]) -> None:
    written = to_dict(cls())
    assert from_dict(cls, written) == cls()
    assert to_dict(from_dict(cls, {**written, "aNewField": 1}))["aNewField"] == 1
    if issubclass(cls, KubernetesObject):
        assert written["kind"] == cls.__name__


def test_all_classes_are_public() -> None:
    declared = {
        value
        for name in MODULES
        for value in vars(importlib.import_module(f"trikubelet.api.{name}")).values()
        if isinstance(value, type) and value.__module__.endswith(name)
    }
    assert set(CLASSES) == declared
