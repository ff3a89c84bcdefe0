"""A newcomer becomes a node of the test API server, over TLS, and stays one."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.apiserver.builders import node_document, pod_document
from tests.apiserver.controllers import Controllers
from tests.apiserver.server import ApiServer, open_api_server
from tests.apiserver.users import AUTHENTICATED, BOOTSTRAPPERS, User
from trikubelet.clock import TrioClock
from trikubelet.kube_client.certificates.bootstrap import BootstrapOptions, NodeIdentity, prepare_identity
from trikubelet.kube_client.client import HttpApiClient, open_client
from trikubelet.kube_client.dialing import ClusterConnector, open_access
from trikubelet.kube_client.errors import ApiError
from trikubelet.kube_client.event_sender import EventSender
from trikubelet.kube_client.informers import Cluster
from trikubelet.kube_client.types import NODES
from trikubelet.telemetry.events import EventRecorder, EventType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.kube_client.kubeconfig import ClusterAccess

HOUR = 3600.0


@attrs.define
class Joining:
    server: ApiServer
    options: BootstrapOptions
    clock: TrioClock
    signing: bool = True

    def access(self, access: ClusterAccess) -> ClusterConnector:
        return open_access(access, clock=self.clock, environment={}, dial=self.server.connect)

    @asynccontextmanager
    async def node(self) -> AsyncIterator[tuple[NodeIdentity, HttpApiClient]]:
        """An agent's identity at work, and the client that it has for everything."""
        identity = prepare_identity(
            self.options, lambda access: open_client(self.access(access)), clock=self.clock, rng=random.Random(1)
        )
        access = self.access(identity.access)
        identity.on_change(access.reload)
        async with open_client(access) as client, trio.open_nursery() as nursery:
            nursery.start_soon(identity.run)
            yield identity, client
            nursery.cancel_scope.cancel()

    async def sign(self) -> None:
        controllers = Controllers(self.server)
        while True:
            await trio.sleep(5)
            if self.signing:
                controllers.approve_all(lifetime=HOUR)


@asynccontextmanager
async def joining(folder: Path, *, rotate: bool) -> AsyncIterator[Joining]:
    clock = TrioClock()
    async with open_api_server(clock) as server, trio.open_nursery() as nursery:
        server.identities.add_token("t0ken", User("system:bootstrap:abc", (BOOTSTRAPPERS, AUTHENTICATED)))
        newcomer = folder / "bootstrap.conf"
        cluster = {"server": server.url, "certificate-authority-data": b64encode(server.ca_pem).decode()}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t0ken"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        newcomer.write_text(json.dumps(config))
        options = BootstrapOptions(folder / "kubelet.conf", folder / "pki", "n1", newcomer, rotate)
        stage = Joining(server, options, clock)
        nursery.start_soon(stage.sign)
        yield stage
        nursery.cancel_scope.cancel()


async def who(client: HttpApiClient) -> str:
    """As whom the server sees the client: it says so when it refuses."""
    try:
        await client.get(NODES, "another")
    except ApiError as error:
        return str(error)
    return "somebody who may see other nodes"


@pytest.mark.parametrize("rotate", [False, True])
async def test_a_newcomer_becomes_a_node(tmp_path: Path, jumping_clock: MockClock, rotate: bool) -> None:
    async with joining(tmp_path, rotate=rotate) as stage:
        stage.signing = False
        async with stage.node() as (_, client):
            await trio.sleep(30)
            assert "system:node" not in await who(client)
            stage.signing = True
            await trio.sleep(10)
            assert 'User "system:node:n1" cannot' in await who(client)
        before = len(stage.server.admin.list("certificatesigningrequests"))
        async with stage.node() as (_, client):
            await trio.sleep(10)
            assert 'User "system:node:n1" cannot' in await who(client)
        assert len(stage.server.admin.list("certificatesigningrequests")) == before == 1


@pytest.mark.parametrize("rotate", [False, True])
async def test_the_pods_of_a_newcomer_are_read_as_soon_as_it_is_let_in(
    tmp_path: Path, jumping_clock: MockClock, rotate: bool
) -> None:
    async with joining(tmp_path, rotate=rotate) as stage, trio.open_nursery() as nursery:
        stage.signing = False
        stage.server.admin.create(node_document("n1"))
        stage.server.admin.create(pod_document("web", node="n1"))
        async with stage.node() as (_, client):
            cluster = Cluster(
                client, "n1", event_limit=None, heartbeat_timeout=10, clock=stage.clock, rng=random.Random(1)
            )
            await nursery.start(cluster.run)
            await trio.sleep(300)
            assert not cluster.pods.synced
            Controllers(stage.server).approve_all(lifetime=HOUR)
            with trio.fail_after(2):
                await cluster.pods.wait_synced()
            assert cluster.pods.get("web", "default") is not None
            nursery.cancel_scope.cancel()


async def test_a_node_outlives_its_certificates(tmp_path: Path, jumping_clock: MockClock) -> None:
    async with joining(tmp_path, rotate=True) as stage, stage.node() as (identity, client):
        await trio.sleep(10)
        stage.server.identities.remove_token("t0ken")
        for _ in range(12):
            await trio.sleep(HOUR / 2)
            assert 'User "system:node:n1" cannot' in await who(client)
        assert identity.manager is not None
        assert identity.manager.statistics().renewed >= 5
        assert identity.manager.statistics().failed == 0


async def test_a_nodes_events_are_taken(tmp_path: Path, jumping_clock: MockClock) -> None:
    async with joining(tmp_path, rotate=True) as stage, stage.node() as (_, client), trio.open_nursery() as nursery:
        recorder = EventRecorder(stage.clock)
        sender = EventSender(client, "n1", rng=random.Random(1))
        recorder.add_listener(sender.offer)
        await nursery.start(sender.run)
        for _ in range(3):
            recorder.node_event(EventType.NORMAL, "Starting", "Starting kubelet.")
            await trio.sleep(20)
        (event,) = stage.server.admin.list("events")
        assert (event["reason"], event["count"], event["source"]) == (
            "Starting",
            3,
            {"component": "kubelet", "host": "n1"},
        )
        assert sender.statistics().refused == 0
        nursery.cancel_scope.cancel()
