"""What is said to drivers: the kubelet's own tables, as facts."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import betterproto
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.volumes.csi.stage import EXPIRES, NAME, POD, csi_driver, inline, persistent
from trikubelet.api import PersistentVolume, SecretReference, Volume
from trikubelet.api.references import LocalObjectReference
from trikubelet.kube_client.volume_objects import Token
from trikubelet.rpc.csi import v1
from trikubelet.volumes.csi import rules
from trikubelet.volumes.csi.rules import Capability, Mode, Source
from trikubelet.volumes.errors import TransientVolumeError, VolumeError
from trikubelet.volumes.model import VolumeSpec

PRECISE = frozenset({Capability.SINGLE_NODE_MULTI_WRITER})
OWN = Source(driver=NAME, handle="csi-1", ephemeral=True)
BOUND = Source(driver=NAME, handle="vol/1", ephemeral=False)


@pytest.mark.parametrize(
    ("modes", "plain", "precise"),
    [
        (("ReadWriteOnce",), 1, 7),
        (("ReadOnlyMany",), 3, 3),
        (("ReadWriteMany",), 5, 5),
        (("ReadWriteOncePod",), 1, 6),
        ((), 1, 7),
        (("ReadOnlyMany", "ReadWriteOnce"), 3, 3),
        (("Unheard",), 0, 0),
    ],
)
def test_the_first_access_mode_becomes_that_of_csi(modes: tuple[str, ...], plain: int, precise: int) -> None:
    source = Source(NAME, "vol/1", ephemeral=False, access_modes=modes)
    assert rules.access_mode(source, frozenset()) == plain
    assert rules.access_mode(source, PRECISE) == precise


def test_an_inline_volume_is_written_by_one_node() -> None:
    assert rules.access_mode(OWN, frozenset()) is Mode.SINGLE_NODE_WRITER


def test_the_capability_has_what_the_volume_asks_for() -> None:
    source = Source(NAME, "vol/1", ephemeral=False, fs_type="xfs", mount_options=("noatime", "ro"))
    capability = rules.volume_capability(source, frozenset(), group=1234)
    assert betterproto.which_one_of(capability, "access_type")[0] == "mount"
    mount = capability.mount
    assert (mount.fs_type, mount.mount_flags, mount.volume_mount_group) == ("xfs", ["noatime", "ro"], "1234")


def test_a_block_volume_has_neither_file_system_nor_options() -> None:
    source = Source(NAME, "vol/1", ephemeral=False, fs_type="xfs", mount_options=("noatime",))
    capability = v1.VolumeCapability.FromString(bytes(rules.volume_capability(source, PRECISE, block=True)))
    assert betterproto.which_one_of(capability, "access_type")[0] == "block"
    assert capability.access_mode.mode is Mode.SINGLE_NODE_MULTI_WRITER


@pytest.mark.parametrize(
    ("policy", "fs_type", "modes", "read_only", "ephemeral", "expected"),
    [
        ("None", "ext4", ("ReadWriteOnce",), False, False, False),
        ("File", "", (), False, False, True),
        ("File", "ext4", ("ReadWriteMany",), False, False, True),
        ("File", "ext4", ("ReadWriteOnce",), True, False, False),
        ("ReadWriteOnceWithFSType", "ext4", ("ReadWriteOnce",), False, False, True),
        ("ReadWriteOnceWithFSType", "ext4", ("ReadWriteOncePod",), False, False, True),
        ("ReadWriteOnceWithFSType", "ext4", ("ReadOnlyMany", "ReadWriteOnce"), False, False, True),
        ("ReadWriteOnceWithFSType", "", ("ReadWriteOnce",), False, False, False),
        ("ReadWriteOnceWithFSType", "ext4", ("ReadWriteMany",), False, False, False),
        ("ReadWriteOnceWithFSType", "ext4", (), False, False, False),
        ("ReadWriteOnceWithFSType", "ext4", ("ReadWriteOnce",), True, False, False),
        ("ReadWriteOnceWithFSType", "ext4", (), False, True, True),
        ("ReadWriteOnceWithFSType", "", (), False, True, False),
    ],
)
def test_files_get_the_pods_group_by_the_drivers_policy(
    policy: str, fs_type: str, modes: tuple[str, ...], read_only: bool, ephemeral: bool, expected: bool
) -> None:
    source = Source(NAME, "v", ephemeral=ephemeral, read_only=read_only, fs_type=fs_type, access_modes=modes)
    assert rules.takes_fs_group(source, policy, 1000) is expected
    assert not rules.takes_fs_group(source, policy, None)


def test_without_an_object_the_policy_is_the_old_one() -> None:
    assert rules.fs_group_policy("data", None) == "ReadWriteOnceWithFSType"
    assert rules.fs_group_policy("data", csi_driver(fs_group_policy="File")) == "File"


def test_an_object_without_a_policy_is_waited_for() -> None:
    with pytest.raises(TransientVolumeError, match="expected valid fsGroupPolicy, received nil value"):
        rules.fs_group_policy("data", csi_driver(fs_group_policy=None))


@pytest.mark.parametrize(
    ("modes", "source", "problem"),
    [
        (None, BOUND, None),
        (None, OWN, f'volume mode "Ephemeral" not supported by driver {NAME} (no CSIDriver object)'),
        ((), BOUND, None),
        (
            ("Persistent",),
            OWN,
            f'volume mode "Ephemeral" not supported by driver {NAME} (only supports ["Persistent"])',
        ),
        (
            ("Ephemeral",),
            BOUND,
            f'volume mode "Persistent" not supported by driver {NAME} (only supports ["Ephemeral"])',
        ),
        (("Persistent", "Ephemeral"), OWN, None),
    ],
)
def test_a_driver_says_which_volumes_it_takes(
    modes: tuple[str, ...] | None, source: Source, problem: str | None
) -> None:
    driver = None if modes is None else csi_driver(volume_lifecycle_modes=modes)
    if problem is None:
        rules.check_lifecycle("data", driver, source)
        return
    with pytest.raises(TransientVolumeError) as caught:
        rules.check_lifecycle("data", driver, source)
    assert caught.value.problem == problem


@pytest.mark.parametrize(("required", "expected"), [(None, True), (True, True), (False, False)])
def test_volumes_are_attached_unless_the_driver_needs_it_not(required: bool | None, expected: bool) -> None:
    assert rules.requires_attach(csi_driver(attach_required=required)) is expected
    assert rules.requires_attach(None)


def test_what_an_object_does_not_say_is_not_wanted() -> None:
    for driver in (None, csi_driver(pod_info_on_mount=None, requires_republish=None)):
        assert not rules.wants_pod_info(driver)
        assert not rules.requires_republish(driver)
        assert not rules.tokens_in_secrets(driver)


def test_names_are_the_kubelets_hashes() -> None:
    assert rules.inline_handle("uid", "vol") == "csi-" + hashlib.sha256(b"uidvol").hexdigest()
    assert rules.attachment_name("h", "d", "n") == "csi-" + hashlib.sha256(b"hdn").hexdigest()
    assert rules.unique_name(persistent(), "uid-web") == f"kubernetes.io/csi/{NAME}^vol/1"
    assert rules.unique_name(inline(), "uid-web") == "kubernetes.io/csi/uid-web-own"


def test_a_persistent_volume_tells_everything_itself() -> None:
    references: dict[str, Any] = {
        name: SecretReference(name=name, namespace="storage")
        for name in ("node_stage_secret_ref", "node_publish_secret_ref", "node_expand_secret_ref")
    }
    spec = persistent(
        read_only=True, spec={"mount_options": ("ro",)}, fs_type="ext4", volume_attributes={"a": "b"}, **references
    )
    source = rules.source_of(spec)
    assert (source.driver, source.handle, source.ephemeral, source.read_only) == (NAME, "vol/1", False, True)
    assert (source.fs_type, source.mount_options, dict(source.attributes)) == ("ext4", ("ro",), {"a": "b"})
    assert (source.stage_secret, source.publish_secret, source.expand_secret) == tuple(references.values())


def test_an_inline_volumes_secret_is_its_pods() -> None:
    spec = inline(node_publish_secret_ref=LocalObjectReference(name="key"), read_only=True, fs_type="ext4")
    source = rules.source_of(spec, "uid-web", "shop")
    assert source.publish_secret == SecretReference(name="key", namespace="shop")
    assert (source.ephemeral, source.read_only, source.fs_type) == (True, True, "ext4")
    assert source.handle == rules.inline_handle("uid-web", "own")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (VolumeSpec("data", "pv-1", "kubernetes.io/csi"), "volume source not found"),
        (VolumeSpec("data", "pv-1", "kubernetes.io/csi", persistent=PersistentVolume()), "volume source not found"),
        (VolumeSpec("data", "data", "kubernetes.io/csi", volume=Volume(name="data")), "volume source not found"),
    ],
)
def test_a_specification_without_a_csi_volume_is_refused(spec: VolumeSpec, problem: str) -> None:
    with pytest.raises(VolumeError, match=problem):
        rules.source_of(spec)


def test_the_driver_learns_of_the_pod() -> None:
    assert rules.pod_info(POD, OWN) == {
        "csi.storage.k8s.io/pod.name": "web",
        "csi.storage.k8s.io/pod.namespace": "shop",
        "csi.storage.k8s.io/pod.uid": "uid-web",
        "csi.storage.k8s.io/serviceAccount.name": "seller",
        "csi.storage.k8s.io/ephemeral": "true",
    }
    assert rules.pod_info(POD, BOUND)["csi.storage.k8s.io/ephemeral"] == "false"


def test_tokens_are_one_entry_by_audience() -> None:
    tokens = {"vault": Token("abc", EXPIRES, EXPIRES), "": Token("def", EXPIRES, EXPIRES)}
    entry = rules.tokens_entry(tokens)
    assert list(entry) == ["csi.storage.k8s.io/serviceAccount.tokens"]
    assert json.loads(entry["csi.storage.k8s.io/serviceAccount.tokens"]) == {
        "": {"token": "def", "expirationTimestamp": "2026-01-01T01:00:00Z"},
        "vault": {"token": "abc", "expirationTimestamp": "2026-01-01T01:00:00Z"},
    }
    assert rules.tokens_entry({}) == {}


def test_usage_comes_by_unit() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    usage = rules.usage_of(
        "data",
        [
            v1.VolumeUsage(available=1, total=3, used=2, unit=v1.VolumeUsageUnit.BYTES),
            v1.VolumeUsage(available=10, total=30, used=20, unit=v1.VolumeUsageUnit.INODES),
            v1.VolumeUsage(available=99),
        ],
        at,
    )
    assert (usage.available, usage.capacity, usage.used) == (1, 3, 2)
    assert (usage.inodes_free, usage.inodes, usage.inodes_used) == (10, 30, 20)
    assert usage.at == at


def test_what_the_driver_does_not_count_is_not_known() -> None:
    reply = [v1.VolumeUsage(total=3, unit=v1.VolumeUsageUnit.BYTES)]
    assert rules.usage_of("data", reply, EXPIRES).inodes is None
    with pytest.raises(VolumeError, match="usage is nil"):
        rules.usage_of("data", [], EXPIRES)


def test_only_mounts_of_strangers_keep_a_volume_staged() -> None:
    staged = "/var/lib/kubelet/plugins/kubernetes.io/csi/d/1/globalmount"
    elsewhere = "/mnt/kubelet/plugins/kubernetes.io/csi/d/1/globalmount"
    pod = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount"
    assert rules.other_references(staged, [elsewhere]) == []
    assert rules.other_references(staged, [elsewhere, pod, "/backup"]) == [pod, "/backup"]


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_two_pods_share_an_inline_volume(uid: str, other: str) -> None:
    assert (rules.inline_handle(uid, "v") == rules.inline_handle(other, "v")) is (uid == other)
