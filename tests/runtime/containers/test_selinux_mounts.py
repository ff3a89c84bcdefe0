"""What the runtime is asked to mount for every kind of volume, field by field, with SELinux and without (kubelet:
`makeMounts`, and `GetAttributes` of each kind)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pytest

from tests.runtime.conftest import FakeMounts, Node, make_container, make_pod
from tests.volumes.content_stage import API_ACCESS, CONFIG, DOWNWARD, SECRET, filled_stage
from tests.volumes.csi.stage import NAME, csi_driver, csi_stage, inline, persistent
from tests.volumes.flex.double import DriverDouble
from tests.volumes.scsi.san import PORTAL, San
from tests.volumes.scsi.san import disk as iscsi_disk
from tests.volumes.scsi.san import staged as scsi_staged
from tests.volumes.scsi.test_fibre_channel import WWN
from tests.volumes.scsi.test_fibre_channel import disk as fc_disk
from tests.volumes.set_ups import claimed, persistent_volume, pod_with, request
from tests.volumes.test_empty_dir import make_kind as make_empty_dir
from tests.volumes.test_host_path import make_kind as make_host_path
from tests.volumes.test_local import local, staged
from tests.volumes.test_local import make_kind as make_local
from tests.volumes.test_nfs import make_kind as make_nfs
from trikubelet.api import VolumeMount
from trikubelet.linux.mount_table import Mount
from trikubelet.rpc.cri import v1
from trikubelet.rpc.csi import v1 as csi_v1
from trikubelet.runtime.containers.mounts import (
    container_mounts,
    hosts_file_mount,
    termination_file_mount,
    termination_path,
)
from trikubelet.volumes.model import MountedVolume

if TYPE_CHECKING:
    from trio.testing import MockClock

SetUp: TypeAlias = Callable[[Path], Awaitable[MountedVolume]]


@attrs.define
class OneVolume(FakeMounts):
    """A volume as its kind set it up."""

    volume: MountedVolume
    root: Path = Path("/")

    def mounted(self, pod: object, volume_name: str) -> MountedVolume:
        return self.volume

    async def bind_subpath(self, pod: object, container: str, index: int, volume_name: str, sub_path: str) -> Path:
        return Path("/bound", str(index))


def empty_dir(**source: str) -> SetUp:
    async def set_up(root: Path) -> MountedVolume:
        kind = make_empty_dir(root, memory="1Gi")
        resources = {"requests": {"hugepages-2Mi": "4Mi"}, "limits": {"hugepages-2Mi": "4Mi"}}
        pod = pod_with({"name": "vol", "emptyDir": source}, resources=resources)
        return await kind.set_up(request(kind, pod))

    return set_up


def content(volume: dict[str, Any]) -> SetUp:
    return lambda root: filled_stage(root).set_up(volume)


def host_path(*, read_only: bool = False, persistent: bool = False) -> SetUp:
    async def set_up(root: Path) -> MountedVolume:
        kind, source = make_host_path(root), {"hostPath": {"path": "/opt"}}
        if persistent:
            return await kind.set_up(claimed(kind, persistent_volume(source), read_only=read_only))
        return await kind.set_up(request(kind, pod_with({"name": "vol", **source})))

    return set_up


def nfs(**source: Any) -> SetUp:
    async def set_up(root: Path) -> MountedVolume:
        helper = root / "mount.nfs"
        helper.write_text("#!/bin/sh\n")
        helper.chmod(0o755)
        kind = make_nfs(root)
        share = {"name": "vol", "nfs": {"server": "files", "path": "/export", **source}}
        return await kind.set_up(request(kind, pod_with(share)))

    return set_up


def local_folder(*, read_only: bool = False) -> SetUp:
    async def set_up(root: Path) -> MountedVolume:
        kind = make_local(root)
        return await staged(kind, claimed(kind, local(root), read_only=read_only))

    return set_up


def csi(*, on: str = "seclabel", label: str = "", read_only: bool = False, own: bool = False) -> SetUp:
    async def set_up(root: Path) -> MountedVolume:
        async with csi_stage(root, selinux=True) as stage:
            modes = ("Ephemeral",) if own else ("Persistent",)
            stage.cluster.drivers[NAME] = csi_driver(attach_required=False, volume_lifecycle_modes=modes)
            stage.mounter.mounts = [Mount(point=Path("/"), kind="ext4", super_options=(on,))]
            spec = inline(read_only=read_only) if own else persistent(read_only=read_only)
            return await stage.set_up(spec, label=label)

    return set_up


LABEL = "system_u:object_r:container_file_t:s0:c1,c2"


async def iscsi_volume(root: Path, san: San, spec: dict[str, Any], **more: Any) -> MountedVolume:
    san.portal(PORTAL, 2, "sda")
    kind = san.iscsi(root)
    read_only = bool(more.pop("read_only", False))
    asked = claimed(kind, iscsi_disk(spec=spec), read_only=read_only)
    return await scsi_staged(kind, attrs.evolve(asked, **more))


async def fc_volume(root: Path, san: San, spec: dict[str, Any], **more: Any) -> MountedVolume:
    san.disk("sda")
    san.link(san.folder, "by-path", f"pci-0000:41:00.0-fc-0x{WWN}-lun-0", "sda")
    kind = san.fibre_channel(root)
    read_only = bool(more.pop("read_only", False))
    asked = claimed(kind, fc_disk(spec=spec), read_only=read_only)
    return await scsi_staged(kind, attrs.evolve(asked, **more))


def on_san(volume: Callable[..., Awaitable[MountedVolume]], **more: Any) -> SetUp:
    async def set_up(root: Path) -> MountedVolume:
        with pytest.MonkeyPatch.context() as patch:
            return await volume(root, San.at(root / "san", patch), {}, **more)

    return set_up


def flex(*, read_only: bool = False, relabels: bool = True) -> SetUp:
    async def set_up(root: Path) -> MountedVolume:
        driver = DriverDouble(root / "exec").install()
        driver.answers("mount")
        kind = driver.kind(root, attach=False, selinuxRelabel=relabels)
        volume = {"name": "vol", "flexVolume": {"driver": driver.name, "readOnly": read_only}}
        return await kind.set_up(request(kind, pod_with(volume)))

    return set_up


@pytest.mark.parametrize(
    ("set_up", "read_only", "relabel"),
    [
        pytest.param(empty_dir(), False, True, id="emptyDir"),
        pytest.param(empty_dir(medium="Memory"), False, True, id="emptyDir in memory"),
        pytest.param(empty_dir(medium="HugePages"), False, True, id="emptyDir of huge pages"),
        pytest.param(content(CONFIG), True, True, id="configMap"),
        pytest.param(content(SECRET), True, True, id="secret"),
        pytest.param(content(DOWNWARD), True, True, id="downwardAPI"),
        pytest.param(content(API_ACCESS), True, True, id="projected"),
        pytest.param(host_path(), False, False, id="hostPath"),
        pytest.param(host_path(persistent=True), False, False, id="persistent hostPath"),
        pytest.param(host_path(persistent=True, read_only=True), True, False, id="read-only hostPath"),
        pytest.param(nfs(), False, False, id="nfs"),
        pytest.param(nfs(readOnly=True), True, False, id="read-only nfs"),
        pytest.param(local_folder(), False, True, id="local"),
        pytest.param(local_folder(read_only=True), True, False, id="read-only local"),
        pytest.param(csi(), False, True, id="csi"),
        pytest.param(csi(read_only=True), True, False, id="read-only csi"),
        pytest.param(csi(on="vers=4.0"), False, False, id="csi without labels"),
        pytest.param(csi(label="a:b:c:s0"), False, False, id="csi mounted with the label"),
        pytest.param(on_san(iscsi_volume), False, True, id="iscsi"),
        pytest.param(on_san(iscsi_volume, read_only=True), True, False, id="read-only iscsi"),
        pytest.param(on_san(iscsi_volume, label=LABEL), False, False, id="iscsi mounted with the label"),
        pytest.param(on_san(fc_volume), False, True, id="fc"),
        pytest.param(on_san(fc_volume, read_only=True), True, False, id="read-only fc"),
        pytest.param(on_san(fc_volume, label=LABEL), False, False, id="fc mounted with the label"),
        pytest.param(flex(), False, True, id="flexVolume"),
        pytest.param(flex(read_only=True), True, False, id="read-only flexVolume"),
        pytest.param(flex(relabels=False), False, False, id="flexVolume without labels"),
        pytest.param(csi(own=True), False, True, id="inline csi"),
        pytest.param(csi(own=True, read_only=True), True, False, id="read-only inline csi"),
    ],
)
@pytest.mark.parametrize("selinux", [True, False])
async def test_the_mounts_of_a_volume(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_up: SetUp,
    read_only: bool,
    relabel: bool,
    selinux: bool,
) -> None:
    """All mounts of the volume alike, what the container may do with them aside."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    volume = await set_up(tmp_path)
    container = make_container(
        volume_mounts=(
            VolumeMount(name="vol", mount_path="/whole"),
            VolumeMount(name="vol", mount_path="view/../part", sub_path="part", read_only=True),
        )
    )
    made = await container_mounts(make_pod(), container, {}, OneVolume(volume), selinux=selinux)
    relabelled = relabel and selinux
    assert made == [
        v1.Mount(container_path="/whole", host_path=str(volume.path), readonly=read_only, selinux_relabel=relabelled),
        v1.Mount(container_path="/part", host_path="/bound/1", readonly=True, selinux_relabel=relabelled),
    ]


