"""Keys of pods' certificates, with the proof that the requester has the key (kubelet:
`generateKeyAndProof`).

Imported when a pod wants one: `cryptography` is large.
"""

from __future__ import annotations

from typing import Final

import attrs
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from trikubelet.formats.values import frozen

RSA_BITS: Final = {"RSA3072": 3072, "RSA4096": 4096}
CURVES: Final[dict[str, tuple[ec.EllipticCurve, SHA256 | SHA384 | SHA512]]] = {
    "ECDSAP256": (ec.SECP256R1(), SHA256()),
    "ECDSAP384": (ec.SECP384R1(), SHA384()),
    "ECDSAP521": (ec.SECP521R1(), SHA512()),
}


@frozen
class KeyAndProof:
    """A new key."""

    key: bytes = attrs.field(repr=False)
    """PKCS#8, PEM."""
    request: bytes
    """PKCS#10, DER: nothing but the public key, signed."""


def takes_long(key_type: str) -> bool:
    """Whether making such a key may take seconds."""
    return key_type in RSA_BITS


def new_key(key_type: str) -> KeyAndProof:
    """Raises ValueError for a type that there is not."""
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
    algorithm: SHA256 | SHA384 | SHA512 | None
    if key_type in RSA_BITS:
        key, algorithm = rsa.generate_private_key(65537, RSA_BITS[key_type]), SHA256()
    elif key_type in CURVES:
        curve, algorithm = CURVES[key_type]
        key = ec.generate_private_key(curve)
    elif key_type == "ED25519":
        key, algorithm = ed25519.Ed25519PrivateKey.generate(), None
    else:
        expected = ", ".join((*RSA_BITS, *CURVES, "ED25519"))
        raise ValueError(f'unknown key type "{key_type}", expected one of {expected}')
    stub = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, algorithm)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyAndProof(pem, stub.public_bytes(Encoding.DER))
