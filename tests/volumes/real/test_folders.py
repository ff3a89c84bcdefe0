"""What a container sees of folders: its pod's own, the node's, parts of them, and what is mounted inside."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from tests.containerd_programs import containerd_version
from tests.volumes.real.joined_node import END, mounts

if TYPE_CHECKING:
    from tests.volumes.real.joined_node import JoinedNode


def test_empty_folders_on_disk_and_in_memory(node: JoinedNode) -> None:
    volumes: list[dict[str, Any]] = [
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    script = """
    see /disk /memory /small; mounted /disk /memory /small
    try "write to disk" touch /disk/x; try "fill" dd if=/dev/zero of=/small/x bs=1024 count=4096
    """
    at = mounts(("disk", "/disk"), ("memory", "/memory"), ("small", "/small"))
    limits = {"limits": {"memory": "64Mi"}}
    node.start("own", node.container(script, volumeMounts=at, resources=limits), volumes=volumes)
    grouped = node.container(script, volumeMounts=at)
    people = {"runAsUser": 1000, "fsGroup": 2000}
    node.start("grouped", grouped, volumes=volumes, securityContext=people)
    seen = node.seen("own")
    assert [seen[path] for path in ("/disk", "/memory", "/small")] == ["777 0:0", "1777 0:0", "1777 0:0"]
    assert (seen["write to disk"], seen["fill"]) == ("yes", "no")
    assert " tmpfs " not in seen["mount /disk"]
    assert " tmpfs " in seen["mount /memory"]
    assert "size=65536k" in seen["mount /memory"]
    assert "size=1024k" in seen["mount /small"]
    seen = node.seen("grouped")
    assert [seen[path] for path in ("/disk", "/memory", "/small")] == ["2777 0:2000", "3777 0:2000", "3777 0:2000"]
    assert (seen["write to disk"], seen["fill"]) == ("yes", "no")
    disk = node.volume("own", "empty-dir", "disk")
    assert (disk / "x").exists()
    node.end("own", "grouped")


def test_the_nodes_files_by_each_type(node: JoinedNode) -> None:
    folder = node.node.shared
    (folder / "here").mkdir()
    (folder / "here" / "file").write_text("of the node")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        wanted = {
            "any": ("here", ""),
            "folder": ("here", "Directory"),
            "new-folder": ("new", "DirectoryOrCreate"),
            "file": ("here/file", "File"),
            "new-file": ("new-file", "FileOrCreate"),
            "socket": ("socket", "Socket"),
        }
        volumes: list[dict[str, Any]] = [
            {"name": name, "hostPath": {"path": str(folder / path), "type": kind}}
            for name, (path, kind) in wanted.items()
        ]
        volumes.append({"name": "null", "hostPath": {"path": "/dev/null", "type": "CharDevice"}})
        at = mounts(*((volume["name"], f"/host/{volume['name']}") for volume in volumes))
        at.append({"name": "any", "mountPath": "/host/closed", "readOnly": True})
        script = """
        see /host/any/file /host/folder/file /host/new-folder /host/file /host/new-file
        try "is a socket" test -S /host/socket; try "is a device" test -c /host/null
        try "write" touch /host/new-folder/written; try "write where it is read-only" touch /host/closed/x
        mounted /host/closed
        """
        node.start("host", node.container(script, volumeMounts=at), volumes=volumes)
        seen = node.seen("host")
    assert seen["/host/any/file"] == seen["/host/folder/file"] == seen["/host/file"]
    assert seen["/host/file"].endswith(" of the node")
    assert seen["/host/new-folder"] == "755 0:0"
    assert seen["/host/new-file"].strip() == "644 0:0"
    assert (seen["is a socket"], seen["is a device"]) == ("yes", "yes")
    assert (seen["write"], seen["write where it is read-only"]) == ("yes", "no")
    assert seen["mount /host/closed"].startswith("ro,")
    node.end("host")
    assert (folder / "new" / "written").exists(), "what is the node's stays"


def test_parts_of_volumes(node: JoinedNode) -> None:
    node.cluster.create("ConfigMap", "parts", data={"one": "1", "two": "2"})
    volumes: list[dict[str, Any]] = [
        {"name": "work", "emptyDir": {}},
        {"name": "parts", "configMap": {"name": "parts"}},
        {"name": "shown", "configMap": {"name": "parts"}},
    ]
    at: list[dict[str, Any]] = [
        {"name": "work", "mountPath": "/work"},
        {"name": "work", "mountPath": "/made", "subPath": "a/b"},
        {"name": "work", "mountPath": "/mine", "subPathExpr": "pods/$(POD)"},
        {"name": "work", "mountPath": "/closed", "subPath": "a", "readOnly": True},
        {"name": "parts", "mountPath": "/one-file", "subPath": "one"},
        {"name": "shown", "mountPath": "/shown"},
        {"name": "work", "mountPath": "/shown/inside", "subPath": "inside"},
    ]
    script = """
    echo made > /made/file; echo mine > /mine/file; see /work/a /work/a/b/file /work/pods/parts/file /closed/b/file
    try "write where it is read-only" touch /closed/x; see /one-file /shown/two; mounted /shown/inside
    try "write inside" touch /shown/inside/x; try "write around" touch /shown/x
    """
    env = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    node.start("parts", node.container(script, volumeMounts=at, env=env), volumes=volumes)
    seen = node.seen("parts")
    assert seen["/work/a"] == "777 0:0"
    assert seen["/work/a/b/file"] == seen["/closed/b/file"] == "644 0:0 made~"
    assert seen["/work/pods/parts/file"] == "644 0:0 mine~"
    assert seen["/one-file"] == "644 0:0 1"
    assert seen["/shown/two"] == "644 0:0 2"
    assert seen["mount /shown/inside"].startswith("rw,")
    assert (seen["write inside"], seen["write around"], seen["write where it is read-only"]) == ("yes", "no", "no")
    node.end("parts")


def test_mounts_inside_of_volumes(node: JoinedNode) -> None:
    """What one container mounts reaches others that want it, and nothing of it stays."""
    volumes: list[dict[str, Any]] = [{"name": "work", "emptyDir": {}}]
    script = f"""
    mkdir /work/in; mount -t tmpfs made-inside /work/in; echo inside > /work/in/file; see /work/in/file
    echo '{END}'
    trap 'umount /work/in; exit 0' TERM; while :; do sleep 0.05; done
    """
    wait = "until [ -s /work/in/file ]; do sleep 0.05; done; see /work/in/file"
    containers = [
        node.container(
            script,
            "giver",
            securityContext={"privileged": True},
            volumeMounts=[{"name": "work", "mountPath": "/work", "mountPropagation": "Bidirectional"}],
        ),
        node.container(
            wait, "taker", volumeMounts=[{"name": "work", "mountPath": "/work", "mountPropagation": "HostToContainer"}]
        ),
    ]
    node.start("nested", *containers, volumes=volumes)
    assert node.seen("nested", "giver")["/work/in/file"] == "644 0:0 inside~"
    assert node.seen("nested", "taker")["/work/in/file"] == "644 0:0 inside~"
    inside = node.volume("nested", "empty-dir", "work") / "in"
    assert any(point == str(inside) for _, point in node.state().mounts), "the node sees it as well"
    node.end("nested")


def test_mounts_of_the_runtime_inside_of_a_shared_volume(node: JoinedNode) -> None:
    """They come back as the node's, as does what a container leaves there, and go with the pod."""
    volumes: list[dict[str, Any]] = [
        {"name": "work", "emptyDir": {}},
        {"name": "fast", "emptyDir": {"medium": "Memory"}},
        {"name": "names", "configMap": {"name": "kube-root-ca.crt", "optional": True}},
        {"name": "host", "hostPath": {"path": str(node.node.shared)}},
    ]
    both_ways = {"mountPropagation": "Bidirectional"}
    container = node.container(
        "mkdir /work/left; mount -t tmpfs left-inside /work/left",
        securityContext={"privileged": True},
        terminationMessagePath="/work/message",
        volumeMounts=[
            {"name": "work", "mountPath": "/work", **both_ways},
            {"name": "fast", "mountPath": "/work/fast", **both_ways},
            {"name": "names", "mountPath": "/work/fast/names"},
            {"name": "host", "mountPath": "/work/host"},
        ],
    )
    node.start("returned", container, volumes=volumes)
    node.seen("returned")
    inside = node.volume("returned", "empty-dir", "work")
    assert any(point == str(inside / "left") for _, point in node.state().mounts), "the node sees it"
    node.end("returned")
    assert not inside.exists()
    assert node.node.shared.exists()


