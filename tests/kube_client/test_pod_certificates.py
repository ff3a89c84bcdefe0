"""Certificates of pods: what is decided, and how it is carried out."""

from __future__ import annotations

import base64
import math
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from tests.kube_client.scripted_client import ScriptedClient, status_error
from tests.listening import told_by
from trikubelet.api import (
    Condition,
    ObjectMeta,
    Pod,
    PodCertificateProjection,
    PodCertificateRequest,
    PodCertificateRequestStatus,
    PodSpec,
    ServiceAccount,
    to_dict,
)
from trikubelet.clock import TrioClock
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.pod_certificate_keys import new_key, takes_long
from trikubelet.kube_client.pod_certificate_state import (
    JITTER,
    LOST_AFTER,
    OVERDUE_AFTER,
    SHORTEST_USE,
    Issued,
    Nothing,
    Refused,
    Requested,
    State,
    Warned,
    advance,
    asked,
    cleaned_chain,
    request_of,
    state_label,
)
from trikubelet.kube_client.pod_certificates import PodCertificates
from trikubelet.kube_client.types import POD_CERTIFICATE_REQUESTS
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from trio.testing import MockClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NONE = timedelta()
MINUTE = timedelta(minutes=1)
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n"
REQUESTED = Requested("req-1", "5", b"key", NOW + LOST_AFTER)
ISSUED = Issued(b"old key", b"old chain", renew_at=NOW, expires=NOW + timedelta(hours=1))


def request(*conditions: Condition, chain: str = CERTIFICATE) -> PodCertificateRequest:
    status = PodCertificateRequestStatus(
        conditions=conditions,
        certificate_chain=chain if conditions else "",
        begin_refresh_at=NOW + timedelta(hours=8) if conditions else None,
        not_after=NOW + timedelta(hours=24) if conditions else None,
    )
    metadata = ObjectMeta(name="req-1", namespace="ns", resource_version="5", creation_timestamp=NOW)
    return PodCertificateRequest(metadata=metadata, status=status)


def decision(type_: str) -> Condition:
    return Condition(type=type_, status="True", reason="Why", message='say "so"')


# What is decided.


def test_nothing_is_asked_for_at_once() -> None:
    seen = advance(Nothing(), NOW, request=None, gone=False, jitter=NONE)
    assert (seen.ask, seen.lost) == (True, False)
    assert asked(seen.state, request(), b"key", NOW, MINUTE) == attrs.evolve(
        REQUESTED, lost_at=NOW + LOST_AFTER + MINUTE
    )


def test_a_request_that_was_not_seen_yet_is_waited_for_ten_minutes() -> None:
    seen = advance(REQUESTED, NOW, request=None, gone=False, jitter=NONE)
    assert (seen.state, seen.ask, seen.wake_at) == (REQUESTED, False, NOW + LOST_AFTER)
    late = advance(REQUESTED, NOW + LOST_AFTER, request=None, gone=False, jitter=NONE)
    assert (late.state, late.ask, late.lost) == (Nothing(), True, True)


def test_a_request_that_is_known_to_be_gone_is_lost_at_once() -> None:
    seen = advance(REQUESTED, NOW, request=None, gone=True, jitter=NONE)
    assert (seen.state, seen.ask, seen.lost) == (Nothing(), True, True)


def test_an_undecided_request_is_waited_for_without_end() -> None:
    seen = advance(REQUESTED, NOW + timedelta(days=1), request=request(), gone=False, jitter=NONE)
    assert (seen.state, seen.ask, seen.wake_at) == (REQUESTED, False, None)


def test_an_issued_certificate_is_renewed_a_little_later_than_the_signer_says() -> None:
    seen = advance(REQUESTED, NOW, request=request(decision("Issued")), gone=False, jitter=MINUTE)
    due = NOW + timedelta(hours=8) + MINUTE
    assert seen.state == Issued(b"key", CERTIFICATE.encode(), due, NOW + timedelta(hours=24))
    assert seen.wake_at == due
    assert not seen.ask
    assert advance(seen.state, due - MINUTE, request=None, gone=False, jitter=NONE).wake_at == due
    assert advance(seen.state, due, request=None, gone=False, jitter=NONE).ask