OPTIONS: dict[str, Any] = {"mountOptions": ["noatime", "commit=7"]}


async def mounted_from_san(
    root: Path, volume: Callable[..., Awaitable[MountedVolume]], patch: pytest.MonkeyPatch, label: str
) -> list[str]:
    san = San.at(root / "san", patch)
    await volume(root, san, OPTIONS, label=label)
    [line] = san.calls("mount")
    flag, file_system, dash_o, *options = line.split(" ")[:4]
    assert (flag, file_system, dash_o) == ("-t", "ext4", "-o")
    return options


async def iscsi_options(root: Path, patch: pytest.MonkeyPatch, label: str) -> list[str]:
    return await mounted_from_san(root, iscsi_volume, patch, label)


async def fc_options(root: Path, patch: pytest.MonkeyPatch, label: str) -> list[str]:
    return await mounted_from_san(root, fc_volume, patch, label)


async def csi_options(root: Path, patch: pytest.MonkeyPatch, label: str) -> list[str]:
    async with csi_stage(root, selinux=True) as stage:
        stage.cluster.drivers[NAME] = csi_driver(attach_required=False, se_linux_mount=True)
        stage.mounter.mounts = [Mount(point=Path("/"), kind="ext4", super_options=("seclabel",))]
        await stage.set_up(persistent(spec={"mount_options": ("noatime", "commit=7")}), label=label)
        asked = [
            stage.driver.last(csi_v1.NodeStageVolumeRequest).volume_capability.mount.mount_flags,
            stage.driver.last(csi_v1.NodePublishVolumeRequest).volume_capability.mount.mount_flags,
        ]
        assert asked[0] == asked[1]
        return [",".join([*asked[0], "defaults"])]


