"""Asking the API server for a certificate: a request that somebody approves and a signer answers.

The node makes a key, which never leaves it, and a CertificateSigningRequest for it. A request with a name is asked for
once: a node that restarts before the answer finds its request again. One without a name gets one from the server. Then
the request is watched until its certificate is there or its fate is known; whatever else goes wrong meanwhile is tried
again until the caller's time is over.
"""

from __future__ import annotations

import ipaddress
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Final

import trio
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256, SHA512_256, Hash
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from trikubelet.api import CertificateSigningRequest, CertificateSigningRequestSpec, ObjectMeta
from trikubelet.backoff import Backoff
from trikubelet.formats.values import frozen
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.types import SIGNING_REQUESTS, Undecodable
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from trikubelet.kube_client.certificates.store import PrivateKey
    from trikubelet.kube_client.types import ApiClient

log = get_logger("certificates")

CLIENT_SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER: Final = "kubernetes.io/kubelet-serving"
ORGANIZATION: Final = "system:nodes"
DIGITAL_SIGNATURE: Final = "digital signature"
KEY_ENCIPHERMENT: Final = "key encipherment"
CLIENT_AUTH: Final = "client auth"
SERVER_AUTH: Final = "server auth"
WATCH_TIMEOUT: Final = 300.0
"""Seconds after which a watch is begun anew."""
RETRIES: Final = Backoff(first=1.0, longest=10.0)


@frozen
class Wanted:
    """The subject of a certificate. Names and addresses (in their usual form) are sorted and unique."""

    common_name: str
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()


def wanted_for_node(node_name: str, dns_names: Sequence[str] = (), ip_addresses: Sequence[str] = ()) -> Wanted:
    """The identity of a node, with the names that it serves as."""
    return Wanted(f"system:node:{node_name}", (ORGANIZATION,), tuple(dns_names), tuple(ip_addresses))


@frozen
class SigningError(Exception):
    """No certificate comes of this request."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class Submitted:
    """A request that the API server has."""

    name: str
    uid: str


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """As client-go writes keys, when there is such a form: `EC PRIVATE KEY`."""
    form = PrivateFormat.PKCS8 if isinstance(key, ed25519.Ed25519PrivateKey) else PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def signing_request(key: PrivateKey, wanted: Wanted) -> bytes:
    """The request in PEM, signed with the key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject(wanted))
    names = alternative_names(wanted.dns_names, wanted.ip_addresses)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def subject(wanted: Wanted) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in wanted.organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, wanted.common_name)])


def alternative_names(dns_names: Sequence[str], ip_addresses: Sequence[str]) -> x509.SubjectAlternativeName | None:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ip_addresses]
    return x509.SubjectAlternativeName(names) if names else None


def usages(key: PrivateKey, purpose: str) -> tuple[str, ...]:
    """What a certificate for the key may be used for; signers insist on exactly this set."""
    if isinstance(key, rsa.RSAPrivateKey):
        return (DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, purpose)
    return (DIGITAL_SIGNATURE, purpose)


def digested_name(key: PrivateKey, wanted: Wanted, used_for: Sequence[str]) -> str:
    """A name that the same request for the same key has after a restart too (kubelet: `digestedName`)."""
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    parts = [public, *(text.encode() for text in (wanted.common_name, *wanted.organizations, *used_for))]
    digest = Hash(SHA512_256())
    for part in parts:
        digest.update(_base64(part) + b"|")
    return f"node-csr-{_base64(digest.finalize()).decode()}"


def _base64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


async def request_certificate(
    client: ApiClient,
    signer: str,
    request: bytes,
    used_for: Sequence[str],
    *,
    key: PrivateKey,
    now: datetime,
    name: str = "",
) -> Submitted:
    """Submit a request (PEM), or find the one of this name that is there already.

    Raises ApiError, and SigningError when the one that is there is not for this key and this identity.
    """
    wanted = CertificateSigningRequest(
        metadata=ObjectMeta(name=name) if name else ObjectMeta(generate_name="csr-"),
        spec=CertificateSigningRequestSpec(request=request, signer_name=signer, usages=tuple(used_for)),
    )
    try:
        made = await client.create(SIGNING_REQUESTS, wanted)
    except ApiStatusError as error:
        if not (name and error.already_exists):
            raise
        made = await client.get(SIGNING_REQUESTS, name)
        problem = incompatibility(made, wanted, key, now)
        if problem:
            raise SigningError(f"retrieved csr is not compatible: {problem}") from error
        log.info("csr for this node already exists, reusing", csr=name)
    else:
        log.info("certificate signing request created", csr=made.metadata.name, signer=signer)
    return Submitted(made.metadata.name, made.metadata.uid)


