"""Client certificates: does this chain lead to one of our authorities, and which user does it name?

TLS only made sure that the client has the key; the chain is judged here, with every request, since the authorities may
change during a connection. OpenSSL builds the chain. What Go's verifier demands beyond that is checked on the result:
a use for client authentication in every certificate of the chain that limits its uses, and no weak signature. As in Go,
any certificate of the bundle is an end of the chain, one that another has signed too.

Facts from `k8s.io/apiserver/pkg/authentication/request/x509` (`CommonNameUserConversion`) and Go's `crypto/x509`.
Results are kept, so that a connection pays for one verification, not for one per request. pyOpenSSL is imported with
the first certificate: an agent without clients does not pay for it.
"""

from __future__ import annotations

import functools
import hashlib
from datetime import datetime
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.http.messages import Request, User
from trikubelet.node_api.auth.expiring import ExpiringCache
from trikubelet.node_api.auth.union import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography import x509
    from OpenSSL import crypto

    from trikubelet.clock import WallClock
    from trikubelet.node_api.auth.client_ca import Bundle, ClientCA

CREDENTIAL_ID: Final = "authentication.kubernetes.io/credential-id"
UID_OID: Final = "1.3.6.1.4.1.57683.2"
"""Of the subject's attribute that is the user's UID (`apimachinery/pkg/apis/asn1`)."""
CACHED_CHAINS: Final = 1024
CACHE_SECONDS: Final = 3600.0
LONGEST_CHAIN: Final = 16
"""Certificates that a client may show; Kubernetes' own chains have at most three."""
SMALLEST_RSA_KEY: Final = 1024
"""Bits. Go refuses smaller ones."""
_WEAK_HASHES: Final = ("md5", "sha1")


@frozen
class _Verified:
    """What is kept of a good chain."""

    user: User | None
    """None: the certificate names no user."""
    begin: datetime
    end: datetime
    """While all certificates of the chain are valid; both moments included."""

    def valid_at(self, now: datetime) -> bool:
        return self.begin <= now <= self.end


@frozen
class CertificateStatistics:
    cached: int
    hits: int
    verified: int
    refused: int


class ClientCertificates:
    """Users by client certificate."""

    def __init__(self, authorities: ClientCA, *, clock: WallClock, capacity: int = CACHED_CHAINS) -> None:
        self._authorities = authorities
        self._clock = clock
        self._cache: ExpiringCache[_Verified] = ExpiringCache(capacity)
        self._hits = self._good = self._refused = 0

    def statistics(self) -> CertificateStatistics:
        return CertificateStatistics(len(self._cache), self._hits, self._good, self._refused)

    async def authenticate(self, request: Request) -> User | None:
        """Does not wait for anything: a verification takes about a millisecond."""
        shown = request.peer.certificates
        if not shown:
            return None
        bundle, now = self._authorities.bundle, self._clock.now()
        key = _digest(bundle, shown)
        kept = self._cache.get(key, trio.current_time())
        if kept is not None and kept.valid_at(now):
            self._hits += 1
            return kept.user
        try:
            verified = _examine(shown, bundle, now)
        except AuthenticationError:
            self._refused += 1
            raise
        self._good += 1
        self._cache.put(key, verified, trio.current_time(), CACHE_SECONDS)
        return verified.user


