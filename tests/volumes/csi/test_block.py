"""Raw block volumes of CSI drivers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import betterproto
import pytest

from tests.csi_driver import CAPABILITIES, Fault, Faults
from tests.volumes.csi.stage import NAME, NODE, OTHER_POD, InlineDisk, csi_driver, csi_stage, persistent
from trikubelet.api import Quantity
from trikubelet.linux.mount_table import Mount
from trikubelet.rpc.csi import v1
from trikubelet.volumes.csi import rules
from trikubelet.volumes.csi.paths import BlockPaths
from trikubelet.volumes.csi.rules import Capability
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

POD_FOLDERS = ["pods/uid-web", "pods/uid-web/volumeDevices", "pods/uid-web/volumeDevices/kubernetes.io~csi"]
SHARED = [
    "plugins/kubernetes.io/csi/volumeDevices",
    "plugins/kubernetes.io/csi/volumeDevices/publish",
    "plugins/kubernetes.io/csi/volumeDevices/staging",
]


async def test_a_device_is_published_mapped_and_undone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach(devicePath="/dev/sdx")
        spec = persistent(block=True, fs_type="ext4", volume_attributes={"a": "b"})
        mounted = await stage.set_up(spec)
        at = BlockPaths.of(stage.root, "uid-web", "pv-1")
        image = stage.driver.storage.image("vol/1")

        assert (mounted.path, mounted.device) == (None, str(at.publish))
        assert at.link.readlink() == at.publish
        assert stage.mounter.mount_at(at.mapped).source == str(image)
        assert json.loads((at.data / "vol_data.json").read_text()) == {
            "attachmentID": rules.attachment_name("vol/1", NAME, NODE),
            "driverName": NAME,
            "nodeName": NODE,
            "specVolID": "pv-1",
            "volumeHandle": "vol/1",
        }
        staged, published = stage.driver.last(v1.NodeStageVolumeRequest), stage.driver.last(v1.NodePublishVolumeRequest)
        assert staged.staging_target_path == published.staging_target_path == str(at.staging)
        assert published.target_path == str(at.publish)
        for request in (staged, published):
            assert request.publish_context == {"devicePath": "/dev/sdx"}
            assert betterproto.which_one_of(request.volume_capability, "access_type")[0] == "block"

        await stage.kind.tear_down("uid-web", "pv-1", block=True)
        await stage.kind.unstage(stage.kind.unique_name(spec, "uid-web"), spec)
        assert stage.driver.names() == [
            "NodeStageVolume",
            "NodePublishVolume",
            "NodeUnpublishVolume",
            "NodeUnstageVolume",
        ]
        assert stage.mounter.mounts == []
        assert stage.left() == sorted(SHARED + POD_FOLDERS)


async def test_a_driver_that_cannot_stage_only_publishes(tmp_path: Path, autojump_clock: MockClock) -> None:
    capabilities = CAPABILITIES - {Capability.STAGE_UNSTAGE_VOLUME}
    async with csi_stage(tmp_path, capabilities=capabilities) as stage:
        stage.cluster.attach()
        spec = persistent(block=True, read_only=True)
        mounted = await stage.set_up(spec)
        assert mounted.read_only
        request = stage.driver.last(v1.NodePublishVolumeRequest)
        assert (request.staging_target_path, request.readonly) == ("", True)
        await stage.kind.tear_down("uid-web", "pv-1", block=True)
        await stage.kind.unstage("", spec)
        assert stage.driver.names() == ["NodePublishVolume", "NodeUnpublishVolume"]
        assert not any("vol_data" in path for path in stage.left())


async def test_everything_may_be_done_twice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        spec = persistent(block=True)
        assert await stage.set_up(spec) == await stage.set_up(spec)
        assert len(stage.mounter.mounts) == 1
        for _ in range(2):
            await stage.kind.tear_down("uid-web", "pv-1", block=True)
        for _ in range(2):
            await stage.kind.unstage("", spec)
        assert stage.driver.names().count("NodeUnpublishVolume") == 1
        assert stage.driver.names().count("NodeUnstageVolume") == 1


async def test_the_pod_is_told_to_a_driver_that_asks(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.drivers[NAME] = csi_driver(attach_required=False, pod_info_on_mount=True)
        await stage.set_up(persistent(block=True))
        context = stage.driver.last(v1.NodePublishVolumeRequest).volume_context
        assert context["csi.storage.k8s.io/pod.uid"] == "uid-web"
        assert context["csi.storage.k8s.io/ephemeral"] == "false"


async def test_two_pods_have_a_device_each_and_the_last_one_unstages(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        spec = persistent(block=True)
        await stage.set_up(spec)
        other = await stage.set_up(spec, OTHER_POD)
        await stage.kind.tear_down("uid-web", "pv-1", block=True)
        assert other.device is not None
        assert os.path.lexists(other.device)
        with pytest.raises(VolumeError, match=r"still referenced from other Pods \[uid-db\]"):
            await stage.kind.unstage("", spec)
        await stage.kind.tear_down("uid-db", "pv-1", block=True)
        await stage.kind.unstage("", spec)
        assert stage.driver.names()[-1] == "NodeUnstageVolume"


@pytest.mark.parametrize("rpc", ["NodeStageVolume", "NodePublishVolume"])
async def test_a_refusal_leaves_nothing_of_the_pod_behind(tmp_path: Path, autojump_clock: MockClock, rpc: str) -> None:
    async with csi_stage(tmp_path, faults=Faults({rpc: Fault("error", times=1)})) as stage:
        stage.cluster.attach()
        spec = persistent(block=True)
        with pytest.raises(VolumeError, match="code = Internal") as caught:
            await stage.set_up(spec)
        assert type(caught.value) is VolumeError
        assert not any(path.endswith(("uid-web/pv-1", "publish/pv-1")) for path in stage.left())
        if rpc == "NodeStageVolume":
            assert not any("pv-1" in path for path in stage.left())
        assert await stage.kind.reconstruct("uid-web", "pv-1", block=True) is None
        await stage.set_up(spec)


@pytest.mark.parametrize("rpc", ["NodeStageVolume", "NodePublishVolume"])
@pytest.mark.parametrize("kind", ["hang", "lost", "late"])
async def test_a_lost_answer_leaves_what_is_needed_to_undo(
    tmp_path: Path, autojump_clock: MockClock, rpc: str, kind: Any
) -> None:
    async with csi_stage(tmp_path, faults=Faults({rpc: Fault(kind, times=1)})) as stage:
        stage.cluster.attach()
        spec = persistent(block=True)
        with pytest.raises(UncertainVolumeError):
            await stage.set_up(spec)
        (staged,) = await stage.kind.staged_volumes()
        if rpc == "NodePublishVolume":
            assert await stage.kind.reconstruct("uid-web", "pv-1", block=True) == staged
            await stage.kind.tear_down("uid-web", "pv-1", block=True)
        await stage.kind.unstage("", staged)
        assert not any("pv-1" in path for path in stage.left())


@pytest.mark.parametrize("rpc", ["NodeUnpublishVolume", "NodeUnstageVolume"])
async def test_undoing_goes_on_until_the_driver_confirms(tmp_path: Path, autojump_clock: MockClock, rpc: str) -> None:
    async with csi_stage(tmp_path, faults=Faults({rpc: Fault("lost", times=1)})) as stage:
        stage.cluster.attach()
        spec = persistent(block=True)
        await stage.set_up(spec)

        async def undo() -> None:
            await stage.kind.tear_down("uid-web", "pv-1", block=True)
            await stage.kind.unstage("", spec)

        with pytest.raises(VolumeError):
            await undo()
        await undo()
        assert not any("pv-1" in path for path in stage.left())


async def test_a_device_is_known_again_from_the_disk(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        spec = persistent(block=True)
        await stage.set_up(spec)
        found = await stage.kind.reconstruct("uid-web", "pv-1", block=True)
        assert found is not None
        assert found.block
        assert stage.kind.unique_name(found, "uid-web") == stage.kind.unique_name(spec, "uid-web")
        assert await stage.kind.reconstruct("uid-db", "pv-1", block=True) is None


async def test_a_link_without_data_is_an_error_and_can_be_cleared(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        at = BlockPaths.of(stage.root, "uid-web", "pv-1")
        at.link.parent.mkdir(parents=True)
        at.link.symlink_to(at.publish)
        at.publish.parent.mkdir(parents=True)
        at.publish.touch()
        stage.mounter.mounts.append(Mount(point=at.publish, kind="devtmpfs"))
        with pytest.raises(VolumeError, match="failed to open volume data file"):
            await stage.kind.reconstruct("uid-web", "pv-1", block=True)
        await stage.kind.tear_down("uid-web", "pv-1", block=True)
        assert stage.mounter.mounts == []
        assert not any("pv-1" in path for path in stage.left())
        assert stage.driver.names() == []


async def test_a_link_of_another_time_is_replaced(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        at = BlockPaths.of(stage.root, "uid-web", "pv-1")
        at.link.parent.mkdir(parents=True)
        at.link.symlink_to("/dev/sdz")
        await stage.set_up(persistent(block=True))
        assert at.link.readlink() == at.publish


class ForgetfulDisk(InlineDisk):
    """Takes away what the driver published."""

    def __init__(self, at: BlockPaths) -> None:
        super().__init__()
        self._at = at

    async def run(self, work: Any) -> Any:
        self._at.publish.unlink(missing_ok=True)
        return await super().run(work)


async def test_a_driver_that_publishes_nothing_is_told_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    at = BlockPaths.of(tmp_path / "root", "uid-web", "pv-1")
    async with csi_stage(tmp_path, disk=ForgetfulDisk(at)) as stage:
        stage.cluster.attach()
        with pytest.raises(UncertainVolumeError, match=f"expected driver {NAME} to publish a device, got nothing at"):
            await stage.set_up(persistent(block=True))


async def test_a_device_is_measured_and_grown(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        spec = persistent(block=True)
        mounted = await stage.set_up(spec)
        size = Quantity("32Mi")
        await stage.kind.expand(stage.request(spec), size)
        at = BlockPaths.of(stage.root, "uid-web", "pv-1")
        request = stage.driver.last(v1.NodeExpandVolumeRequest)
        assert (request.volume_path, request.staging_target_path) == (str(at.publish), str(at.staging))
        usage = await stage.kind.usage(mounted)
        assert usage is not None
        assert usage.capacity == size.value()
        assert stage.driver.last(v1.NodeGetVolumeStatsRequest).volume_path == str(at.publish)


async def test_a_device_too_may_be_published_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    faults = Faults()
    async with csi_stage(tmp_path, faults=faults) as stage:
        stage.cluster.attach()
        stage.cluster.drivers[NAME] = csi_driver(requires_republish=True)
        spec = persistent(block=True)
        mounted = await stage.set_up(spec)
        assert mounted.refresh_at is not None
        faults.by_call["NodePublishVolume"] = Fault("error")
        with pytest.raises(VolumeError):
            await stage.kind.set_up(stage.request(spec, refresh=True))
        assert mounted.device is not None
        assert os.path.lexists(mounted.device), "the pod uses what was published before"
