"""A node's copies of its cluster."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import trio

from tests.kube_client.pod_scopes import PodScopes
from tests.kube_client.scripted_client import ScriptedClient
from trikubelet.api import (
    ConfigMap,
    ConfigMapEnvSource,
    Container,
    CSIDriver,
    EnvFromSource,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    RuntimeClass,
    Service,
    ServiceSpec,
)
from trikubelet.clock import TrioClock
from trikubelet.kube_client.informers import Cluster
from trikubelet.kube_client.types import CONFIG_MAPS, NODES, PODS, RateLimit

if TYPE_CHECKING:
    from trio.testing import MockClock


def make(client: ScriptedClient) -> Cluster:
    return Cluster(
        client,
        "a",
        event_limit=RateLimit(50, 100),
        heartbeat_timeout=10,
        clock=TrioClock(),
        rng=random.Random(1),
    )


def service(name: str, address: str) -> Service:
    return Service(metadata=ObjectMeta(name=name, namespace="ns"), spec=ServiceSpec(address))


async def test_a_node_sees_what_concerns_it(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    pods = [Pod(metadata=ObjectMeta(name=node, namespace="ns"), spec=PodSpec(node_name=node)) for node in "ab"]
    client = ScriptedClient(
        [
            *pods,
            *(Node(metadata=ObjectMeta(name=node)) for node in "ab"),
            service("web", "10.0.0.1"),
            service("headless", "None"),
            RuntimeClass(metadata=ObjectMeta(name="gvisor"), handler="runsc"),
            CSIDriver(metadata=ObjectMeta(name="disk")),
            ConfigMap(metadata=ObjectMeta(name="settings", namespace="ns"), data={"a": "b"}),
        ]
    )
    cluster = make(client)
    await nursery.start(cluster.run)
    for store in (cluster.node, cluster.pods, cluster.services, cluster.runtime_classes, cluster.csi_drivers):
        await store.wait_synced()
    assert [node.metadata.name for node in cluster.node.values()] == ["a"]
    assert [pod.metadata.name for pod in cluster.pods.values()] == ["a"]
    assert [one.metadata.name for one in cluster.services.values()] == ["web"]
    assert await cluster.objects.runtime_handler("gvisor") == "runsc"
    assert await cluster.storage.csi_driver("disk") is not None
    assert (await cluster.storage.node()).metadata.name == "a"
    container = Container(name="main", env_from=(EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings")),))
    scopes = PodScopes(cluster.watched)
    scopes.follow(Pod(metadata=ObjectMeta(name="web", namespace="ns", uid="1"), spec=PodSpec(containers=(container,))))
    assert (await cluster.objects.config_map("ns", "settings")).data == {"a": "b"}
    assert len(client.called("watch", CONFIG_MAPS)) == 1
    assert {name: one.lists for name, one in cluster.statistics().items()} == {
        "nodes": 1,
        "pods": 1,
        "services": 1,
        "runtimeclasses": 1,
        "csidrivers": 1,
    }


async def test_pods_are_read_after_the_node(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = ScriptedClient()
    gate = client.hold("watch", NODES)
    cluster = make(client)
    await nursery.start(cluster.run)
    await trio.sleep(5)
    assert cluster.services.synced
    assert not client.called("watch", PODS)
    gate.set()
    await cluster.pods.wait_synced()
    assert cluster.node.values() == ()


async def test_nothing_waits_for_a_server_that_is_away(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = ScriptedClient()
    client.unreachable()
    cluster = make(client)
    with trio.fail_after(0.1):
        await nursery.start(cluster.run)
    await trio.sleep(100)
    assert not cluster.pods.synced
    client.back()
    with trio.fail_after(60):
        await cluster.pods.wait_synced()


async def test_heartbeats_are_not_limited_and_events_by_themselves() -> None:
    cluster = make(ScriptedClient())
    heartbeat, events = cluster.heartbeat_client, cluster.events_client
    assert isinstance(heartbeat, ScriptedClient)
    assert isinstance(events, ScriptedClient)
    assert (heartbeat.limit, events.limit) == (None, RateLimit(50, 100))