@pytest.mark.parametrize("options", [iscsi_options, fc_options, csi_options])
@pytest.mark.parametrize("label", ["", LABEL])
async def test_a_label_is_one_more_option_of_the_mount(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: Callable[[Path, pytest.MonkeyPatch, str], Awaitable[list[str]]],
    label: str,
) -> None:
    """In quotes, since the level has a comma; after the volume's own options, whole."""
    own = "noatime,commit=7"
    labelled = f'{own},context="{label}"' if label else own
    assert await options(tmp_path, monkeypatch, label) == [f"{labelled},defaults"]


async def test_an_image_is_the_runtimes(tmp_path: Path) -> None:
    container = make_container(volume_mounts=(VolumeMount(name="vol", mount_path="/models"),))
    image = v1.ImageSpec(image="sha256:1")
    made = await container_mounts(
        make_pod(), container, {}, FakeMounts(tmp_path), image_volumes={"vol": image}, selinux=True
    )
    assert made == [v1.Mount(container_path="/models", readonly=True, image=image)]


@pytest.mark.parametrize("selinux", [True, False])
async def test_a_container_starts_with_all_of_them(autojump_clock: MockClock, node: Node, selinux: bool) -> None:
    """What the machine says reaches the runtime."""
    node.mounts.paths = {"cache": node.mounts.root / "cache", "opt": node.mounts.root / "opt"}
    node.mounts.relabelled = {"cache"}
    mounted = tuple(VolumeMount(name=name, mount_path=f"/{name}") for name in node.mounts.paths)
    pod = make_pod(make_container(volume_mounts=mounted, termination_message_path="/dev/termination-log"))
    manager = node.another_manager(machine=attrs.evolve(node.options.machine, selinux=selinux))
    await node.sync_with(manager, pod)
    [made] = node.sim.running_containers()
    relabelled = {mount.container_path: mount.selinux_relabel for mount in made.config.mounts}
    assert relabelled == {"/cache": selinux, "/opt": False, "/etc/hosts": selinux, "/dev/termination-log": selinux}


@pytest.mark.parametrize("selinux", [True, False])
def test_files_of_the_agent_are_relabelled(selinux: bool) -> None:
    container = make_container(termination_message_path="dev//termination-log")
    assert hosts_file_mount(Path("/h"), selinux=selinux) == v1.Mount(
        container_path="/etc/hosts", host_path="/h", selinux_relabel=selinux
    )
    assert termination_file_mount(container, Path("/t"), selinux=selinux) == v1.Mount(
        container_path="/dev/termination-log", host_path="/t", selinux_relabel=selinux
    )


@pytest.mark.parametrize(
    ("path", "made"), [("/dev/log", "/dev/log"), ("log", "/log"), ("a/../b", "/b"), ("//a//b/", "/a/b"), ("..", "/")]
)
def test_a_termination_file_has_a_plain_path(path: str, made: str) -> None:
    assert termination_path(path) == made