def test_a_signer_that_is_late_is_not_asked_without_end() -> None:
    late = NOW + timedelta(days=1)
    seen = advance(REQUESTED, late, request=request(decision("Issued")), gone=False, jitter=NONE)
    assert seen.wake_at == late + SHORTEST_USE


@pytest.mark.parametrize("before", [REQUESTED, attrs.evolve(ISSUED, renewal=REQUESTED)], ids=["first", "renewal"])
@pytest.mark.parametrize(("type_", "verb"), [("Denied", "was denied"), ("Failed", "failed")])
def test_a_refusal_is_final_and_told(before: State, type_: str, verb: str) -> None:
    seen = advance(before, NOW, request=request(decision(type_)), gone=False, jitter=NONE)
    assert seen.state == Refused(type_, "Why", 'say "so"')
    assert str(seen.state) == (
        f'PodCertificateRequest was permanently {type_.lower()}: reason="Why" message="say \\"so\\""'
    )
    told = f'PodCertificateRequest ns/req-1 {verb}, reason="Why", message="say \\"so\\""'
    assert seen.warnings == (Warned(type_, told),)
    again = advance(seen.state, NOW + timedelta(days=9), request=None, gone=False, jitter=NONE)
    assert (again.state, again.ask, again.wake_at, again.warnings) == (seen.state, False, None, ())


def test_a_renewal_keeps_the_old_certificate_until_the_new_one_is_there() -> None:
    renewing = asked(ISSUED, request(), b"new key", NOW, NONE)
    assert isinstance(renewing, Issued)
    assert (renewing.key, renewing.chain) == (b"old key", b"old chain")
    assert request_of(renewing) == attrs.evolve(REQUESTED, key=b"new key")
    pending = advance(renewing, NOW, request=request(), gone=False, jitter=NONE)
    assert (pending.state, pending.ask) == (renewing, False)
    issued = advance(renewing, NOW, request=request(decision("Issued")), gone=False, jitter=NONE).state
    assert isinstance(issued, Issued)
    assert (issued.key, issued.chain, issued.renewal) == (b"new key", CERTIFICATE.encode(), None)


def test_a_lost_renewal_is_asked_for_again() -> None:
    seen = advance(attrs.evolve(ISSUED, renewal=REQUESTED), NOW, request=None, gone=True, jitter=NONE)
    assert (seen.state, seen.ask, seen.lost) == (ISSUED, True, True)


@pytest.mark.parametrize("renewal", [None, REQUESTED], ids=["not asked", "asked"])
def test_what_is_overdue_and_what_expires_is_told_once_each(renewal: Requested | None) -> None:
    state: State = attrs.evolve(ISSUED, renewal=renewal)
    seen_request = None if renewal is None else request()
    told = []
    now = NOW
    for _ in range(4):
        seen = advance(state, now, request=seen_request, gone=False, jitter=NONE)
        state = seen.state
        told += [(warning.reason, now - NOW) for warning in seen.warnings]
        now = seen.wake_at or now + MINUTE
    assert told == [("CertificateOverdueForRefresh", OVERDUE_AFTER), ("CertificateExpired", timedelta(hours=1))]


