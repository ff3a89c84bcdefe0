from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from OpenSSL import crypto

from tests.node_api.auth.people import (
    ANY_USE,
    CLIENT_AUTH,
    NOW,
    SERVER_AUTH,
    Signer,
    authority,
    client,
    name_of,
    request,
    signed,
)
from trikubelet.clock import TrioClock
from trikubelet.http.messages import Peer, Request, User
from trikubelet.node_api.auth.certificates import LONGEST_CHAIN, ClientCertificates, user_of
from trikubelet.node_api.auth.client_ca import ClientCA
from trikubelet.node_api.auth.union import AuthenticationError

if TYPE_CHECKING:
    from pathlib import Path

SECOND = timedelta(seconds=1)


def trusting(folder: Path, *authorities: Signer, capacity: int = 10) -> ClientCertificates:
    path = folder / "ca.pem"
    path.write_bytes(b"".join(trusted.pem for trusted in authorities or (authority(),)))
    return ClientCertificates(ClientCA(path), clock=TrioClock(NOW), capacity=capacity)


def intermediate(**options: object) -> Signer:
    return signed(name_of("between"), authority(), **{"authority": True, **options})  # type: ignore[arg-type]


async def user_shown_by(certificates: ClientCertificates, *shown: Signer) -> User | None:
    return await certificates.authenticate(request(certificates=shown))


async def refusal_of(certificates: ClientCertificates, *shown: Signer) -> str:
    with pytest.raises(AuthenticationError) as caught:
        await user_shown_by(certificates, *shown)
    return str(caught.value)


async def test_the_common_name_is_the_user_and_organizations_are_the_groups(tmp_path: Path) -> None:
    ann = client("ann", "system:masters", "dev", uids=["u-1"])
    user = await user_shown_by(trusting(tmp_path), ann)
    assert user is not None
    assert (user.name, user.groups, user.uid) == ("ann", ("system:masters", "dev"), "u-1")
    fingerprint = hashlib.sha256(ann.der).hexdigest()
    assert user.extra == {"authentication.kubernetes.io/credential-id": (f"X509SHA256={fingerprint}",)}


async def test_without_a_certificate_or_a_common_name_there_is_nobody(tmp_path: Path) -> None:
    certificates = trusting(tmp_path)
    assert await user_shown_by(certificates) is None
    assert await user_shown_by(certificates, client("", "dev")) is None


async def test_a_certificate_of_another_authority_is_refused_even_with_the_same_name(tmp_path: Path) -> None:
    impostor = signed(name_of("cluster"), None, authority=True)
    assert impostor.certificate.subject == authority().certificate.subject
    assert "client certificate" in await refusal_of(trusting(tmp_path), client(by=impostor))
    assert "client certificate" in await refusal_of(trusting(tmp_path), client(by=impostor), impostor)


async def test_a_certificate_that_signed_itself_is_refused(tmp_path: Path) -> None:
    assert "self" in await refusal_of(trusting(tmp_path), signed(name_of("ann"), None))


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        (NOW - 2 * SECOND, NOW - SECOND, "expired"),
        (NOW + SECOND, NOW + 60 * SECOND, "not yet valid"),
    ],
)
async def test_a_certificate_outside_its_time_is_refused(tmp_path: Path, begin, end, words) -> None:  # type: ignore[no-untyped-def]
    certificates = trusting(tmp_path)
    assert words in await refusal_of(certificates, client(begin=begin, end=end))
    old = intermediate(begin=begin, end=end)
    assert words in await refusal_of(certificates, client(by=old), old)


async def test_an_authority_that_has_expired_vouches_for_nobody(tmp_path: Path) -> None:
    old = signed(name_of("old"), None, authority=True, end=NOW - SECOND)
    assert "expired" in await refusal_of(trusting(tmp_path, old), client(by=old))


