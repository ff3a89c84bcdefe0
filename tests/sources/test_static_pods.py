from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trikubelet.api import Pod, Toleration, pod_from_dict, set_pod_defaults
from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.sources.manifests import api_references, fnv1a_128, make_static, parse_manifest


def pod(**metadata: Any) -> Pod:
    data = {"metadata": {"name": "web", **metadata}, "spec": {"containers": [{"name": "main", "image": "x:1"}]}}
    return set_pod_defaults(pod_from_dict(data))


def with_spec(**spec: Any) -> Pod:
    containers = spec.pop("containers", [{"name": "main", "image": "x:1"}])
    return pod_from_dict({"metadata": {"name": "web"}, "spec": {"containers": containers, **spec}})


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "6c62272e07bb014262b821756295c58d"),
        (b"a", "d228cb696f1a8caf78912b704e4a8964"),
        (b"foobar", "343e1662793c64bf6f0d3597ba446f18"),
    ],
)
def test_the_hash_is_fnv_1a_with_128_bits(data: bytes, digest: str) -> None:
    assert fnv1a_128(data) == digest


@pytest.mark.parametrize(
    ("node", "name", "expected"),
    [("node1", "static-pod1", "static-pod1-node1"), ("Node1", "static-pod1", "static-pod1-node1")],
)
def test_the_name_ends_in_the_lower_case_node_name(node: str, name: str, expected: str) -> None:
    static = make_static(pod(name=name), node_name=node, file="/f")
    assert static.metadata.name == expected
    assert static.spec.node_name == node


def test_a_static_pod_has_the_identity_that_the_kubelet_gives_it() -> None:
    static = make_static(pod(), node_name="n", file="/f")
    assert static.metadata.namespace == "default"
    assert static.metadata.annotations == {
        "kubernetes.io/config.hash": static.metadata.uid,
        "kubernetes.io/config.source": "file",
    }
    assert len(static.metadata.uid) == 32
    assert static.status.phase == "Pending"
    assert static.spec.tolerations == (Toleration(operator="Exists", effect="NoExecute"),)
    assert is_static_pod(static)
    assert not is_static_pod(pod())


def test_a_given_uid_namespace_and_annotation_are_kept() -> None:
    static = make_static(pod(uid="u1", namespace="ns", annotations={"a": "b"}), node_name="n", file="/f")
    assert (static.metadata.uid, static.metadata.namespace) == ("u1", "ns")
    assert static.metadata.annotations["kubernetes.io/config.hash"] == "u1"
    assert static.metadata.annotations["a"] == "b"


def test_the_uid_follows_pod_node_and_file_and_nothing_else() -> None:
    uid = make_static(pod(), node_name="n", file="/f").metadata.uid
    assert make_static(pod(), node_name="n", file="/f").metadata.uid == uid
    others = {
        make_static(pod(labels={"a": "b"}), node_name="n", file="/f").metadata.uid,
        make_static(pod(), node_name="m", file="/f").metadata.uid,
        make_static(pod(), node_name="n", file="/g").metadata.uid,
        make_static(pod(), node_name="n", url="/f").metadata.uid,
    }
    assert uid not in others
    assert len(others) == 4


def test_a_pod_from_a_url_gets_no_toleration() -> None:
    static = make_static(pod(), node_name="n", url="http://x")
    assert static.spec.tolerations == ()
    assert static.metadata.annotations["kubernetes.io/config.source"] == "http"


def test_the_toleration_is_not_added_twice() -> None:
    given = with_spec(tolerations=[{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}])
    static = make_static(given, node_name="n", file="/f")
    assert static.spec.tolerations == (Toleration(operator="Exists", effect="NoExecute"),)


def _env(source: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "main", "image": "x", "env": [{"name": "A", "valueFrom": source}]}]


