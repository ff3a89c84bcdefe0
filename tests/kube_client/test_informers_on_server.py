"""A node's copies of its cluster, over TLS and HTTP/2, from an API server that is not always well."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from tests.apiserver.access import ServerAccess
from tests.apiserver.builders import node_document, pod_document
from tests.apiserver.server import ApiServer
from trikubelet.clock import TrioClock
from trikubelet.kube_client.client import open_client
from trikubelet.kube_client.informers import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[ApiServer, Cluster]]:
    server = ApiServer(TrioClock())
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        server.admin.create(node_document("a"))
        async with open_client(ServerAccess.node(server, "a")) as client:
            cluster = Cluster(
                client, "a", event_limit=None, heartbeat_timeout=10, clock=TrioClock(), rng=random.Random(1)
            )
            await nursery.start(cluster.run)
            yield server, cluster
            nursery.cancel_scope.cancel()


def names(cluster: Cluster) -> set[str]:
    return {pod.metadata.name for pod in cluster.pods.values()}


async def test_a_node_follows_its_pods(autojump_clock: MockClock) -> None:
    async with joined() as (server, cluster):
        server.admin.create(pod_document("web", node="a"))
        server.admin.create(pod_document("elsewhere"))
        with trio.fail_after(2):
            for store in (cluster.node, cluster.pods, cluster.services, cluster.runtime_classes):
                await store.wait_synced()
        assert names(cluster) == {"web"}
        begin = trio.current_time()
        changes = cluster.pods.changes.subscribe()
        server.admin.create(pod_document("db", node="a"))
        await changes.receive()
        assert trio.current_time() - begin < 0.1
        assert names(cluster) == {"web", "db"}


async def test_nothing_is_missed_while_the_server_is_away(autojump_clock: MockClock) -> None:
    async with joined() as (server, cluster):
        server.admin.create(pod_document("web", node="a"))
        server.admin.create(pod_document("old", node="a"))
        await cluster.pods.wait_synced()
        await trio.sleep(5)
        server.faults.unreachable()
        server.admin.delete("pods", "old", grace=0)
        server.admin.create(pod_document("new", node="a"))
        await trio.sleep(600)
        assert names(cluster) == {"web", "old"}
        server.faults.back()
        await trio.sleep(61)
        assert names(cluster) == {"web", "new"}


async def test_a_server_that_forgot_is_read_anew(autojump_clock: MockClock) -> None:
    async with joined() as (server, cluster):
        server.admin.create(pod_document("web", node="a"))
        await cluster.pods.wait_synced()
        await trio.sleep(5)
        server.faults.expire_watches()
        server.admin.create(pod_document("db", node="a"))
        await trio.sleep(2)
        assert names(cluster) == {"web", "db"}
        assert cluster.statistics()["pods"].lists == 2