async def test_a_certificate_ends_in_the_middle_of_a_connection(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    certificates = trusting(tmp_path)
    ann = client(end=NOW + 60 * SECOND)
    assert await user_shown_by(certificates, ann) is not None
    await trio.sleep(60)
    assert await user_shown_by(certificates, ann) is not None
    await trio.sleep(0.5)
    assert "expired" in await refusal_of(certificates, ann)


@pytest.mark.parametrize("uses", [None, [CLIENT_AUTH], [ANY_USE], [SERVER_AUTH, CLIENT_AUTH]])
async def test_a_certificate_without_limits_or_for_clients_is_taken(tmp_path: Path, uses) -> None:  # type: ignore[no-untyped-def]
    assert await user_shown_by(trusting(tmp_path), client(uses=uses)) is not None


async def test_a_certificate_for_servers_is_refused_wherever_in_the_chain_it_is(tmp_path: Path) -> None:
    certificates = trusting(tmp_path)
    assert "not for client authentication" in await refusal_of(certificates, client(uses=[SERVER_AUTH]))
    servers = intermediate(uses=[SERVER_AUTH])
    assert "not for client authentication" in await refusal_of(certificates, client(by=servers), servers)


async def test_the_rest_of_what_was_shown_leads_to_the_authority(tmp_path: Path) -> None:
    certificates = trusting(tmp_path)
    between = intermediate()
    ann = client(by=between)
    assert "unable to get" in await refusal_of(certificates, ann)
    user = await user_shown_by(certificates, ann, authority(), between)
    assert user is not None
    assert user.name == "ann"


async def test_one_that_may_not_sign_leads_nowhere(tmp_path: Path) -> None:
    mere_user = client("bob")
    assert "client certificate" in await refusal_of(trusting(tmp_path), client("system:admin", by=mere_user), mere_user)


async def test_the_bundle_may_hold_an_intermediate_alone_as_in_go(tmp_path: Path) -> None:
    between = intermediate()
    certificates = trusting(tmp_path, between)
    assert await user_shown_by(certificates, client(by=between)) is not None
    assert "client certificate" in await refusal_of(certificates, client())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_weak_signatures_and_keys_are_refused(tmp_path: Path) -> None:
    certificates = trusting(tmp_path)
    weak_key = rsa.generate_private_key(65537, 1024)
    assert await user_shown_by(certificates, client(key=weak_key)) is not None
    assert "sha1" in await refusal_of(certificates, signed_anew(client(), "sha1"))
    tiny_key = signed_anew(client(), "sha256", bits=512)
    assert "only 512 bits" in await refusal_of(certificates, tiny_key)


def signed_anew(signer: Signer, digest: str, bits: int = 2048) -> Signer:
    """The same certificate for another key, signed by the authority in a way that only OpenSSL still knows."""
    key = crypto.PKey()
    key.generate_key(crypto.TYPE_RSA, bits)
    certificate = crypto.X509.from_cryptography(signer.certificate)
    certificate.set_pubkey(key)
    certificate.sign(crypto.PKey.from_cryptography_key(authority().key), digest)
    return Signer(certificate.to_cryptography(), signer.key)


async def test_a_uid_must_be_one_text(tmp_path: Path) -> None:
    certificates = trusting(tmp_path)
    assert "expected one UID" in await refusal_of(certificates, client(uids=["a", "b"]))


def test_the_last_of_several_common_names_counts() -> None:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in ("first", "last")]
    user = user_of(signed(x509.Name(parts), authority()).certificate)
    assert user is not None
    assert user.name == "last"


@pytest.mark.parametrize("garbage", [b"", b"\x30\x03\x02\x01\x00", b"x" * 100])
async def test_what_is_no_certificate_is_refused(tmp_path: Path, garbage: bytes) -> None:
    certificates = trusting(tmp_path)
    for shown in [(garbage,), (client().der, garbage)]:
        with pytest.raises(AuthenticationError, match="cannot be read"):
            await certificates.authenticate(Request("GET", "/pods", peer=Peer("", True, shown)))


async def test_more_certificates_than_a_chain_can_have_are_not_looked_at(tmp_path: Path) -> None:
    shown = [client(), *[authority()] * LONGEST_CHAIN]
    assert "at most" in await refusal_of(trusting(tmp_path), *shown)


async def test_a_chain_is_verified_once_and_few_are_kept(tmp_path: Path) -> None:
    certificates = trusting(tmp_path, capacity=2)
    ann, bob, cid = client("ann"), client("bob"), client("cid")
    for shown in (ann, ann, ann, bob, cid):
        assert await user_shown_by(certificates, shown) is not None
    statistics = certificates.statistics()
    assert (statistics.verified, statistics.hits, statistics.cached) == (3, 2, 2)


async def test_the_rest_of_the_chain_is_part_of_what_is_remembered(tmp_path: Path) -> None:
    certificates = trusting(tmp_path)
    between = intermediate()
    ann = client(by=between)
    assert await user_shown_by(certificates, ann, between) is not None
    assert "unable to get" in await refusal_of(certificates, ann)


async def test_another_bundle_makes_what_is_remembered_worthless(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(authority().pem)
    authorities = ClientCA(path)
    certificates = ClientCertificates(authorities, clock=TrioClock(NOW))
    ann, ann_of_others = client(), client(by=authority("others"))
    assert await user_shown_by(certificates, ann) is not None
    path.write_bytes(authority("others").pem)
    await authorities.reread()
    assert "client certificate" in await refusal_of(certificates, ann)
    assert await user_shown_by(certificates, ann_of_others) is not None
    path.write_bytes(authority("others").pem + authority().pem)
    await authorities.reread()
    assert await user_shown_by(certificates, ann) is not None
    assert await user_shown_by(certificates, ann_of_others) is not None
