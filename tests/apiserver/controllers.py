"""What a cluster's controllers do, when a script says so: sign certificates, tidy up after nodes and namespaces."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.apiserver.documents import Document, dig, items
from tests.apiserver.registry import format_time, parse_time

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from tests.apiserver.server import ApiServer

_DAY: Final = 86400
_BACKDATE: Final = timedelta(minutes=5)
_USAGES: Final = {"client auth": ExtendedKeyUsageOID.CLIENT_AUTH, "server auth": ExtendedKeyUsageOID.SERVER_AUTH}


class Controllers:
    """Each method is done when it returns."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._admin = server.admin

    def approve(self, name: str, *, lifetime: float = _DAY) -> Document:
        """Approve a certificate signing request and sign it; the request with its certificate.

        `lifetime` in seconds is what the signer grants at most; the certificate begins five minutes ago.
        """
        self.decide(name, "Approved")
        request = self._admin.get("certificatesigningrequests", name)
        certificate = self._sign(request, lifetime)
        encoded = base64.b64encode(certificate).decode()
        body = {"status": {"certificate": encoded}}
        return self._admin.patch("certificatesigningrequests", name, body=body, subresource="status")

    def deny(self, name: str, reason: str = "Denied", message: str = "not wanted here") -> Document:
        return self.decide(name, "Denied", reason, message)

    def decide(self, name: str, decision: str, reason: str = "Test", message: str = "by the test") -> Document:
        """Only say it."""
        condition = {"type": decision, "status": "True", "reason": reason, "message": message}
        condition |= {"lastUpdateTime": self._server.registry.now(), "lastTransitionTime": self._server.registry.now()}
        body = {"status": {"conditions": [condition]}}
        return self._admin.patch("certificatesigningrequests", name, body=body, subresource="approval")

    def approve_all(self, *, lifetime: float = _DAY) -> list[str]:
        """Approve what nobody has decided about; the names."""
        undecided = [
            request["metadata"]["name"]
            for request in self._admin.list("certificatesigningrequests")
            if not items(request, "status", "conditions")
        ]
        for name in undecided:
            self.approve(name, lifetime=lifetime)
        return undecided

    def issue_pod_certificate(
        self, name: str, namespace: str = "default", *, lifetime: float = _DAY, refresh_after: float = 0.8
    ) -> Document:
        """Sign a pod's certificate, to be renewed after this share of its life; the request as it is then."""
        request = self._admin.get("podcertificaterequests", name, namespace)
        spec = request["spec"]
        csr = x509.load_der_x509_csr(base64.b64decode(spec["stubPKCS10Request"]))
        wanted = min(lifetime, spec.get("maxExpirationSeconds") or lifetime)
        now = self._server.clock.now()
        identity = f"spiffe://cluster.local/ns/{namespace}/sa/{spec['serviceAccountName']}"
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)])
        signed = self._certificate(csr, wanted).add_extension(names, critical=True)
        status = {
            "certificateChain": self._signed(signed).decode(),
            "notBefore": format_time(now - _BACKDATE),
            "beginRefreshAt": format_time(now + timedelta(seconds=wanted * refresh_after)),
            "notAfter": format_time(now + timedelta(seconds=wanted)),
        }
        return self._decide_pod_certificate(name, namespace, "Issued", "Test", "by the test", status)

    def refuse_pod_certificate(
        self, name: str, namespace: str = "default", *, decision: str = "Denied", reason: str = "Test"
    ) -> Document:
        """`decision`: Denied or Failed."""
        return self._decide_pod_certificate(name, namespace, decision, reason, "not wanted here", {})

    def issue_pod_certificates(self, *, lifetime: float = _DAY) -> list[str]:
        """Sign what nobody has decided about; the names."""
        undecided = [
            request["metadata"]
            for request in self._admin.list("podcertificaterequests")
            if not items(request, "status", "conditions")
        ]
        for metadata in undecided:
            self.issue_pod_certificate(metadata["name"], metadata["namespace"], lifetime=lifetime)
        return [metadata["name"] for metadata in undecided]

    def _decide_pod_certificate(
        self, name: str, namespace: str, decision: str, reason: str, message: str, status: Document
    ) -> Document:
        condition = {"type": decision, "status": "True", "reason": reason, "message": message}
        condition["lastTransitionTime"] = self._server.registry.now()
        body = {"status": {**status, "conditions": [condition]}}
        return self._admin.patch("podcertificaterequests", name, namespace, body=body, subresource="status")

    def _sign(self, request: Document, lifetime: float) -> bytes:
        csr = x509.load_pem_x509_csr(base64.b64decode(request["spec"]["request"]))
        wanted = request["spec"].get("expirationSeconds")
        usages = [_USAGES[usage] for usage in request["spec"].get("usages", ()) if usage in _USAGES]
        builder = (
            self._certificate(csr, min(lifetime, wanted or lifetime))
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        )
        for extension in csr.extensions:
            if isinstance(extension.value, x509.SubjectAlternativeName):
                builder = builder.add_extension(extension.value, critical=False)
        return self._signed(builder)

    def _certificate(self, csr: x509.CertificateSigningRequest, lifetime: float) -> x509.CertificateBuilder:
        issuer = x509.load_pem_x509_certificate(self._server.ca.cert_pem.bytes())
        now = self._server.clock.now()
        return (
            x509.CertificateBuilder()
            .subject_name(csr.subject)
            .issuer_name(issuer.subject)
            .public_key(csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(now + timedelta(seconds=lifetime))
        )

    def _signed(self, builder: x509.CertificateBuilder) -> bytes:
        pem = self._server.ca.private_key_pem.bytes()
        key: EllipticCurvePrivateKey = load_pem_private_key(pem, None)  # type: ignore[assignment]
        return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def collect_pods_of_lost_nodes(self) -> list[str]:
        """Delete the pods that are bound to nodes which are gone, as pod garbage collection does; their names."""
        nodes = {node["metadata"]["name"] for node in self._admin.list("nodes")}
        lost = [pod for pod in self._admin.list("pods") if dig(pod, "spec", "nodeName") not in (None, *nodes)]
        for pod in lost:
            self._admin.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)
        return [pod["metadata"]["name"] for pod in lost]

    def expire_events(self, age: float = 3600.0) -> int:
        """Delete events that were written last before `age` seconds, which a real server does by itself; how many."""
        limit = self._server.clock.now() - timedelta(seconds=age)
        found = 0
        for event in self._admin.list("events"):
            metadata = event["metadata"]
            if parse_time(metadata["managedFields"][0]["time"]) < limit:
                self._admin.delete("events", metadata["name"], metadata["namespace"])
                found += 1
        return found

    def empty_namespace(self, name: str) -> bool:
        """Delete what is in a namespace that is being deleted; true when nothing is left and it is gone too."""
        for resource in ("pods", "configmaps", "secrets", "services", "serviceaccounts", "events"):
            for document in self._admin.list(resource, name):
                if dig(document, "metadata", "deletionTimestamp") is None:
                    self._admin.delete(resource, document["metadata"]["name"], name)
        if self._admin.list("pods", name):
            return False
        namespace = self._admin.get("namespaces", name)
        namespace["spec"] = {"finalizers": []}
        self._admin.replace(namespace)
        return True
