"""What a container sees of volumes that outlive it or come from a CSI driver, which is a process beside the agent."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.real_node import NODE_NAME
from tests.volumes.real.joined_node import mounts
from tests.volumes.real.served_cluster import DRIVER, PROVISIONED
from trikubelet.linux.mount_table import MountTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.volumes.real.joined_node import JoinedNode

HERE = {
    "required": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]}]}
        ]
    }
}
BLOCK = {"volumeMode": "Block"}


def claimed(node: JoinedNode, name: str, **volume: Any) -> dict[str, Any]:
    """A persistent volume and a claim to it; the volume of a pod."""
    common = {"volumeMode": volume.get("volumeMode", "Filesystem"), "accessModes": ["ReadWriteOnce"]}
    spec = {"capacity": {"storage": "16Mi"}, **common, **volume}
    node.cluster.create("PersistentVolume", name, spec=spec)
    wanted = {"requests": {"storage": "16Mi"}}
    claim = {**common, "volumeName": name, "storageClassName": "", "resources": wanted}
    node.cluster.create("PersistentVolumeClaim", f"{name}-claim", spec=claim)
    return {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-claim"}}


def read_only(volume: dict[str, Any]) -> dict[str, Any]:
    return {**volume, "persistentVolumeClaim": {**volume["persistentVolumeClaim"], "readOnly": True}}


def csi(handle: str, **more: Any) -> dict[str, Any]:
    return {"driver": DRIVER, "volumeHandle": handle, **more}


def test_folders_of_the_node_behind_claims(node: JoinedNode) -> None:
    folder = node.node.shared
    for name in ("for-host-path", "for-local"):
        (folder / name).mkdir()
        (folder / name / "file").write_text(name)
    volumes = [
        claimed(node, "host-pv", hostPath={"path": str(folder / "for-host-path"), "type": "Directory"}),
        claimed(
            node,
            "local-pv",
            local={"path": str(folder / "for-local")},
            nodeAffinity=HERE,
            mountOptions=["noexec", "nosuid"],
        ),
    ]
    at = mounts(("host-pv", "/host"), ("local-pv", "/local"))
    script = """
    see /host/file /local /local/file; mounted /local; try "write to host" touch /host/x
    try "write to local" touch /local/x
    """
    node.start("claims", node.container(script, volumeMounts=at), volumes=volumes, securityContext={"fsGroup": 2000})
    seen = node.seen("claims")
    assert seen["/host/file"].endswith(" 0:0 for-host-path")
    assert seen["/local/file"] == "664 0:2000 for-local"
    assert seen["/local"] == "2775 0:2000"
    (mounted,) = [mount for mount in MountTable.read().below(node.root / "pods") if "local-volume" in str(mount.point)]
    assert {"nosuid", "noexec"} <= set(mounted.options)
    if not node.is_containerd:  # which asks runc for "rw": since 1.2 that takes all other options away
        assert {"nosuid", "noexec"} <= set(seen["mount /local"].split()[0].split(","))
    assert (seen["write to host"], seen["write to local"]) == ("yes", "yes")
    node.end("claims")
    assert (folder / "for-local" / "x").exists(), "what is in the volume stays"
    assert (folder / "for-host-path" / "x").exists(), "what is in the volume stays"


@contextlib.contextmanager
def disk(folder: Path, name: str) -> Iterator[str]:
    """A block device of the node."""
    image = folder / name
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    command = ["losetup", "--show", "-f", str(image)]
    device = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "-d", device], check=True)


def test_disks_of_the_node_as_devices_and_as_file_systems(node: JoinedNode) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4: apt-get install e2fsprogs")
    folder = node.node.shared
    with disk(folder, "raw") as raw, disk(folder, "formatted") as formatted:
        before = node.state()
        volumes = [
            claimed(node, "raw-disk", local={"path": raw}, nodeAffinity=HERE, **BLOCK),
            claimed(node, "disk", local={"path": formatted, "fsType": "ext4"}, nodeAffinity=HERE),
        ]
        script = """
        try "is a device" test -b /dev/raw; printf written | dd of=/dev/raw conv=notrunc 2>/dev/null
        see /disk; mounted /disk; echo kept > /disk/file
        """
        container = node.container(
            script,
            volumeMounts=mounts(("disk", "/disk")),
            volumeDevices=[{"name": "raw-disk", "devicePath": "/dev/raw"}],
        )
        node.start("disks", container, volumes=volumes)
        seen = node.seen("disks")
        assert seen["is a device"] == "yes"
        assert " ext4 " in seen["mount /disk"]
        node.end("disks")
        node.until_as(before)
        node.start(
            "again", node.container("see /disk/file", volumeMounts=mounts(("disk", "/disk"))), volumes=volumes[1:]
        )
        assert node.seen("again")["/disk/file"] == "644 0:0 kept~"
        node.end("again")
        node.until_as(before)
    assert (folder / "raw").read_bytes()[:7] == b"written"


def test_volumes_of_a_csi_driver(node: JoinedNode) -> None:
    node.cluster.create("Secret", "for-storage", data={"user": "bWU="})
    volumes: list[dict[str, Any]] = [
        claimed(
            node,
            "kept",
            csi=csi(
                "kept",
                volumeAttributes={"colour": "blue"},
                nodePublishSecretRef={"name": "for-storage", "namespace": "default"},
            ),
        ),
        read_only(claimed(node, "closed", csi=csi("closed"))),
        claimed(node, "raw", csi=csi("raw"), **BLOCK),
        {"name": "inline", "csi": {"driver": DRIVER, "volumeAttributes": {"for": "one pod"}}},
        {
            "name": "scratch",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "spec": {
                        "storageClassName": PROVISIONED,
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Mi"}},
                    }
                }
            },
        },
    ]
    at = mounts(("kept", "/kept"), ("closed", "/closed"), ("inline", "/inline"), ("scratch", "/scratch"))
    script = """
    see /kept /inline /scratch; echo "context: $(cat /kept/volume_context.json)"
    echo "inline: $(cat /inline/volume_context.json)"; echo one >> /kept/times; see /kept/times
    try "write to scratch" touch /scratch/x; try "write where it is closed" touch /closed/x; mounted /closed
    try "is a device" test -b /dev/raw; printf written | dd of=/dev/raw conv=notrunc 2>/dev/null
    """
    container = node.container(script, volumeMounts=at, volumeDevices=[{"name": "raw", "devicePath": "/dev/raw"}])
    before = node.state()
    node.start("stored", container, volumes=volumes, securityContext={"fsGroup": 2000})
    seen = node.seen("stored")
    pod = node.pod("stored")
    assert pod is not None
    context = json.loads(seen["context"])
    tokens = json.loads(context.pop("csi.storage.k8s.io/serviceAccount.tokens"))
    assert list(tokens) == ["storage"]
    info = {
        "csi.storage.k8s.io/pod.name": "stored",
        "csi.storage.k8s.io/pod.namespace": "default",
        "csi.storage.k8s.io/pod.uid": pod["metadata"]["uid"],
        "csi.storage.k8s.io/serviceAccount.name": "default",
    }
    assert context == {**info, "colour": "blue", "csi.storage.k8s.io/ephemeral": "false"}
    inline = json.loads(seen["inline"])
    assert (inline["for"], inline["csi.storage.k8s.io/ephemeral"]) == ("one pod", "true")
    assert [seen[path] for path in ("/kept", "/inline", "/scratch")] == ["2775 0:2000"] * 3
    assert seen["/kept/times"].endswith(" one~")
    assert (seen["write to scratch"], seen["write where it is closed"], seen["is a device"]) == ("yes", "no", "yes")
    assert seen["mount /closed"].startswith("ro,")
    in_use = node.cluster.find("nodes", NODE_NAME) or {}
    assert f"kubernetes.io/csi/{DRIVER}^kept" in in_use["status"]["volumesInUse"]
    node.end("stored")
    node.until_as(before)
    calls = [json.loads(line) for line in node.calls()]
    assert all(call["outcome"] == "ok" for call in calls), calls
    names = [call["call"] for call in calls if call["request"].get("volume_id") == "kept"]
    assert names == ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
    published = next(call["request"] for call in calls if "secrets" in call["request"])
    assert (published["volume_id"], published["secrets"]) == ("kept", {"user": "me"})
    image = node.node.folder / "driver" / "storage" / "images" / "raw.img"
    assert image.read_bytes()[:7] == b"written"
    node.until(lambda: not node.cluster.do(lambda server: server.admin.list("volumeattachments")), "all is detached")
    again = node.container("echo two >> /kept/times; see /kept/times", volumeMounts=mounts(("kept", "/kept")))
    node.start("again", again, volumes=volumes[:1])
    assert node.seen("again")["/kept/times"].endswith(" one~two~")
    node.end("again")
