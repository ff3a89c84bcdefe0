"""What a cluster of kubeadm's tells newcomers about itself, and how they know that it is true. Pure.

The ConfigMap kube-public/cluster-info is for everybody, also for those who cannot verify the server yet. It holds a
kubeconfig (the server and its authority, no user) and, for each bootstrap token, a signature of it: a JWS with HS256
whose key is the token's secret. Who has the token knows by it that somebody else who has the token wrote this; that it
was the cluster's control plane, and none of the other newcomers, is known by the hash of the authority's public key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from trikubelet.formats.values import frozen
from trikubelet.formats.yaml_documents import YamlError, read_documents
from trikubelet.kube_client.kubeconfig import ClusterAccess, KubeconfigError, parse_kubeconfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAMESPACE: Final = "kube-public"
NAME: Final = "cluster-info"
KUBECONFIG_KEY: Final = "kubeconfig"
SIGNATURE_PREFIX: Final = "jws-kubeconfig-"
WRITTEN_BY: Final = "# Written by `trikubelet join`; `trikubelet leave` removes it.\n"
"""The first line of the bootstrap kubeconfig: what is undone is only what was done."""

_TOKEN: Final = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
_USER: Final = "tls-bootstrap-token-user"


class DiscoveryError(Exception):
    """The cluster cannot be joined like this. The text says what to do."""


class UnsignedError(DiscoveryError):
    """Nothing is signed for this token: it is wrong, has expired, or is so new that its signature is to come."""


@frozen
class BootstrapToken:
    """A newcomer's token, which `kubeadm token create` makes: `abcdef.0123456789abcdef`."""

    id: str
    """The half that may be known."""
    secret: str

    @classmethod
    def parse(cls, text: str) -> BootstrapToken:
        """Raises DiscoveryError, which does not quote the text."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            raise DiscoveryError(
                "expected a token of six and sixteen small letters and digits with a dot between: "
                "`kubeadm token create` on the control plane makes one"
            )
        return cls(*match.groups())

    @property
    def text(self) -> str:
        return f"{self.id}.{self.secret}"

    def __repr__(self) -> str:
        return f"BootstrapToken(id={self.id!r}, secret=…)"


@frozen
class JoinableCluster:
    """A cluster that is what it says it is, as far as newcomers can know."""

    access: ClusterAccess
    """With the token as credentials."""
    authority: bytes
    """PEM."""
    kubeconfig: bytes
    """The bootstrap kubeconfig, which says the same as `access`."""


def parse_hash(text: str) -> str:
    """A hash of a public key as `kubeadm` prints it, in small letters. Raises DiscoveryError."""
    if _HASH.fullmatch(text.lower()) is None:
        raise DiscoveryError(f"expected the hash of the authority as sha256: and 64 hexadecimal digits, got {text!r}")
    return text.lower()


def detached_signature(content: str, token_id: str, secret: str) -> str:
    """The JWS of `content` without its payload, as the control plane's signer writes it (RFC 7515, appendix F)."""
    header = _base64(f'{{"alg":"HS256","kid":"{token_id}"}}'.encode())
    signed = f"{header}.{_base64(content.encode())}".encode()
    return f"{header}..{_base64(hmac.new(secret.encode(), signed, hashlib.sha256).digest())}"


def signed_kubeconfig(data: Mapping[str, str], token: BootstrapToken) -> str:
    """The kubeconfig of a cluster-info whose signature by this token is right.

    Raises UnsignedError without a signature, DiscoveryError with a wrong one.
    """
    kubeconfig = data.get(KUBECONFIG_KEY, "")
    if not kubeconfig:
        raise DiscoveryError(f"the ConfigMap {NAMESPACE}/{NAME} has no {KUBECONFIG_KEY}: nobody can join with a token")
    signature = data.get(SIGNATURE_PREFIX + token.id, "")
    if not signature:
        raise UnsignedError(
            f'the cluster does not know the token "{token.id}", or it has expired: '
            "`kubeadm token create` on the control plane makes a new one"
        )
    expected = detached_signature(kubeconfig, token.id, token.secret)
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise DiscoveryError(
            f'what the server says is not signed with the token "{token.id}": '
            "its second half is wrong, or this is another server than the one meant"
        )
    return kubeconfig


def joinable_cluster(kubeconfig: str, token: BootstrapToken, hashes: Sequence[str]) -> JoinableCluster:
    """The cluster of a cluster-info's kubeconfig. No hashes: its authority is believed.

    Only the server and its authority are taken from it. Raises DiscoveryError.
    """
    cluster = _cluster(kubeconfig)
    encoded = str(cluster.get("certificate-authority-data") or "")
    try:
        authority = b64decode(encoded, validate=True)
        certificates = x509.load_pem_x509_certificates(authority)
    except ValueError as error:
        raise DiscoveryError(f"{NAME} has no usable certificate of the cluster's authority: {error}") from None
    if hashes:
        _check_hashes([key_hash(certificate) for certificate in certificates], hashes)
    text = _bootstrap_kubeconfig(str(cluster.get("server") or ""), encoded, token)
    try:
        access = parse_kubeconfig(text, Path(NAME))
    except KubeconfigError as error:
        raise DiscoveryError(str(error)) from None
    if not access.server.startswith("https://"):
        raise DiscoveryError(f"{NAME} names the server {access.server}, expected one of https")
    return JoinableCluster(access, authority, text)


def key_hash(certificate: x509.Certificate) -> str:
    """`sha256:` and the hash of the public key (SubjectPublicKeyInfo, DER), in small letters."""
    info = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(info).hexdigest()}"


def _check_hashes(found: Sequence[str], allowed: Sequence[str]) -> None:
    if not set(found) & set(allowed):
        raise DiscoveryError(
            f"the public key of the cluster's authority has the hash {', '.join(found)}, "
            f"expected {' or '.join(allowed)}: this is another cluster, or the hash is wrong"
        )


def _cluster(kubeconfig: str) -> Mapping[str, Any]:
    """The only cluster of the kubeconfig, which has neither users nor contexts."""
    try:
        documents = [document.data() for document in read_documents(kubeconfig.encode()) if not document.empty]
    except YamlError as error:
        raise DiscoveryError(f"the kubeconfig of {NAME} cannot be read: {error}") from None
    match documents:
        case [{"clusters": [{"cluster": dict(cluster)}]}]:
            return cluster
    raise DiscoveryError(f"expected a kubeconfig with one cluster in {NAME}")


def _bootstrap_kubeconfig(server: str, authority: str, token: BootstrapToken) -> bytes:
    """With the names that kubeadm gives."""
    import yaml

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "kubernetes", "cluster": {"server": server, "certificate-authority-data": authority}},
        ],
        "users": [{"name": _USER, "user": {"token": token.text}}],
        "contexts": [{"name": f"{_USER}@kubernetes", "context": {"cluster": "kubernetes", "user": _USER}}],
        "current-context": f"{_USER}@kubernetes",
    }
    return (WRITTEN_BY + yaml.safe_dump(config)).encode()


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")
