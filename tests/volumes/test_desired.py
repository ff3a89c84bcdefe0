"""What pods want of volumes, and what is behind claims (kubelet: `desired_state_of_world_populator_test.go`)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.volumes.fake_kind import FakeKind
from tests.volumes.stage import FakeStorage, add_claim, claimed, config_map, empty_dir, pod
from trikubelet.api.storage_volumes import GCEPersistentDiskVolumeSource
from trikubelet.volumes.desired import (
    Obstacle,
    Resolved,
    Wanted,
    common_user,
    csi_driver_of,
    is_staged,
    mount_options,
    needs_credentials,
    options_obstacle,
    references,
    resolve,
    resolve_now,
    wanted_names,
)
from trikubelet.volumes.model import VolumeSpec


async def resolved(volume: dict[str, Any] | None = None, *, devices: tuple[str, ...] = (), **changes: Any) -> Resolved:
    """What a pod's claim is, with the claim and its volume changed."""
    storage = FakeStorage()
    add_claim(storage, **changes)
    return await resolve(pod("web", volume or claimed(), devices=devices), storage)


async def problem(**changes: Any) -> str:
    found = await resolved(**changes)
    assert not found.specs
    return found.problems["data"]


@pytest.mark.parametrize(
    ("source", "plugin"),
    [
        ({"emptyDir": {}}, "kubernetes.io/empty-dir"),
        ({"hostPath": {"path": "/x"}}, "kubernetes.io/host-path"),
        ({"configMap": {"name": "x"}}, "kubernetes.io/configmap"),
        ({"secret": {"secretName": "x"}}, "kubernetes.io/secret"),
        ({"downwardAPI": {}}, "kubernetes.io/downward-api"),
        ({"projected": {"sources": []}}, "kubernetes.io/projected"),
        ({"nfs": {"server": "x", "path": "/"}}, "kubernetes.io/nfs"),
        ({"csi": {"driver": "x"}}, "kubernetes.io/csi"),
        ({"iscsi": {"targetPortal": "x", "iqn": "x", "lun": 0}}, "kubernetes.io/iscsi"),
    ],
)
def test_a_volume_belongs_to_the_plugin_of_its_source(source: dict[str, Any], plugin: str) -> None:
    found = resolve_now(pod("web", {"name": "data", **source})).specs["data"]

    assert (found.plugin, found.inner_name) == (plugin, "data")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            {"azureDisk": {"diskName": "x", "diskURI": "x", "kind": "Shared"}},
            "failed to translate in-tree pv to CSI: kind(Shared) is not supported in csi migration",
        ),
        ({"cephfs": {"monitors": []}}, "provide cephfs volumes itself: install the CSI driver cephfs.csi.ceph.com"),
        ({"flocker": {}}, "use a volume of a CSI driver instead"),
        ({}, 'failed to get Plugin from volumeSpec for volume "data" err=no volume plugin matched'),
    ],
)
def test_a_kind_that_no_agent_provides_is_a_problem_that_says_what_to_do(source: dict[str, Any], text: str) -> None:
    found = resolve_now(pod("web", {"name": "data", **source}))

    assert not found.specs
    assert text in found.problems["data"]


def test_a_disk_of_a_cloud_is_a_volume_of_its_driver() -> None:
    disk = {"diskName": "x", "diskURI": "/subscriptions/12/disks/x", "kind": "Managed", "readOnly": True}
    spec = resolve_now(pod("web", {"name": "data", "azureDisk": disk})).specs["data"]

    assert (spec.plugin, spec.inner_name) == ("kubernetes.io/csi", "~subscriptions~12~disks~x")
    assert (csi_driver_of(spec), spec.migrated, spec.read_only) == ("disk.csi.azure.com", True, True)
    assert not resolve_now(pod("web", empty_dir("data"))).specs["data"].migrated


async def test_a_claimed_disk_of_a_cloud_is_where_its_driver_says() -> None:
    storage = FakeStorage()
    add_claim(storage)
    csi = storage.volumes["pv-1"]
    disk = GCEPersistentDiskVolumeSource(pd_name="disk")
    metadata = attrs.evolve(csi.metadata, labels={"topology.kubernetes.io/zone": "a"})
    spec = attrs.evolve(csi.spec, csi=None, gce_persistent_disk=disk)
    storage.volumes["pv-1"] = attrs.evolve(csi, metadata=metadata, spec=spec)
    found = await resolve(pod("web", claimed()), storage)

    assert (found.specs["data"].plugin, found.specs["data"].inner_name) == ("kubernetes.io/csi", "pv-1")
    assert (csi_driver_of(found.specs["data"]), found.specs["data"].migrated) == ("pd.csi.storage.gke.io", True)
    assert found.obstacles == {"data": Obstacle("NodeAffinity check", "no matching NodeSelectorTerms")}, (
        "the driver has not labelled the node"
    )
    labels = {**storage.node_object.metadata.labels, "topology.gke.io/zone": "a"}
    storage.node_object = attrs.evolve(
        storage.node_object, metadata=attrs.evolve(storage.node_object.metadata, labels=labels)
    )
    assert not (await resolve(pod("web", claimed()), storage)).obstacles


