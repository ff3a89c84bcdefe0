"""Volumes, devices and files in containers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.runtime.conftest import FakeMounts, Node, make_container, make_pod
from trikubelet.api import (
    Container,
    Pod,
    PodSpec,
    VolumeDevice,
    VolumeMount,
)
from trikubelet.container.errors import ContainerConfigError
from trikubelet.rpc.cri import v1
from trikubelet.runtime.containers.mounts import (
    container_devices,
    container_mounts,
    hosts_file_mount,
    sub_path_of,
    volume_mount,
    wants_hosts_file,
)

if TYPE_CHECKING:
    from trio.testing import MockClock


def pod(*containers: Container, **spec: Any) -> Pod:
    return Pod(spec=PodSpec(containers=containers, **spec))


async def test_a_mount_is_read_only_when_it_or_its_volume_says_so(tmp_path: Path) -> None:
    mounts = FakeMounts(tmp_path)
    mounts.paths = {"conf": tmp_path / "conf", "data": tmp_path / "data"}
    mounts.read_only = {"conf"}
    container = Container(
        name="main",
        volume_mounts=(
            VolumeMount(name="conf", mount_path="/conf"),
            VolumeMount(name="conf", mount_path="/part", sub_path="part"),
            VolumeMount(name="data", mount_path="/data"),
            VolumeMount(name="data", mount_path="/view", read_only=True),
            VolumeMount(name="models", mount_path="/models"),
        ),
    )
    made = await container_mounts(
        pod(container), container, {}, mounts, image_volumes={"models": v1.ImageSpec(image="sha256:1")}
    )
    assert {one.container_path: one.readonly for one in made} == {
        "/conf": True,
        "/part": True,
        "/data": False,
        "/view": True,
        "/models": True,
    }


def test_a_mount_path_without_a_root_gets_one() -> None:
    assert volume_mount(VolumeMount(name="data", mount_path="data")).container_path == "/data"


@pytest.mark.parametrize(
    ("mode", "propagation"),
    [
        (None, v1.MountPropagation.PROPAGATION_PRIVATE),
        ("None", v1.MountPropagation.PROPAGATION_PRIVATE),
        ("HostToContainer", v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER),
        ("Bidirectional", v1.MountPropagation.PROPAGATION_BIDIRECTIONAL),
    ],
)
def test_mount_propagation_is_translated(mode: str | None, propagation: v1.MountPropagation) -> None:
    mount = VolumeMount(name="data", mount_path="/d", mount_propagation=mode)
    assert volume_mount(mount).propagation == propagation


def test_an_unknown_propagation_is_refused() -> None:
    with pytest.raises(ContainerConfigError, match='invalid MountPropagation mode: "Sideways"'):
        volume_mount(VolumeMount(name="data", mount_path="/d", mount_propagation="Sideways"))


@pytest.mark.parametrize(
    ("mode", "supported", "made"),
    [
        (None, True, False),
        ("Disabled", True, False),
        ("IfPossible", True, True),
        ("IfPossible", False, False),
        ("Enabled", True, True),
    ],
)
def test_recursive_read_only_mounts_depend_on_the_runtime(mode: str | None, supported: bool, made: bool) -> None:
    mount = VolumeMount(name="v", mount_path="/d", read_only=True, recursive_read_only=mode, mount_propagation="None")
    assert volume_mount(mount, recursive_read_only=supported).recursive_read_only is made


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"recursive_read_only": "Enabled"}, 'volume "v" requested recursive read-only mode, but it is not read-only'),
        (
            {"recursive_read_only": "IfPossible"},
            'volume "v" requested recursive read-only mode, but it is not read-only',
        ),
        (
            {"recursive_read_only": "IfPossible", "read_only": True, "mount_propagation": "HostToContainer"},
            'volume "v" requested recursive read-only mode, but it is not compatible with propagation '
            '"HostToContainer"',
        ),
        (
            {"recursive_read_only": "Enabled", "read_only": True},
            'volume "v" requested recursive read-only mode, but it is not supported by the runtime',
        ),
        ({"recursive_read_only": "Perhaps", "read_only": True}, 'unknown recursive read-only mode "Perhaps"'),
    ],
)
def test_recursive_read_only_mounts_that_cannot_be_had_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ContainerConfigError) as refused:
        volume_mount(VolumeMount(name="v", mount_path="/d", **fields))
    assert str(refused.value) == f"failed to resolve recursive read-only mode: {problem}"


def test_sub_paths_are_expanded_and_stay_inside() -> None:
    assert sub_path_of(VolumeMount(sub_path="a/b"), {}) == "a/b"
    assert sub_path_of(VolumeMount(sub_path_expr="$(POD)/logs"), {"POD": "web"}) == "web/logs"
    for mount, problem in (
        (VolumeMount(sub_path_expr="$(POD)"), "missing value for POD"),
        (VolumeMount(sub_path_expr="$$" * 140_000), "subPathExpr: with its references expanded"),
        (VolumeMount(sub_path="/etc"), "must not be an absolute path"),
        (VolumeMount(sub_path="a/../.."), r"must not contain '\.\.'"),
    ):
        with pytest.raises(ContainerConfigError, match=problem):
            sub_path_of(mount, {})


async def test_volumes_are_mounted_in_the_containers_order(tmp_path: Path) -> None:
    mounts = FakeMounts(tmp_path)
    mounts.paths = {"data": tmp_path / "data"}
    image = v1.ImageSpec(image="sha256:1", user_specified_image="models")
    container = Container(
        name="main",
        volume_mounts=(
            VolumeMount(name="models", mount_path="/models", sub_path="small"),
            VolumeMount(name="data", mount_path="/logs", sub_path_expr="$(POD)"),
            VolumeMount(name="data", mount_path="/data"),
        ),
    )
    made = await container_mounts(pod(container), container, {"POD": "web"}, mounts, image_volumes={"models": image})
    assert [(one.container_path, one.host_path, one.image.image, one.image_sub_path) for one in made] == [
        ("/models", "", "sha256:1", "small"),
        ("/logs", str(tmp_path / "data" / "web"), "", ""),
        ("/data", str(tmp_path / "data"), "", ""),
    ]
    assert mounts.bound == [("main", 1, "data", "web")]


@pytest.mark.parametrize("devices", [{}, {"data": "/dev/sda"}], ids=["nothing", "a device"])
async def test_a_volume_that_is_not_there_is_named(tmp_path: Path, devices: dict[str, str]) -> None:
    mounts = FakeMounts(tmp_path)
    mounts.devices = devices
    container = Container(name="main", volume_mounts=(VolumeMount(name="data", mount_path="/data", sub_path="a"),))
    with pytest.raises(ContainerConfigError, match='cannot find volume "data" to mount into container "main"'):
        await container_mounts(pod(container), container, {}, mounts)
    assert mounts.bound == []


async def test_a_sub_path_that_leads_out_is_refused_without_details(tmp_path: Path) -> None:
    mounts = FakeMounts(tmp_path)
    mounts.paths = {"data": tmp_path}
    mount = VolumeMount(name="data", mount_path="/data", sub_path="escape")
    container = Container(name="main", volume_mounts=(mount,))
    with pytest.raises(ContainerConfigError) as refused:
        await container_mounts(pod(container), container, {}, mounts)
    assert str(refused.value) == 'failed to prepare subPath for volumeMount "data" of container "main"'


def test_block_devices_are_passed_in_with_the_rights_of_their_volume(tmp_path: Path) -> None:
    wanted = (VolumeDevice(name="a", device_path="/dev/a"), VolumeDevice(name="b", device_path="/dev/b"))
    container = Container(name="main", volume_devices=wanted)
    mounts = FakeMounts(tmp_path)
    mounts.devices, mounts.read_only = {"a": "/dev/sda", "b": "/dev/sdb"}, {"b"}
    made = container_devices(pod(container), container, mounts)
    assert [(one.container_path, one.host_path, one.permissions) for one in made] == [
        ("/dev/a", "/dev/sda", "mrw"),
        ("/dev/b", "/dev/sdb", "r"),
    ]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("dev/a", "error DevicePath `dev/a` must be an absolute path"),
        ("/dev/a", 'cannot find volume "a" to pass into container "main"'),
    ],
)
def test_a_device_that_cannot_be_had_is_refused(tmp_path: Path, path: str, problem: str) -> None:
    mounts = FakeMounts(tmp_path)
    mounts.paths = {"a": tmp_path}
    container = Container(name="main", volume_devices=(VolumeDevice(name="a", device_path=path),))
    with pytest.raises(ContainerConfigError) as refused:
        container_devices(pod(container), container, mounts)
    assert str(refused.value) == problem


def test_the_hosts_file_is_not_put_over_the_pods_own() -> None:
    plain = Container(name="main")
    own = Container(name="main", volume_mounts=(VolumeMount(name="h", mount_path="/etc/hosts"),))
    assert wants_hosts_file(pod(plain), plain, ["10.0.0.1"])
    assert not wants_hosts_file(pod(plain), plain, [])
    assert wants_hosts_file(pod(plain, host_network=True), plain, [])
    assert not wants_hosts_file(pod(own), own, ["10.0.0.1"])


def test_the_hosts_file_gets_a_label_only_where_there_are_labels() -> None:
    assert not hosts_file_mount(Path("/x")).selinux_relabel
    assert hosts_file_mount(Path("/x"), selinux=True).selinux_relabel


async def test_a_container_with_a_device_that_is_not_there_waits(autojump_clock: MockClock, node: Node) -> None:
    device = VolumeDevice(name="disk", device_path="/dev/disk")
    pod = make_pod(make_container(volume_devices=(device,)))
    result = await node.sync(pod)
    failed = result.results[-1]
    assert failed.reason == "CreateContainerConfigError"
    assert failed.message == 'cannot find volume "disk" to pass into container "main"'
    assert ("Failed", f"Error: {failed.message}") in node.said(pod)
