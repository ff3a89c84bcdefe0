"""A fault in any task of the agent ends neither the agent nor anything beside it, and later the task works again.

The tasks are those that a whole agent has when it is quiet, as Trio knows them: one that is added later is in the test.
The fault comes out of whatever the task waits for, as a cancellation would.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
from trio.lowlevel import Task

from tests.agent.serving import PORTS, Caller, OnFreePorts, authentication, client_context
from tests.agent.sim_node import clock_without_threads
from tests.captured_logs import capture_logs
from tests.device_plugin import ToyPlugin
from tests.node.devices.plugin_sockets import PluginSockets
from tests.node.shutdown.fake_logind import FakeLogind
from tests.node_api.auth.people import authority
from tests.pods.test_tree import PROBE, sizes
from tests.scenarios.stage import Stage, cluster_stage
from tests.scenarios.test_eviction import ScriptedUsage, configuration
from tests.throwing import is_ours, may_fail, throw_into, tree
from trikubelet.agent.node_view import NodeView
from trikubelet.node.devices.server import FOLDER
from trikubelet.rpc.grpc.unix import connect_unix
from trikubelet.supervision import FAULTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.agent.agent import Agent

PLUGIN: Final = "trikubelet.node.devices.connections.PluginConnections._keep"
BRICK: Final = "toy.example.com/brick"
OF_EVENTS: Final = "agent.cluster.events."
"""Remembers the last so and so many."""
SETTLED: Final = 90.0
"""Seconds after which a node at which nothing happens does nothing but wait."""

NOT_THROWN_INTO: Final = {
    "trikubelet.node.devices.connections.PluginConnections.run": "it sleeps for ever, and runs no line that could fail",
}
"""Tasks that nothing is thrown into, by their names, and why."""


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


@attrs.frozen
class Place:
    """A task, by where it is in the tree: names of tasks from the root on, and its number among those alike."""

    path: tuple[str, ...]
    number: int

    def __str__(self) -> str:
        return f"{' > '.join(self.path[-2:])} #{self.number}"


@attrs.frozen
class WholeNode:
    stage: Stage
    roots: tuple[Task, ...]
    """What the agent is made of is below these."""
    server: OnFreePorts
    plugins: PluginSockets
    plugin: ToyPlugin

    @property
    def agent(self) -> Agent:
        return self.stage.agent

    def tree(self) -> Iterator[tuple[tuple[str, ...], Task]]:
        for root in self.roots:
            yield from tree(root)

    def shape(self) -> Counter[tuple[str, ...]]:
        return Counter(path for path, _ in self.tree())

    def places(self) -> dict[Place, Task]:
        """Where there is something that may fail."""
        found: dict[Place, Task] = {}
        seen: Counter[tuple[str, ...]] = Counter()
        for path, task in self.tree():
            if is_ours(task) and may_fail(task) and task.name not in NOT_THROWN_INTO:
                found[Place(path, seen[path])] = task
                seen[path] += 1
        return found

    def pods(self) -> dict[str, frozenset[int]]:
        """The tasks of each pod's life, by the name of its first."""
        lives: dict[str, set[int]] = {}
        for path, task in self.tree():
            life = next((name for name in path if name.startswith("pod ")), None)
            if life is not None:
                lives.setdefault(life, set()).add(id(task))
        return {life: frozenset(ids) for life, ids in lives.items()}

    def containers(self) -> set[str]:
        return {container.id for container in self.stage.sim.running_containers()}

    async def register_plugin(self) -> None:
        manager = self.agent.devices.manager
        assert manager is not None
        await self.plugins.register(manager, self.plugin)

    async def serves(self, name: str) -> None:
        """All that an agent is for: a pod comes, runs, is reported, and goes."""
        self.stage.create_pod(name)
        await self.stage.until_ready(name, within=70)
        self.stage.delete_pod(name, grace=0)
        await self.stage.until_gone(name, within=70)
        for port in ("socket", *PORTS):
            caller = Caller(partial(self._dial, port))
            assert await caller.status("GET", "/healthz") in (200, 401), port
            await caller.hang_up()

    async def _dial(self, port: str) -> trio.abc.Stream:
        if port == "socket":
            return await connect_unix(self.agent.options.socket)
        stream = await trio.open_tcp_stream(*self.server.addresses[port])
        return trio.SSLStream(stream, client_context(), https_compatible=True) if port == "node" else stream


