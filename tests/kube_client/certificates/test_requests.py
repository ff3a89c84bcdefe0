"""Requests for certificates and what becomes of them."""

from __future__ import annotations

import hashlib
import math
from base64 import urlsafe_b64encode
from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kube_client.certificates.signer import EPOCH, NODE, Signer, decided
from tests.kube_client.scripted_client import ScriptedClient, lost, status_error
from trikubelet.api import CertificateSigningRequest, CertificateSigningRequestStatus
from trikubelet.kube_client.certificates.requests import (
    CLIENT_AUTH,
    CLIENT_SIGNER,
    SERVER_AUTH,
    SigningError,
    Submitted,
    Wanted,
    request_certificate,
    wait_for_certificate,
)
from trikubelet.kube_client.certificates.signing import digested_name, incompatibility, new_key, signing_request, usages
from trikubelet.kube_client.errors import ApiStatusError
from trikubelet.kube_client.types import SIGNING_REQUESTS

if TYPE_CHECKING:
    from trikubelet.kube_client.certificates.signing import PrivateKey

KEY = new_key()
RSA_KEY = rsa.generate_private_key(65537, 2048)
REQUEST = signing_request(KEY, NODE)
SIGNER = Signer()


async def submit(client: ScriptedClient, name: str = "", key: PrivateKey = KEY, wanted: Wanted = NODE) -> Submitted:
    request, used_for = signing_request(key, wanted), usages(key, CLIENT_AUTH)
    return await request_certificate(client, CLIENT_SIGNER, request, used_for, key=key, now=EPOCH, name=name)


def stored(client: ScriptedClient, submitted: Submitted) -> CertificateSigningRequest:
    found = client.stored(SIGNING_REQUESTS, submitted.name)
    assert found is not None
    return found


@pytest.mark.parametrize("key", [KEY, RSA_KEY, ed25519.Ed25519PrivateKey.generate()])
def test_a_request_says_who_and_is_signed(key: PrivateKey) -> None:
    wanted = attrs.evolve(NODE, dns_names=("n1", "n1.example.com"), ip_addresses=("10.0.0.1", "fd00::1"))
    parsed = x509.load_pem_x509_csr(signing_request(key, wanted))
    assert parsed.is_signature_valid
    assert parsed.subject.rfc4514_string() == "CN=system:node:n1,O=system:nodes"
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["n1", "n1.example.com"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "fd00::1"]


def test_only_rsa_keys_encipher_keys() -> None:
    assert usages(KEY, CLIENT_AUTH) == ("digital signature", "client auth")
    assert usages(RSA_KEY, SERVER_AUTH) == ("digital signature", "key encipherment", "server auth")


def test_the_name_is_a_digest_of_key_identity_and_usages() -> None:
    used_for = usages(KEY, CLIENT_AUTH)
    public = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    parts = (public, b"system:node:n1", b"system:nodes", b"digital signature", b"client auth")
    text = b"".join(urlsafe_b64encode(part).rstrip(b"=") + b"|" for part in parts)
    digest = urlsafe_b64encode(hashlib.new("sha512_256", text).digest()).rstrip(b"=").decode()
    assert digested_name(KEY, NODE, used_for) == f"node-csr-{digest}"
    others = {
        digested_name(new_key(), NODE, used_for),
        digested_name(KEY, attrs.evolve(NODE, common_name="system:node:n2"), used_for),
        digested_name(KEY, NODE, usages(KEY, SERVER_AUTH)),
    }
    assert len(others) == 3
    assert digested_name(KEY, NODE, used_for) not in others


async def test_a_request_without_a_name_gets_one(autojump_clock: MockClock) -> None:
    client = ScriptedClient()
    submitted = await submit(client)
    assert submitted.name.startswith("csr-")
    spec = stored(client, submitted).spec
    assert (spec.signer_name, spec.usages) == (CLIENT_SIGNER, ("digital signature", "client auth"))
    assert x509.load_pem_x509_csr(spec.request).subject == x509.load_pem_x509_csr(REQUEST).subject


async def test_a_request_with_a_name_is_found_again(autojump_clock: MockClock) -> None:
    client = ScriptedClient()
    first = await submit(client, "node-csr-x")
    assert await submit(client, "node-csr-x") == first


async def test_a_request_of_somebody_else_is_not_taken(autojump_clock: MockClock) -> None:
    client = ScriptedClient()
    await submit(client, "node-csr-x", new_key())
    with pytest.raises(SigningError, match="retrieved csr is not compatible: error validating signature"):
        await submit(client, "node-csr-x")


async def test_a_refusal_is_the_callers(autojump_clock: MockClock) -> None:
    client = ScriptedClient()
    client.fail("create", SIGNING_REQUESTS, status_error(403, "Forbidden"))
    with pytest.raises(ApiStatusError):
        await submit(client)


