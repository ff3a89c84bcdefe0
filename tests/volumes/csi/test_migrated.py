"""Disks of clouds through the CSI drivers that serve them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.volumes.csi.stage import NODE, csi_stage
from trikubelet.api import Pod, pod_from_dict
from trikubelet.rpc.csi import v1
from trikubelet.volumes.csi.drivers import Driver
from trikubelet.volumes.csi.rules import attachment_name
from trikubelet.volumes.desired import resolve_now

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

GCE = "pd.csi.storage.gke.io"
HANDLE = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk-1"


def pod_with_disk(*, read_only: bool) -> Pod:
    disk = {"pdName": "disk-1", "fsType": "ext4", "readOnly": read_only}
    mounts = [{"name": "data", "mountPath": "/data"}]
    return pod_from_dict(
        {
            "metadata": {"name": "web", "namespace": "shop", "uid": "uid-web"},
            "spec": {
                "containers": [{"name": "main", "image": "x", "volumeMounts": mounts}],
                "volumes": [{"name": "data", "gcePersistentDisk": disk}],
            },
        }
    )


async def test_a_pods_disk_is_attached_staged_published_and_undone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.drivers.add(Driver(GCE, "/csi.sock", "1.0.0"))
        stage.cluster.attach()
        [attachment] = stage.cluster.attachments.values()
        stage.cluster.attachments[attachment_name(HANDLE, GCE, NODE)] = attachment
        pod = pod_with_disk(read_only=False)
        spec = resolve_now(pod).specs["data"]
        assert stage.kind.attachable(spec), "a controller attaches it, by this name"
        assert stage.kind.unique_name(spec, "uid-web") == f"kubernetes.io/csi/{GCE}^{HANDLE}"

        mounted = await stage.set_up(spec, pod)
        staged = stage.driver.last(v1.NodeStageVolumeRequest)
        published = stage.driver.last(v1.NodePublishVolumeRequest)
        folder = stage.root / f"pods/uid-web/volumes/kubernetes.io~csi/{GCE}-disk-1"
        assert mounted.path == folder / "mount"
        assert (staged.volume_id, published.volume_id) == (HANDLE, HANDLE)
        assert (staged.volume_context, published.readonly) == ({"partition": ""}, False)
        assert staged.volume_capability.mount.fs_type == "ext4"

        found = await stage.kind.reconstruct("uid-web", spec.inner_name)
        assert found is not None
        assert stage.kind.unique_name(found, "uid-web") == stage.kind.unique_name(spec, "uid-web")
        await stage.kind.tear_down("uid-web", spec.inner_name)
        await stage.kind.unstage("", spec)
        assert not folder.exists()
        assert stage.driver.names()[-2:] == ["NodeUnpublishVolume", "NodeUnstageVolume"]
        migrated = {labels[1]: labels[3] for labels, _ in stage.drivers.durations.items()}
        assert migrated["/csi.v1.Node/NodeStageVolume"] == "true"


async def test_a_pods_disk_stays_read_only(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.drivers.add(Driver(GCE, "/csi.sock", "1.0.0"))
        stage.cluster.attach()
        [attachment] = stage.cluster.attachments.values()
        stage.cluster.attachments[attachment_name(HANDLE, GCE, NODE)] = attachment
        pod = pod_with_disk(read_only=True)
        mounted = await stage.set_up(resolve_now(pod).specs["data"], pod)
        request = stage.driver.last(v1.NodePublishVolumeRequest)
        assert (request.readonly, mounted.read_only) == (True, True)
        mode = request.volume_capability.access_mode.mode
        assert mode == v1.VolumeCapabilityAccessModeMode.MULTI_NODE_READER_ONLY