def test_read_only_with_all_that_is_mounted_inside(node: JoinedNode) -> None:
    """Only a runtime that says so can do it; on others a pod is told, unless it does not insist."""
    inside = node.node.shared / "around" / "inside"
    inside.mkdir(parents=True)
    volumes = [{"name": "around", "hostPath": {"path": str(inside.parent)}}]

    def mount(mode: str) -> list[dict[str, Any]]:
        return [{"name": "around", "mountPath": "/around", "readOnly": True, "recursiveReadOnly": mode}]

    for arguments in ("--bind", "--make-private"):
        source = [str(inside)] if arguments == "--bind" else []
        assert os.spawnvp(os.P_WAIT, "mount", ["mount", arguments, *source, str(inside)]) == 0
    try:
        script = 'try "write inside" touch /around/inside/x; try "write" touch /around/x'
        node.start("flexible", node.container(script, volumeMounts=mount("IfPossible")), volumes=volumes)
        node.start("strict", node.container(script, volumeMounts=mount("Enabled")), volumes=volumes)
        node.start("plain", node.container(script, volumeMounts=mount("Disabled")), volumes=volumes)
        possible = not node.is_containerd or containerd_version() >= (2, 0)
        assert node.seen("plain") == {"write inside": "yes", "write": "no"}
        assert node.seen("flexible") == {"write inside": "no" if possible else "yes", "write": "no"}
        if possible:
            assert node.seen("strict")["write inside"] == "no"
        else:
            node.until(lambda: "recursive read-only" in node.waiting("strict"), "the pod is told", "strict")
        node.end("flexible", "strict", "plain")
    finally:
        assert os.spawnvp(os.P_WAIT, "umount", ["umount", str(inside)]) == 0
