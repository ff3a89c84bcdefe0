"""Claims, volumes, attachments and drivers: what a node is told of them, and what it tells."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.kube_client.scripted_client import ScriptedClient, status_error
from tests.listening import told_by
from trikubelet.api import (
    AttachedVolume,
    CSIDriver,
    CSIDriverSpec,
    Node,
    NodeStatus,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimCondition,
    PersistentVolumeClaimStatus,
    Quantity,
    Secret,
    VolumeAttachment,
)
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.storage_objects import ClusterStorage, resized_status
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import CLAIMS, CSI_DRIVERS, NODES, VOLUME_ATTACHMENTS
from trikubelet.volumes.no_cluster import NoClusterStorage

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.kube_client.volume_objects import StorageObjects

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLAIM = PersistentVolumeClaim(
    metadata=ObjectMeta(name="data", namespace="ns"),
    status=PersistentVolumeClaimStatus(
        phase="Bound",
        capacity={"storage": Quantity("1Gi")},
        conditions=(
            PersistentVolumeClaimCondition(type="FileSystemResizePending", status="True"),
            PersistentVolumeClaimCondition(type="Unused", status="True"),
        ),
        allocated_resource_statuses={"storage": "NodeResizePending"},
    ),
)


def node(*volumes: AttachedVolume, name: str = "a") -> Node:
    return Node(metadata=ObjectMeta(name=name, uid=name), status=NodeStatus(volumes_attached=volumes))


@attrs.define
class World:
    client: ScriptedClient
    nodes: Store[Node] = attrs.field(factory=lambda: Store(NODES))
    drivers: Store[CSIDriver] = attrs.field(factory=lambda: Store(CSI_DRIVERS))

    def storage(self) -> ClusterStorage:
        return ClusterStorage(self.client, "a", nodes=self.nodes, csi_drivers=self.drivers)


@pytest.fixture
async def world() -> World:
    return World(
        ScriptedClient(
            [
                CLAIM,
                PersistentVolume(metadata=ObjectMeta(name="pv")),
                VolumeAttachment(metadata=ObjectMeta(name="csi-1")),
            ]
        )
    )


def as_storage(storage: ClusterStorage | NoClusterStorage) -> StorageObjects:
    return storage


async def test_objects_are_asked_for_each_time(world: World, autojump_clock: MockClock) -> None:
    storage = as_storage(world.storage())
    for _ in range(2):
        assert (await storage.claim("ns", "data")).status.phase == "Bound"
        assert (await storage.volume("pv")).metadata.name == "pv"
        assert (await storage.attachment("csi-1")).metadata.name == "csi-1"
    assert [call.verb for call in world.client.calls] == ["get"] * 6


async def test_the_secret_of_a_volume_is_asked_for_each_time(world: World, autojump_clock: MockClock) -> None:
    world.client.put(Secret(metadata=ObjectMeta(name="key", namespace="storage"), data={"a": b"b"}))
    storage: StorageObjects = world.storage()
    for _ in range(2):
        assert (await storage.secret("storage", "key")).data == {"a": b"b"}
    assert len(world.client.calls) == 2


async def test_what_is_missing_is_said_in_the_servers_words(world: World, autojump_clock: MockClock) -> None:
    with pytest.raises(ObjectError, match=r'^persistentvolumeclaims "other" not found$') as caught:
        await world.storage().claim("ns", "other")
    assert caught.value.problem == "not found"
    world.client.fail("get", VOLUME_ATTACHMENTS, status_error(403, "Forbidden", "no relationship found"))
    with pytest.raises(ObjectError, match=r"^no relationship found$") as caught:
        await world.storage().attachment("csi-1")
    assert caught.value.problem == "unavailable"
    world.client.unreachable()
    with pytest.raises(ObjectError, match="connection refused"):
        await world.storage().volume("pv")


async def test_a_driver_is_waited_for_a_moment(world: World, autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    storage = world.storage()
    told = told_by(storage.csi_driver_changes)
    with pytest.raises(ObjectError, match="CSIDrivers have not yet been read"):
        storage.known_csi_driver("disk")
    with pytest.raises(ObjectError, match="CSIDrivers have not yet been read"):
        await storage.csi_driver("disk")

    async def sync() -> None:
        await trio.sleep(1)
        driver = CSIDriver(metadata=ObjectMeta(name="disk"), spec=CSIDriverSpec(attach_required=False))
        world.drivers.replace([driver], [], "1")

    nursery.start_soon(sync)
    found = await storage.csi_driver("disk")
    assert found is not None
    assert found.spec.attach_required is False
    assert await storage.csi_driver("other") is None
    world.drivers.replace([], [], "2")
    assert storage.known_csi_driver("disk") is None
    assert told == ["disk", "disk"]


async def test_the_node_tells_what_is_attached(world: World, autojump_clock: MockClock) -> None:
    storage = world.storage()
    told = told_by(storage.attached_changes)
    assert storage.attached() is None
    with pytest.raises(ObjectError, match=r'^node "a" has not yet been read$'):
        await storage.node()
    world.nodes.replace([node()], [], "1")
    assert storage.attached() == {}
    attached = AttachedVolume(name="kubernetes.io/csi/disk^1", device_path="/dev/x")
    world.nodes.replace([node(attached)], [], "2")
    assert storage.attached() == {"kubernetes.io/csi/disk^1": "/dev/x"}
    assert (await storage.node()).status.volumes_attached == (attached,)
    assert len(told) == 2
    # What else happens to the node is no news.
    world.nodes.replace(
        [attrs.evolve(node(attached), metadata=ObjectMeta(name="a", uid="a", labels={"a": "b"}))], [], "3"
    )
    assert len(told) == 2


async def test_a_size_that_was_taken_is_told(world: World, autojump_clock: MockClock) -> None:
    storage = world.storage()
    await storage.resized(await storage.claim("ns", "data"), Quantity("2Gi"))
    stored = world.client.stored(CLAIMS, "data", "ns")
    assert stored is not None
    assert stored.status.capacity == {"storage": Quantity("2Gi")}
    assert [one.type for one in stored.status.conditions] == ["Unused"]
    assert stored.status.allocated_resource_statuses == {}
    assert stored.status.phase == "Bound"
    assert world.client.calls[-1].subresource == "status"


async def test_a_claim_is_told_that_it_grows(world: World, autojump_clock: MockClock) -> None:
    storage = world.storage()
    told = await storage.resizing(await storage.claim("ns", "data"))
    assert told == world.client.stored(CLAIMS, "data", "ns")
    assert told.status.allocated_resource_statuses == {"storage": "NodeResizeInProgress"}
    assert told.status.conditions == CLAIM.status.conditions
    calls = len(world.client.calls)
    assert await storage.resizing(told) is told
    assert len(world.client.calls) == calls


async def test_it_is_not_when_somebody_else_has_changed_it(world: World, autojump_clock: MockClock) -> None:
    """Its state may be another one."""
    storage = world.storage()
    known = await storage.claim("ns", "data")
    world.client.put(attrs.evolve(known, metadata=attrs.evolve(known.metadata, labels={"a": "b"})))
    with pytest.raises(ObjectError, match="the object has been modified"):
        await storage.resizing(known)


@pytest.mark.parametrize("infeasible", [True, False])
async def test_a_claim_is_told_why_it_does_not_grow(world: World, autojump_clock: MockClock, infeasible: bool) -> None:
    storage = world.storage()
    known = await storage.claim("ns", "data")
    world.client.put(attrs.evolve(known, metadata=attrs.evolve(known.metadata, labels={"a": "b"})))
    told = await storage.resize_failed(known, "no room", infeasible=infeasible, at=NOW)
    assert told.metadata.labels == {"a": "b"}
    assert [(one.type, one.status) for one in told.status.conditions[:2]] == [
        ("FileSystemResizePending", "True"),
        ("Unused", "True"),
    ]
    assert told.status.conditions[2:] == (
        PersistentVolumeClaimCondition(
            "NodeResizeError", "True", last_transition_time=NOW, message="failed to expand pvc with no room"
        ),
    )
    state = "NodeResizeInfeasible" if infeasible else "NodeResizePending"
    assert told.status.allocated_resource_statuses == {"storage": state}
    calls = len(world.client.calls)
    assert await storage.resize_failed(told, "another reason", infeasible=infeasible, at=NOW) is told
    assert len(world.client.calls) == calls
    grown = await storage.resized(told, Quantity("2Gi"))
    assert [one.type for one in grown.status.conditions] == ["Unused"]
    assert grown.status.allocated_resource_statuses == {}


async def test_a_claim_that_changed_meanwhile_is_read_again(world: World, autojump_clock: MockClock) -> None:
    storage = world.storage()
    known = await storage.claim("ns", "data")
    labels = attrs.evolve(known.metadata, labels={"a": "b"})
    world.client.put(attrs.evolve(known, metadata=labels))
    await storage.resized(known, Quantity("2Gi"))
    stored = world.client.stored(CLAIMS, "data", "ns")
    assert stored is not None
    assert stored.status.capacity == {"storage": Quantity("2Gi")}
    assert stored.metadata.labels == {"a": "b"}


async def test_another_claim_of_the_name_is_left_alone(world: World, autojump_clock: MockClock) -> None:
    storage = world.storage()
    known = await storage.claim("ns", "data")
    world.client.put(attrs.evolve(CLAIM, metadata=ObjectMeta(name="data", namespace="ns", uid="new")))
    with pytest.raises(ObjectError, match="UID in precondition"):
        await storage.resized(known, Quantity("2Gi"))


def test_only_what_a_claim_says_of_resizing_is_taken_back() -> None:
    size = Quantity("2Gi")
    assert resized_status(PersistentVolumeClaimStatus(), size) == {"capacity": {"storage": "2Gi"}}
    other = PersistentVolumeClaimStatus(
        conditions=(PersistentVolumeClaimCondition(type="Resizing", status="True"),),
        allocated_resource_statuses={"storage": "NodeResizeInProgress", "other": "NodeResizePending"},
    )
    assert resized_status(other, size) == {
        "capacity": {"storage": "2Gi"},
        "conditions": None,
        "allocatedResourceStatuses": {"storage": None},
    }


async def test_an_agent_without_a_cluster_has_no_storage_of_one(autojump_clock: MockClock) -> None:
    storage = as_storage(NoClusterStorage())
    with pytest.raises(ObjectError, match=r"^not supported due to running kubelet in standalone mode$") as caught:
        await storage.claim("ns", "data")
    assert caught.value.problem == "no client"
    assert await storage.csi_driver("disk") is None
    assert storage.attached() == {}