def test_only_what_a_container_of_any_sort_uses_is_wanted() -> None:
    image = {"name": "image", "image": {"reference": "x"}}
    web = pod("web", empty_dir("a"), empty_dir("b"), empty_dir("c"), empty_dir("d"), image, mounts=["a", "image"])
    other = pod("other", empty_dir("b"), mounts=["b"]).spec.containers
    web = attrs.evolve(web, spec=attrs.evolve(web.spec, init_containers=other))

    assert wanted_names(web) == {"a", "b"}
    assert set(resolve_now(web).specs) == {"a", "b"}


def test_a_mount_of_a_volume_that_the_pod_does_not_have_is_a_problem() -> None:
    assert resolve_now(pod("web", mounts=["x"])).problems == {"x": 'no volume with the name "x"'}


async def test_a_claim_stands_for_the_volume_that_it_is_bound_to() -> None:
    found = await resolved(annotations={"pv.beta.kubernetes.io/gid": "5000"})
    spec = found.specs["data"]

    assert not found.problems
    assert (spec.name, spec.inner_name, spec.plugin, spec.group) == ("data", "pv-1", "kubernetes.io/csi", "5000")
    assert (spec.block, spec.read_only) == (False, False)
    assert csi_driver_of(spec) == "disks.example.com"
    assert spec.persistent is not None
    assert spec.claim is not None


async def test_a_claim_may_be_used_read_only() -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}

    assert (await resolved(volume)).specs["data"].read_only


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"phase": "Pending"}, "PVC is not bound"),
        ({"phase": "Lost"}, "PVC is not bound"),
        ({"volume_name": ""}, "PVC has empty pvc.Spec.VolumeName"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "PVC is being deleted"),
        (
            {"bound_to": "uid-other"},
            "found PV object pv-1 but its pv.Spec.ClaimRef.UID uid-other does not point to claim.UID uid-claim",
        ),
        (
            {"volume_name": "pv-2"},
            'failed to fetch PV pv-2 from API server: persistentvolumes "pv-2" not found',
        ),
    ],
)
async def test_a_claim_that_cannot_be_used_is_a_problem(changes: dict[str, Any], text: str) -> None:
    assert await problem(**changes) == f"error processing PVC default/claim: {text}"


async def test_a_claim_that_is_not_there_is_a_problem() -> None:
    found = await resolve(pod("web", claimed()), FakeStorage())

    assert found.problems == {
        "data": "error processing PVC default/claim: failed to fetch PVC from API server: "
        'persistentvolumeclaims "claim" not found'
    }


async def test_a_volume_that_is_not_bound_back_is_a_problem() -> None:
    storage = FakeStorage()
    add_claim(storage)
    volume = storage.volumes["pv-1"]
    storage.volumes["pv-1"] = attrs.evolve(volume, spec=attrs.evolve(volume.spec, claim_ref=None))
    found = await resolve(pod("web", claimed()), storage)

    assert found.problems["data"].endswith(
        "found PV object pv-1 but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    )


async def test_a_claim_that_is_going_is_good_while_it_is_protected() -> None:
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["kubernetes.io/pvc-protection"]}

    assert (await resolved(metadata=going)).specs


@pytest.mark.parametrize(
    ("mode", "devices", "text"),
    [
        ("Block", (), "volume data has volumeMode Block, but is specified in volumeMounts"),
        ("Filesystem", ("data",), "volume data has volumeMode Filesystem, but is specified in volumeDevices"),
    ],
)
async def test_devices_are_no_folders(mode: str, devices: tuple[str, ...], text: str) -> None:
    assert (await resolved(devices=devices, volume_mode=mode)).problems == {"data": text}


async def test_a_block_volume_is_a_device() -> None:
    assert (await resolved(devices=("data",), volume_mode="Block")).specs["data"].block


def _state(state: str, allocated: str) -> dict[str, Any]:
    """How far growing a claim is."""
    return {
        "allocatedResourceStatuses": {"storage": state},
        "allocatedResources": {"storage": allocated},
    }


OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-web", "controller": True}