@given(st.data())
def test_whatever_happens_time_goes_on_and_no_two_requests_are_under_way(data: st.DataObject) -> None:
    """A wake-up lies in the future, or there is something to do now; keys in use are never lost."""
    state: State = Nothing()
    now = NOW
    jitters = st.timedeltas(NONE, JITTER)
    for _ in range(30):
        requested = request_of(state)
        there = requested is not None and data.draw(st.booleans())
        types = data.draw(st.sampled_from([(), ("Issued",), ("Denied",), ("Failed",)]))
        found = request(*map(decision, types)) if there else None
        seen = advance(state, now, request=found, gone=data.draw(st.booleans()), jitter=data.draw(jitters))
        if isinstance(state, Issued):
            assert isinstance(seen.state, Issued | Refused)
        assert seen.wake_at is None or seen.wake_at > now or seen.ask
        assert not (seen.ask and request_of(seen.state)), "one request at a time"
        state = seen.state
        if seen.ask:
            state = asked(state, request(), b"key", now, data.draw(jitters))
        now = data.draw(st.sampled_from([now, now + MINUTE, seen.wake_at or now]))


@pytest.mark.parametrize(
    ("state", "after", "word"),
    [
        (Nothing(), NONE, "not_yet_issued"),
        (REQUESTED, NONE, "not_yet_issued"),
        (Refused("Denied", "", ""), NONE, "denied"),
        (ISSUED, MINUTE, "fresh"),
        (ISSUED, OVERDUE_AFTER, "overdue_for_refresh"),
        (ISSUED, timedelta(hours=1), "expired"),
    ],
)
def test_the_words_for_metrics(state: State, after: timedelta, word: str) -> None:
    assert state_label(state, NOW + after) == word


def test_a_chain_has_nothing_but_certificates() -> None:
    body = base64.b64encode(bytes(100)).decode()
    text = f"first\n-----BEGIN X-----\nHeader: 1\n\n{body}\n-----END X-----\nbetween {CERTIFICATE} last"
    wrapped = f"{body[:64]}\n{body[64:128]}\n{body[128:]}"
    first = f"-----BEGIN CERTIFICATE-----\n{wrapped}\n-----END CERTIFICATE-----\n"
    assert cleaned_chain(text) == (first + CERTIFICATE).encode()
    assert cleaned_chain("") == b""


def test_keys_are_not_shown() -> None:
    assert "key'" not in repr(attrs.evolve(ISSUED, renewal=REQUESTED))


# Keys.


@pytest.mark.parametrize(
    ("key_type", "matches"),
    [
        ("RSA3072", lambda key: isinstance(key, rsa.RSAPrivateKey) and key.key_size == 3072),
        ("ECDSAP256", lambda key: isinstance(key, ec.EllipticCurvePrivateKey) and key.key_size == 256),
        ("ECDSAP384", lambda key: isinstance(key, ec.EllipticCurvePrivateKey) and key.key_size == 384),
        ("ECDSAP521", lambda key: isinstance(key, ec.EllipticCurvePrivateKey) and key.key_size == 521),
        ("ED25519", lambda key: isinstance(key, ed25519.Ed25519PrivateKey)),
    ],
)
def test_a_key_of_each_type_and_the_proof_that_it_is_had(key_type: str, matches: Callable[[object], bool]) -> None:
    made = new_key(key_type)
    assert made.key.startswith(b"-----BEGIN PRIVATE KEY-----\n"), "PKCS#8"
    key = load_pem_private_key(made.key, None)
    assert matches(key)
    proof = x509.load_der_x509_csr(made.request)
    assert proof.is_signature_valid
    assert proof.public_key() == key.public_key()
    assert not list(proof.subject)
    assert takes_long(key_type) is key_type.startswith("RSA")


def test_an_unknown_type_of_key() -> None:
    with pytest.raises(ValueError, match='unknown key type "DSA"'):
        new_key("DSA")


# How it is carried out.

POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="pod-uid"), spec=PodSpec(service_account_name="sa"))
SOURCE = PodCertificateProjection(
    signer_name="example.com/signer",
    key_type="ECDSAP256",
    max_expiration_seconds=3600,
    user_annotations={"example.com/a": "b"},
)


