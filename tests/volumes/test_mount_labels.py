"""Which SELinux label volumes are mounted with: the kubelet's tables (`Test_AddPodToVolume_SELinuxSinglePod`,
`Test_AddPodToVolume_SELinux_MultiplePods`, `TestGetMountSELinuxLabel`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.linux.test_selinux import FEDORA
from tests.volumes.fake_kind import FakeKind
from trikubelet.api import PersistentVolume, Pod, from_dict, pod_from_dict
from trikubelet.linux.selinux import ContainerLabels
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.model import MountLabel, VolumeSpec
from trikubelet.volumes.mount_labels import (
    CONTAINERS,
    PODS,
    VOLUMES,
    MountLabels,
    access_mode,
    container_options,
    mount_option,
)

RWOP, RWO, RWX, ROX = "ReadWriteOncePod", "ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"
LEVEL = {"level": "s0:c1,c2"}
FULL = {"user": "system_u", "role": "object_r", "type": "container_t", **LEVEL}
OTHER = {**FULL, "level": "s0:c98,c99"}
LABEL = "system_u:object_r:container_file_t:s0:c1,c2"
OTHER_LABEL = "system_u:object_r:container_file_t:s0:c98,c99"
RECURSIVE, BY_MOUNT = "Recursive", "MountOption"


def pod(options: dict[str, str] | None = None, policy: str | None = None, *containers: dict[str, str] | None) -> Pod:
    """`containers`: what each asks for itself; without any, one that asks for nothing."""
    security: dict[str, Any] = {} if options is None else {"seLinuxOptions": options}
    if policy is not None:
        security["seLinuxChangePolicy"] = policy
    made = [
        {
            "name": f"c{index}",
            "image": "i",
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            **({} if own is None else {"securityContext": {"seLinuxOptions": own}}),
        }
        for index, own in enumerate(containers or (None,))
    ]
    return pod_from_dict({"metadata": {"name": "web"}, "spec": {"containers": made, "securityContext": security}})


def volume(*modes: str) -> VolumeSpec:
    persistent = {"csi": {"driver": "disks", "volumeHandle": "1"}, "accessModes": list(modes)}
    return VolumeSpec("data", "pv-1", "kubernetes.io/csi", persistent=from_dict(PersistentVolume, {"spec": persistent}))


def kind(*, labelling: bool = True) -> FakeKind:
    return FakeKind(plugin="kubernetes.io/csi", root=Path("/"), labelling=labelling)


@pytest.mark.parametrize(
    ("every_mode", "supported", "mode", "options", "policy", "used"),
    [
        (False, True, RWOP, FULL, None, LABEL),
        (False, True, RWOP, LEVEL, None, LABEL),
        (False, True, RWOP, None, None, ""),
        (False, False, RWOP, FULL, None, ""),
        (False, True, RWX, FULL, None, ""),
        (False, True, RWX, FULL, RECURSIVE, ""),
        (False, True, RWX, FULL, BY_MOUNT, ""),
        (False, True, RWOP, FULL, RECURSIVE, ""),
        (False, True, RWOP, FULL, BY_MOUNT, LABEL),
        (True, True, RWX, FULL, None, LABEL),
        (True, True, RWX, FULL, RECURSIVE, ""),
        (True, True, RWX, FULL, BY_MOUNT, LABEL),
        (True, True, RWOP, FULL, RECURSIVE, ""),
        (True, True, RWOP, FULL, BY_MOUNT, LABEL),
    ],
)
def test_a_pods_volume_has_its_label(
    every_mode: bool, supported: bool, mode: str, options: dict[str, str] | None, policy: str | None, used: str
) -> None:
    labels = MountLabels(FEDORA, every_mode=every_mode)
    found = labels.of(pod(options, policy), volume(mode), kind(labelling=supported), None)
    assert found.used == used


@pytest.mark.parametrize(
    ("every_mode", "mode", "first", "second", "problem"),
    [
        (False, RWOP, (FULL, None), (FULL, None), None),
        (False, RWOP, (FULL, None), (OTHER, None), (LABEL, OTHER_LABEL)),
        (False, RWX, (FULL, None), (FULL, None), None),
        (False, RWOP, (FULL, RECURSIVE), (FULL, RECURSIVE), None),
        (False, RWOP, (FULL, RECURSIVE), (FULL, None), ("", LABEL)),
        (False, RWX, (FULL, RECURSIVE), (FULL, RECURSIVE), None),
        (False, RWX, (FULL, BY_MOUNT), (FULL, BY_MOUNT), None),
        (False, RWX, (FULL, BY_MOUNT), (FULL, RECURSIVE), None),
        (False, RWX, (FULL, RECURSIVE), (OTHER, RECURSIVE), None),
        (False, RWX, (FULL, BY_MOUNT), (OTHER, BY_MOUNT), None),
        (True, RWOP, (FULL, None), (FULL, None), None),
        (True, RWOP, (FULL, RECURSIVE), (FULL, RECURSIVE), None),
        (True, RWOP, (FULL, RECURSIVE), (FULL, None), ("", LABEL)),
        (True, RWX, (FULL, RECURSIVE), (FULL, RECURSIVE), None),
        (True, RWX, (FULL, BY_MOUNT), (FULL, BY_MOUNT), None),
        (True, RWX, (FULL, None), (FULL, BY_MOUNT), None),
        (True, RWX, (FULL, BY_MOUNT), (FULL, RECURSIVE), (LABEL, "")),
        (True, RWX, (FULL, RECURSIVE), (OTHER, RECURSIVE), None),
        (True, RWX, (FULL, BY_MOUNT), (OTHER, BY_MOUNT), (LABEL, OTHER_LABEL)),
    ],
)
def test_pods_that_share_a_volume_have_to_agree(
    every_mode: bool,
    mode: str,
    first: tuple[dict[str, str], str | None],
    second: tuple[dict[str, str], str | None],
    problem: tuple[str, str] | None,
) -> None:
    labels, spec = MountLabels(FEDORA, every_mode=every_mode), volume(mode)
    agreed = labels.of(pod(*first), spec, kind(), None)
    if problem is None:
        assert labels.of(pod(*second), spec, kind(), agreed).used == agreed.used
        assert not labels.errors[VOLUMES]
        return
    with pytest.raises(VolumeError) as refused:
        labels.of(pod(*second), spec, kind(), agreed)
    had, asked = problem
    assert refused.value.problem == f'conflicting SELinux labels of volume pv-1: "{had}" and "{asked}"'
    assert labels.errors[VOLUMES] == {("kubernetes.io/csi/disks", "RWOP" if mode == RWOP else "RWX"): 1}


@pytest.mark.parametrize(
    ("policy", "supported", "known"),
    [(None, True, LABEL), (RECURSIVE, True, ""), (BY_MOUNT, True, LABEL), (None, False, ""), (BY_MOUNT, False, "")],
)
def test_what_a_label_would_be_does_not_depend_on_the_access_mode(
    policy: str | None, supported: bool, known: str
) -> None:
    for mode in (RWOP, RWX):
        found = MountLabels(FEDORA).of(pod(LEVEL, policy), volume(mode), kind(labelling=supported), None)
        assert found.known == known


def test_containers_that_ask_for_the_same_have_one_label() -> None:
    found = MountLabels(FEDORA).of(pod(None, None, FULL, LEVEL, None), volume(RWOP), kind(), None)
    assert found == MountLabel(LABEL, LABEL)


@pytest.mark.parametrize("policy", [None, RECURSIVE])
@pytest.mark.parametrize("supported", [True, False])
def test_containers_of_a_pod_have_to_agree(policy: str | None, supported: bool) -> None:
    labels, divided = MountLabels(FEDORA), pod(LEVEL, policy, FULL, OTHER)
    with pytest.raises(VolumeError) as refused:
        labels.of(divided, volume(RWOP), kind(labelling=supported), None)
    assert refused.value.problem == f"multiple SELinux labels found: {LABEL},{OTHER_LABEL}"
    # Of what is not mounted with labels yet is only counted; what others have agreed to does not matter then.
    for spec in (volume(RWX), VolumeSpec("data", "data", "kubernetes.io/empty-dir")):
        assert labels.of(divided, spec, kind(labelling=supported), MountLabel(LABEL)) == MountLabel()
    assert labels.errors[PODS] == {("RWOP",): 1}
    assert labels.warnings[PODS] == {("RWX",): 1, ("inline",): 1}
    assert not labels.warnings[VOLUMES]


def test_a_policy_that_is_not_understood_holds_up_volumes_that_need_it() -> None:
    labels = MountLabels(ContainerLabels("nonsense", "nonsense"))
    with pytest.raises(VolumeError, match="failed to construct SELinux label: expected a SELinux label"):
        labels.of(pod(LEVEL), volume(RWOP), kind(), None)
    assert labels.of(pod(LEVEL), volume(RWX), kind(), None) == MountLabel()
    assert labels.errors[CONTAINERS] == {("RWOP",): 1}
    assert labels.warnings[CONTAINERS] == {("RWX",): 1}


@pytest.mark.parametrize("found", [LABEL, OTHER_LABEL, ""])
def test_what_a_pod_has_is_what_it_keeps(found: str) -> None:
    labels = MountLabels(FEDORA)
    for others in (None, MountLabel(OTHER_LABEL, OTHER_LABEL)):
        assert labels.of(pod(LEVEL), volume(RWOP), kind(), others, has=found) == MountLabel(found, found)
    # Without labels it only matters for what is counted.
    assert labels.of(pod(LEVEL), volume(RWO), kind(), None, has="") == MountLabel(LABEL, "")
    assert not any(labels.errors.values())


def test_without_selinux_nothing_is_asked_or_counted() -> None:
    labels = MountLabels()
    assert not labels.selinux
    assert labels.of(pod(LEVEL, None, FULL, OTHER), volume(RWOP), kind(), MountLabel("x", "x")) == MountLabel()
    assert not labels.admitted
    assert not any([*labels.errors.values(), *labels.warnings.values()])


def test_a_volume_with_a_label_is_counted_once() -> None:
    labels = MountLabels(FEDORA)
    agreed = labels.of(pod(LEVEL), volume(RWO), kind(), None)
    labels.of(pod(OTHER), volume(RWO), kind(), agreed)
    labels.of(pod(), volume(RWOP), kind(), None)
    assert labels.admitted == {("kubernetes.io/csi/disks", "RWO"): 1}
    assert labels.warnings[VOLUMES] == {("kubernetes.io/csi/disks", "RWO"): 1}


@pytest.mark.parametrize(
    ("modes", "shown"),
    [((), ""), ((RWOP,), "RWOP"), ((RWO, RWOP), "RWO"), ((RWO, ROX), "ROX"), ((ROX, RWX, RWO), "RWX")],
)
def test_metrics_have_the_widest_access_mode(modes: tuple[str, ...], shown: str) -> None:
    assert access_mode(volume(*modes)) == shown


def test_more_access_modes_are_not_one() -> None:
    assert MountLabels(FEDORA).of(pod(LEVEL), volume(RWO, RWOP), kind(), None) == MountLabel(LABEL, "")


def test_a_label_is_quoted() -> None:
    assert mount_option(LABEL) == 'context="system_u:object_r:container_file_t:s0:c1,c2"'
    assert mount_option('a"b\\c') == r'context="a\"b\\c"'


def test_options_of_a_container_that_does_not_mount_the_volume_do_not_matter() -> None:
    made = pod(LEVEL, None, FULL, None)
    assert [options.type for options in container_options(made, "data")] == ["container_t", ""]
    assert list(container_options(made, "logs")) == []
