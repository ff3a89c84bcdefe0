"""A cluster of one node, in one process and on a mock clock: the test API server, and the agent on a simulated runtime.

Three things have lives of their own. The API server and the simulated runtime are there all the time; agents come and
go (`start_agent`, `kill_agent`), each with a new client, new connections and an empty memory, on what the runtime and
the API server hold. Tests take `autojump_clock` themselves: time jumps whenever everybody waits.
"""

from __future__ import annotations

import json
import random
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from tests.apiserver.access import ServerAccess
from tests.apiserver.builders import pod_document
from tests.apiserver.server import ApiServer, open_api_server
from trikubelet.agent.node import MachineView
from trikubelet.api import Pod, pod_from_dict
from trikubelet.kube_client.client import open_client
from trikubelet.linux.machine import Machine
from trikubelet.node.address_choice import HostAddresses
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import ScriptedSource, SimulatedNode, simulated_node
from trikubelet.sources.manifests import parse_manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.apiserver.admin import Admin
    from tests.apiserver.documents import Document
    from trikubelet.agent.agent import Agent
    from trikubelet.agent.options import AgentOptions, NodeOptions

NODE: Final = "simulated"
"""The node's name."""
STEP: Final = 0.05
"""Seconds between two looks of somebody who waits for something to come true."""


@attrs.define(eq=False)
class Stage:
    """The cluster. Everything about API objects goes past the network, as the administrator: see `Admin`."""

    server: ApiServer
    sim: SimulatedRuntime
    source: ScriptedSource
    """Static pods, as from manifests in a folder."""
    settings: dict[str, Any]
    """What `simulated_node` is told, for agents started from now on."""
    seed: int
    nursery: trio.Nursery
    lives: int = 0
    """Agents started so far."""
    node: SimulatedNode | None = None
    """None: no agent runs."""
    _scope: trio.CancelScope | None = None
    _ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def admin(self) -> Admin:
        return self.server.admin

    @property
    def agent(self) -> Agent:
        assert self.node is not None, "no agent runs"
        return self.node.agent

    # --- Lives of the agent ------------------------------------------------------------------------------------------

    async def start_agent(self) -> None:
        """Returns when the agent's parts run; what it does first, it does after that."""
        assert self.node is None, "an agent runs already"
        self.lives += 1
        self._ended = trio.Event()
        await self.nursery.start(self._live)

    async def kill_agent(self) -> None:
        """As `kill -9`: calls in flight are cut, nothing is tidied up, containers go on."""
        assert self._scope is not None, "no agent runs"
        self._scope.cancel()
        await self._ended.wait()

    async def restart_agent(self) -> None:
        await self.kill_agent()
        await self.start_agent()

    async def _live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        rng = random.Random(f"{self.seed}/{self.lives}")
        access = ServerAccess.node(self.server, NODE)
        try:
            with trio.CancelScope() as self._scope:
                async with (
                    open_client(access, rng=rng) as client,
                    simulated_node(
                        self.sim,
                        sources={self.source.name: self.source},
                        rng=rng,
                        api_client=client,
                        **self.settings,
                    ) as self.node,
                ):
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self.node = self._scope = None
            self._ended.set()

    # --- Pods --------------------------------------------------------------------------------------------------------

    def create_pod(
        self, name: str, *, namespace: str = "default", metadata: Document | None = None, **spec: Any
    ) -> Pod:
        """A pod that the scheduler has given to this node. Its one container is `main` unless `spec` has others."""
        document = pod_document(name, node=NODE, namespace=namespace, **spec)
        document["metadata"] |= metadata or {}
        return pod_from_dict(self.admin.create(document))

    def add_static_pod(self, name: str, *, metadata: Document | None = None, **spec: Any) -> Pod:
        """A manifest is put into the folder. `name` is the one in the manifest; the node's name follows it."""
        document = pod_document(name, **spec)
        document["metadata"] |= metadata or {}
        manifest = parse_manifest(json.dumps(document).encode(), Path(f"{name}.yaml"), NODE)
        assert not manifest.problems, manifest.problems
        pod = manifest.pods[0].pod
        self.source.put(pod)
        return pod

    def delete_pod(self, name: str, *, namespace: str = "default", grace: int | None = None) -> None:
        self.admin.delete("pods", name, namespace, grace=grace)

    def pod(self, name: str, namespace: str = "default") -> Document:
        """The pod in the API server. Raises ApiFailure when there is none."""
        return self.admin.get("pods", name, namespace)

    def status(self, name: str, namespace: str = "default") -> Document:
        status: Document = self.pod(name, namespace).get("status", {})
        return status

    def phase(self, name: str, namespace: str = "default") -> str:
        """Empty: there is no such pod."""
        document = self.admin.find("pods", name, namespace)
        return "" if document is None else document["status"].get("phase", "")

    def condition(self, name: str, kind: str, namespace: str = "default") -> str:
        """`True`, `False`, `Unknown`, or empty when the pod or the condition is not there."""
        document = self.admin.find("pods", name, namespace)
        return "" if document is None else condition_status(document, kind)

    def exists(self, name: str, namespace: str = "default") -> bool:
        return self.admin.find("pods", name, namespace) is not None

    def events(self, name: str = "", namespace: str = "default") -> list[tuple[str, str, str]]:
        """Type, reason and message of what was told of the pod with this name, or of every object, oldest first."""
        return [
            (event["type"], event["reason"], event["message"])
            for event in self.admin.list("events", namespace)
            if name in ("", event["involvedObject"]["name"])
        ]

    # --- Waiting -----------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], within: float = 60.0, what: str = "") -> float:
        """Wait until the condition holds; the seconds that it took. Fails after `within` seconds."""
        began = trio.current_time()
        while not condition():
            assert trio.current_time() - began < within, f"{what or 'not so'} within {within} s"
            await trio.sleep(STEP)
        return trio.current_time() - began

    async def until_node_ready(self, within: float = 60.0) -> float:
        return await self.until(self.node_is_ready, within, "the node is not Ready")

    def node_is_ready(self) -> bool:
        node = self.admin.find("nodes", NODE)
        return node is not None and condition_status(node, "Ready") == "True"

    async def until_ready(self, *names: str, within: float = 60.0, namespace: str = "default") -> float:
        def ready() -> bool:
            return all(self.condition(name, "Ready", namespace) == "True" for name in names)

        return await self.until(ready, within, f"{names} not all Ready")

    async def until_phase(self, name: str, phase: str, within: float = 60.0, namespace: str = "default") -> float:
        def reached() -> bool:
            return self.phase(name, namespace) == phase

        return await self.until(reached, within, f"{name} not {phase}")

    async def until_gone(self, *names: str, within: float = 60.0, namespace: str = "default") -> float:
        """Wait until the API server has none of them."""

        def gone() -> bool:
            return not any(self.exists(name, namespace) for name in names)

        return await self.until(gone, within, f"{names} not all gone")