def csr(request: bytes = REQUEST, signer: str = CLIENT_SIGNER, certificate: bytes = b"") -> CertificateSigningRequest:
    made = CertificateSigningRequest(status=CertificateSigningRequestStatus(certificate=certificate))
    return attrs.evolve(made, spec=attrs.evolve(made.spec, request=request, signer_name=signer))


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        pytest.param(csr(), "", id="the same"),
        pytest.param(csr(signing_request(KEY, NODE)), "", id="another signature with the key"),
        pytest.param(csr(signer=""), "", id="no signer is told"),
        pytest.param(csr(certificate=SIGNER.sign(REQUEST)), "", id="issued"),
        pytest.param(
            csr(b"junk"), "unable to parse new csr: PEM block type must be CERTIFICATE REQUEST", id="not a request"
        ),
        pytest.param(
            csr(signing_request(KEY, Wanted("other", ("test",)))),
            "csr subjects differ: new: CN=other,O=test, orig: CN=system:node:n1,O=system:nodes",
            id="another identity",
        ),
        pytest.param(
            csr(signer="example.com/test"),
            f'csr signerNames differ: new "example.com/test", orig: "{CLIENT_SIGNER}"',
            id="another signer",
        ),
        pytest.param(
            csr(signing_request(RSA_KEY, NODE)),
            "error validating signature new CSR against old key: it was made with another key",
            id="another kind of key",
        ),
        pytest.param(
            csr(certificate=SIGNER.sign(REQUEST, EPOCH - timedelta(days=2), timedelta(days=1))),
            "one of the certificates for the CSR has expired: 2025-12-31 00:00:00+00:00",
            id="expired",
        ),
    ],
)
def test_which_requests_stand_for_the_wanted_one(found: CertificateSigningRequest, problem: str) -> None:
    assert incompatibility(found, csr(), KEY, EPOCH) == problem


async def test_a_certificate_that_is_there_is_returned_at_once(autojump_clock: MockClock) -> None:
    client = ScriptedClient()
    submitted = await submit(client)
    SIGNER.answer(client, stored(client, submitted))
    certificate = await wait_for_certificate(client, submitted)
    assert certificate == stored(client, submitted).status.certificate
    assert trio.current_time() == 0


async def waiting(client: ScriptedClient, nursery: trio.Nursery) -> tuple[Submitted, list[bytes | str]]:
    """A request that is waited for, and what the waiting brought."""
    submitted, outcome = await submit(client), list[bytes | str]()

    async def wait() -> None:
        try:
            outcome.append(await wait_for_certificate(client, submitted))
        except SigningError as error:
            outcome.append(str(error))

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    return submitted, outcome


async def test_approval_alone_is_not_enough(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    client = ScriptedClient()
    submitted, outcome = await waiting(client, nursery)
    approved = decided(stored(client, submitted), "Approved")
    client.put(approved)
    await wait_all_tasks_blocked()
    assert outcome == []
    certificate = SIGNER.sign(approved.spec.request)
    client.put(attrs.evolve(approved, status=attrs.evolve(approved.status, certificate=certificate)))
    await wait_all_tasks_blocked()
    assert outcome == [certificate]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Denied", "certificate signing request is denied, reason: No, message: not you"),
        ("Failed", "certificate signing request failed, reason: No, message: not you"),
    ],
)
async def test_a_refused_request_is_given_up(
    autojump_clock: MockClock, nursery: trio.Nursery, kind: str, words: str
) -> None:
    client = ScriptedClient()
    submitted, outcome = await waiting(client, nursery)
    client.put(decided(stored(client, submitted), kind, "No", "not you"))
    await wait_all_tasks_blocked()
    assert outcome == [words]


async def test_a_deleted_request_is_given_up(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    client = ScriptedClient()
    submitted, outcome = await waiting(client, nursery)
    client.remove(SIGNING_REQUESTS, submitted.name)
    await wait_all_tasks_blocked()
    assert outcome == [f'csr "{submitted.name}" was deleted']


async def test_a_request_that_is_another_one_is_given_up(autojump_clock: MockClock) -> None:
    client = ScriptedClient()
    submitted = await submit(client)
    with pytest.raises(SigningError, match=f'csr "{submitted.name}" changed UIDs'):
        await wait_for_certificate(client, attrs.evolve(submitted, uid="other"))


async def test_a_request_that_was_deleted_during_an_outage_is_given_up(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    client = ScriptedClient()
    submitted, outcome = await waiting(client, nursery)
    client.unreachable()
    client.remove(SIGNING_REQUESTS, submitted.name)
    await trio.sleep(60)
    client.back()
    await trio.sleep(60)
    assert outcome == [f'csr "{submitted.name}" was deleted']


async def test_the_wait_survives_all_that_can_happen_to_a_watch(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    client = ScriptedClient()
    submitted, outcome = await waiting(client, nursery)
    client.end_watches()
    await trio.sleep(5)
    client.end_watches(status_error(410, "Expired"))
    await trio.sleep(5)
    client.fail("watch", SIGNING_REQUESTS, status_error(403, "Forbidden"), times=math.inf)
    client.fail("get", SIGNING_REQUESTS, lost(), times=2)
    client.end_watches(lost())
    await trio.sleep(60)
    SIGNER.answer(client, stored(client, submitted))
    await trio.sleep(20)
    assert outcome == [stored(client, submitted).status.certificate]