@asynccontextmanager
async def whole_node(folder: Path) -> AsyncIterator[WholeNode]:
    (folder / "root").mkdir()
    (folder / "clients.pem").write_bytes(authority().pem)
    settings: dict[str, Any] = {
        "folder": folder,
        "sees_exits": True,
        "usage": ScriptedUsage(),
        "logind": FakeLogind(),
        "configuration": configuration(
            authentication=authentication(folder),
            read_only_port=1,
            kube_api_qps=0,
            shutdown_grace_period=timedelta(seconds=30),
        ),
    }
    async with trio.open_nursery() as nursery:
        plugins = PluginSockets(nursery, folder / "root" / FOLDER)
        plugin = ToyPlugin(BRICK, ["a", "b"])
        async with cluster_stage(connect_plugins=plugins.connect, **settings) as stage:
            server = await stage.nursery.start(_serve, stage)
            roots = (task for task in stage.nursery.child_tasks if task.name.endswith(("Stage._live", "_serve")))
            node = WholeNode(stage, tuple(sorted(roots, key=lambda task: task.name)), server, plugins, plugin)
            await stage.until_node_ready()
            await node.register_plugin()
            _create_pods(stage)
            await stage.until_ready("plain", "rich", "static-simulated")
            await trio.sleep(SETTLED)
            yield node
        nursery.cancel_scope.cancel()


async def _serve(stage: Stage, *, task_status: trio.TaskStatus[OnFreePorts]) -> None:
    view = NodeView(stage.agent, started_at=stage.sim.clock.now())
    server = OnFreePorts(stage.agent, view)
    async with trio.open_nursery() as nursery:
        await nursery.start(view.run)
        await nursery.start(server.run)
        task_status.started(server)


def _create_pods(stage: Stage) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "told", "namespace": "default"}}
    stage.admin.create({**config, "data": {"key": "value"}})
    main = {"name": "main", "image": "test:1"}
    stage.create_pod("plain")
    stage.create_pod(
        "rich",
        containers=[
            {
                **main,
                "readinessProbe": PROBE,
                "livenessProbe": PROBE,
                "volumeMounts": [{"name": "told", "mountPath": "/told"}],
                "resources": {"limits": {BRICK: "1"}, "requests": {BRICK: "1"}},
            }
        ],
        volumes=[{"name": "told", "configMap": {"name": "told"}}],
    )
    stage.add_static_pod("static")


async def test_a_fault_in_any_task_is_that_tasks_alone(mock_clock: MockClock, tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with whole_node(tmp_path) as node:
            await node.serves("before")
            await trio.sleep(SETTLED)
            shape, held = node.shape(), sizes(node.agent)
            for number, place in enumerate(node.places()):
                task = node.places().get(place)
                assert task is not None, f"{place} is not there any more"
                pods, containers = node.pods(), node.containers()
                lines.clear()
                throw_into(task)
                await trio.sleep(2 * FAULTS.first + 1)
                assert any("thrown into" in str(line) for line in lines), f"nobody told of the fault in {place}"
                ill = {name for name in place.path if name.startswith("pod ")}
                for life, tasks in pods.items():
                    assert life in ill or node.pods()[life] == tasks, f"{life} was touched by the fault in {place}"
                assert node.containers() == containers
                if PLUGIN in place.path and place.path[-1] != PLUGIN:
                    await node.register_plugin()  # as a plugin does whose connection has ended
                await node.serves(f"after-{number}")
                await trio.sleep(SETTLED)
                assert node.shape() == shape, f"another tree after the fault in {place}"
            now = {path: size for path, size in sizes(node.agent).items() if not path.startswith(OF_EVENTS)}
            more = {path: size for path, size in now.items() if size > held.get(path, 0)}
            assert more == {}, "nothing listens twice"


@pytest.mark.parametrize("seed", range(3))
async def test_faults_while_pods_come_and_go_lose_no_pod(mock_clock: MockClock, tmp_path: Path, seed: int) -> None:
    """What a task has taken and not dealt with is not lost with it."""
    rng = random.Random(seed)
    async with whole_node(tmp_path) as node:
        shape = node.shape()
        wanted: set[str] = set()
        for number in range(40):
            node.stage.create_pod(name := f"pod-{number}")
            wanted.add(name)
            if len(wanted) > 5:
                gone = rng.choice(sorted(wanted))
                wanted.remove(gone)
                node.stage.delete_pod(gone, grace=rng.choice((0, 3)))
            await trio.sleep(rng.uniform(0, 0.3))
            busy = {place: task for place, task in node.places().items() if PLUGIN not in place.path}
            throw_into(busy[rng.choice(list(busy))])
            await trio.sleep(rng.uniform(0, 0.3))
        await node.stage.until_ready(*wanted, within=300)
        gone_pods = {f"pod-{number}" for number in range(40)} - wanted
        await node.stage.until_gone(*gone_pods, within=300)
        for name in sorted(wanted):
            assert node.stage.status(name)["containerStatuses"][0]["restartCount"] == 0
            node.stage.delete_pod(name, grace=0)
        await node.stage.until_gone(*wanted, within=300)
        await trio.sleep(SETTLED)
        assert node.shape() == shape
