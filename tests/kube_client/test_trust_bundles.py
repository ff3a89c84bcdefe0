"""Trust bundles, with the situations of the kubelet's `clustertrustbundle_manager_test.go`."""

from __future__ import annotations

import base64
import math
import random
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.kube_client.scripted_client import ScriptedClient, status_error
from tests.listening import told_by
from trikubelet.api import (
    ClusterTrustBundle,
    ClusterTrustBundleProjection,
    ClusterTrustBundleSpec,
    LabelSelector,
    LabelSelectorRequirement,
    ObjectMeta,
)
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.trust_bundles import TrustBundles, anchors, selects
from trikubelet.kube_client.types import TRUST_BUNDLES

if TYPE_CHECKING:
    from trio.testing import MockClock

SIGNER = "example.com/ca"
EVERYTHING = LabelSelector()


def pem(*contents: bytes) -> str:
    """A bundle with text between its blocks, as people write them."""
    blocks = (base64.encodebytes(one).decode() for one in contents)
    return "".join(f"# a\n-----BEGIN CERTIFICATE-----\n{one}-----END CERTIFICATE-----\n" for one in blocks)


def bundle(name: str, *contents: bytes, signer: str = "", **labels: str) -> ClusterTrustBundle:
    return ClusterTrustBundle(
        metadata=ObjectMeta(name=name, labels=labels), spec=ClusterTrustBundleSpec(signer, pem(*contents))
    )


def by_signer(
    selector: LabelSelector | None = EVERYTHING, *, optional: bool | None = None
) -> ClusterTrustBundleProjection:
    return ClusterTrustBundleProjection(signer_name=SIGNER, label_selector=selector, optional=optional)


def contents(text: bytes) -> list[bytes]:
    blocks = text.decode().split("-----END CERTIFICATE-----\n")[:-1]
    return [base64.b64decode(block.removeprefix("-----BEGIN CERTIFICATE-----\n")) for block in blocks]


@attrs.define
class World:
    client: ScriptedClient
    bundles: TrustBundles

    async def found(self, source: ClusterTrustBundleProjection) -> set[bytes]:
        return set(contents(await self.bundles.get(source)))


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    client = ScriptedClient(
        [
            bundle("plain", b"one", b"two", b"one"),
            bundle("example.com:ca:a", b"three", signer=SIGNER, stage="live"),
            bundle("example.com:ca:b", b"three", b"four", signer=SIGNER, stage="test"),
        ]
    )
    bundles = TrustBundles(client, rng=random.Random(1), order="boot")
    await nursery.start(bundles.run)
    return World(client, bundles)


async def test_nothing_is_read_before_a_pod_wants_it(world: World, autojump_clock: MockClock) -> None:
    await trio.sleep(100)
    assert world.client.calls == []
    await world.bundles.get(ClusterTrustBundleProjection(name="plain"))
    await world.bundles.get(ClusterTrustBundleProjection(name="plain"))
    assert [call.verb for call in world.client.calls] == ["list", "watch"]


async def test_a_bundle_by_its_name_has_each_certificate_once(world: World, autojump_clock: MockClock) -> None:
    text = await world.bundles.get(ClusterTrustBundleProjection(name="plain"))
    assert sorted(contents(text)) == [b"one", b"two"]
    assert text.endswith(b"-----END CERTIFICATE-----\n")


async def test_bundles_of_a_signer_are_put_together(world: World, autojump_clock: MockClock) -> None:
    assert await world.found(by_signer()) == {b"three", b"four"}
    assert await world.found(by_signer(LabelSelector(match_labels={"stage": "live"}))) == {b"three"}
    with pytest.raises(ObjectError, match=r"^combination of signerName and labelSelector matched zero"):
        await world.found(by_signer(None))


async def test_changes_are_told_and_shown(world: World, autojump_clock: MockClock) -> None:
    told = told_by(world.bundles.changes)
    assert await world.found(by_signer()) == {b"three", b"four"}
    told.clear()
    world.client.put(bundle("example.com:ca:c", b"five", signer=SIGNER))
    await trio.sleep(0.01)
    assert told == [""]
    assert await world.found(by_signer()) == {b"three", b"four", b"five"}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            ClusterTrustBundleProjection(name="other"),
            r'^while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "other" not found$',
        ),
        (
            ClusterTrustBundleProjection(signer_name="other", label_selector=EVERYTHING),
            r"^combination of signerName and labelSelector matched zero ClusterTrustBundles$",
        ),
    ],
)
async def test_what_is_missing_is_an_error_unless_it_is_optional(
    source: ClusterTrustBundleProjection, problem: str, world: World, autojump_clock: MockClock
) -> None:
    with pytest.raises(ObjectError, match=problem) as caught:
        await world.bundles.get(source)
    assert caught.value.problem == "not found"
    assert await world.bundles.get(attrs.evolve(source, optional=True)) == b""