def verify_chain(shown: Sequence[bytes], bundle: Bundle, now: datetime) -> tuple[x509.Certificate, ...]:
    """The chain from the client's certificate to one of the bundle's.

    `shown` is DER as in the handshake: the client's own certificate first, then in any order what may lead from it to
    an authority. Raises AuthenticationError.
    """
    from OpenSSL import crypto

    if len(shown) > LONGEST_CHAIN:
        raise AuthenticationError(f"expected at most {LONGEST_CHAIN} client certificates, got {len(shown)}")
    try:
        leaf, *others = (crypto.load_certificate(crypto.FILETYPE_ASN1, der) for der in shown)
        # A store keeps the first time that is set, so each verification has its own.
        store = crypto.X509Store()
        store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
        store.set_time(now)
        for authority in _authorities(bundle):
            store.add_cert(authority)
        found = crypto.X509StoreContext(store, leaf, others).get_verified_chain()
        chain = tuple(certificate.to_cryptography() for certificate in found)
        for certificate in chain:
            _check_uses(certificate)
        for certificate in chain[:-1]:
            _check_strength(certificate)
    except crypto.X509StoreContextError as error:
        raise AuthenticationError(f"client certificate: {error}") from None
    except AuthenticationError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the libraries say of what a stranger sent
        raise AuthenticationError(f"client certificate cannot be read: {error!r}") from None
    return chain


@functools.lru_cache(maxsize=2)
def _authorities(bundle: Bundle) -> tuple[crypto.X509, ...]:
    """As OpenSSL has them: made once for each bundle, not for each verification."""
    from OpenSSL import crypto

    return tuple(crypto.load_certificate(crypto.FILETYPE_PEM, authority) for authority in bundle.certificates)


def user_of(certificate: x509.Certificate) -> User | None:
    """The user that a verified certificate names: the last common name; its organizations are the groups.

    None without a common name. Raises AuthenticationError for a UID that is none.
    """
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID, ObjectIdentifier

    subject = certificate.subject
    names = [text for text in _texts(subject, NameOID.COMMON_NAME) if isinstance(text, str)]
    if not names or not names[-1]:
        return None
    uids = _texts(subject, ObjectIdentifier(UID_OID))
    if len(uids) > 1:
        raise AuthenticationError(f"client certificate: expected one UID in its subject, got {len(uids)}")
    uid = uids[0] if uids else None
    if uid is not None and (not uid or not isinstance(uid, str)):
        raise AuthenticationError("client certificate: the UID in its subject is empty, or no text")
    groups = tuple(text for text in _texts(subject, NameOID.ORGANIZATION_NAME) if isinstance(text, str))
    fingerprint = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    extra = {CREDENTIAL_ID: (f"X509SHA256={fingerprint}",)}
    return User(names[-1], str(uid or ""), groups, extra)


def _examine(shown: Sequence[bytes], bundle: Bundle, now: datetime) -> _Verified:
    chain = verify_chain(shown, bundle, now)
    begin = max(certificate.not_valid_before_utc for certificate in chain)
    end = min(certificate.not_valid_after_utc for certificate in chain)
    verified = _Verified(user_of(chain[0]), begin, end)
    if not verified.valid_at(now):  # OpenSSL knows only whole seconds
        raise AuthenticationError("client certificate: certificate has expired")
    return verified


def _digest(bundle: Bundle, shown: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256(bundle.digest)
    for der in shown:
        digest.update(len(der).to_bytes(4, "big"))
        digest.update(der)
    return digest.digest()


def _check_uses(certificate: x509.Certificate) -> None:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(uses):
        raise AuthenticationError(f"client certificate: {_name(certificate)} is not for client authentication")


def _check_strength(certificate: x509.Certificate) -> None:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    algorithm = certificate.signature_hash_algorithm
    if algorithm is not None and algorithm.name in _WEAK_HASHES:
        raise AuthenticationError(f"client certificate: {_name(certificate)} is signed by means of {algorithm.name}")
    key = certificate.public_key()
    if isinstance(key, RSAPublicKey) and key.key_size < SMALLEST_RSA_KEY:
        raise AuthenticationError(f"client certificate: the key of {_name(certificate)} has only {key.key_size} bits")


def _name(certificate: x509.Certificate) -> str:
    return f"{certificate.subject.rfc4514_string()!r} (serial number {certificate.serial_number})"


def _texts(name: x509.Name, oid: x509.ObjectIdentifier) -> list[str | bytes]:
    return [attribute.value for attribute in name.get_attributes_for_oid(oid)]
