"""A simulated node with everything that such a node can have: every port, plugins of devices and of claims, a CSI
driver, certificates, static policies and traces; and pods that use it."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio
from trio.lowlevel import Task

from tests.agent.serving import PORTS, Caller, OnFreePorts, authentication, client_context
from tests.agent.test_device_alignment import MACHINE
from tests.apiserver.controllers import Controllers
from tests.csi_driver import FolderDriver
from tests.device_plugin import ToyPlugin
from tests.dra_driver import ToyDriver
from tests.node.devices.plugin_sockets import PluginSockets
from tests.node.shutdown.fake_logind import FakeLogind
from tests.node.test_iptables_chains import Tables
from tests.node_api.auth.people import authority
from tests.pods.test_tree import PROBE
from tests.scenarios.stage import NODE, Stage, cluster_stage
from tests.scenarios.test_eviction import ScriptedUsage, configuration
from tests.supervised_places import Beginnings
from tests.throwing import is_ours, may_fail, tree
from tests.tracing.collector import Collector
from trikubelet.agent.image_arrivals import watch_listed_images
from trikubelet.agent.node_view import NodeView
from trikubelet.agent.tracing import Tracing
from trikubelet.clock import TrioClock
from trikubelet.config.kubelet_configuration import MemoryReservation
from trikubelet.node.devices.server import FOLDER
from trikubelet.node.iptables_chains import keep_chains_by
from trikubelet.rpc.grpc import Channel, Server, open_unix_channel
from trikubelet.rpc.grpc.unix import connect_unix
from trikubelet.sim.node import SIMULATED_MACHINE
from trikubelet.supervision import supervise
from trikubelet.volumes import layout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from trikubelet.agent.agent import Agent
    from trikubelet.rpc.grpc import Servable

BRICK: Final = "toy.example.com/brick"
OWN_PODS: Final = {"plain", "rich", "lone", "static-simulated"}
SETTLED: Final = 90.0
"""Seconds after which a node at which nothing happens does nothing but wait."""

NOT_THROWN_INTO: Final = {
    "trikubelet.node.devices.connections.PluginConnections.run": "it sleeps for ever, and runs no line that could fail",
    "trikubelet.node.dra.plugins.DRAPlugins.run": "as it",
    "trikubelet.node.dra.slices.SliceWiper.run": "as it",
    "trikubelet.allocation.managers.ResourceManagers.run": "as it",
}
"""Tasks that nothing is thrown into, by their names, and why."""


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
    beginnings: Beginnings

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
    root = folder / "root"
    root.mkdir()
    (folder / "clients.pem").write_bytes(authority().pem)
    beginnings = Beginnings()
    trio.lowlevel.add_instrument(beginnings)
    try:
        async with Collector(reads=False).served() as channel, trio.open_nursery() as nursery:
            plugins = PluginSockets(nursery, root / FOLDER)
            with _kernel_log(folder / "kmsg") as kernel_log:
                settings: dict[str, Any] = {
                    "folder": folder,
                    "sees_exits": True,
                    "usage": ScriptedUsage(),
                    "logind": FakeLogind(),
                    "configuration": _configuration(folder),
                    "machine": attrs.evolve(SIMULATED_MACHINE, topology=MACHINE, kernel_log=kernel_log),
                    "tracing": Tracing.make(channel, node=NODE, per_million=1_000_000, clock=TrioClock()),
                    "connect_plugins": partial(_connect, plugins),
                }
                async with cluster_stage(**settings) as stage:
                    yield await _whole(stage, plugins, nursery, folder, beginnings)
            nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.remove_instrument(beginnings)


async def _whole(
    stage: Stage, plugins: PluginSockets, nursery: trio.Nursery, folder: Path, beginnings: Beginnings
) -> WholeNode:
    """As soon as nothing happens at it any more."""
    server = await stage.nursery.start(_serve, stage)
    roots = (task for task in stage.nursery.child_tasks if task.name.endswith(("Stage._live", "_serve")))
    sorted_roots = tuple(sorted(roots, key=lambda task: task.name))
    node = WholeNode(stage, sorted_roots, server, plugins, ToyPlugin(BRICK, ["a", "b"]), beginnings)
    await stage.until_node_ready()
    controllers = Controllers(stage.server)
    await stage.until(lambda: bool(controllers.approve_all()), what="no serving certificate was asked for")
    await node.register_plugin()
    await _start_drivers(stage, nursery, folder)
    _create_pods(stage)
    await stage.until(lambda: bool(controllers.issue_pod_certificates()), what="no pod's certificate was asked for")
    await stage.until_ready(*OWN_PODS)
    await trio.sleep(SETTLED)
    return node


def _configuration(folder: Path) -> Any:
    return configuration(
        authentication=authentication(folder),
        read_only_port=1,
        kube_api_qps=0,
        shutdown_grace_period=timedelta(seconds=30),
        feature_gates={"PodCertificateRequest": True},
        server_tls_bootstrap=True,
        cpu_manager_policy="static",
        reserved_system_cpus="0",
        memory_manager_policy="Static",
        reserved_memory=(MemoryReservation(numa_node=0, limits={"memory": "1Gi"}),),
    )


def _connect(plugins: PluginSockets, path: Path) -> Channel:
    return plugins.connect(path) if path.parent == plugins.folder else open_unix_channel(path)


@contextmanager
def _kernel_log(path: Path) -> Iterator[Path]:
    """One in which nothing is ever written."""
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    try:
        yield path
    finally:
        os.close(writer)


async def _serve(stage: Stage, *, task_status: trio.TaskStatus[OnFreePorts]) -> None:
    """What `agent.service` has beside the agent."""
    agent = stage.agent
    assert agent.tracing is not None
    view = NodeView(agent, started_at=stage.sim.clock.now())
    server = await OnFreePorts.make(agent, view)
    async with agent.tracing.exporter.running(), trio.open_nursery() as nursery:
        await nursery.start(view.run)
        await nursery.start(server.run)
        nursery.start_soon(supervise, keep_chains_by, Tables().call)
        nursery.start_soon(supervise, watch_listed_images, agent)
        task_status.started(server)


async def _start_drivers(stage: Stage, nursery: trio.Nursery, folder: Path) -> None:
    """They register as plugins do, by sockets in a folder."""
    claims = ToyDriver("claims.example.com", str(folder / "claims.sock"), tells_health=True)
    disks = FolderDriver(folder / "disks", "disks.example.com", str(folder / "disks.sock"), NODE)
    spec = {"attachRequired": False, "nodeAllocatableUpdatePeriodSeconds": 60}
    stage.admin.create(
        {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": disks.name}, "spec": spec}
    )
    registry = layout.registration_directory(folder / "root")
    for driver in (claims, disks):
        services: dict[Path, list[Servable]] = {
            folder / driver.endpoint: driver.services,
            registry / f"{driver.name}-reg.sock": driver.registration,
        }
        for path, served in services.items():
            await nursery.start(Server(served).serve_unix, path)
    await stage.until(lambda: bool(claims.registrations and disks.registrations), what="the drivers did not register")


def _create_pods(stage: Stage) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "told", "namespace": "default"}}
    stage.admin.create({**config, "data": {"key": "value"}})
    main = {"name": "main", "image": "test:1"}
    certificate = {"signerName": "example.com/pods", "keyType": "ED25519", "credentialBundlePath": "bundle.pem"}
    stage.create_pod("plain")
    stage.create_pod(
        "rich",
        containers=[
            {
                **main,
                "readinessProbe": PROBE,
                "livenessProbe": PROBE,
                "volumeMounts": [
                    {"name": "told", "mountPath": "/told"},
                    {"name": "certificate", "mountPath": "/certificate"},
                ],
                "resources": {"limits": {BRICK: "1"}, "requests": {BRICK: "1"}},
            }
        ],
        volumes=[
            {"name": "told", "configMap": {"name": "told"}},
            {"name": "certificate", "projected": {"sources": [{"podCertificate": certificate}]}},
        ],
    )
    own = {"cpu": "1", "memory": "64Mi"}
    stage.create_pod("lone", containers=[{**main, "resources": {"limits": own, "requests": own}}])
    stage.add_static_pod("static")