@attrs.define
class Stage:
    client: ScriptedClient
    certificates: PodCertificates
    recorder: EventRecorder
    clock: TrioClock
    changed: list[str] = attrs.field(factory=list)
    node_uid: str | None = "node-uid"

    def requests(self) -> list[PodCertificateRequest]:
        """The oldest first."""
        found = self.client.all_of(POD_CERTIFICATE_REQUESTS)
        return sorted(found, key=lambda one: (one.metadata.creation_timestamp or NOW, one.metadata.uid))

    def decide(self, type_: str = "Issued", *, hours: float = 8, chain: str = CERTIFICATE) -> None:
        """Of the newest request."""
        newest = self.requests()[-1]
        now = self.clock.now()
        status = PodCertificateRequestStatus(
            conditions=(decision(type_),),
            certificate_chain=chain,
            begin_refresh_at=now + timedelta(hours=hours),
            not_after=now + timedelta(hours=3 * hours),
        )
        self.client.put(attrs.evolve(newest, status=status))

    async def problem(self) -> str:
        with pytest.raises(ObjectError) as raised:
            await self.certificates.certificate(POD, "v", 0, SOURCE)
        return str(raised.value)

    def events(self) -> list[str]:
        return [event.reason for event in self.recorder.events_of("pod-uid")]


@asynccontextmanager
async def certifying() -> AsyncIterator[Stage]:
    clock = TrioClock()
    client = ScriptedClient([ServiceAccount(metadata=ObjectMeta(name="sa", namespace="ns", uid="sa-uid"))], clock=clock)
    recorder = EventRecorder(clock)
    certificates = PodCertificates(
        client, node_name="n", node_uid=lambda: stage.node_uid, recorder=recorder, clock=clock, rng=Random(1)
    )
    stage = Stage(client, certificates, recorder, clock)
    stage.changed = told_by(certificates.changes)
    async with trio.open_nursery() as nursery:
        await nursery.start(certificates.run)
        yield stage
        nursery.cancel_scope.cancel()


