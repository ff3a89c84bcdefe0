"""Pods whose volumes or environment are not to be had: what they are told, and that they start when they can."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.volumes.real.joined_node import mounts

if TYPE_CHECKING:
    from tests.volumes.real.joined_node import JoinedNode


def nfs_claim(node: JoinedNode) -> None:
    node.cluster.create(
        "PersistentVolume",
        "share",
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "nfs": {"server": "192.0.2.1", "path": "/srv"},
        },
    )
    node.cluster.create(
        "PersistentVolumeClaim",
        "share",
        spec={
            "volumeName": "share",
            "storageClassName": "",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    )


def test_pods_are_told_which_volume_they_wait_for_and_why(node: JoinedNode) -> None:
    folder = node.node.shared
    (folder / "a-file").touch()
    host = str(folder)
    problems: dict[str, tuple[dict[str, Any], str]] = {
        "no-map": ({"configMap": {"name": "gone"}}, 'configmap "gone" not found'),
        "no-secret": ({"secret": {"secretName": "gone"}}, 'secret "gone" not found'),
        "no-key": (
            {"configMap": {"name": "there", "items": [{"key": "other", "path": "x"}]}},
            "configmap references non-existent config key: other",
        ),
        "no-folder": (
            {"hostPath": {"path": f"{host}/gone", "type": "Directory"}},
            f"hostPath type check failed: {host}/gone is not a directory",
        ),
        "no-file": (
            {"hostPath": {"path": host, "type": "File"}},
            f"hostPath type check failed: {host} is not a file",
        ),
        "no-socket": (
            {"hostPath": {"path": f"{host}/a-file", "type": "Socket"}},
            f"hostPath type check failed: {host}/a-file is not a socket",
        ),
        "no-device": (
            {"hostPath": {"path": f"{host}/a-file", "type": "BlockDevice"}},
            f"hostPath type check failed: {host}/a-file is not a block device",
        ),
        "no-pages": ({"emptyDir": {"medium": "HugePages"}}, "there is no resource request for huge pages"),
        "no-bundle": (
            {"projected": {"sources": [{"clusterTrustBundle": {"name": "gone", "path": "x"}}]}},
            'clustertrustbundle.certificates.k8s.io "gone" not found',
        ),
        "no-claim": ({"persistentVolumeClaim": {"claimName": "gone"}}, 'persistentvolumeclaims "gone" not found'),
        "no-driver": (
            {"csi": {"driver": "absent.example.com"}},
            "driver name absent.example.com not found in the list of registered CSI drivers",
        ),
    }
    if shutil.which("mount.nfs") is None:
        missing = "mount.nfs is not installed on the node: install nfs-common or nfs-utils"
        nfs_claim(node)
        problems["no-helper"] = ({"nfs": {"server": "192.0.2.1", "path": "/srv"}}, missing)
        problems["no-helper-for-claim"] = ({"persistentVolumeClaim": {"claimName": "share"}}, missing)
    node.cluster.create("ConfigMap", "there", data={"key": "value"})
    container = node.container("true", volumeMounts=mounts(("it", "/it")))
    for name, (source, _) in problems.items():
        node.start(name, container, volumes=[{"name": "it", **source}])
    for name, (_, text) in problems.items():
        node.until_message(name, text)
        node.until(lambda name=name: "ContainerCreating" in node.waiting(name), f"{name} waits", name)
    node.cluster.create("ConfigMap", "gone", data={"key": "late"})
    node.cluster.create("Secret", "gone", data={"key": "bGF0ZQ=="})
    node.seen("no-map")
    node.seen("no-secret")
    node.end(*problems)


def test_containers_wait_for_the_environment_that_they_name(node: JoinedNode) -> None:
    def from_key(kind: str, name: str, key: str, **more: Any) -> dict[str, Any]:
        return {"name": "KEY", "valueFrom": {f"{kind}KeyRef": {"name": name, "key": key, **more}}}

    problems: dict[str, tuple[dict[str, Any], str]] = {
        "map": ({"envFrom": [{"configMapRef": {"name": "env"}}]}, 'configmap "env" not found'),
        "secret": ({"envFrom": [{"secretRef": {"name": "env"}, "prefix": "P_"}]}, 'secret "env" not found'),
        "key": (
            {"env": [from_key("configMap", "partial", "missing")]},
            "couldn't find key missing in ConfigMap default/partial",
        ),
        "secret-key": (
            {"env": [from_key("secret", "partial", "missing")]},
            "couldn't find key missing in Secret default/partial",
        ),
    }
    optional: dict[str, Any] = {
        "envFrom": [{"configMapRef": {"name": "never", "optional": True}}],
        "env": [from_key("secret", "never", "x", optional=True)],
    }
    node.cluster.create("ConfigMap", "partial", data={"other": "x"})
    node.cluster.create("Secret", "partial", data={"other": "eA=="})
    script = "echo \"env: $(env | grep -E '^(KEY|P_)' | sort | tr '\\n' ' ')\""
    for name, (fields, _) in problems.items():
        node.start(f"env-{name}", node.container(script, **fields))
    node.start("env-optional", node.container(script, **optional))
    assert node.seen("env-optional")["env"] == ""
    for name, (_, text) in problems.items():
        expected = f"CreateContainerConfigError: {text}"
        pod = f"env-{name}"
        node.until(lambda pod=pod, expected=expected: node.waiting(pod) == expected, f"{pod}: {expected}", pod)
        node.until_message(pod, f"Failed: Error: {text}")
    node.cluster.create("ConfigMap", "env", data={"KEY": "from the map"})
    node.cluster.create("Secret", "env", data={"KEY": "c2VjcmV0"})
    node.cluster.replace_data("partial", {"missing": "now there"})
    body = {"data": {"missing": "bm93IHRoZXJl"}}
    node.cluster.do(lambda server: server.admin.patch("secrets", "partial", body=body))
    assert [node.seen(f"env-{name}")["env"].strip() for name in problems] == [
        "KEY=from the map",
        "P_KEY=secret",
        "KEY=now there",
        "KEY=now there",
    ]
    node.end("env-optional", *(f"env-{name}" for name in problems))


def test_images_as_volumes_where_the_runtime_has_them(node: JoinedNode) -> None:
    if not node.is_containerd:
        # It mounts images (tests.embedded.test_image_volumes), but this one is the machine itself.
        text = "the machine's own files are no volume; use a hostPath"
    else:
        version = node.node.containerd.ctr("version") if node.node.containerd else ""
        if " v2." in version:
            pytest.skip("this containerd can mount images")
        text = "CreateContainerConfigError: image volumes need containerd 2.1 or CRI-O 1.31; this node runs containerd"
    volumes = [{"name": "image", "image": {"reference": node.node.image, "pullPolicy": "IfNotPresent"}}]
    node.start("image", node.container("true", volumeMounts=mounts(("image", "/image"))), volumes=volumes)
    node.until(lambda: text in node.waiting("image"), f"the pod is told: {text}", "image")
    node.end("image")