async def test_a_source_must_say_what_it_wants(world: World, autojump_clock: MockClock) -> None:
    with pytest.raises(ObjectError, match="requires either name or signerName to be set"):
        await world.bundles.get(ClusterTrustBundleProjection())
    with pytest.raises(ObjectError, match=r"^label selector length \(102402\) is larger than 102400$"):
        await world.bundles.get(by_signer(LabelSelector(match_labels={"a": "b" * 102400})))


async def test_an_older_version_will_do(world: World, autojump_clock: MockClock) -> None:
    world.client.fail("list", TRUST_BUNDLES, status_error(404, "NotFound", "no such resource"), times=math.inf)
    assert await world.found(ClusterTrustBundleProjection(name="plain")) == {b"one", b"two"}
    watched = world.client.called("watch")[0].resource
    assert watched is not None
    assert watched.api_version == "certificates.k8s.io/v1alpha1"


async def test_a_server_may_have_none(world: World, autojump_clock: MockClock) -> None:
    world.client.fail("list", None, status_error(404, "NotFound", "no such resource"), times=math.inf)
    with pytest.raises(ObjectError, match="the API server has no clustertrustbundles"):
        await world.bundles.get(ClusterTrustBundleProjection(name="plain"))
    world.client.heal()
    assert await world.found(ClusterTrustBundleProjection(name="plain")) == {b"one", b"two"}


async def test_a_server_that_is_away_is_waited_for_a_moment(world: World, autojump_clock: MockClock) -> None:
    world.client.unreachable()
    with pytest.raises(ObjectError, match="connection refused"):
        await world.bundles.get(ClusterTrustBundleProjection(name="plain"))
    world.client.back()
    gate = world.client.hold("watch", TRUST_BUNDLES)
    begin = trio.current_time()
    with pytest.raises(ObjectError, match="has not yet synced"):
        await world.bundles.get(ClusterTrustBundleProjection(name="plain"))
    assert trio.current_time() - begin == pytest.approx(10)
    gate.set()
    assert await world.found(ClusterTrustBundleProjection(name="plain")) == {b"one", b"two"}


def test_the_order_is_the_machines_own() -> None:
    texts = [pem(*(bytes([number]) for number in range(20)))]
    assert anchors(texts, b"boot") == anchors([*texts, *texts], b"boot")
    other = anchors(texts, b"another boot")
    assert other != anchors(texts, b"boot")
    assert sorted(contents(other)) == [bytes([number]) for number in range(20)]


def test_lines_are_as_long_as_everybodys() -> None:
    [certificate] = [anchors([pem(bytes(100))], b"")]
    assert [len(line) for line in certificate.splitlines()] == [27, 64, 64, 8, 25]


def test_what_is_no_pem_is_skipped() -> None:
    broken = "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n"
    assert contents(anchors([broken + pem(b"one")], b"")) == [b"one"]


def requirement(operator: str, *values: str) -> LabelSelector:
    return LabelSelector(match_expressions=(LabelSelectorRequirement("stage", operator, values),))


@pytest.mark.parametrize(
    ("selector", "live", "none"),
    [
        (None, False, False),
        (LabelSelector(), True, True),
        (LabelSelector(match_labels={"stage": "live"}), True, False),
        (requirement("In", "live", "test"), True, False),
        (requirement("NotIn", "live"), False, True),
        (requirement("NotIn", "test"), True, True),
        (requirement("Exists"), True, False),
        (requirement("DoesNotExist"), False, True),
    ],
)
def test_selectors(selector: LabelSelector | None, live: bool, none: bool) -> None:
    assert selects(selector, {"stage": "live"}) is live
    assert selects(selector, {}) is none


def test_an_operator_must_exist() -> None:
    with pytest.raises(ObjectError, match='"Near" is not a valid label selector operator'):
        selects(requirement("Near"), {})
