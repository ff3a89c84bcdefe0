"""The node's lease."""

from __future__ import annotations

import itertools
import math
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.kube_client.scripted_client import ScriptedClient, lost, status_error
from trikubelet.api import Lease, LeaseSpec, ObjectMeta, OwnerReference, to_dict
from trikubelet.clock import TrioClock
from trikubelet.kube_client.types import LEASES
from trikubelet.node.lease import NAMESPACE, LeaseController, renewed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

NOW = datetime(2026, 1, 1, microsecond=123456, tzinfo=UTC)
OWNER = OwnerReference(api_version="v1", kind="Node", name="n", uid="u")


def test_a_new_lease_belongs_to_the_node() -> None:
    assert to_dict(renewed(None, "n", "u", 40, NOW)) == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "n",
            "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
        },
        "spec": {
            "holderIdentity": "n",
            "leaseDurationSeconds": 40,
            "renewTime": "2026-01-01T00:00:00.123456Z",
        },
    }


def test_a_renewal_changes_time_and_duration_and_keeps_the_rest() -> None:
    other = attrs.evolve(OWNER, uid="other")
    base = Lease(
        metadata=ObjectMeta(name="n", namespace=NAMESPACE, resource_version="7", owner_references=(other,)),
        spec=LeaseSpec(holder_identity="n", lease_duration_seconds=10, lease_transitions=3),
    )
    new = renewed(base, "n", "u", 40, NOW)
    assert new.metadata == base.metadata
    assert new.spec == LeaseSpec(holder_identity="n", lease_duration_seconds=40, renew_time=NOW, lease_transitions=3)


@pytest.mark.parametrize(("uid", "owners"), [("u", (OWNER,)), (None, ())])
def test_a_lease_without_an_owner_gets_one_when_it_is_known(uid: str | None, owners: tuple[OwnerReference]) -> None:
    base = Lease(metadata=ObjectMeta(name="n", namespace=NAMESPACE))
    assert renewed(base, "n", uid, 40, NOW).metadata.owner_references == owners


@asynccontextmanager
async def leasing(client: ScriptedClient, uid: str | None = "u") -> AsyncIterator[LeaseController]:
    keeper = LeaseController(client, "n", duration=40, uid=lambda: uid, clock=TrioClock(), rng=Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        yield keeper
        nursery.cancel_scope.cancel()


def lease_of(client: ScriptedClient) -> Lease:
    found = client.stored(LEASES, "n", NAMESPACE)
    assert found is not None
    return found


async def test_the_lease_is_created_and_renewed_without_being_read(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    async with leasing(client):
        await trio.sleep(35)
    assert [call.verb for call in client.calls] == ["get", "create", "update", "update", "update"]
    assert 10 <= client.calls[2].at - client.calls[1].at <= 10.4
    assert lease_of(client).metadata.owner_references[0].uid == "u"


async def test_a_lease_of_an_earlier_agent_is_taken_over(autojump_clock: MockClock) -> None:
    client = ScriptedClient([renewed(None, "n", "u", 10, NOW)], clock=TrioClock())
    async with leasing(client):
        await trio.sleep(1)
    assert [call.verb for call in client.calls] == ["get", "update"]
    assert lease_of(client).spec.lease_duration_seconds == 40


async def test_a_conflict_is_answered_with_the_newest_version(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    async with leasing(client):
        await trio.sleep(5)
        client.put(attrs.evolve(lease_of(client), spec=LeaseSpec(holder_identity="n", lease_transitions=1)))
        await trio.sleep(6)
    assert [call.verb for call in client.calls][2:] == ["update", "get", "update"]
    assert lease_of(client).spec.lease_transitions == 1


async def test_a_lease_that_was_deleted_is_created_again(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    async with leasing(client):
        await trio.sleep(5)
        client.remove(LEASES, "n", NAMESPACE)
        await trio.sleep(6)
    assert [call.verb for call in client.calls][2:] == ["update", "get", "create"]


async def test_a_lease_waits_for_its_owner(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    uid: list[str] = []
    came = trio.Event()
    keeper = LeaseController(
        client,
        "n",
        duration=40,
        uid=lambda: uid[0] if uid else None,
        node_comes=came.wait,
        clock=TrioClock(),
        rng=Random(1),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        await trio.sleep(60)
        assert client.called("create") == []
        uid.append("u")
        came.set()
        await trio.sleep(0.1)
        assert len(client.called("create")) == 1
        nursery.cancel_scope.cancel()


async def test_a_failed_renewal_is_tried_five_times_and_then_when_the_server_is_back(
    autojump_clock: MockClock,
) -> None:
    client = ScriptedClient(clock=TrioClock())
    async with leasing(client):
        await trio.sleep(1)
        client.unreachable()
        await trio.sleep(30)
        tries = client.called("update")
        assert len(tries) == 5
        assert len({call.at for call in tries}) == 1
        assert len(client.called("drop")) == 4
        client.back()
        await trio.sleep(7)
        before = lease_of(client).spec.renew_time
        assert before is not None
        assert len(client.called("update")) > 5


async def test_a_server_that_refuses_is_asked_again_with_growing_pauses(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    client.fail("get", LEASES, status_error(403, "Forbidden"), times=math.inf)
    async with leasing(client):
        await trio.sleep(40)
    times = [call.at for call in client.called("get")]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[:3] == pytest.approx([0.2, 0.4, 0.8])
    assert pauses[-1] == pytest.approx(7)


async def test_a_lost_answer_of_a_creation_is_no_harm(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    client.fail("create", LEASES, lost(), after=True)
    async with leasing(client):
        await trio.sleep(1)
    assert [call.verb for call in client.calls] == ["get", "create", "get", "update"]
