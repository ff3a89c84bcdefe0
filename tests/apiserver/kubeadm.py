"""What `kubeadm init` leaves in a cluster for those who join it, and the controller that signs for their tokens."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

from tests.apiserver.users import AUTHENTICATED, BOOTSTRAPPERS, KUBEADM_BOOTSTRAPPERS, User

if TYPE_CHECKING:
    from tests.apiserver.server import ApiServer

KUBELET_CONFIGURATION: Final = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
"""


class Kubeadm:
    """Makes an API server one that can be joined, at `url`."""

    def __init__(self, server: ApiServer, url: str) -> None:
        self._server = server
        self._url = url
        self.tell_authority(server.ca_pem)
        self.configure(KUBELET_CONFIGURATION)

    def tell_authority(self, authority: bytes) -> None:
        """Name this one to newcomers. Nothing is signed then."""
        cluster = {"certificate-authority-data": _text(authority), "server": self._url}
        # As kubeadm writes it: one cluster without a name, and no user.
        kubeconfig: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"cluster": cluster, "name": ""}],
            "contexts": None,
            "current-context": "",
            "preferences": {},
            "users": None,
        }
        self.kubeconfig = json.dumps(kubeconfig)
        _config_map(self._server, "kube-public", "cluster-info", {"kubeconfig": self.kubeconfig})

    def configure(self, kubelet_configuration: str) -> None:
        """What nodes are configured with."""
        _config_map(self._server, "kube-system", "kubelet-config", {"kubelet": kubelet_configuration})

    def create_token(self, token: str) -> None:
        """As `kubeadm token create`: a user, and a signature."""
        token_id, _, secret = token.partition(".")
        groups = (BOOTSTRAPPERS, KUBEADM_BOOTSTRAPPERS, AUTHENTICATED)
        self._server.identities.add_token(token, User(f"system:bootstrap:{token_id}", groups))
        signature = _jws(self.kubeconfig, token_id, secret)
        self.change_cluster_info({f"jws-kubeconfig-{token_id}": signature})

    def expire_token(self, token: str) -> None:
        """As the controllers that clean up: the user goes, and the signature."""
        self._server.identities.remove_token(token)
        self.change_cluster_info({f"jws-kubeconfig-{token.partition('.')[0]}": None})

    def change_cluster_info(self, data: dict[str, Any]) -> None:
        self._server.admin.patch("configmaps", "cluster-info", "kube-public", body={"data": data})

    @property
    def ca_hash(self) -> str:
        """What `kubeadm token create --print-join-command` prints."""
        return self.ca_hash_of(self._server.ca_pem)

    @staticmethod
    def ca_hash_of(authority: bytes) -> str:
        key = x509.load_pem_x509_certificate(authority).public_key()
        der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return "sha256:" + hashlib.sha256(der).hexdigest()


def _config_map(server: ApiServer, namespace: str, name: str, data: dict[str, str]) -> None:
    if server.admin.find("configmaps", name, namespace) is not None:
        server.admin.delete("configmaps", name, namespace)
    metadata = {"name": name, "namespace": namespace}
    server.admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def _jws(content: str, token_id: str, secret: str) -> str:
    header = _url(json.dumps({"alg": "HS256", "kid": token_id}, separators=(",", ":")).encode())
    mac = HMAC(secret.encode(), SHA256())
    mac.update(f"{header}.{_url(content.encode())}".encode())
    return f"{header}..{_url(mac.finalize())}"


def _url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
