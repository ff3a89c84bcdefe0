"""The storage controllers that scripts use, and a pod's certificates."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from tests.apiserver.builders import node_document, pod_document
from tests.apiserver.controllers import Controllers
from tests.apiserver.errors import ApiFailure
from tests.apiserver.resources import POD_CERTIFICATE_REQUESTS
from tests.apiserver.storage_controllers import StorageControllers, attachment_name, unique_name
from tests.apiserver.users import node_user

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.documents import Document
    from tests.apiserver.server import ApiServer


def volume_document(name: str, size: str = "1Gi", **spec: Any) -> Document:
    body = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], **spec}
    if not {"hostPath", "local", "nfs", "csi"} & set(spec):
        body["csi"] = {"driver": "disk", "volumeHandle": f"handle-{name}"}
    return {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": body}


def claim_document(name: str, size: str = "1Gi", **spec: Any) -> Document:
    body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": body}


def bound_to(server: ApiServer, name: str) -> str | None:
    claim = server.admin.get("persistentvolumeclaims", name)
    if claim["status"].get("phase") != "Bound":
        return None
    volume = server.admin.get("persistentvolumes", claim["spec"]["volumeName"])
    assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    assert volume["status"]["phase"] == "Bound"
    return str(volume["metadata"]["name"])


async def test_a_claim_is_bound_to_a_volume_that_fits(server: ApiServer) -> None:
    for document in (
        volume_document("small", "1Mi"),
        volume_document("slow", storageClassName="slow"),
        volume_document("raw", volumeMode="Block"),
        volume_document("shared", accessModes=["ReadOnlyMany"]),
        volume_document("big", "2Gi"),
        claim_document("data"),
        claim_document("raw", volumeMode="Block"),
        claim_document("more", "1Mi", volumeName="small"),
        claim_document("too-much", "1Ti"),
    ):
        server.admin.create(document)
    StorageControllers(server).reconcile()
    names = ("data", "raw", "more", "too-much")
    assert [bound_to(server, name) for name in names] == ["big", "raw", "small", None]
    assert server.admin.get("persistentvolumeclaims", "data")["status"]["capacity"] == {"storage": "2Gi"}


async def test_a_claim_waits_for_its_volume(
    server: ApiServer, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    await nursery.start(StorageControllers(server, delay=1).run)
    server.admin.create(claim_document("data"))
    await trio.sleep(2)
    assert bound_to(server, "data") is None
    server.admin.create(volume_document("late"))
    await trio.sleep(2)
    assert bound_to(server, "data") == "late"


async def test_volumes_can_be_made_for_claims(server: ApiServer) -> None:
    server.admin.create(claim_document("data"))
    StorageControllers(server, provision=lambda claim: volume_document(f"for-{claim['metadata']['name']}")).reconcile()
    assert bound_to(server, "data") == "for-data"


async def test_an_ephemeral_claim_comes_and_goes_with_its_pod(server: ApiServer) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": claim_document("")["spec"]}
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}
    pod = server.admin.create(pod_document("web", volumes=[volume]))
    storage = StorageControllers(server)
    storage.reconcile()
    claim = server.admin.get("persistentvolumeclaims", "web-scratch")
    assert claim["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    assert claim["metadata"]["labels"] == {"a": "b"}
    server.admin.delete("pods", "web", grace=0)
    storage.reconcile()
    assert server.admin.find("persistentvolumeclaims", "web-scratch") is None


def use(server: ApiServer) -> Document:
    """A pod on node a with a claim on the volume `data`."""
    server.admin.create(node_document("a"))
    volume = server.admin.create(volume_document("data"))
    server.admin.create(claim_document("data"))
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    server.admin.create(pod_document("web", node="a", volumes=volumes))
    return volume


async def test_a_volume_is_attached_while_a_pod_or_the_node_uses_it(server: ApiServer) -> None:
    volume = use(server)
    storage = StorageControllers(server)
    storage.publish_context = {"device": "sdb"}
    storage.reconcile()
    attachment = server.admin.get("volumeattachments", attachment_name(volume, "a"))
    assert attachment["status"]["attached"] is True
    assert attachment["status"]["attachmentMetadata"] == {"device": "sdb"}
    attached = server.admin.get("nodes", "a")["status"]["volumesAttached"]
    assert attached == [{"name": "kubernetes.io/csi/disk^handle-data", "devicePath": ""}]
    used = {"status": {"volumesInUse": [unique_name(volume)]}}
    server.admin.patch("nodes", "a", body=used, subresource="status")
    server.admin.delete("pods", "web", grace=0)
    storage.reconcile()
    assert server.admin.find("volumeattachments", attachment_name(volume, "a")) is not None
    server.admin.patch("nodes", "a", body={"status": {"volumesInUse": []}}, subresource="status")
    storage.reconcile()
    assert server.admin.find("volumeattachments", attachment_name(volume, "a")) is None
    assert server.admin.get("nodes", "a")["status"]["volumesAttached"] == []


async def test_attaching_may_fail(server: ApiServer) -> None:
    volume = use(server)
    storage = StorageControllers(server)
    storage.problems["data"] = ("no room", 8)
    storage.reconcile()
    status = server.admin.get("volumeattachments", attachment_name(volume, "a"))["status"]
    assert (status["attached"], status["attachError"]) == (False, {"message": "no room", "errorCode": 8})
    assert "volumesAttached" not in server.admin.get("nodes", "a")["status"]
    storage.problems.clear()
    storage.reconcile()
    status = server.admin.get("volumeattachments", attachment_name(volume, "a"))["status"]
    assert status["attached"] is True
    assert "attachError" not in status


async def test_a_driver_may_need_no_attaching(server: ApiServer) -> None:
    use(server)
    server.admin.create({"kind": "CSIDriver", "metadata": {"name": "disk"}, "spec": {"attachRequired": False}})
    StorageControllers(server).reconcile()
    assert server.admin.list("volumeattachments") == []


async def test_controllers_come_to_rest(server: ApiServer, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    await nursery.start(StorageControllers(server).run)
    use(server)
    await trio.sleep(1)
    version = server.store.version
    await trio.sleep(100)
    assert server.store.version == version


def request_document(server: ApiServer, **spec: Any) -> Document:
    """What node a asks for its pod `web`."""
    pod, node = server.admin.get("pods", "web"), server.admin.get("nodes", "a")
    account = server.admin.get("serviceaccounts", "default")
    key = ed25519.Ed25519PrivateKey.generate()
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, None)
    body = {
        "signerName": "example.com/pods",
        "podName": "web",
        "podUID": pod["metadata"]["uid"],
        "serviceAccountName": "default",
        "serviceAccountUID": account["metadata"]["uid"],
        "nodeName": "a",
        "nodeUID": node["metadata"]["uid"],
        "maxExpirationSeconds": 86400,
        "stubPKCS10Request": base64.b64encode(csr.public_bytes(Encoding.DER)).decode(),
        **spec,
    }
    return {"metadata": {"generateName": "req-"}, "spec": body}


@pytest.fixture
def identified(server: ApiServer) -> ApiServer:
    for node in ("a", "b"):
        server.admin.create(node_document(node))
    server.admin.create(pod_document("web", node="a", serviceAccountName="default"))
    return server


async def test_a_pods_certificate_is_signed(identified: ApiServer) -> None:
    request = request_document(identified)
    created = identified.registry.create(POD_CERTIFICATE_REQUESTS, "default", request, node_user("a"))
    [name] = Controllers(identified).issue_pod_certificates(lifetime=3600)
    assert name == created["metadata"]["name"]
    status = identified.admin.get("podcertificaterequests", name)["status"]
    assert [one["type"] for one in status["conditions"]] == ["Issued"]
    assert status["beginRefreshAt"] == "2026-01-01T00:48:00Z"
    certificate = x509.load_pem_x509_certificate(status["certificateChain"].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://cluster.local/ns/default/sa/default"]
    assert certificate.signature_hash_algorithm is not None
    assert certificate.signature_hash_algorithm.name == hashes.SHA256().name
    # What was decided stays.
    with pytest.raises(ApiFailure, match="immutable"):
        Controllers(identified).refuse_pod_certificate(name)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"nodeName": "b"}, 'NodeName="b", which is not the requesting node "a"'),
        ({"podUID": "other"}, 'names pod UID "other", inconsistent with'),
        ({"podName": "other"}, 'pods "other" not found'),
        ({"nodeUID": "other"}, 'names node UID "other"'),
        ({"serviceAccountName": "other"}, "differs from running pod"),
        ({"serviceAccountUID": "other"}, 'names serviceaccount UID "other"'),
        ({"stubPKCS10Request": ""}, "spec.stubPKCS10Request: Required value"),
    ],
)
async def test_a_request_for_another_pod_is_refused(identified: ApiServer, spec: Document, message: str) -> None:
    request = request_document(identified, **spec)
    with pytest.raises(ApiFailure) as caught:
        identified.registry.create(POD_CERTIFICATE_REQUESTS, "default", request, node_user("a"))
    assert message in caught.value.message
