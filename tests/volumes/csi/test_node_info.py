"""What the cluster is told of the node's CSI drivers."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.kube_client.scripted_client import status_error
from tests.node.stage import Stage, kept_node
from trikubelet.api import CSINode, CSINodeDriver, CSINodeSpec, ObjectMeta, VolumeNodeResources
from trikubelet.kube_client.types import CSI_NODES, NODES
from trikubelet.volumes.csi.node_info import (
    MOST_VOLUMES,
    NODE_ID_ANNOTATION,
    DriverEntryError,
    DriverOnNode,
    with_driver,
    with_driver_metadata,
    without_driver,
    without_driver_metadata,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

ZONE = "topology.example.com/zone"
DRIVER = DriverOnNode("d", "id-1", 10, {ZONE: "z1", "a": "b"})
ENTRY = CSINodeDriver(name="d", node_id="id-1", topology_keys=("a", ZONE), allocatable=VolumeNodeResources(count=10))
OTHER = CSINodeDriver(name="other", node_id="x")


def csi_node(*drivers: CSINodeDriver) -> CSINode:
    return CSINode(spec=CSINodeSpec(drivers=drivers))


def entries(found: CSINode | None) -> tuple[CSINodeDriver, ...] | None:
    return None if found is None else found.spec.drivers


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), (ENTRY,)),
        ((OTHER,), (OTHER, ENTRY)),
        ((ENTRY, OTHER), None),
        ((CSINodeDriver(name="d", node_id="id-1", topology_keys=(ZONE, "a"), allocatable=ENTRY.allocatable),), None),
        ((CSINodeDriver(name="d", node_id="old"), OTHER), (OTHER, ENTRY)),
    ],
    ids=["none", "another", "same", "keys in another order", "another node id"],
)
def test_the_entry_of_a_driver(before: tuple[CSINodeDriver, ...], after: tuple[CSINodeDriver, ...] | None) -> None:
    assert entries(with_driver(csi_node(*before), DRIVER)) == after


@pytest.mark.parametrize(
    ("limit", "count"), [(0, None), (-1, None), (5, 5), (MOST_VOLUMES, MOST_VOLUMES), (2**40, MOST_VOLUMES)]
)
def test_how_many_volumes_can_be_attached(limit: int, count: int | None) -> None:
    found = with_driver(csi_node(), DriverOnNode("d", "id-1", limit))
    assert found is not None
    (entry,) = found.spec.drivers
    assert (None if entry.allocatable is None else entry.allocatable.count) == count
    assert with_driver(found, DriverOnNode("d", "id-1", limit)) is None


def test_an_entry_is_taken_away() -> None:
    assert entries(without_driver(csi_node(ENTRY, OTHER), "d")) == (OTHER,)
    assert without_driver(csi_node(OTHER), "d") is None


def test_the_node_has_the_drivers_name_for_it_and_its_labels() -> None:
    node = with_driver_metadata(ObjectMeta(labels={"l": "1"}, annotations={"n": "2"}), DRIVER)
    assert node.labels == {"l": "1", ZONE: "z1", "a": "b"}
    assert node.annotations == {"n": "2", NODE_ID_ANNOTATION: '{"d":"id-1"}'}
    assert with_driver_metadata(node, DRIVER) == node
    assert with_driver_metadata(ObjectMeta(annotations={NODE_ID_ANNOTATION: "null"}), DRIVER).annotations
    both = with_driver_metadata(node, DriverOnNode("c", "id-2"))
    assert both.annotations[NODE_ID_ANNOTATION] == '{"c":"id-2","d":"id-1"}'
    changed = with_driver_metadata(both, DriverOnNode("d", "id-3"))
    assert json.loads(changed.annotations[NODE_ID_ANNOTATION]) == {"c": "id-2", "d": "id-3"}


def test_the_drivers_name_for_the_node_goes_with_it_and_the_labels_stay() -> None:
    node = with_driver_metadata(with_driver_metadata(ObjectMeta(), DRIVER), DriverOnNode("c", "id-2"))
    one = without_driver_metadata(node, "d")
    assert one.annotations == {NODE_ID_ANNOTATION: '{"c":"id-2"}'}
    assert one.labels == {ZONE: "z1", "a": "b"}
    assert without_driver_metadata(one, "c").annotations == {}
    assert without_driver_metadata(one, "unknown") is one


def test_a_label_with_another_value_is_not_overwritten() -> None:
    with pytest.raises(DriverEntryError) as raised:
        with_driver_metadata(ObjectMeta(labels={ZONE: "z2"}), DRIVER)
    assert str(raised.value) == (
        f'detected topology value collision: driver reported "{ZONE}":"z1" but existing label is "{ZONE}":"z2"'
    )


@pytest.mark.parametrize("text", ["[]", "{", '{"d":1}', '"d"'])
def test_an_annotation_that_cannot_be_read_is_left_alone(text: str) -> None:
    with pytest.raises(DriverEntryError, match="failed to parse node's"):
        with_driver_metadata(ObjectMeta(annotations={NODE_ID_ANNOTATION: text}), DRIVER)


def drivers_of(stage: Stage) -> list[str]:
    found = stage.client.stored(CSI_NODES, "n")
    assert found is not None
    return [entry.name for entry in found.spec.drivers]


def annotation(stage: Stage) -> Any:
    return json.loads(stage.node.metadata.annotations.get(NODE_ID_ANNOTATION, "{}"))


async def test_a_driver_is_installed_once_the_node_is_there_and_uninstalled(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await stage.keeper.drivers.install(DRIVER)
        assert drivers_of(stage) == ["d"]
        assert annotation(stage) == {"d": "id-1"}
        assert stage.node.metadata.labels[ZONE] == "z1"
        assert stage.keeper.cached().metadata.labels[ZONE] == "z1", "others see it at once"
        await stage.keeper.drivers.uninstall("d")
        assert drivers_of(stage) == []
        assert annotation(stage) == {}


async def test_of_many_drivers_at_once_none_is_lost(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        names = [f"d{number}" for number in range(5)]
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(stage.keeper.drivers.install, DriverOnNode(name, f"id-{name}"))
        assert sorted(drivers_of(stage)) == names
        assert sorted(annotation(stage)) == names


async def test_a_conflict_is_tried_again_at_once(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await stage.keeper.csi_node.wait_done()
        conflict = status_error(409, "Conflict", "the object has been modified")
        stage.client.fail("update", CSI_NODES, conflict, times=3)
        started = trio.current_time()
        await stage.keeper.drivers.install(DRIVER)
        assert drivers_of(stage) == ["d"]
        assert trio.current_time() - started < 1


async def test_what_the_server_refuses_is_an_error(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await stage.keeper.csi_node.wait_done()
        stage.client.fail("update", CSI_NODES, status_error(403, "Forbidden", "no"), times=math.inf)
        with pytest.raises(DriverEntryError, match=r"^error updating CSINode object with CSI driver node info: .*no"):
            await stage.keeper.drivers.install(DRIVER)
        with pytest.raises(DriverEntryError, match="driverNodeID must not be empty"):
            await stage.keeper.drivers.install(DriverOnNode("d", ""))
        with pytest.raises(
            DriverEntryError, match=r"^error updating Node object .*: detected topology value collision"
        ):
            await stage.keeper.drivers.install(DriverOnNode("d", "i", topology={"kubernetes.io/os": "plan9"}))


async def test_a_server_that_is_away_is_waited_for(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await stage.keeper.csi_node.wait_done()
        stage.client.unreachable()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.keeper.drivers.install, DRIVER)
            await trio.sleep(1000)
            stage.client.back()
        assert drivers_of(stage) == ["d"]


async def test_a_driver_that_went_while_the_server_was_away_is_taken_out_later(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await stage.keeper.drivers.install(DRIVER)
        stage.client.unreachable()
        with trio.fail_after(60):
            await stage.keeper.drivers.uninstall("d")
        await trio.sleep(300)
        stage.client.back()
        await trio.sleep(60)
        assert drivers_of(stage) == []
        assert annotation(stage) == {}


async def test_a_driver_that_came_back_meanwhile_stays(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await stage.keeper.drivers.install(DRIVER)
        stage.client.unreachable()
        await stage.keeper.drivers.uninstall("d")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.keeper.drivers.install, DriverOnNode("d", "id-2"))
            await trio.sleep(5)
            stage.client.back()
        await trio.sleep(300)
        assert drivers_of(stage) == ["d"]
        assert annotation(stage) == {"d": "id-2"}


async def test_another_limit_is_told_in_the_csi_node_alone(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await stage.keeper.drivers.install(DRIVER)
        patches = len(stage.client.called("patch", NODES))
        await stage.keeper.drivers.update(DriverOnNode("d", "id-1", 3, DRIVER.topology))
        found = stage.client.stored(CSI_NODES, "n")
        assert found is not None
        assert found.spec.drivers[0].allocatable == VolumeNodeResources(count=3)
        assert len(stage.client.called("patch", NODES)) == patches


async def test_changes_of_metadata_keep_what_others_wrote(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await stage.keeper.wait_registered()
        before = stage.node.metadata.annotations
        await stage.keeper.drivers.install(DRIVER)
        assert stage.node.metadata.annotations.items() > before.items()
        await trio.sleep(400)
        assert annotation(stage) == {"d": "id-1"}, "later reports leave it"