def incompatibility(
    found: CertificateSigningRequest, wanted: CertificateSigningRequest, key: PrivateKey, now: datetime
) -> str:
    """Why a request that was found cannot stand for the wanted one; empty when it can."""
    new = _parsed(found.spec.request)
    if new is None:
        return "unable to parse new csr: PEM block type must be CERTIFICATE REQUEST"
    original = _parsed(wanted.spec.request)
    if original is None:
        return "unable to parse original csr: PEM block type must be CERTIFICATE REQUEST"
    if new.subject != original.subject:
        return f"csr subjects differ: new: {new.subject.rfc4514_string()}, orig: {original.subject.rfc4514_string()}"
    signers = (found.spec.signer_name, wanted.spec.signer_name)
    if all(signers) and signers[0] != signers[1]:
        return f'csr signerNames differ: new "{signers[0]}", orig: "{signers[1]}"'
    if not _signed_by(new, key):
        return "error validating signature new CSR against old key: it was made with another key"
    if found.status.certificate:
        try:
            chain = x509.load_pem_x509_certificates(found.status.certificate)
        except ValueError as error:
            return f"error parsing signed certificate for CSR: {error}"
        for certificate in chain:
            if now > certificate.not_valid_after_utc:
                return f"one of the certificates for the CSR has expired: {certificate.not_valid_after_utc}"
    return ""


def _parsed(pem: bytes) -> x509.CertificateSigningRequest | None:
    if b"-----BEGIN CERTIFICATE REQUEST-----" not in pem:
        return None
    try:
        return x509.load_pem_x509_csr(pem)
    except ValueError:
        return None


def _signed_by(request: x509.CertificateSigningRequest, key: PrivateKey) -> bool:
    """Whether the request's signature was made with the key, whatever key the request names."""
    public, signed, signature = key.public_key(), request.tbs_certrequest_bytes, request.signature
    try:
        algorithm = request.signature_hash_algorithm
        if isinstance(public, ed25519.Ed25519PublicKey):
            public.verify(signature, signed)
        elif algorithm is None:
            return False
        elif isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, signed, PKCS1v15(), algorithm)
        else:
            public.verify(signature, signed, ec.ECDSA(algorithm))
    except (InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


async def wait_for_certificate(client: ApiClient, submitted: Submitted) -> bytes:
    """The certificate (PEM) that is issued for a request. Waits without end; cancellable.

    Raises SigningError when there will be none: the request was denied, failed, or is gone.
    """
    wait = RETRIES.first
    while True:
        try:
            found = await client.get(SIGNING_REQUESTS, submitted.name)
            certificate = issued(found, submitted)
            if certificate:
                return certificate
            certificate = await _watch(client, submitted, found.metadata.resource_version)
            if certificate:
                return certificate
            wait = RETRIES.first
        except ApiError as error:
            if isinstance(error, ApiStatusError) and error.not_found:
                raise SigningError(f'csr "{submitted.name}" was deleted') from error
            log.debug("cannot look at the certificate signing request", csr=submitted.name, error=str(error))
        await trio.sleep(wait)
        wait = RETRIES.after(wait)


async def _watch(client: ApiClient, submitted: Submitted, version: str) -> bytes:
    selector = f"metadata.name={submitted.name}"
    watch = client.watch(SIGNING_REQUESTS, field_selector=selector, resource_version=version, timeout=WATCH_TIMEOUT)
    async with watch as events:
        async for event in events:
            if event.type == "BOOKMARK" or isinstance(event.object, Undecodable):
                continue
            if event.type == "DELETED":
                raise SigningError(f'csr "{submitted.name}" was deleted')
            certificate = issued(event.object, submitted)
            if certificate:
                return certificate
    return b""


def issued(found: CertificateSigningRequest, submitted: Submitted) -> bytes:
    """The certificate of a request, empty while there is none. Raises SigningError when there will be none."""
    if found.metadata.uid != submitted.uid:
        raise SigningError(f'csr "{submitted.name}" changed UIDs')
    for condition in found.status.conditions:
        if condition.type == "Denied":
            fate = "certificate signing request is denied"
        elif condition.type == "Failed":
            fate = "certificate signing request failed"
        else:
            continue
        raise SigningError(f"{fate}, reason: {condition.reason}, message: {condition.message}")
    approved = any(condition.type == "Approved" for condition in found.status.conditions)
    return found.status.certificate if approved else b""
