"""Tokens, certificates and trust bundles as volumes ask for them."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import attrs
import pytest
import trio

from tests.kube_client.scripted_client import ScriptedClient, status_error
from tests.kube_client.test_trust_bundles import bundle
from trikubelet.api import (
    ClusterTrustBundleProjection,
    ObjectMeta,
    Pod,
    PodCertificateProjection,
    PodSpec,
    ServiceAccount,
)
from trikubelet.broadcast import Broadcast
from trikubelet.clock import TrioClock
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.pod_credentials import ClusterCredentials
from trikubelet.kube_client.tokens import JITTER, Tokens
from trikubelet.kube_client.trust_bundles import TrustBundles
from trikubelet.kube_client.types import SERVICE_ACCOUNTS
from trikubelet.kube_client.volume_objects import CertificateAndKey, PodCredentials
from trikubelet.volumes.no_cluster import NoClusterCredentials, NoClusterObjects

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.kube_client.pod_certificates import PodCertificates

POD = Pod(metadata=ObjectMeta(name="web", namespace="ns", uid="uid-1"), spec=PodSpec(service_account_name="default"))
SOURCE = PodCertificateProjection(signer_name="example.com/pods", key_type="ED25519")
HOUR = timedelta(hours=1)


@attrs.define
class Certificates:
    """A manager of certificates that has one."""

    asked: list[tuple[str, int]] = attrs.field(factory=list)
    forgotten: list[str] = attrs.field(factory=list)
    changes: Broadcast[str] = attrs.field(factory=Broadcast)

    async def certificate(
        self, pod: Pod, volume: str, index: int, source: PodCertificateProjection
    ) -> CertificateAndKey:
        await trio.lowlevel.checkpoint()
        self.asked.append((volume, index))
        return CertificateAndKey(b"chain", b"key")

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)


@attrs.define
class World:
    client: ScriptedClient
    tokens: Tokens
    certificates: Certificates
    credentials: ClusterCredentials
    clock: TrioClock


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    client = ScriptedClient(
        [ServiceAccount(metadata=ObjectMeta(name="default", namespace="ns")), bundle("plain", b"one")]
    )
    clock = TrioClock()
    tokens = Tokens(client, clock=clock, rng=random.Random(1))
    bundles = TrustBundles(client, rng=random.Random(1))
    certificates = Certificates()
    await nursery.start(bundles.run)
    credentials = ClusterCredentials(
        tokens=tokens, trust_bundles=bundles, certificates=cast("PodCertificates", certificates), clock=clock
    )
    return World(client, tokens, certificates, credentials, clock)


def as_credentials(credentials: ClusterCredentials | NoClusterCredentials) -> PodCredentials:
    return credentials


async def test_a_token_is_for_the_pod_and_for_what_the_volume_wants(world: World, autojump_clock: MockClock) -> None:
    begin = world.clock.now()
    token = await as_credentials(world.credentials).token(POD, ("vault",), 600)
    assert token.token == "token-1"
    assert token.expires == begin + timedelta(seconds=600)
    assert token.renew_at <= begin + timedelta(seconds=480) <= token.renew_at + timedelta(seconds=JITTER)
    assert "token-1" not in repr(token)
    [call] = world.client.calls
    bound = call.body.spec.bound_object_ref
    assert (call.body.spec.audiences, call.body.spec.expiration_seconds) == (("vault",), 600)
    assert (bound.kind, bound.name, bound.uid) == ("Pod", "web", "uid-1")


@pytest.mark.parametrize(("seconds", "expected"), [(3600, 0.8 * HOUR), (48 * 3600, 24 * HOUR)])
async def test_a_token_that_is_asked_for_when_it_is_due_is_a_new_one(
    seconds: int, expected: timedelta, world: World, autojump_clock: MockClock
) -> None:
    begin = world.clock.now()
    first = await world.credentials.token(POD, (), seconds)
    assert expected - timedelta(seconds=JITTER) <= first.renew_at - begin <= expected
    await trio.sleep((first.renew_at - begin).total_seconds() - 0.001)
    assert (await world.credentials.token(POD, (), seconds)).token == "token-1"
    await trio.sleep(0.002)
    second = await world.credentials.token(POD, (), seconds)
    assert second.token == "token-2"
    assert second.renew_at > world.clock.now()


async def test_a_renewal_that_failed_is_tried_again_later(world: World, autojump_clock: MockClock) -> None:
    first = await world.credentials.token(POD, (), 3600)
    await trio.sleep((first.renew_at - world.clock.now()).total_seconds())
    world.client.fail("create", SERVICE_ACCOUNTS, status_error(500, "InternalError", "no"))
    kept = await world.credentials.token(POD, (), 3600)
    assert (kept.token, kept.expires) == ("token-1", first.expires)
    assert kept.renew_at - world.clock.now() == timedelta(seconds=30)
    await trio.sleep(30)
    assert (await world.credentials.token(POD, (), 3600)).token == "token-2"


async def test_a_token_that_cannot_be_had_is_an_error(world: World, autojump_clock: MockClock) -> None:
    world.client.fail("create", SERVICE_ACCOUNTS, status_error(403, "Forbidden", "no"))
    with pytest.raises(ObjectError, match=r"^failed to fetch token: "):
        await world.credentials.token(POD, (), 3600)


async def test_what_belongs_to_a_pod_that_ended_is_forgotten(world: World, autojump_clock: MockClock) -> None:
    await world.credentials.token(POD, (), 3600)
    world.credentials.forget("uid-1")
    assert world.tokens.kept == 0
    assert world.certificates.forgotten == ["uid-1"]


async def test_trust_bundles_and_certificates_come_from_their_owners(world: World, autojump_clock: MockClock) -> None:
    changes = world.credentials.changes()
    assert b"CERTIFICATE" in await world.credentials.trust_bundle(ClusterTrustBundleProjection(name="plain"))
    found = await world.credentials.pod_certificate(POD, "identity", 1, SOURCE)
    assert (found.chain, found.key) == (b"chain", b"key")
    assert world.certificates.asked == [("identity", 1)]
    world.certificates.changes.send("uid-1")
    assert [await changes.receive() for _ in range(2)] == ["", "uid-1"]


async def test_projections_that_are_switched_off_are_errors(world: World, autojump_clock: MockClock) -> None:
    credentials = ClusterCredentials(tokens=world.tokens, trust_bundles=None, clock=world.clock)
    with pytest.raises(ObjectError, match="switched off by its feature gate"):
        await credentials.trust_bundle(ClusterTrustBundleProjection(name="plain"))
    with pytest.raises(ObjectError, match="PodCertificate projection is not supported"):
        await credentials.pod_certificate(POD, "identity", 0, SOURCE)
    credentials.changes().close()
    assert (await credentials.token(POD, (), 600)).token == "token-1"


async def test_an_agent_without_a_cluster_has_no_credentials_for_pods(autojump_clock: MockClock) -> None:
    credentials = as_credentials(NoClusterCredentials())
    with pytest.raises(ObjectError, match=r"^cannot use TokenManager when kubelet is in standalone mode$"):
        await credentials.token(POD, (), None)
    with pytest.raises(ObjectError, match=r"^ClusterTrustBundle projection is not supported in static kubelet mode$"):
        await credentials.trust_bundle(ClusterTrustBundleProjection(name="plain"))
    with pytest.raises(ObjectError, match="not supported in static kubelet mode"):
        await credentials.pod_certificate(POD, "identity", 0, SOURCE)
    with pytest.raises(ObjectError, match=r"^not supported due to running kubelet in standalone mode$"):
        await NoClusterObjects().config_map("ns", "settings")