async def test_nothing_is_asked_for_before_a_pod_wants_a_certificate(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        await trio.sleep(3600)
        assert stage.client.calls == []


async def test_a_request_says_who_asks_for_whom(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        assert await stage.problem() == "credential bundle is not issued yet"
        (made,) = stage.requests()
        assert made.metadata.name.startswith("req-")
        (owner,) = made.metadata.owner_references
        assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Pod", "p", "pod-uid")
        spec = to_dict(made.spec)
        proof = x509.load_der_x509_csr(base64.b64decode(spec.pop("stubPKCS10Request")))
        assert proof.is_signature_valid
        assert spec == {
            "signerName": "example.com/signer",
            "podName": "p",
            "podUID": "pod-uid",
            "serviceAccountName": "sa",
            "serviceAccountUID": "sa-uid",
            "nodeName": "n",
            "nodeUID": "node-uid",
            "maxExpirationSeconds": 3600,
            "unverifiedUserAnnotations": {"example.com/a": "b"},
        }


async def test_who_asks_first_waits_a_moment_for_a_quick_signer(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        async with trio.open_nursery() as nursery:

            async def sign() -> None:
                await trio.sleep(1)
                stage.decide()

            nursery.start_soon(sign)
            found = await stage.certificates.certificate(POD, "v", 0, SOURCE)
        assert found.chain == CERTIFICATE.encode()
        proof = x509.load_der_x509_csr(stage.requests()[0].spec.stub_pkcs10_request)
        assert load_pem_private_key(found.key, None).public_key() == proof.public_key()
        assert stage.changed == ["pod-uid"]
        assert stage.certificates.report() == {("example.com/signer", "fresh"): 1}


async def test_a_certificate_that_comes_later_is_told(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        await stage.problem()
        await trio.sleep(3600)
        assert stage.changed == []
        stage.decide()
        await trio.sleep(1)
        assert stage.changed == ["pod-uid"]
        assert (await stage.certificates.certificate(POD, "v", 0, SOURCE)).chain == CERTIFICATE.encode()
        assert len(stage.requests()) == 1


async def test_a_certificate_is_renewed_with_another_key(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        await stage.problem()
        stage.decide(hours=8)
        await trio.sleep(1)
        first = await stage.certificates.certificate(POD, "v", 0, SOURCE)
        await trio.sleep(8 * 3600 - 2)
        assert len(stage.requests()) == 1
        await trio.sleep(JITTER.total_seconds() + 3)
        assert len(stage.requests()) == 2
        assert await stage.certificates.certificate(POD, "v", 0, SOURCE) == first
        other = CERTIFICATE.replace("AQID", "BAUG")
        stage.decide(chain=other)
        await trio.sleep(1)
        second = await stage.certificates.certificate(POD, "v", 0, SOURCE)
        assert second.chain == other.encode()
        assert second.key != first.key
        assert stage.changed == ["pod-uid", "pod-uid"]
        assert stage.events() == []


async def test_a_signer_that_does_not_renew_is_told_of(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        await stage.problem()
        stage.decide(hours=8)
        await trio.sleep(8 * 3600 + 900)
        assert stage.events() == ["CertificateOverdueForRefresh"]
        await trio.sleep(17 * 3600)
        assert stage.events() == ["CertificateOverdueForRefresh", "CertificateExpired"]
        assert {event.count for event in stage.recorder.events_of("pod-uid")} == {1}
        assert len(stage.requests()) == 2
        assert (await stage.certificates.certificate(POD, "v", 0, SOURCE)).chain, "it is shown all the same"


async def test_a_refusal_is_told_and_ends_it(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        await stage.problem()
        stage.decide("Denied")
        await trio.sleep(1)
        assert "permanently denied" in await stage.problem()
        assert stage.events() == ["Denied"]
        assert stage.changed == ["pod-uid"]
        await trio.sleep(7200)
        assert len(stage.requests()) == 1


async def test_a_request_that_somebody_deletes_is_made_again_but_not_without_end(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        await stage.problem()
        for _ in range(3600):
            for made in stage.client.all_of(POD_CERTIFICATE_REQUESTS):
                await stage.client.delete(POD_CERTIFICATE_REQUESTS, made.metadata.name, "ns")
            await trio.sleep(1)
        assert 5 < len(stage.client.called("create", POD_CERTIFICATE_REQUESTS)) < 20


async def test_failures_are_tried_again_ever_more_seldom_and_at_once_when_the_server_is_back(
    autojump_clock: MockClock,
) -> None:
    async with certifying() as stage:
        stage.client.fail("create", POD_CERTIFICATE_REQUESTS, status_error(403, "Forbidden", "no"), times=math.inf)
        await stage.problem()
        await trio.sleep(3600)
        assert 5 < len(stage.client.called("create", POD_CERTIFICATE_REQUESTS)) < 20
        stage.client.heal()
        stage.client.unreachable()
        await trio.sleep(1200)
        stage.client.back()
        await trio.sleep(60)
        assert len(stage.requests()) == 1


async def test_nothing_is_requested_before_the_node_is_known(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        stage.node_uid = None
        await stage.problem()
        assert stage.client.called("create") == []
        stage.node_uid = "node-uid"
        await trio.sleep(60)
        assert len(stage.requests()) == 1


async def test_a_pod_that_ended_has_nothing_renewed(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        await stage.problem()
        stage.certificates.forget("other-uid")
        stage.decide(hours=1)
        await trio.sleep(1)
        stage.certificates.forget("pod-uid")
        await trio.sleep(7200)
        assert len(stage.requests()) == 1
        assert stage.certificates.report() == {}


async def test_sources_of_one_pod_have_certificates_of_their_own(autojump_clock: MockClock) -> None:
    async with certifying() as stage:
        for volume, index in (("v", 0), ("v", 1), ("w", 0)):
            with pytest.raises(ObjectError):
                await stage.certificates.certificate(POD, volume, index, SOURCE)
        assert len(stage.requests()) == 3
        assert len({made.spec.stub_pkcs10_request for made in stage.requests()}) == 3
