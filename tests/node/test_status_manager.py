"""Keeping the node object: registering, heartbeats, changes, and what others ask."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.kube_client.scripted_client import ScriptedClient, lost, status_error
from tests.node.stage import FACTS, MACHINE, SETTINGS, kept_node, kept_node_on
from trikubelet.api import Node, NodeSpec, NodeStatus, ObjectMeta, Quantity
from trikubelet.clock import TrioClock
from trikubelet.kube_client.types import CSI_NODES, LEASES, NODES
from trikubelet.node.registration import CONTROLLER_ATTACHES
from trikubelet.node.status_manager import BETWEEN_CHANGES, REPORT_WITHIN

if TYPE_CHECKING:
    from trio.testing import MockClock

GONE = "CSINode is not yet initialized"


async def test_a_new_node_is_ready_within_a_fraction_of_a_second(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await stage.keeper.wait_registered()
        assert stage.ready() == GONE, "it is created with its status, before its CSINode"
        await trio.sleep(0.2)
        assert stage.ready() == ""
        assert stage.client.stored(CSI_NODES, "n") is not None
        assert stage.keeper.uid == stage.node.metadata.uid
        assert stage.keeper.host_ips() == ("10.0.0.1",)
        assert stage.keeper.allocatable()["cpu"] == Quantity(2)
        lease = stage.client.stored(LEASES, "n", "kube-node-lease")
        assert lease is not None
        assert lease.metadata.owner_references[0].uid == stage.node.metadata.uid


async def test_the_events_of_a_start_are_told_once(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    client.fail("create", NODES, status_error(500), times=5)
    async with kept_node_on(client) as stage:
        await stage.keeper.wait_registered()
        await trio.sleep(1)
        assert stage.events() == [
            "Starting",
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID",
            "NodeReady",
        ]
        assert {event.count for event in stage.recorder.node_events()} == {1}


async def test_registering_is_tried_at_once_then_ever_more_rarely(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    client.fail("create", NODES, status_error(500), times=math.inf)
    async with kept_node_on(client) as stage:
        began = trio.current_time()
        assert stage.keeper.cached().metadata.uid == ""
        assert stage.keeper.uid is None
        await trio.sleep(60)
        times = [call.at - began for call in client.called("create", NODES)]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert times[0] == 0
        assert pauses[:3] == pytest.approx([0.1, 0.2, 0.4], rel=0.05)
        assert pauses[-1] == pytest.approx(7, rel=0.05)
        client.heal()
        with trio.fail_after(8):
            await stage.keeper.wait_registered()


async def test_a_node_that_comes_back_is_registered_at_once(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    client.unreachable()
    async with kept_node_on(client) as stage:
        await trio.sleep(60)
        client.back()
        with trio.fail_after(7.5):
            await stage.keeper.wait_registered()
        with trio.fail_after(1):
            while stage.ready():
                await trio.sleep(0.05)


@pytest.mark.parametrize("refusal", ["exists", "forbidden"])
async def test_a_node_that_is_there_is_corrected(autojump_clock: MockClock, refusal: str) -> None:
    existing = Node(
        metadata=ObjectMeta(name="n", labels={"kubernetes.io/hostname": "old", "mine": "x"}),
        spec=NodeSpec(provider_id="theirs"),
    )
    client = ScriptedClient([existing], clock=TrioClock())
    if refusal == "forbidden":
        client.fail("create", NODES, status_error(403, "Forbidden"))
    async with kept_node_on(client, provider_id="ours") as stage:
        await stage.keeper.wait_registered()
        assert stage.node.metadata.labels["kubernetes.io/hostname"] == "n"
        assert stage.node.metadata.labels["mine"] == "x"
        assert stage.node.metadata.annotations[CONTROLLER_ATTACHES] == "true"
        assert stage.node.spec.provider_id == "theirs"
        await trio.sleep(0.5)
        assert stage.ready() == ""


async def test_with_the_gate_a_node_that_may_not_be_created_does_not_look_for_itself(autojump_clock: MockClock) -> None:
    client = ScriptedClient([Node(metadata=ObjectMeta(name="n"))], clock=TrioClock())
    client.fail("create", NODES, status_error(403, "Forbidden"), times=math.inf)
    async with kept_node_on(client, looks_when_forbidden=False) as stage:
        await trio.sleep(30)
        assert not stage.keeper.registered
        assert client.called("get", NODES) == []


async def test_a_node_that_may_not_be_created_and_is_not_there_is_waited_for(autojump_clock: MockClock) -> None:
    client = ScriptedClient(clock=TrioClock())
    client.fail("create", NODES, status_error(403, "Forbidden"), times=math.inf)
    async with kept_node_on(client) as stage:
        await trio.sleep(30)
        assert not stage.keeper.registered
        client.put(Node(metadata=ObjectMeta(name="n")))
        with trio.fail_after(8):
            await stage.keeper.wait_registered()


async def test_an_agent_that_does_not_register_waits_for_the_node(autojump_clock: MockClock) -> None:
    async with kept_node(register=False) as stage:
        await trio.sleep(30)
        assert not stage.keeper.registered
        assert stage.client.called("create", NODES) == []
        stage.client.put(Node(metadata=ObjectMeta(name="n")))
        with trio.fail_after(0.5):
            await stage.keeper.wait_registered()
        await trio.sleep(0.5)
        assert stage.ready() == ""


async def test_an_agent_that_starts_anew_does_not_take_a_ready_node_out_of_service(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        client = stage.client
    patches = len(client.called("patch", NODES))
    async with kept_node_on(client) as stage:
        await trio.sleep(5)
        assert stage.ready() == ""
        assert len(stage.patches()) == patches + 1, "a sign of life, nothing else"
        assert "NodeNotReady" not in stage.events()


async def test_a_status_that_says_nothing_new_is_told_every_five_minutes(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(1)
        told = len(stage.patches())
        await trio.sleep(140)
        assert len(stage.patches()) == told, "half a period has not passed"
        await trio.sleep(320)
        assert len(stage.patches()) == told + 1
        await trio.sleep(300)
        assert len(stage.patches()) == told + 2, "then there is one in every period"
        (*_, last) = stage.patches()
        assert set(last["status"]) == {"conditions", "$setElementOrder/conditions"}
        assert all(set(condition) == {"type", "lastHeartbeatTime"} for condition in last["status"]["conditions"])


async def test_a_change_is_told_at_once_but_not_more_than_once_a_second(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(30)
        told = len(stage.patches())
        stage.change(network_problem="no network")
        await trio.sleep(0.1)
        assert (stage.ready(), len(stage.patches())) == ("no network", told + 1)
        stage.change(network_problem=None)
        await trio.sleep(0.1)
        assert len(stage.patches()) == told + 1
        await trio.sleep(BETWEEN_CHANGES)
        assert (stage.ready(), len(stage.patches())) == ("", told + 2)
        assert stage.events()[-2:] == ["NodeNotReady", "NodeReady"]


async def test_a_change_that_nobody_tells_of_is_found_at_the_next_heartbeat(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(30)
        stage.facts = attrs.evolve(FACTS, machine=attrs.evolve(MACHINE, cpus=4))
        await trio.sleep(10.5)
        assert stage.node.status.capacity["cpu"] == Quantity(4)


async def test_what_keeps_a_node_from_being_ready_at_the_start_is_looked_at_often(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        stage.facts = attrs.evolve(FACTS, runtime_problems=("PLEG is not healthy: pleg has yet to be successful",))
        stage.keeper.changed_soon()
        await trio.sleep(5)
        assert stage.ready() == "PLEG is not healthy: pleg has yet to be successful"
        stage.facts = FACTS
        await trio.sleep(0.3)
        assert stage.ready() == ""


async def test_a_report_that_fails_is_tried_again_on_what_the_server_has(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        stage.client.fail("patch", NODES, status_error(409, "Conflict"), times=2)
        gets = len(stage.client.called("get", NODES))
        stage.change(network_problem="x")
        await trio.sleep(0.5)
        assert stage.ready() == "x"
        assert len(stage.client.called("get", NODES)) == gets + 2
        assert stage.client.called("drop") == [], "a conflict says nothing against the connection"


async def test_connections_are_dropped_when_reports_go_on_failing(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        stage.client.fail("patch", NODES, lost(), times=3)
        stage.change(network_problem="x")
        await trio.sleep(0.5)
        assert stage.ready() == "x"
        assert len(stage.client.called("drop")) == 2


async def test_the_status_is_told_as_soon_as_the_api_server_is_back(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        stage.client.unreachable()
        stage.change(network_problem="x")
        await trio.sleep(64)
        assert stage.ready() == ""
        stage.client.back()
        with trio.fail_after(11):
            while stage.ready() != "x":
                await trio.sleep(0.05)


async def test_a_deleted_node_stays_deleted_and_the_agent_goes_on(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        uid = stage.keeper.uid
        stage.client.remove(NODES, "n")
        stage.client.remove(LEASES, "n", "kube-node-lease")
        await trio.sleep(120)
        assert stage.client.stored(NODES, "n") is None
        assert stage.client.stored(LEASES, "n", "kube-node-lease") is None, "it would belong to nothing"
        assert stage.client.called("drop") == []
        assert stage.keeper.registered
        assert stage.keeper.uid == uid


async def test_what_others_do_to_the_node_is_seen_and_put_right(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        theirs = attrs.evolve(
            stage.node,
            metadata=attrs.evolve(stage.node.metadata, labels={"a": "b"}),
            spec=NodeSpec(unschedulable=True, pod_cidrs=("10.1.0.0/24", "fd00::/64")),
        )
        stage.client.put(theirs)
        await trio.sleep(0.5)
        assert stage.keeper.cached().metadata.labels == {
            "a": "b",
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        assert stage.node.spec.unschedulable
        assert stage.told_cidrs == ["10.1.0.0/24,fd00::/64"]
        assert stage.events()[-1] == "NodeNotSchedulable"
        stage.client.put(attrs.evolve(stage.node, spec=NodeSpec(pod_cidrs=("10.1.0.0/24", "fd00::/64"))))
        await trio.sleep(0.5)
        assert stage.events()[-1] == "NodeSchedulable"
        assert len(stage.told_cidrs) == 1


async def test_a_server_that_drops_a_field_is_not_told_again_and_again(autojump_clock: MockClock) -> None:
    class OldServer(ScriptedClient):
        """Does not know declared features."""

        def stripped(self, node: Node) -> Node:
            return self.put(attrs.evolve(node, status=attrs.evolve(node.status, declared_features=())))  # type: ignore[no-any-return]

        async def create(self, resource, obj, **options):  # type: ignore[no-untyped-def]
            made = await super().create(resource, obj, **options)
            return self.stripped(made) if resource == NODES else made

        async def patch(self, resource, *arguments, **options):  # type: ignore[no-untyped-def]
            made = await super().patch(resource, *arguments, **options)
            return self.stripped(made) if resource == NODES else made

    async with kept_node_on(OldServer(clock=TrioClock()), declared_features=("RestartAll",)) as stage:
        await trio.sleep(60)
        assert stage.ready() == ""
        assert len(stage.patches()) == 1


async def test_a_caller_can_wait_until_the_status_is_told(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        gate = stage.client.hold("patch", NODES)
        stage.facts = attrs.evolve(FACTS, volumes_in_use=("v",))
        with trio.move_on_after(5) as scope:
            await stage.keeper.report_now()
        assert scope.cancelled_caught
        assert ("v",) not in stage.reported_volumes
        gate.set()
        with trio.fail_after(1):
            assert await stage.keeper.report_now()
        assert stage.node.status.volumes_in_use == ("v",)
        await trio.testing.wait_all_tasks_blocked()
        assert stage.reported_volumes[-1] == ("v",)


async def test_what_somebody_waits_for_ends_the_pause_between_changes(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        stage.facts = attrs.evolve(FACTS, volumes_in_use=("v",))
        await stage.keeper.report_now()
        begin = trio.current_time()
        stage.facts = attrs.evolve(FACTS, volumes_in_use=("v", "w"))
        stage.keeper.changed_soon()
        await trio.sleep(0.1)
        assert "w" not in stage.node.status.volumes_in_use, "one change a second"
        stage.keeper.report_soon()
        await trio.sleep(0.1)
        assert "w" in stage.node.status.volumes_in_use
        assert trio.current_time() - begin < BETWEEN_CHANGES


async def test_a_caller_is_not_kept_by_an_outage(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        stage.client.unreachable()
        stage.facts = attrs.evolve(FACTS, volumes_in_use=("v",))
        begin = trio.current_time()
        assert not await stage.keeper.report_now()
        assert trio.current_time() - begin == REPORT_WITHIN
        assert not await stage.keeper.report_now(within=0.5)
        assert trio.current_time() - begin == REPORT_WITHIN + 0.5
        stage.client.back()
        with trio.fail_after(12):
            assert await stage.keeper.report_now(within=60)
        assert stage.node.status.volumes_in_use == ("v",)


async def test_fetching_learns_what_is_newer(autojump_clock: MockClock) -> None:
    async with kept_node() as stage:
        await trio.sleep(5)
        stage.client.end_watches()
        changed = attrs.evolve(stage.node.metadata, labels=stage.node.metadata.labels | {"new": "label"})
        stage.client.put(attrs.evolve(stage.node, metadata=changed))
        assert "new" in (await stage.keeper.fetch()).metadata.labels
        assert "new" in stage.keeper.cached().metadata.labels


async def test_a_node_that_was_rebooted_says_so_once(autojump_clock: MockClock) -> None:
    info = attrs.evolve(NodeStatus().node_info, boot_id="an earlier one")
    existing = Node(metadata=ObjectMeta(name="n"), status=NodeStatus(node_info=info))
    client = ScriptedClient([existing], clock=TrioClock())
    client.fail("patch", NODES, lambda call: status_error(500) if "conditions" in str(call.body) else None, times=3)
    async with kept_node_on(client) as stage:
        await trio.sleep(30)
        (event,) = (event for event in stage.recorder.node_events() if event.reason == "Rebooted")
        assert (event.count, event.message) == (1, "Node n has been rebooted, boot id: 1b3")


async def test_a_copy_that_is_watched_counts_before_registration(autojump_clock: MockClock) -> None:
    existing = Node(metadata=ObjectMeta(name="n", labels={"mine": "x"}))
    client = ScriptedClient([existing], clock=TrioClock())
    client.fail("create", NODES, status_error(500), times=math.inf)
    async with kept_node_on(client) as stage:
        await trio.sleep(1)
        assert not stage.keeper.registered
        assert stage.keeper.cached().metadata.labels == {"mine": "x"}
        assert SETTINGS.name == "n"
