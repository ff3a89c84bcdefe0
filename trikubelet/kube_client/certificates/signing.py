"""What takes a private key: requests for certificates, and certificates of a node's own making.

Imported when a key is made or used, not before: `cryptography` is large.
"""

from __future__ import annotations

import ipaddress
from base64 import urlsafe_b64encode
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256, SHA512_256, Hash
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trikubelet.kube_client.certificates.reading import read_certificates
from trikubelet.kube_client.certificates.store import CertificateError, private_key_block

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from trikubelet.api import CertificateSigningRequest
    from trikubelet.kube_client.certificates.requests import Wanted

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey

DIGITAL_SIGNATURE: Final = "digital signature"
KEY_ENCIPHERMENT: Final = "key encipherment"
LIFE: Final = timedelta(days=365)
CLOCKS_DIFFER: Final = timedelta(hours=1)
"""How much a certificate of our own is valid before it is made."""


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def load_key(pem: bytes) -> PrivateKey:
    """The private key in PEM. Raises CertificateError."""
    try:
        key = load_pem_private_key(private_key_block(pem), password=None)
    except (ValueError, TypeError) as error:  # TypeError: it is encrypted
        raise CertificateError(f"invalid key data: {error}") from error
    if not isinstance(key, PrivateKey):
        raise CertificateError(f"invalid key data: expected an EC, RSA or Ed25519 key, got {type(key).__name__}")
    return key


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
            chain = read_certificates(found.status.certificate)
        except ValueError as error:
            return f"error parsing signed certificate for CSR: {error}"
        for certificate in chain:
            if now > certificate.not_after:
                return f"one of the certificates for the CSR has expired: {certificate.not_after}"
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


def self_signed(host: str, now: datetime) -> tuple[bytes, bytes]:
    """A certificate for a year with the authority that signed it, whose key is forgotten; and the key (PEM both).

    `host` is a name or an address.
    """
    begin, stamp = now - CLOCKS_DIFFER, int(now.timestamp())
    authority_key, key = new_key(), new_key()
    authority_name = _common_name(f"{host}-ca@{stamp}")
    signing = _key_usage(certificates=True)
    authority = (
        _certificate(authority_name, authority_name, authority_key.public_key(), begin)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(signing, critical=True)
        .sign(authority_key, SHA256())
    )
    names = x509.SubjectAlternativeName([_general_name(host)])
    own = (
        _certificate(_common_name(f"{host}@{stamp}"), authority_name, key.public_key(), begin)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(_authority_of(authority_key), critical=False)
        .sign(authority_key, SHA256())
    )
    return own.public_bytes(Encoding.PEM) + authority.public_bytes(Encoding.PEM), key_pem(key)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(begin).not_valid_after(begin + LIFE)


def _authority_of(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _key_usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