@pytest.mark.parametrize(
    ("spec", "path", "resource"),
    [
        ({"serviceAccountName": "a"}, "spec.serviceAccountName", "serviceaccounts"),
        ({"serviceAccount": "a"}, "spec.serviceAccount", "serviceaccounts"),
        ({"imagePullSecrets": [{"name": "s"}]}, "spec.imagePullSecrets[0]", "secrets"),
        (
            {"containers": _env({"secretKeyRef": {"name": "s", "key": "k"}})},
            "spec.containers[0].env[0].valueFrom.secretKeyRef",
            "secrets",
        ),
        (
            {"containers": _env({"configMapKeyRef": {"name": "c", "key": "k"}})},
            "spec.containers[0].env[0].valueFrom.configMapKeyRef",
            "configmaps",
        ),
        (
            {"initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]},
            "spec.initContainers[0].envFrom[0].secretRef",
            "secrets",
        ),
        (
            {"initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "s"}}]}]},
            "spec.initContainers[0].envFrom[0].configMapRef",
            "configmaps",
        ),
        ({"resourceClaims": [{"name": "c", "resourceClaimName": "x"}]}, "spec.resourceClaims", "resourceclaims"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, "spec.volumes[0]", "secrets"),
        ({"volumes": [{"name": "v", "secret": {}}]}, "spec.volumes[0]", "secrets (via secret volumes)"),
        ({"volumes": [{"name": "v", "configMap": {"name": "c"}}]}, "spec.volumes[0]", "configmaps"),
        ({"volumes": [{"name": "v", "configMap": {}}]}, "spec.volumes[0]", "configmaps (via configmap volumes)"),
        ({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}, "spec.volumes[0]", "csidrivers (via CSI volumes)"),
        ({"volumes": [{"name": "v", "glusterfs": {}}]}, "spec.volumes[0]", "endpoints (via glusterFS volumes)"),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "spec.volumes[0]",
            "persistentvolumeclaims",
        ),
        (
            {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]},
            "spec.volumes[0]",
            "persistentvolumeclaims (via ephemeral volumes)",
        ),
        ({"volumes": [{"name": "v", "azureFile": {}}]}, "spec.volumes[0]", "secrets (via azureFile volumes)"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
            "spec.volumes[0].projected.sources[0]",
            "serviceaccounts (via projected volumes)",
        ),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "t"}}]}}]},
            "spec.volumes[0].projected.sources[0]",
            "clustertrustbundles",
        ),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {"signerName": "t"}}]}}]},
            "spec.volumes[0].projected.sources[0]",
            "podcertificates",
        ),
        (
            {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "v", "cephfs": {"secretRef": {"name": "s"}}}]},
            "spec.volumes[1]",
            "secrets",
        ),
    ],
)
def test_a_reference_to_an_api_object_is_refused(spec: dict[str, Any], path: str, resource: str) -> None:
    (problem,) = api_references(with_spec(**spec))
    assert (problem.path, problem.message) == (path, f"static pods may not reference {resource}")


def test_every_reference_is_named_and_the_service_account_before_anything_else() -> None:
    sources = [{"secret": {"name": "s"}}, {"downwardAPI": {}}, {"configMap": {"name": "c"}}]
    spec = {
        "serviceAccountName": "a",
        "imagePullSecrets": [{"name": "s"}],
        "containers": _env({"configMapKeyRef": {"name": "c", "key": "k"}}),
        "volumes": [{"name": "v", "projected": {"sources": sources}}, {"name": "w", "secret": {"secretName": "s"}}],
    }
    assert [str(problem) for problem in api_references(with_spec(**spec))] == [
        "spec.serviceAccountName: static pods may not reference serviceaccounts",
        "spec.imagePullSecrets[0]: static pods may not reference secrets",
        "spec.volumes[1]: static pods may not reference secrets",
        "spec.containers[0].env[0].valueFrom.configMapKeyRef: static pods may not reference configmaps",
        "spec.volumes[0].projected.sources[0]: static pods may not reference secrets (via projected volumes)",
        "spec.volumes[0].projected.sources[2]: static pods may not reference configmaps (via projected volumes)",
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w", "emptyDir": {}}]},
        {"volumes": [{"name": "v", "downwardAPI": {"items": []}}]},
        {"volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": {"items": []}}]}}]},
        {"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}, {"name": "i", "image": {"reference": "x"}}]},
        {"containers": _env({"fieldRef": {"fieldPath": "metadata.name"}})},
        {"imagePullSecrets": [{"name": ""}]},
    ],
)
def test_what_the_node_has_itself_is_no_reference(spec: dict[str, Any]) -> None:
    assert api_references(with_spec(**spec)) == []


def test_the_reference_is_reported_with_its_line() -> None:
    text = b"""apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: a
    image: b
    env:
    - name: X
      valueFrom:
        secretKeyRef: {name: s, key: k}
"""
    manifest = parse_manifest(text, Path("/m/a.yaml"), "n")
    assert [str(problem) for problem in manifest.problems] == [
        "/m/a.yaml:11: spec.containers[0].env[0].valueFrom.secretKeyRef: static pods may not reference secrets"
    ]