def condition_status(document: Document, kind: str) -> str:
    """Of a pod or node: the status of one of its conditions; empty when it has none of this type."""
    conditions = document.get("status", {}).get("conditions") or ()
    return next((one["status"] for one in conditions if one["type"] == kind), "")


async def _no_name_server(_name: str) -> None:
    await trio.lowlevel.checkpoint()


def machine_view(*addresses: str, **facts: Any) -> MachineView:
    """A machine for the setting `machine`, reached by its first address. `facts` are `Machine`'s."""
    ips = tuple(IPv4Address(address) for address in addresses)
    host = HostAddresses(local=frozenset(ips), preferred=ips[:1])
    return MachineView(machine=Machine(**facts), host=lambda: host, lookup=_no_name_server, kernel_log=None)


def told(node: NodeOptions | None = None, **configuration: Any) -> Callable[[AgentOptions], AgentOptions]:
    """What the agent is told by flags and by its configuration file, for the setting `change_options`."""

    def change(options: AgentOptions) -> AgentOptions:
        return attrs.evolve(
            options,
            node=node or options.node,
            configuration=attrs.evolve(options.configuration, **configuration),
        )

    return change


@asynccontextmanager
async def cluster_stage(
    *, seed: int = 1, start: bool = True, http2: bool = True, **settings: Any
) -> AsyncIterator[Stage]:
    """A cluster with an agent that has just been started (or not yet, without `start`).

    `settings` are `simulated_node`'s: `configuration`, `change_options`, `machine`, `registry`, ….
    """
    sim = SimulatedRuntime(seed=seed)
    async with open_api_server(sim.clock, seed=seed, http2=http2) as server, trio.open_nursery() as nursery:
        stage = Stage(server, sim, ScriptedSource("file"), settings, seed, nursery)
        if start:
            await stage.start_agent()
        yield stage
        nursery.cancel_scope.cancel()
