"""Those who ask in these tests: authorities, the certificates that they sign, and API servers that answer reviews."""

from __future__ import annotations

import functools
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trikubelet.http.messages import Peer, Request, User
from trikubelet.kube_client.errors import ApiError, ApiStatusError, ApiUnreachable
from trikubelet.node_api.auth.authorization import AuthorizationError
from trikubelet.node_api.auth.reviews import (
    Reviewer,
    SubjectAccessReviewStatus,
    TokenReviewStatus,
    UserInfo,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.kube_client.types import ApiClient

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The epoch of `TrioClock`."""
YEAR: Final = timedelta(days=365)
CLIENT_AUTH: Final = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER_AUTH: Final = ExtendedKeyUsageOID.SERVER_AUTH
ANY_USE: Final = ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@attrs.frozen
class Signer:
    """A certificate with its key; it may sign others."""

    certificate: x509.Certificate
    key: Key

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def name_of(common_name: str, groups: Sequence[str] = (), uids: Sequence[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    parts += [x509.NameAttribute(x509.ObjectIdentifier("1.3.6.1.4.1.57683.2"), uid) for uid in uids]
    if common_name:
        parts.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
    return x509.Name(parts)


def signed(
    subject: x509.Name,
    signer: Signer | None,
    *,
    authority: bool = False,
    uses: Sequence[x509.ObjectIdentifier] | None = None,
    begin: datetime = NOW - YEAR,
    end: datetime = NOW + YEAR,
    key: Key | None = None,
) -> Signer:
    """A certificate, signed by itself where there is no signer. It has no subjectAltName, as kubeadm's have none."""
    own = ec.generate_private_key(ec.SECP256R1()) if key is None else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if signer is None else signer.certificate.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )
    if authority:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    if uses is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    signing = own if signer is None else signer.key
    return Signer(builder.sign(signing, hashes.SHA256()), own)


def authority(name: str = "cluster") -> Signer:
    """The same one for the same name."""
    return _authority(name)


@functools.cache
def _authority(name: str) -> Signer:
    return signed(name_of(name), None, authority=True)


def client(
    common_name: str = "ann", *groups: str, by: Signer | None = None, uids: Sequence[str] = (), **options: Any
) -> Signer:
    """A client's certificate of the cluster's authority, or of `by`."""
    return signed(name_of(common_name, groups, uids), by or authority(), **{"uses": [CLIENT_AUTH], **options})


def request(
    method: str = "GET",
    path: str = "/pods",
    *,
    token: str = "",
    certificates: Sequence[Signer] = (),
    headers: Sequence[tuple[str, str]] = (),
) -> Request:
    raw = [*headers, *([("authorization", f"Bearer {token}")] if token else [])]
    shown = tuple(certificate.der for certificate in certificates)
    return Request(method, path, headers=dict(raw), raw_headers=tuple(raw), peer=Peer("10.0.0.9:1", True, shown))


class ReviewServer:
    """An API server that knows only reviews. `fail` makes the next calls fail; `latency` is seconds."""

    def __init__(self) -> None:
        self.tokens: dict[str, UserInfo] = {}
        self.answer_token: Callable[[str], TokenReviewStatus] = self._status_of
        self.answer_access = SubjectAccessReviewStatus(allowed=True)
        self.asked: list[Any] = []
        self.latency = 0.0
        self.limit: object = None
        self.timeout = 0.0
        self._failures: list[ApiError] = []

    def fail(self, error: ApiError, times: int = 1) -> None:
        self._failures += [error] * times

    def reviewer(self) -> Reviewer:
        return Reviewer(self.client, limit=None, rng=random.Random(1))

    @property
    def client(self) -> ApiClient:
        return cast("ApiClient", self)

    def view(self, *, limit: object, timeout: float) -> ReviewServer:
        self.limit, self.timeout = limit, timeout
        return self

    async def create(self, _: Any, review: Any) -> Any:
        self.asked.append(review)
        with trio.move_on_after(self.timeout):
            await trio.sleep(self.latency)
            if self._failures:
                raise self._failures.pop(0)
            if review.kind == "TokenReview":
                return attrs.evolve(review, status=self.answer_token(review.spec.token))
            return attrs.evolve(review, status=self.answer_access)
        raise ApiUnreachable("POST /", f"no answer within {self.timeout:g} s", sent=True)

    def _status_of(self, token: str) -> TokenReviewStatus:
        user = self.tokens.get(token)
        if user is None:
            return TokenReviewStatus(error="invalid bearer token")
        return TokenReviewStatus(authenticated=True, user=user)


def refused(code: int, reason: str = "", retry_after: float | None = None) -> ApiStatusError:
    return ApiStatusError("POST /", code, reason, "no", retry_after=retry_after)


def away(*, sent: bool = False) -> ApiUnreachable:
    return ApiUnreachable("POST /", "Connection refused", sent=sent)


class Says:
    """An authenticator, or an authorizer, that says always the same."""

    def __init__(self, answer: User | Exception | None = None, **rights: bool | Exception) -> None:
        """`rights` by subresource; what is not named is not allowed."""
        self._answer = answer
        self._rights = rights
        self.asked: list[Any] = []

    async def authenticate(self, request: Request) -> User | None:
        await trio.lowlevel.checkpoint()
        self.asked.append(request)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def allows(self, user: User, attributes: Any) -> bool:
        await trio.lowlevel.checkpoint()
        self.asked.append((user, attributes))
        right = self._rights.get(attributes.subresource, False)
        if isinstance(right, Exception):
            raise right
        return right


UNDECIDED: Final = AuthorizationError("the API server is away")
