"""Statuses and mirror pods on an API server that lets a node do what it lets nodes do."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import trio

from tests.apiserver.builders import node_document, pod_document
from tests.apiserver.server import HOST, ApiServer, open_api_server
from tests.pods.fake_node import FakeNode, static_pod
from trikubelet.api import Node, Pod, PodCondition, PodStatus, from_dict
from trikubelet.clock import TrioClock
from trikubelet.kube_client.client import open_client
from trikubelet.kube_client.errors import ApiUnreachable
from trikubelet.kube_client.reflector import Reflector
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import PODS
from trikubelet.pods.manager import PodManager
from trikubelet.pods.mirrors import MirrorPods
from trikubelet.status.manager import StatusManager
from trikubelet.status.writer import StatusWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from trio.testing import MockClock

RUNNING = PodStatus(phase="Running", conditions=(PodCondition(type="Ready", status="True"),), pod_ip="10.0.0.1")


class NodeAccess:
    """An `Access` with a node's certificate."""

    user_agent = "trikubelet/test"

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server.url
        self._api = server
        certificate = server.node_certificate("n")
        pem = folder / "node.pem"
        pem.write_bytes(certificate.cert_pem + certificate.key_pem)
        self._context = ssl.create_default_context(cadata=server.ca_pem.decode())
        self._context.load_cert_chain(pem)
        self._context.set_alpn_protocols(["h2", "http/1.1"])

    async def connect(self) -> tuple[trio.abc.Stream, str]:
        try:
            raw = await self._api.connect()
        except ConnectionRefusedError as error:
            raise ApiUnreachable("connect", str(error), sent=False) from error
        stream = trio.SSLStream(raw, self._context, server_hostname=HOST, https_compatible=True)
        await stream.do_handshake()
        return stream, stream.selected_alpn_protocol() or ""

    async def headers(self) -> Mapping[str, str]:
        return {}

    def rejected(self, headers: Mapping[str, str]) -> None: ...

    def on_change(self, listener: object) -> None: ...


class Agent:
    """The parts of a node's agent that write pods."""

    def __init__(self, server: ApiServer, static: tuple[Pod, ...]) -> None:
        self.api = server
        self.store = Store(PODS)
        self.pods = PodManager(static)
        self.store.subscribe(self._follow)
        self.statuses = StatusManager(TrioClock(), self.pods)

    def _follow(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self.pods.update_pod(new)
        elif old is not None:
            self.pods.remove_pod(old)

    def set(self, name: str, status: PodStatus) -> None:
        of = self.pods.pod_by_full_name(f"{name}_default") or self.pods.pod_by_full_name(f"{name}_ns")
        assert of is not None
        self.statuses.set_pod_status(of, status)

    def status(self, name: str, namespace: str = "default") -> PodStatus:
        return from_dict(Pod, self.api.admin.get("pods", name, namespace)).status


@asynccontextmanager
async def agent_on_server(folder: Path, *static: Pod) -> AsyncIterator[Agent]:
    async with open_api_server(TrioClock()) as server:
        node = from_dict(Node, server.admin.create(node_document("n")))
        server.admin.ensure_namespace("ns")
        agent = Agent(server, static)
        async with open_client(NodeAccess(server, folder)) as client, trio.open_nursery() as nursery:
            reflector = Reflector(client, PODS, agent.store, rng=Random(1), field_selector="spec.nodeName=n")
            writer = StatusWriter(
                client,
                agent.statuses,
                agent.pods,
                agent.store,
                may_run=lambda _: False,
                clock=TrioClock(),
                rng=Random(2),
            )
            mirrors = MirrorPods(
                client, FakeNode(node), agent.pods, agent.store, terminating=lambda _: False, rng=Random(3)
            )
            for part in (reflector, writer, mirrors):
                await nursery.start(part.run)
            await agent.store.wait_synced()
            yield agent
            nursery.cancel_scope.cancel()


async def test_the_life_of_a_pod(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with agent_on_server(tmp_path) as agent:
        agent.api.admin.create(pod_document("web", node="n"))
        await trio.sleep(0.5)
        agent.set("web", RUNNING)
        await trio.sleep(0.5)
        status = agent.status("web")
        assert (status.phase, status.pod_ip) == ("Running", "10.0.0.1")
        assert {one.type: one.status for one in status.conditions}["Ready"] == "True"
        agent.api.admin.delete("pods", "web")
        await trio.sleep(0.5)
        of = agent.pods.pod_by_full_name("web_default")
        assert of is not None
        assert of.metadata.deletion_timestamp is not None
        agent.statuses.terminate_pod(of)
        await trio.sleep(0.5)
        assert agent.api.admin.find("pods", "web") is None
        writes = [answered.call.verb for answered in agent.api.calls if answered.call.verb in ("patch", "delete")]
        assert writes == ["patch", "patch", "delete"]


async def test_a_static_pod_is_shown_with_its_status(tmp_path: Path, autojump_clock: MockClock) -> None:
    static = static_pod()
    async with agent_on_server(tmp_path, static) as agent:
        agent.statuses.set_pod_status(static, RUNNING)
        await trio.sleep(0.5)
        assert agent.status("web", "ns").phase == "Running"
        mirror = agent.api.admin.get("pods", "web", "ns")
        assert mirror["metadata"]["uid"] != static.metadata.uid
        assert [owner["kind"] for owner in mirror["metadata"]["ownerReferences"]] == ["Node"]


async def test_lost_replies_and_an_outage_leave_what_is_true(tmp_path: Path, autojump_clock: MockClock) -> None:
    static = static_pod()
    async with agent_on_server(tmp_path, static) as agent:
        names = [f"web-{number}" for number in range(20)]
        for name in names:
            agent.api.admin.create(pod_document(name, node="n"))
        await trio.sleep(0.5)
        agent.api.faults.on(verb="patch").lose_reply(every=3)
        for name in names:
            agent.set(name, RUNNING)
        await trio.sleep(20)
        agent.api.faults.unreachable()
        agent.api.admin.delete("pods", "web", "ns", grace=0)
        for name in names:
            agent.set(name, PodStatus(phase="Succeeded"))
        await trio.sleep(600)
        agent.api.faults.clear()
        agent.api.faults.back()
        await trio.sleep(40)
        assert {agent.status(name).phase for name in names} == {"Succeeded"}