@pytest.mark.parametrize(
    ("owners", "owned"),
    [
        ([OWNER], True),
        ([], False),
        ([{**OWNER, "uid": "uid-other"}], False),
        ([{**OWNER, "controller": False}], False),
    ],
)
async def test_an_ephemeral_volume_needs_a_claim_that_was_made_for_the_pod(
    owners: list[dict[str, Any]], owned: bool
) -> None:
    volume = {"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    found = await resolved(volume, claim="web-data", metadata={"ownerReferences": owners})

    assert ("data" in found.specs) is owned
    expected = "PVC default/web-data was not created for pod default/web (pod is not owner)"
    assert found.problems == ({} if owned else {"data": expected})


async def test_problems_are_in_the_pods_order_and_other_volumes_are_known() -> None:
    storage = FakeStorage()
    web = pod("web", claimed("z", "one"), empty_dir("m"), {"name": "k"}, claimed("a", "two"))
    found = await resolve(web, storage)

    assert list(found.problems) == ["z", "k", "a"]
    assert set(found.specs) == {"m"}


@pytest.mark.parametrize(
    ("zones", "obstacle"),
    [(["a"], None), (["a", "b"], None), (["b"], Obstacle("NodeAffinity check", "no matching NodeSelectorTerms"))],
)
async def test_a_volume_of_other_nodes_is_an_obstacle(zones: list[str], obstacle: Obstacle | None) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": zones}]}]
    found = await resolved(node_affinity={"required": {"nodeSelectorTerms": terms}})

    assert found.obstacles.get("data") == obstacle
    assert "data" in found.specs


async def test_mount_options_are_an_obstacle_for_kinds_without(tmp_path: Any) -> None:
    kind = FakeKind(plugin="kubernetes.io/csi", root=tmp_path)
    spec = (await resolved(mount_options=["noatime"])).specs["data"]
    annotated = {"volume.beta.kubernetes.io/mount-options": "ro,,nosuid"}
    both = (await resolved(mount_options=["noatime"], annotations=annotated)).specs["data"]
    assert both.persistent is not None

    assert options_obstacle(spec, kind) == Obstacle(
        "MountOptionSupport check", "mount options are not supported for this volume type"
    )
    assert mount_options(both.persistent) == ("ro", "nosuid")
    assert options_obstacle((await resolved()).specs["data"], kind) is None
    kind.takes_mount_options = True
    assert options_obstacle(spec, kind) is None


async def test_a_drivers_inline_volume_is_not_staged(tmp_path: Any) -> None:
    kind = FakeKind(plugin="kubernetes.io/csi", root=tmp_path, staged=True)
    inline = resolve_now(pod("web", {"name": "data", "csi": {"driver": "x"}})).specs["data"]

    assert not is_staged(inline, kind)
    assert is_staged((await resolved()).specs["data"], kind)
    assert is_staged(VolumeSpec("pv-1", "pv-1", "kubernetes.io/csi"), kind)


@pytest.mark.parametrize(
    ("modes", "exclusive"),
    [(["ReadWriteOncePod"], True), (["ReadWriteOncePod", "ReadWriteOnce"], False), (["ReadWriteOnce"], False)],
)
async def test_a_volume_is_exclusive_by_its_only_access_mode(modes: list[str], exclusive: bool) -> None:
    spec = (await resolved(access_modes=modes)).specs["data"]

    assert Wanted(pod=pod(), spec=spec, names=("data",)).exclusive is exclusive


async def test_volumes_refer_to_the_objects_that_they_show_or_need() -> None:
    sources = [{"configMap": {"name": "c"}}, {"secret": {"name": "s"}}, {"downwardAPI": {"items": []}}]
    web = pod(
        "web",
        config_map("a", "settings"),
        {"name": "b", "secret": {"secretName": "password"}},
        {"name": "c", "projected": {"sources": sources}},
        {"name": "d", "csi": {"driver": "x", "nodePublishSecretRef": {"name": "key"}}},
        empty_dir("e"),
    )
    found = {name: references(spec, "default") for name, spec in resolve_now(web).specs.items()}

    assert found == {
        "a": {("configmaps", "default", "settings")},
        "b": {("secrets", "default", "password")},
        "c": {("configmaps", "default", "c"), ("secrets", "default", "s")},
        "d": {("secrets", "default", "key")},
        "e": frozenset(),
    }


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ({"clusterTrustBundle": {"path": "x"}}, True),
        ({"podCertificate": {"signerName": "x"}}, True),
        ({"serviceAccountToken": {"path": "x"}}, False),
    ],
)
def test_some_projected_sources_change_without_an_object(source: dict[str, Any], needed: bool) -> None:
    web = pod("web", {"name": "a", "projected": {"sources": [source]}})

    assert needs_credentials(resolve_now(web).specs["a"]) is needed


@pytest.mark.parametrize(
    ("shared", "own", "user"),
    [
        (None, [None], None),
        (1000, [None, None], 1000),
        (1000, [None, 2000], None),
        (None, [2000, 2000], 2000),
        (None, [2000, None], None),
        (0, [None], 0),
        (None, [], None),
    ],
)
def test_tokens_belong_to_the_user_that_all_containers_run_as(
    shared: int | None, own: list[int | None], user: int | None
) -> None:
    from trikubelet.api import Container, PodSecurityContext, SecurityContext

    containers = tuple(
        Container(name=f"c{number}", security_context=None if one is None else SecurityContext(run_as_user=one))
        for number, one in enumerate(own)
    )
    web = pod()
    security = PodSecurityContext(run_as_user=shared)

    spec = attrs.evolve(web.spec, containers=containers, security_context=security)
    assert common_user(attrs.evolve(web, spec=spec)) == user
