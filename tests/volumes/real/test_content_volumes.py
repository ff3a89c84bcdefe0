"""What a container sees of volumes whose content the agent writes."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.volumes.real.joined_node import mounts

if TYPE_CHECKING:
    from tests.volumes.real.joined_node import JoinedNode

PEOPLE = {"runAsUser": 1000, "fsGroup": 2000}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.both
def test_config_maps_and_secrets_are_folders_of_files(node: JoinedNode) -> None:
    cluster = node.cluster
    cluster.create("ConfigMap", "plain", data={"a": "one\ntwo", "b": ""}, binaryData={"bin": "AP8B"})
    cluster.create("ConfigMap", "frozen", data={"a": "for ever"}, immutable=True)
    cluster.create("Secret", "hidden", data={"user": encoded("me"), "pass": encoded("s3cret")})
    volumes: list[dict[str, Any]] = [
        {"name": "all", "configMap": {"name": "plain"}},
        {"name": "frozen", "configMap": {"name": "frozen", "defaultMode": 0o440}},
        {
            "name": "some",
            "configMap": {
                "name": "plain",
                "defaultMode": 0o600,
                "items": [{"key": "a", "path": "deep/er/a"}, {"key": "b", "path": "b", "mode": 0o755}],
            },
        },
        {"name": "none", "configMap": {"name": "not-there", "optional": True}},
        {
            "name": "without-key",
            "configMap": {"name": "plain", "optional": True, "items": [{"key": "not-there", "path": "x"}]},
        },
        {"name": "secret", "secret": {"secretName": "hidden"}},
        {
            "name": "one-secret",
            "secret": {"secretName": "hidden", "defaultMode": 0o400, "items": [{"key": "user", "path": "name"}]},
        },
        {"name": "no-secret", "secret": {"secretName": "not-there", "optional": True}},
    ]
    at = [(volume["name"], f"/{volume['name']}") for volume in volumes]
    script = """
    see /all /all/a /all/b /frozen/a /some/deep/er/a /some/b /some/a /none /without-key/x
    see /secret /secret/user /secret/pass /one-secret/name /one-secret/pass /no-secret
    echo "bin: $(od -An -tx1 /all/bin)"; echo "names: $(ls /none /without-key /no-secret | grep -v ^/ | tr -d '\\n')"
    mounted /all /secret; try "write to a secret" touch /secret/x; try "write to a ConfigMap" touch /all/x
    echo "link: $(readlink /all/a) $(readlink /all/..data | cut -c1-3)"
    """
    node.start("content", node.container(script, volumeMounts=mounts(*at)), volumes=volumes)
    seen = node.seen("content")
    assert seen["/all"] == "777 0:0"
    assert seen["/all/a"] == "644 0:0 one~two"
    assert seen["/all/b"].strip() == "644 0:0"
    assert seen["bin"].split() == ["00", "ff", "01"]
    assert seen["/frozen/a"] == "440 0:0 for ever"
    assert seen["/some/deep/er/a"] == "600 0:0 one~two"
    assert seen["/some/b"].strip() == "755 0:0"
    assert {seen["/some/a"], seen["/without-key/x"], seen["/one-secret/pass"]} == {"missing"}
    assert (seen["/none"], seen["/no-secret"]) == ("777 0:0", "1777 0:0")
    assert not seen["names"]
    assert seen["/secret"] == "1777 0:0"
    assert (seen["/secret/user"], seen["/secret/pass"]) == ("644 0:0 me", "644 0:0 s3cret")
    assert seen["/one-secret/name"] == "400 0:0 me"
    assert (seen["write to a secret"], seen["write to a ConfigMap"]) == ("no", "no")
    assert seen["mount /secret"].startswith("ro,")
    assert " tmpfs " in seen["mount /secret"]
    assert seen["mount /all"].startswith("ro,")
    assert " tmpfs " not in seen["mount /all"]
    assert seen["link"] == "..data/a ..2"
    node.end("content")


@pytest.mark.both
def test_files_belong_to_the_pods_group(node: JoinedNode) -> None:
    node.cluster.create("ConfigMap", "for-group", data={"a": "one"})
    node.cluster.create("Secret", "for-group", data={"a": encoded("two")})
    sources = [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "for-group", "items": [{"key": "a", "path": "a"}]}},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "cm", "configMap": {"name": "for-group"}},
        {"name": "closed", "secret": {"secretName": "for-group", "defaultMode": 0o400}},
        {"name": "token", "projected": {"sources": sources}},
    ]
    script = "see /cm /cm/a /closed /closed/a /token/token /token/a; echo me: $(id -u) $(id -G)"
    at = mounts(("cm", "/cm"), ("closed", "/closed"), ("token", "/token"))
    grouped = node.container(script, volumeMounts=at)
    node.start("grouped", grouped, volumes=volumes, securityContext=PEOPLE)
    node.start("alone", node.container(script, volumeMounts=at), volumes=volumes, securityContext={"runAsUser": 1000})
    seen = node.seen("grouped")
    assert seen["/cm"] == "2777 0:2000"
    assert seen["/cm/a"] == "644 0:2000 one"
    assert seen["/closed"] == "3777 0:2000"
    assert seen["/closed/a"] == "440 0:2000 two"
    assert seen["/token/token"].startswith("640 1000:2000 ey")
    assert seen["/token/a"] == "644 0:2000 one"
    assert "2000" in seen["me"].split()
    seen = node.seen("alone")
    assert seen["/cm/a"] == "644 0:0 one"
    assert seen["/closed/a"].strip() == "400 0:0"  # it is not for this user
    assert seen["/token/token"].startswith("600 1000:0 ey")
    node.end("grouped", "alone")


def test_a_pod_sees_itself(node: JoinedNode) -> None:
    def field(path: str, at: str, **more: Any) -> dict[str, Any]:
        return {"path": at, "fieldRef": {"fieldPath": path}, **more}

    def resource(name: str, at: str, divisor: str = "0") -> dict[str, Any]:
        return {"path": at, "resourceFieldRef": {"containerName": "main", "resource": name, "divisor": divisor}}

    items = [
        field("metadata.name", "name"),
        field("metadata.namespace", "namespace"),
        field("metadata.uid", "uid", mode=0o400),
        field("metadata.labels", "labels"),
        field("metadata.annotations", "annotations"),
        field("metadata.labels['app']", "deep/app"),
        resource("limits.cpu", "cpu"),
        resource("limits.cpu", "millicpu", "1m"),
        resource("limits.memory", "mebibytes", "1Mi"),
        resource("requests.memory", "bytes"),
    ]
    metadata = {"labels": {"app": "web", "tier": "x"}, "annotations": {"note": 'say "<&>"\nagain'}}
    names = " ".join(f"/me/{item['path']}" for item in items)
    container = node.container(
        f"see {names}; mounted /me",
        volumeMounts=mounts(("me", "/me")),
        resources={"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}},
    )
    volumes = [{"name": "me", "downwardAPI": {"items": items, "defaultMode": 0o644}}]
    node.start("self", container, metadata=metadata, volumes=volumes)
    seen = node.seen("self")
    pod = node.pod("self")
    assert pod is not None
    assert seen["/me/name"] == "644 0:0 self"
    assert seen["/me/namespace"] == "644 0:0 default"
    assert seen["/me/uid"] == f"400 0:0 {pod['metadata']['uid']}"
    assert seen["/me/labels"] == '644 0:0 app="web"~tier="x"'
    assert 'kubernetes.io/config.source="api"' in seen["/me/annotations"]
    assert r'note="say \"<&>\"\nagain"' in seen["/me/annotations"]
    assert seen["/me/deep/app"] == "644 0:0 web"
    assert [seen[f"/me/{name}"].split()[-1] for name in ("cpu", "millicpu", "mebibytes", "bytes")] == [
        *("2", "1500", "64"),
        str(32 * 2**20),
    ]
    assert " tmpfs " in seen["mount /me"]
    body = {"metadata": {"labels": {"app": "changed"}}}
    node.cluster.do(lambda server: server.admin.patch("pods", "self", body=body))
    shown = node.volume("self", "downward-api", "me") / "deep" / "app"
    node.until(lambda: shown.read_text() == "changed", "the volume shows the label's new value", "self")
    node.end("self")


def test_all_sources_in_one_folder(node: JoinedNode) -> None:
    cluster = node.cluster
    authority = cluster.do(lambda server: server.ca_pem.decode())
    cluster.create("ConfigMap", "part", data={"a": "from the map", "same": "first"})
    cluster.create("Secret", "part", data={"b": encoded("from the secret"), "same": encoded("last")})
    cluster.create("ClusterTrustBundle", "test-authorities", spec={"trustBundle": authority})
    cluster.create(
        "ClusterTrustBundle",
        "example.com:signer:1",
        spec={"signerName": "example.com/signer", "trustBundle": authority},
    )
    sources: list[dict[str, Any]] = [
        {"configMap": {"name": "part"}},
        {"secret": {"name": "part"}},
        {"configMap": {"name": "not-there", "optional": True}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 1200, "audience": "vault"}},
        {"clusterTrustBundle": {"name": "test-authorities", "path": "by-name.pem"}},
        {
            "clusterTrustBundle": {
                "signerName": "example.com/signer",
                "labelSelector": {},
                "path": "by-signer.pem",
            }
        },
        {"clusterTrustBundle": {"name": "not-there", "path": "missing.pem", "optional": True}},
        {
            "podCertificate": {
                "signerName": "example.com/pods",
                "keyType": "ED25519",
                "credentialBundlePath": "bundle.pem",
            }
        },
    ]
    script = """
    see /all/a /all/b /all/same /all/name /all/token /all/by-name.pem /all/by-signer.pem /all/missing.pem
    echo "bundle: $(stat -Lc '%a %u:%g' /all/bundle.pem) $(grep -h BEGIN /all/bundle.pem | tr -d '\\n')"
    echo "token: $(cat /all/token)"
    """
    container = node.container(script, volumeMounts=mounts(("all", "/all")))
    volumes = [{"name": "all", "projected": {"sources": sources, "defaultMode": 0o640}}]
    node.start("projected", container, volumes=volumes)
    seen = node.seen("projected")
    assert seen["/all/a"] == "640 0:0 from the map"
    assert seen["/all/b"] == "640 0:0 from the secret"
    assert seen["/all/same"] == "640 0:0 last"
    assert seen["/all/name"] == "640 0:0 projected"
    assert seen["/all/token"].startswith("640 0:0 ey")
    claims = json.loads(base64.urlsafe_b64decode(seen["token"].split(".")[1] + "=="))
    assert claims["aud"] == ["vault"]
    assert claims["exp"] - claims["iat"] == 1200
    assert "BEGIN CERTIFICATE" in seen["/all/by-name.pem"]
    assert "BEGIN CERTIFICATE" in seen["/all/by-signer.pem"]
    assert seen["/all/missing.pem"].strip() == "640 0:0"
    assert seen["bundle"].startswith("640 0:0 -----BEGIN PRIVATE KEY----------BEGIN CERTIFICATE-----")
    node.end("projected")
