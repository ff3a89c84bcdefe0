"""What an agent may ask for: rows after `authorizer/node/node_authorizer_test.go`, and who else may do what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.apiserver.authorization import NodeAuthorizer
from tests.apiserver.builders import mirror_document, node_document, pod_document
from tests.apiserver.errors import ApiFailure
from tests.apiserver.raw_client import RawClient
from tests.apiserver.requests import read_call
from tests.apiserver.users import ANONYMOUS, AUTHENTICATED, BOOTSTRAPPERS, User, node_user
from trikubelet.http.messages import Request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.server import ApiServer

NS = "/api/v1/namespaces/default"
LEASES = "/apis/coordination.k8s.io/v1/namespaces"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
VOLUMES = "/api/v1/persistentvolumes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
REQUESTS = "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests"
SECRET_USES = ("nodeStage", "nodePublish", "nodeExpand", "controllerPublish", "controllerExpand")
UNRELATED = "no relationship found between node 'a' and this object"


def fill(server: ApiServer) -> None:
    """A pod of node a that refers to things named `mine`, one of node b that refers to `theirs`, and a mirror."""
    for node, name in (("a", "mine"), ("b", "theirs")):
        created = server.admin.create(node_document(node))
        sources = {"secretRef": {"name": f"{name}-env"}}
        containers = [{"name": "main", "image": "i", "envFrom": [sources, {"configMapRef": {"name": name}}]}]
        projected = {"sources": [{"secret": {"name": f"{name}-projected"}}]}
        volumes = [
            {"name": "s", "secret": {"secretName": name}},
            {"name": "p", "projected": projected},
            {"name": "c", "persistentVolumeClaim": {"claimName": name}},
        ]
        pod = pod_document(
            f"of-{node}",
            node=node,
            containers=containers,
            volumes=volumes,
            imagePullSecrets=[{"name": f"{name}-pull"}],
            serviceAccountName=name,
            resourceClaims=[{"name": "c", "resourceClaimName": name}],
        )
        server.admin.create(pod)
        _storage(server, node, name)
        if node == "a":
            server.admin.create(mirror_document("mirror", created))


def _storage(server: ApiServer, node: str, name: str) -> None:
    """What a claim brings with it: a volume with secrets, an attachment; and a request for a certificate."""
    references = {f"{use}SecretRef": {"name": f"{name}-{use}", "namespace": "storage"} for use in SECRET_USES}
    spec = {
        "csi": {"driver": "disk", "volumeHandle": name, **references},
        "claimRef": {"namespace": "default", "name": name},
    }
    server.admin.create({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
    attachment = {"attacher": "disk", "nodeName": node, "source": {"persistentVolumeName": name}}
    server.admin.create({"kind": "VolumeAttachment", "metadata": {"name": name}, "spec": attachment})
    asked = ("signerName", "podName", "podUID", "serviceAccountName", "stubPKCS10Request")
    request = {**dict.fromkeys(asked, "x"), "nodeName": node}
    server.admin.create({"kind": "PodCertificateRequest", "metadata": {"name": name}, "spec": request})


def decision(server: ApiServer, user: User, method: str, path: str, **query: str) -> str | None:
    """None when it is allowed, else the message."""
    fields = {name: [value] for name, value in query.items()}
    call = read_call(Request(method, path, fields), user.name)
    try:
        NodeAuthorizer(server.store).authorize(user, call)
    except ApiFailure as failure:
        return failure.message
    return None


ALLOWED: list[tuple[str, str, dict[str, str]]] = [
    ("GET", f"{NS}/secrets/mine", {}),
    ("GET", f"{NS}/secrets/mine-env", {}),
    ("GET", f"{NS}/secrets/mine-pull", {}),
    ("GET", f"{NS}/secrets/mine-projected", {}),
    ("GET", f"{NS}/configmaps/mine", {}),
    ("GET", f"{NS}/secrets", {"fieldSelector": "metadata.name=mine"}),
    ("GET", f"{NS}/configmaps", {"fieldSelector": "metadata.name=mine", "watch": "1"}),
    ("GET", f"{NS}/serviceaccounts/mine", {}),
    ("POST", f"{NS}/serviceaccounts/mine/token", {}),
    ("GET", f"{NS}/persistentvolumeclaims/mine", {}),
    ("PATCH", f"{NS}/persistentvolumeclaims/mine/status", {}),
    ("GET", f"{NS}/pods/of-a", {}),
    ("GET", f"{NS}/pods/mirror", {}),
    ("GET", "/api/v1/pods", {"fieldSelector": "spec.nodeName=a"}),
    ("GET", "/api/v1/pods", {"fieldSelector": "spec.nodeName=a,status.phase!=Failed", "watch": "1"}),
    ("POST", f"{NS}/pods", {}),
    ("DELETE", f"{NS}/pods/of-b", {}),
    ("PATCH", f"{NS}/pods/of-b/status", {}),
    ("POST", f"{NS}/pods/of-a/eviction", {}),
    ("POST", "/api/v1/nodes", {}),
    ("GET", "/api/v1/nodes/a", {}),
    ("GET", "/api/v1/nodes", {"fieldSelector": "metadata.name=a", "watch": "1"}),
    ("PATCH", "/api/v1/nodes/a/status", {}),
    ("GET", "/api/v1/services", {"watch": "1"}),
    ("POST", f"{NS}/events", {}),
    ("PATCH", f"{NS}/events/x", {}),
    ("POST", f"{LEASES}/kube-node-lease/leases", {}),
    ("PUT", f"{LEASES}/kube-node-lease/leases/a", {}),
    ("GET", f"{CSI_NODES}/a", {}),
    ("POST", CSI_NODES, {}),
    ("GET", "/apis/node.k8s.io/v1/runtimeclasses", {}),
    ("GET", "/apis/storage.k8s.io/v1/csidrivers", {"watch": "1"}),
    ("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", {}),
    ("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests", {"watch": "1"}),
    ("GET", f"{VOLUMES}/mine", {}),
    ("GET", f"{ATTACHMENTS}/mine", {}),
    *(("GET", f"/api/v1/namespaces/storage/secrets/mine-{use}", {}) for use in SECRET_USES[:3]),
    ("GET", "/apis/certificates.k8s.io/v1beta1/clustertrustbundles", {"watch": "1"}),
    ("GET", f"{CLAIMS}/mine", {}),
    ("DELETE", SLICES, {"fieldSelector": "spec.nodeName=a,spec.driver=x"}),
    ("POST", REQUESTS, {}),
    ("GET", f"{REQUESTS}/mine", {}),
    (
        "GET",
        "/apis/certificates.k8s.io/v1beta1/podcertificaterequests",
        {"fieldSelector": "spec.nodeName=a", "watch": "1"},
    ),
    ("GET", "/healthz", {}),
    ("GET", "/apis", {}),
]

REFUSED: list[tuple[str, str, dict[str, str], str]] = [
    ("GET", f"{NS}/secrets/theirs", {}, UNRELATED),
    ("GET", f"{NS}/secrets/unknown", {}, UNRELATED),
    ("GET", f"{NS}/secrets", {}, "No Object name found"),
    ("GET", "/api/v1/secrets", {}, "can only read namespaced object of this type"),
    ("PATCH", f"{NS}/secrets/mine", {}, "can only read resources of this type"),
    ("GET", f"{NS}/configmaps/theirs", {}, UNRELATED),
    ("GET", f"{NS}/serviceaccounts/theirs", {}, UNRELATED),
    ("GET", f"{NS}/serviceaccounts", {}, "can only create tokens for individual service accounts"),
    ("POST", f"{NS}/serviceaccounts/theirs/token", {}, UNRELATED),
    ("GET", f"{NS}/persistentvolumeclaims/theirs", {}, UNRELATED),
    ("GET", f"{NS}/persistentvolumeclaims", {}, "can only get individual resources of this type"),
    ("GET", f"{CLAIMS}/theirs", {}, UNRELATED),
    ("GET", CLAIMS, {}, "can only get individual resources of this type"),
    ("DELETE", SLICES, {}, "can only list/watch/deletecollection resourceslices with nodeName field selector"),
    ("DELETE", SLICES, {"fieldSelector": "spec.nodeName=b"}, "resourceslices with nodeName field selector"),
    ("GET", f"{NS}/pods/of-b", {}, UNRELATED),
    ("GET", f"{NS}/pods/gone", {}, UNRELATED),
    ("GET", "/api/v1/pods", {}, "can only list/watch pods with spec.nodeName field selector"),
    ("GET", "/api/v1/pods", {"fieldSelector": "spec.nodeName=b"}, "can only list/watch pods with spec.nodeName field"),
    ("GET", "/api/v1/pods", {"fieldSelector": "spec.nodeName!=a"}, "can only list/watch pods with spec.nodeName"),
    ("PATCH", f"{NS}/pods/of-a", {}, 'cannot patch resource "pods" in API group "" in the namespace "default"'),
    ("POST", f"{NS}/pods/of-a/binding", {}, 'cannot create resource "pods/binding"'),
    ("GET", "/api/v1/nodes", {}, "node 'a' cannot read all nodes, only its own Node object"),
    ("GET", "/api/v1/nodes/b", {}, "node 'a' cannot read 'b', only its own Node object"),
    ("DELETE", "/api/v1/nodes/a", {}, 'User "system:node:a" cannot delete resource "nodes" in API group ""'),
    ("POST", "/api/v1/namespaces", {}, "at the cluster scope"),
    ("GET", f"{NS}/events", {}, 'cannot list resource "events"'),
    ("GET", f"{LEASES}/default/leases/a", {}, 'can only access leases in the "kube-node-lease" system namespace'),
    ("GET", f"{LEASES}/kube-node-lease/leases/b", {}, "can only access node lease with the same name as the request"),
    ("GET", f"{LEASES}/kube-node-lease/leases", {}, "can only get, create, update, patch, or delete a node lease"),
    ("GET", f"{CSI_NODES}/b", {}, "can only access CSINode with the same name as the requesting node"),
    ("GET", CSI_NODES, {}, "can only get, create, update, patch, or delete a CSINode"),
    (
        "PUT",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval",
        {},
        "certificatesigningrequests/appr",
    ),
    ("GET", f"{VOLUMES}/theirs", {}, UNRELATED),
    ("GET", f"{VOLUMES}/unknown", {}, UNRELATED),
    ("GET", VOLUMES, {}, "can only get individual resources of this type"),
    (
        "GET",
        VOLUMES,
        {"fieldSelector": "metadata.name=mine", "watch": "1"},
        "can only get individual resources of this type",
    ),
    ("PATCH", f"{VOLUMES}/mine", {}, "can only get individual resources of this type"),
    ("GET", f"{VOLUMES}/mine/status", {}, "cannot get subresource"),
    ("GET", f"{ATTACHMENTS}/theirs", {}, UNRELATED),
    ("GET", ATTACHMENTS, {"watch": "1"}, "can only get individual resources of this type"),
    *(("GET", f"/api/v1/namespaces/storage/secrets/mine-{use}", {}, UNRELATED) for use in SECRET_USES[3:]),
    ("GET", "/api/v1/namespaces/storage/secrets/theirs-nodeStage", {}, UNRELATED),
    ("GET", f"{NS}/secrets/mine-nodeStage", {}, UNRELATED),
    ("GET", f"{REQUESTS}/theirs", {}, UNRELATED),
    ("GET", REQUESTS, {}, "can only list/watch podcertificaterequests with nodeName field selector"),
    ("GET", REQUESTS, {"fieldSelector": "spec.nodeName=b"}, "with nodeName field selector"),
    ("DELETE", f"{REQUESTS}/mine", {}, "nodes may not delete podcertificaterequests"),
    ("PATCH", f"{REQUESTS}/mine/status", {}, "nodes may not access the status subresource of PodCertificateRequests"),
    ("GET", "/metrics", {}, 'User "system:node:a" cannot get path "/metrics"'),
]


@pytest.mark.parametrize(("method", "path", "query"), ALLOWED)
async def test_an_agent_may(server: ApiServer, method: str, path: str, query: dict[str, str]) -> None:
    fill(server)
    assert decision(server, node_user("a"), method, path, **query) is None


@pytest.mark.parametrize(("method", "path", "query", "message"), REFUSED)
async def test_an_agent_may_not(server: ApiServer, method: str, path: str, query: dict[str, str], message: str) -> None:
    fill(server)
    told = decision(server, node_user("a"), method, path, **query)
    assert told is not None
    assert message in told


async def test_references_of_mirror_pods_grant_nothing(server: ApiServer) -> None:
    node = server.admin.create(node_document("a"))
    server.admin.create(mirror_document("m", node, volumes=[{"name": "s", "secret": {"secretName": "x"}}]))
    assert decision(server, node_user("a"), "GET", f"{NS}/secrets/x") is not None


async def test_the_whole_text_of_a_refusal(server: ApiServer) -> None:
    told = decision(server, node_user("a"), "GET", f"{NS}/secrets/x")
    assert told == (
        'secrets "x" is forbidden: User "system:node:a" cannot get resource "secrets" in API group "" in the '
        f'namespace "default": {UNRELATED}'
    )


async def test_a_bootstrap_token_is_for_certificates(server: ApiServer) -> None:
    user = User("system:bootstrap:abc", (BOOTSTRAPPERS, AUTHENTICATED))
    requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    assert decision(server, user, "POST", requests) is None
    assert decision(server, user, "GET", f"{requests}/x") is None
    assert decision(server, user, "PUT", f"{requests}/x/approval") is not None
    assert decision(server, user, "GET", "/api/v1/nodes") is not None


async def test_nobody_may_ask_for_health_only(server: ApiServer) -> None:
    assert decision(server, ANONYMOUS, "GET", "/healthz") is None
    assert decision(server, ANONYMOUS, "GET", "/api/v1/nodes") is not None
    assert decision(server, ANONYMOUS, "GET", "/api") is not None


async def test_who_asks_is_told_by_certificate_or_token(autojump_clock: MockClock, server: ApiServer) -> None:
    fill(server)
    assert (await RawClient.node(server, "a").get("/api/v1/nodes/a")).code == 200
    assert (await RawClient.node(server, "b").get("/api/v1/nodes/a")).code == 403
    anonymous = await RawClient.of(server).get("/api/v1/nodes/a")
    assert (anonymous.code, 'User "system:anonymous" cannot get' in anonymous.message) == (403, True)
    unknown = await RawClient.of(server, token="wrong").get("/api/v1/nodes/a")
    assert (unknown.code, unknown.message) == (401, "Unauthorized")
    server.identities.add_token("secret", node_user("a"))
    assert (await RawClient.of(server, token="secret").get("/api/v1/nodes/a")).code == 200
    server.identities.remove_token("secret")
    assert (await RawClient.of(server, token="secret").get("/api/v1/nodes/a")).code == 401


async def test_a_certificate_ends_by_the_servers_clock(autojump_clock: MockClock, server: ApiServer) -> None:
    from datetime import timedelta

    import trio

    now = server.clock.now()
    certificate = server.identities.certificate("system:node:a", "system:nodes", end=now + timedelta(hours=1))
    server.admin.create(node_document("a"))
    client = RawClient.of(server, certificate)
    assert (await client.get("/api/v1/nodes/a")).code == 200
    await trio.sleep(3601)
    assert (await client.get("/api/v1/nodes/a")).code == 401


async def test_a_token_of_a_service_account_is_its_user(autojump_clock: MockClock, server: ApiServer) -> None:
    token = await RawClient.admin(server).post(
        f"{NS}/serviceaccounts/default/token",
        {"kind": "TokenRequest", "spec": {"audiences": [], "expirationSeconds": 600}},
    )
    assert token.code == 201
    assert token.document["status"]["expirationTimestamp"] == "2026-01-01T00:10:00Z"
    refused = await RawClient.of(server, token=token.document["status"]["token"]).get(f"{NS}/pods")
    assert 'User "system:serviceaccount:default:default" cannot list' in refused.message
    short: Any = {"kind": "TokenRequest", "spec": {"expirationSeconds": 60}}
    answer = await RawClient.admin(server).post(f"{NS}/serviceaccounts/default/token", short)
    assert answer.code == 422
    assert "may not specify a duration less than 10 minutes" in json.dumps(answer.document)
