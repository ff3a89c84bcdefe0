"""What an agent may not write: rows after `noderestriction/admission_test.go`."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.apiserver.builders import mirror_document, node_document, pod_document
from tests.apiserver.controllers import Controllers
from tests.apiserver.errors import ApiFailure
from tests.apiserver.registry import Deletion
from tests.apiserver.resources import (
    CSI_NODES,
    LEASES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    SIGNING_REQUESTS,
    VOLUME_CLAIMS,
)
from tests.apiserver.users import node_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from tests.apiserver.documents import Document
    from tests.apiserver.resources import ResourceInfo
    from tests.apiserver.server import ApiServer

A = node_user("a")


@pytest.fixture
def node(server: ApiServer) -> Document:
    return server.admin.create(node_document("a", labels={"kubernetes.io/hostname": "a"}))


def refusal(do: Callable[[], Any]) -> ApiFailure:
    with pytest.raises(ApiFailure) as caught:
        do()
    return caught.value


def create(server: ApiServer, info: ResourceInfo, document: Document, namespace: str = "") -> Document:
    return server.registry.create(info, namespace, document, A)


def change(server: ApiServer, info: ResourceInfo, name: str, namespace: str = "", sub: str = "", **fields: Any) -> Any:
    """An update by the agent of node a; `fields` replace those of the object."""
    return server.registry.modify(info, namespace, name, lambda old: {**old, **fields}, A, subresource=sub)


async def test_a_mirror_pod_may_be_created(server: ApiServer, node: Document) -> None:
    created = create(server, PODS, mirror_document("m", node), "default")
    assert created["status"]["phase"] == "Pending"
    assert "serviceAccountName" not in created["spec"]


def _edit(**edits: Any) -> Callable[[Document], None]:
    def edit(pod: Document) -> None:
        for key, value in edits.items():
            part, _, field = key.partition("__")
            if value is None:
                pod[part].pop(field, None)
            else:
                pod[part][field] = value

    return edit


def _owner(**fields: Any) -> Callable[[Document], None]:
    def edit(pod: Document) -> None:
        pod["metadata"]["ownerReferences"][0].update(fields)

    return edit


def _volume(**source: Any) -> Callable[[Document], None]:
    return _edit(spec__volumes=[{"name": "v", **source}])


def _second_owner(pod: Document) -> None:
    pod["metadata"]["ownerReferences"] *= 2


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_edit(metadata__annotations=None), 'pod does not have "kubernetes.io/config.mirror" annotation, node "a" can'),
        (_edit(spec__nodeName="b"), 'node "a" can only create pods with spec.nodeName set to itself'),
        (_edit(metadata__ownerReferences=None), 'node "a" can only create pods with an owner reference set to itself'),
        (_second_owner, 'node "a" can only create pods with a single owner reference set to itself'),
        (_owner(name="b"), 'node "a" can only create pods with an owner reference set to itself'),
        (_owner(kind="Pod"), 'node "a" can only create pods with an owner reference set to itself'),
        (_owner(controller=False), 'node "a" can only create pods with a controller owner reference set to itself'),
        (_owner(blockOwnerDeletion=True), 'node "a" must not set blockOwnerDeletion on an owner reference'),
        (_owner(uid="other"), "node a UID mismatch: expected other got"),
        (_edit(spec__serviceAccountName="x"), 'node "a" can not create pods that reference serviceaccounts'),
        (_edit(spec__imagePullSecrets=[{"name": "x"}]), 'node "a" can not create pods that reference secrets'),
        (_volume(secret={"secretName": "x"}), "reference secrets (via secret volumes)"),
        (_volume(configMap={"name": "x"}), "reference configmaps (via configmap volumes)"),
        (_volume(persistentVolumeClaim={"claimName": "x"}), "reference persistentvolumeclaims"),
        (_volume(csi={"driver": "x"}), "reference csidrivers (via CSI volumes)"),
        (_volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}), "serviceaccounts (via projected"),
    ],
)
async def test_other_pods_may_not_be_created(
    server: ApiServer, node: Document, edit: Callable[[Document], None], message: str
) -> None:
    pod = mirror_document("m", node)
    edit(pod)
    failure = refusal(lambda: create(server, PODS, pod, "default"))
    assert failure.code == 403
    assert message in failure.message


async def test_a_mirror_pod_with_harmless_volumes_may_be_created(server: ApiServer, node: Document) -> None:
    items = {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}
    volumes = [
        {"name": "h", "hostPath": {"path": "/x"}},
        {"name": "e", "emptyDir": {}},
        {"name": "d", "projected": {"sources": [{"downwardAPI": items}]}},
    ]
    create(server, PODS, mirror_document("m", node, volumes=volumes), "default")


async def test_a_mirror_pod_needs_the_node(server: ApiServer) -> None:
    unknown = {"metadata": {"name": "a", "uid": "x"}}
    failure = refusal(lambda: create(server, PODS, mirror_document("m", unknown), "default"))
    assert (failure.code, failure.message) == (404, 'nodes "a" not found')


async def test_only_own_pods_may_be_deleted_and_reported(server: ApiServer, node: Document) -> None:
    server.admin.create(pod_document("mine", node="a"))
    server.admin.create(pod_document("theirs", node="b"))
    failure = refusal(lambda: server.registry.delete(PODS, "default", "theirs", Deletion(), A))
    assert 'node "a" can only delete pods with spec.nodeName set to itself' in failure.message
    failure = refusal(lambda: change(server, PODS, "theirs", "default", "status", status={"phase": "Failed"}))
    assert 'node "a" can only update pod status for pods with spec.nodeName set to itself' in failure.message
    change(server, PODS, "mine", "default", "status", status={"phase": "Failed"})
    server.registry.delete(PODS, "default", "mine", Deletion(0), A)


async def test_labels_and_claims_of_a_pod_are_not_the_agents(server: ApiServer, node: Document) -> None:
    pod = server.admin.create(pod_document("mine", node="a"))
    labelled = {**pod["metadata"], "labels": {"a": "b"}}
    failure = refusal(lambda: change(server, PODS, "mine", "default", "status", metadata=labelled))
    assert 'node "a" cannot update labels through pod status' in failure.message
    claims = {**pod["status"], "resourceClaimStatuses": [{"name": "x"}]}
    failure = refusal(lambda: change(server, PODS, "mine", "default", "status", status=claims))
    assert 'node "a" cannot update resource claim statues' in failure.message


async def test_a_pod_itself_is_not_the_agents(server: ApiServer, node: Document) -> None:
    server.admin.create(pod_document("mine", node="a"))
    failure = refusal(lambda: change(server, PODS, "mine", "default", spec={}))
    assert 'unexpected operation "UPDATE", node "a" can only create and delete mirror pods' in failure.message


@pytest.mark.parametrize(
    ("label", "allowed"),
    [
        ("kubernetes.io/os", True),
        ("topology.kubernetes.io/zone", True),
        ("node.kubernetes.io/anything", True),
        ("sub.kubelet.kubernetes.io/anything", True),
        ("example.com/x", True),
        ("plain", True),
        ("kubernetes.io/other", False),
        ("foo.k8s.io/x", False),
        ("node-role.kubernetes.io/worker", False),
        ("node-restriction.kubernetes.io/x", False),
        ("sub.node-restriction.kubernetes.io/x", False),
    ],
)
async def test_labels_that_an_agent_may_set_on_its_node(server: ApiServer, label: str, allowed: bool) -> None:
    document = node_document("a", labels={label: "x"})
    if allowed:
        create(server, NODES, document)
        return
    failure = refusal(lambda: create(server, NODES, document))
    assert f'node "a" is not allowed to set the following labels: {label}' in failure.message
    created = create(server, NODES, node_document("a"))
    labelled = {**created["metadata"], "labels": {label: "x"}}
    failure = refusal(lambda: change(server, NODES, "a", sub="status", metadata=labelled))
    assert f"is not allowed to modify labels: {label}" in failure.message


async def test_taints_may_be_registered_but_not_changed(server: ApiServer) -> None:
    taint = {"key": "x", "effect": "NoSchedule"}
    create(server, NODES, {**node_document("a"), "spec": {"taints": [taint]}})
    failure = refusal(lambda: change(server, NODES, "a", spec={}))
    assert 'node "a" is not allowed to modify taints' in failure.message


async def test_other_nodes_are_not_the_agents(server: ApiServer) -> None:
    failure = refusal(lambda: create(server, NODES, node_document("b")))
    assert 'node "a" is not allowed to modify node "b"' in failure.message
    server.admin.create(node_document("b"))
    failure = refusal(lambda: change(server, NODES, "b", sub="status", status={"x": "y"}))
    assert 'node "a" is not allowed to modify node "b"' in failure.message


async def test_leases_and_csi_nodes_have_the_nodes_name(server: ApiServer, node: Document) -> None:
    lease = {"metadata": {"name": "b"}, "spec": {}}
    failure = refusal(lambda: create(server, LEASES, lease, "kube-node-lease"))
    assert "can only access node lease with the same name as the requesting node" in failure.message
    failure = refusal(lambda: create(server, LEASES, {"metadata": {"name": "a"}}, "default"))
    assert 'can only access leases in the "kube-node-lease" system namespace' in failure.message
    failure = refusal(lambda: create(server, CSI_NODES, {"metadata": {"name": "b"}, "spec": {"drivers": []}}))
    assert "can only access CSINode with the same name as the requesting node" in failure.message
    create(server, LEASES, {"metadata": {"name": "a"}}, "kube-node-lease")
    create(server, CSI_NODES, {"metadata": {"name": "a"}, "spec": {"drivers": []}})


async def test_of_a_claim_only_its_size_and_conditions(server: ApiServer, node: Document) -> None:
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {"volumeName": "data"}}
    server.admin.create(claim)
    status: dict[str, Any] = {
        "capacity": {"storage": "2Gi"},
        "conditions": [{"type": "Resizing", "status": "True"}],
        "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"},
    }
    changed = change(server, VOLUME_CLAIMS, "data", "default", "status", status=status)
    assert changed["status"]["capacity"] == {"storage": "2Gi"}
    for fields in ({"status": {**status, "phase": "Lost"}}, {"spec": {"volumeName": "other"}}):
        failure = refusal(lambda fields=fields: change(server, VOLUME_CLAIMS, "data", "default", "status", **fields))  # type: ignore[misc]
        assert "not allowed to update fields other than status.quantity and status.conditions" in failure.message
    failure = refusal(lambda: change(server, VOLUME_CLAIMS, "data", "default", spec={}))
    assert "may only update PVC status" in failure.message


@pytest.mark.parametrize(
    "volume",
    [
        {"csi": {"driver": "disk"}},
        {"persistentVolumeClaim": {"claimName": "data"}},
        {"ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
    ],
)
async def test_tokens_may_be_for_the_drivers_of_volumes(server: ApiServer, node: Document, volume: Document) -> None:
    def ask() -> Any:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": "mine", "uid": pod["metadata"]["uid"]}
        body = {"spec": {"audiences": ["vault"], "boundObjectRef": bound}}
        return server.subresources.create(SERVICE_ACCOUNTS, "default", "default", "token", body, A)

    pod = server.admin.create(pod_document("mine", node="a", volumes=[{"name": "v", **volume}]))
    spec = {"csi": {"driver": "disk", "volumeHandle": "1"}}
    server.admin.create({"kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": spec})
    for name in ("data", "mine-v"):
        claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {"volumeName": "pv"}}
        server.admin.create(claim)
    assert 'audience "vault" not found in pod spec volume' in refusal(ask).message
    driver = {"tokenRequests": [{"audience": "vault"}]}
    server.admin.create({"kind": "CSIDriver", "metadata": {"name": "disk"}, "spec": driver})
    assert ask()["status"]["token"]


async def test_tokens_are_bound_to_pods_of_the_node(server: ApiServer, node: Document) -> None:
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}
    mine = server.admin.create(pod_document("mine", node="a", volumes=[{"name": "t", **token}]))
    theirs = server.admin.create(pod_document("theirs", node="b"))

    def ask(audiences: list[str], **reference: str) -> Any:
        bound = {"kind": "Pod", "apiVersion": "v1", **reference}
        body = {"spec": {"audiences": audiences, "boundObjectRef": bound if reference else None}}
        return server.subresources.create(SERVICE_ACCOUNTS, "default", "default", "token", body, A)

    uid = mine["metadata"]["uid"]
    assert ask(["vault"], name="mine", uid=uid)["status"]["token"]
    for message, audiences, reference in [
        ("node requested token not bound to a pod", ["vault"], {}),
        ("node requested token with a pod binding without a uid", ["vault"], {"name": "mine"}),
        ("the UID in the bound object reference (other) does not match", ["vault"], {"name": "mine", "uid": "other"}),
        ("bound to a pod scheduled on a different node", [], {"name": "theirs", "uid": theirs["metadata"]["uid"]}),
        ("node may only request 0 or 1 audiences", ["vault", "x"], {"name": "mine", "uid": uid}),
        ('audience "other" not found in pod spec volume', ["other"], {"name": "mine", "uid": uid}),
    ]:
        failure = refusal(lambda audiences=audiences, reference=reference: ask(audiences, **reference))  # type: ignore[misc]
        assert failure.code == 403
        assert message in failure.message
    assert refusal(lambda: ask(["vault"], name="gone", uid="x")).code == 404


def signing_request(common_name: str, signer: str = "kubernetes.io/kube-apiserver-client-kubelet") -> Document:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    encoded = base64.b64encode(csr.public_bytes(Encoding.PEM)).decode()
    usages = ["digital signature", "client auth"]
    return {"metadata": {"generateName": "csr-"}, "spec": {"request": encoded, "signerName": signer, "usages": usages}}


async def test_certificates_are_requested_for_oneself(server: ApiServer) -> None:
    failure = refusal(lambda: create(server, SIGNING_REQUESTS, signing_request("system:node:b")))
    assert "can only create a node CSR with CN=system:node:a" in failure.message
    created = create(server, SIGNING_REQUESTS, signing_request("system:node:a"))
    assert created["spec"]["username"] == "system:node:a"
    assert "system:nodes" in created["spec"]["groups"]
    broken = signing_request("system:node:a")
    broken["spec"]["request"] = "bm8="
    assert "unable to parse csr" in refusal(lambda: create(server, SIGNING_REQUESTS, broken)).message


async def test_names_of_signing_requests_may_have_capitals(server: ApiServer) -> None:
    document = signing_request("system:node:a")
    document["metadata"] = {"name": "node-csr-AbC_9"}
    assert create(server, SIGNING_REQUESTS, document)["metadata"]["name"] == "node-csr-AbC_9"
    failure = refusal(lambda: server.admin.create({"kind": "ConfigMap", "metadata": {"name": "AbC"}}))
    assert "a lowercase RFC 1123 subdomain must consist of" in failure.message


async def test_an_approved_request_has_a_certificate(server: ApiServer) -> None:
    name = create(server, SIGNING_REQUESTS, signing_request("system:node:a"))["metadata"]["name"]
    assert Controllers(server).approve_all(lifetime=600) == [name]
    request = server.admin.get("certificatesigningrequests", name)
    assert [condition["type"] for condition in request["status"]["conditions"]] == ["Approved"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(request["status"]["certificate"]))
    assert certificate.subject.rfc4514_string() == "CN=system:node:a,O=system:nodes"
    assert (certificate.not_valid_after_utc - server.clock.now()).total_seconds() <= 600
    assert Controllers(server).approve_all() == []


async def test_a_denied_request_has_none(server: ApiServer) -> None:
    name = create(server, SIGNING_REQUESTS, signing_request("system:node:a"))["metadata"]["name"]
    denied = Controllers(server).deny(name, "Policy", "no")
    assert denied["status"]["conditions"][0]["reason"] == "Policy"
    assert "certificate" not in denied["status"]


async def test_pods_of_nodes_that_are_gone_are_collected(server: ApiServer) -> None:
    server.admin.create(node_document("a"))
    for name, place in (("kept", "a"), ("lost", "b"), ("waiting", "")):
        server.admin.create(pod_document(name, node=place))
    assert Controllers(server).collect_pods_of_lost_nodes() == ["lost"]
    assert [pod["metadata"]["name"] for pod in server.admin.list("pods")] == ["kept", "waiting"]


async def test_a_namespace_goes_when_it_is_empty(server: ApiServer) -> None:
    server.admin.create(pod_document("web", node="a", namespace="team"))
    server.admin.delete("namespaces", "team")
    assert not Controllers(server).empty_namespace("team")
    server.admin.delete("pods", "web", "team", grace=0)
    assert Controllers(server).empty_namespace("team")
    assert server.admin.find("namespaces", "team") is None


async def test_events_are_forgotten_after_an_hour(autojump_clock: MockClock, server: ApiServer) -> None:
    server.clock.now()
    event = {"involvedObject": {"kind": "Node", "name": "a"}, "reason": "X"}
    server.admin.create({"kind": "Event", "metadata": {"name": "a.1"}, **event})
    await trio.sleep(3000)
    server.admin.create({"kind": "Event", "metadata": {"name": "a.2"}, **event})
    await trio.sleep(1000)
    assert Controllers(server).expire_events() == 1
    assert [e["metadata"]["name"] for e in server.admin.list("events")] == ["a.2"]
