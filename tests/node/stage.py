"""A node for tests: its machine, its settings, and a keeper on a scripted API server."""

from __future__ import annotations

import ipaddress
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
import trio

from tests.kube_client.scripted_client import ScriptedClient
from trikubelet.api import Node
from trikubelet.clock import TrioClock
from trikubelet.kube_client.reflector import Reflector
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import NODES
from trikubelet.linux.machine import Machine
from trikubelet.node.address_choice import AddressSettings, HostAddresses
from trikubelet.node.capacity import Reservations
from trikubelet.node.facts import NodeFacts, NodeSettings
from trikubelet.node.status_manager import NodeStatusManager, ReportedMachine
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.broadcast import Subscription


IP = ipaddress.ip_address("10.0.0.1")
MACHINE = Machine(
    cpus=2,
    memory=20 * 10**9,
    storage=5000,
    machine_id="123",
    system_uuid="abc",
    boot_id="1b3",
    kernel_version="6.1",
    os_image="Debian",
)
FACTS = NodeFacts(
    machine=MACHINE,
    host=HostAddresses(local=frozenset({IP}), preferred=(IP,)),
    runtime_name="containerd",
    runtime_version="1.6.20~ds1",
)
SETTINGS = NodeSettings(addresses=AddressSettings(node_name="n", hostname="n"), reservations=Reservations(eviction={}))


@attrs.define
class Stage:
    """Everything around a keeper that runs."""

    client: ScriptedClient
    keeper: NodeStatusManager
    recorder: EventRecorder
    store: Store[Node]
    facts: NodeFacts
    settings: NodeSettings
    told_cidrs: list[str] = attrs.field(factory=list)
    reported_volumes: list[tuple[str, ...]] = attrs.field(factory=list)

    @property
    def node(self) -> Node:
        """As the API server has it."""
        found = self.client.stored(NODES, "n")
        assert found is not None
        return found

    def ready(self) -> str:
        """The message of the condition Ready."""
        (condition,) = (each for each in self.node.status.conditions if each.type == "Ready")
        return condition.message if condition.status == "False" else ""

    def patches(self) -> list[Any]:
        """Of the node, in order."""
        return [call.body for call in self.client.called("patch", NODES)]

    def events(self) -> list[str]:
        """The reasons of the node's events."""
        return [event.reason for event in self.recorder.node_events()]

    def change(self, **facts: Any) -> None:
        """Something is otherwise, and the keeper is told."""
        self.facts = attrs.evolve(self.facts, **facts)
        self.keeper.changed_soon()


@asynccontextmanager
async def kept_node(*objects: Any, seed: int = 1, **settings: Any) -> AsyncIterator[Stage]:
    """A node that is kept while the context lasts. `objects` are what the API server has before."""
    clock = TrioClock()
    client = ScriptedClient(objects, clock=clock)
    async with kept_node_on(client, seed=seed, **settings) as stage:
        yield stage


@asynccontextmanager
async def kept_node_on(client: ScriptedClient, seed: int = 1, **settings: Any) -> AsyncIterator[Stage]:
    """The same on a client that a test has prepared."""
    clock = TrioClock()
    store = Store(NODES)
    recorder = EventRecorder(clock)
    cidrs: list[str] = []
    volumes: list[tuple[str, ...]] = []

    async def tell(cidr: str) -> None:
        await trio.lowlevel.checkpoint()
        cidrs.append(cidr)

    keeper = NodeStatusManager(
        client,
        client.view(limit=None, timeout=10),
        store,
        ReportedMachine(facts=lambda: stage.facts, update_pod_cidr=tell),
        attrs.evolve(SETTINGS, **settings),
        recorder=recorder,
        clock=clock,
        rng=Random(seed),
    )
    stage = Stage(client, keeper, recorder, store, FACTS, attrs.evolve(SETTINGS, **settings), cidrs, volumes)

    async def follow_reports(reports: Subscription[tuple[str, ...]]) -> None:
        async for names in reports:
            volumes.append(names)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_reports, keeper.reported.subscribe())
        reflector = Reflector(client, NODES, store, field_selector="metadata.name=n", rng=Random(seed))
        await nursery.start(reflector.run)
        await nursery.start(keeper.run)
        yield stage
        nursery.cancel_scope.cancel()
