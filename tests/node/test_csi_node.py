"""The node's CSINode."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.kube_client.scripted_client import ScriptedClient, status_error
from trikubelet.api import CSINode, Node, ObjectMeta, to_dict
from trikubelet.broadcast import Broadcast
from trikubelet.clock import TrioClock
from trikubelet.kube_client.errors import ApiError
from trikubelet.kube_client.types import CSI_NODES
from trikubelet.node.csi_node import (
    MIGRATED,
    MIGRATED_PLUGINS,
    CSINodeManager,
    belongs_to,
    new_csi_node,
    with_migrated_plugins,
)
from trikubelet.volumes.csi.node_info import DriverOnNode, with_driver, without_driver

if TYPE_CHECKING:
    from trio.testing import MockClock

NODE = Node(metadata=ObjectMeta(name="n", uid="u"))


def test_a_node_without_drivers_says_so() -> None:
    assert to_dict(new_csi_node("n", "u")) == {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {
            "name": "n",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
            "annotations": {
                "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,"
                "kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,"
                "kubernetes.io/vsphere-volume"
            },
        },
        "spec": {"drivers": []},
    }


def test_an_object_belongs_to_the_node_with_its_uid() -> None:
    ours = new_csi_node("n", "u")
    assert belongs_to(ours, "n", "u")
    assert not belongs_to(ours, "n", "other")
    assert not belongs_to(CSINode(metadata=ObjectMeta(name="n")), "n", "u")


def test_the_annotation_is_put_right_whatever_its_order() -> None:
    ours = new_csi_node("n", "u")
    turned = ",".join(reversed(MIGRATED.split(",")))
    metadata = attrs.evolve(ours.metadata, annotations={MIGRATED_PLUGINS: turned})
    assert with_migrated_plugins(attrs.evolve(ours, metadata=metadata)) is None
    bare = attrs.evolve(ours, metadata=attrs.evolve(ours.metadata, annotations={"a": "b"}))
    right = with_migrated_plugins(bare)
    assert right is not None
    assert right.metadata.annotations == {"a": "b", MIGRATED_PLUGINS: MIGRATED}


async def test_it_is_created_once(autojump_clock: MockClock) -> None:
    client = ScriptedClient([NODE], clock=TrioClock())
    changed: Broadcast[None] = Broadcast()
    changes = changed.subscribe()
    keeper = CSINodeManager(client, "n", changed=changed)
    assert keeper.problem == "CSINode is not yet initialized"
    await keeper.run()
    assert [len(changes), keeper.problem] == [1, None]
    assert client.stored(CSI_NODES, "n") is not None
    calls = len(client.calls)
    await CSINodeManager(client, "n").run()
    assert [call.verb for call in client.calls[calls:]] == ["get", "get"], "there is nothing to do again"


async def test_that_of_an_earlier_node_of_the_name_is_replaced(autojump_clock: MockClock) -> None:
    client = ScriptedClient([NODE, new_csi_node("n", "gone")], clock=TrioClock())
    await CSINodeManager(client, "n").run()
    found = client.stored(CSI_NODES, "n")
    assert found is not None
    assert belongs_to(found, "n", "u")
    assert [call.verb for call in client.calls] == ["get", "get", "delete", "get", "get", "create"]


async def test_a_missing_annotation_is_added(autojump_clock: MockClock) -> None:
    ours = new_csi_node("n", "u")
    client = ScriptedClient(
        [NODE, attrs.evolve(ours, metadata=attrs.evolve(ours.metadata, annotations={}))], clock=TrioClock()
    )
    await CSINodeManager(client, "n").run()
    found = client.stored(CSI_NODES, "n")
    assert found is not None
    assert found.metadata.annotations == {MIGRATED_PLUGINS: MIGRATED}


async def test_a_failure_is_a_problem_until_it_succeeds(autojump_clock: MockClock) -> None:
    client = ScriptedClient([NODE], clock=TrioClock())
    client.fail("create", CSI_NODES, status_error(403, "Forbidden", "no"), times=math.inf)
    keeper = CSINodeManager(client, "n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        await trio.sleep(600)
        assert keeper.problem is not None
        assert keeper.problem.startswith("failed to initialize CSINode: CREATE ")
        assert len(client.called("create")) < 20
        client.heal()
        await trio.sleep(61)
        assert keeper.problem is None


async def test_a_change_is_made_of_what_the_server_has_now(autojump_clock: MockClock) -> None:
    client = ScriptedClient([NODE, new_csi_node("n", "u")], clock=TrioClock())
    keeper = CSINodeManager(client, "n")
    await keeper.change(lambda found: with_driver(found, DriverOnNode("d", "id-1")))
    calls = len(client.calls)
    await keeper.change(lambda found: with_driver(found, DriverOnNode("d", "id-1")))
    assert [call.verb for call in client.calls[calls:]] == ["get", "get"], "there is nothing to change"
    client.fail("update", CSI_NODES, status_error(409, "Conflict", "no"))
    with pytest.raises(ApiError):
        await keeper.change(lambda found: without_driver(found, "d"))


async def test_a_change_makes_the_object_first_where_it_is_missing_or_a_strangers(autojump_clock: MockClock) -> None:
    for existing in ((), (new_csi_node("n", "gone"),)):
        client = ScriptedClient([NODE, *existing], clock=TrioClock())
        await CSINodeManager(client, "n").change(lambda found: with_driver(found, DriverOnNode("d", "id-1")))
        found = client.stored(CSI_NODES, "n")
        assert found is not None
        assert belongs_to(found, "n", "u")
        assert [entry.name for entry in found.spec.drivers] == ["d"]
